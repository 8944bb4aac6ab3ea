/* Making the memory of a check that passed.
 *
 * In: a guard program and the slots of the check. Out: a GuardMemo's steps, words and tensors, far fewer than the
 * instructions, that imply the same answer.
 *
 * A slot's standing:
 *   LOOSE   read at each check; nothing is known of it before
 *   ROOT    read at each check and compared with the address it had. Another object may have come to lie there, so its
 *           own tests are made again; what is read out of its dictionary is known by the dictionary's version
 *   FIXED   implied by the words before: not read at all
 *
 * Words and other steps take turns: a phase of steps, one of words, and so on. A slot's phase is the one after which it is
 * known, so that words come after the reads that they need, and in as few runs as there can be. Steps that may run Python
 * come last (`late`), with references held to what they use.
 *
 * Where an object lies in a place that has no version (a cell, a function's defaults, a list), the word compares addresses,
 * and a witness settles that the object there is still the one it was: a weak reference that is not dead, the version of
 * a dictionary, or a reference of our own to a constant. */
#include "guards/guard_memo.h"

#ifdef DJ_DICT_VERSIONS

enum { LOOSE, ROOT, FIXED };
enum { HAS_ATTRIBUTES = 1, HAS_ITEMS = 2, HAS_CLASS = 4 }; /* kept of a slot */
enum { MAX_PHASES = 64, KEPT_TYPES = 128, WORDS_A_STEP = 8 }; /* a step takes as long as so many words */

#define ALL_BYTES UINT64_MAX

typedef struct {
    Word word;
    int phase;
} MadeWord;

typedef struct {
    Step step;
    int phase;
} MadeStep;

typedef struct {
    unsigned char standing, late, kept, phase;
} Slot;

/* An array that grows. */
typedef struct {
    void *items;
    Py_ssize_t count, capacity;
} Growing;

typedef struct {
    const GuardProgram *program;
    GuardMemo *memo;
    PyObject *const *objects; /* the slots' */
    Slot *slots;
    Growing words, steps, tensors;
    PyObject *witnesses;
    bool late;
    bool failed; /* no memory */
    int n_types;
    struct {
        PyTypeObject *type;
        int phase;
    } types[KEPT_TYPES]; /* kept so far; a class beyond them is looked at more than once */
} Maker;

static void *grow(Maker *maker, Growing *array, size_t size)
{
    static union {
        MadeWord word;
        MadeStep step;
        MadeStep tensor;
    } lost;
    if (array->count == array->capacity) {
        Py_ssize_t capacity = array->capacity != 0 ? 2 * array->capacity : 64;
        void *items = PyMem_Realloc(array->items, (size_t)capacity * size);
        if (items == NULL) {
            maker->failed = true;
            return &lost;
        }
        array->items = items;
        array->capacity = capacity;
    }
    return (char *)array->items + (size_t)array->count++ * size;
}

/* ---- phases ---- */

static int words_phase(const Maker *maker, int slot)
{
    return maker->slots[slot].phase | 1;
}

static int steps_phase(int phase)
{
    return phase + (phase & 1);
}

static void add_word(Maker *maker, int slot, int phase, const void *address, uint64_t expected, uint64_t mask, bool watched)
{
    MadeWord *made = grow(maker, &maker->words, sizeof *made);
    *made = (MadeWord){.word = {address, expected, mask, slot, watched}, .phase = phase};
}

static void add_pointer(Maker *maker, int slot, int phase, const void *address, const void *expected)
{
    _Static_assert(sizeof(void *) == sizeof(uint64_t), "words are pointers");
    add_word(maker, slot, phase, address, (uint64_t)(uintptr_t)expected, ALL_BYTES, false);
}

static Step *add_step(Maker *maker, StepKind kind, int slot, int phase)
{
    MadeStep *made = grow(maker, &maker->steps, sizeof *made);
    *made = (MadeStep){
        .step = {.kind = kind, .slot = slot, .object = slot >= 0 ? maker->objects[slot] : NULL},
        .phase = phase,
    };
    return &made->step;
}

/* ---- what is kept of an object ---- */

static bool blamed(const Maker *maker, int slot)
{
    return maker->memo->blame[slot] >= DJ_MEMO_PATIENCE;
}

/* An object whose class can't be assigned to. */
static bool class_is_fixed(PyObject *object)
{
    return (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0;
}

static void keep_version(Maker *maker, int slot, int phase, PyObject *dict)
{
    bool watched = dj_watch(dict); /* first: it is noted in the version */
    add_word(maker, slot, phase, dj_dict_version_place(dict), dj_dict_version(dict), ALL_BYTES, watched);
}

/* Is an instance that keeps its attributes in a dictionary, and no tensor: worth standing for what hangs from it. */
static bool is_node(PyObject *object)
{
    return (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 && !PyType_Check(object) && !dj_is_tensor(object)
        && dj_instance_dict_place(object) != NULL;
}

static bool keep_attributes(Maker *maker, int slot);

/* From here on the object's class is what it was. */
static void keep_class(Maker *maker, int slot)
{
    PyObject *object = maker->objects[slot];
    if (class_is_fixed(object) || maker->slots[slot].kept & HAS_CLASS || keep_attributes(maker, slot)) {
        return; /* who looks at a class will look at attributes */
    }
    maker->slots[slot].kept |= HAS_CLASS;
    add_pointer(maker, slot, words_phase(maker, slot), &object->ob_type, Py_TYPE(object));
}

/* From here on the class is what it was, in all it has and inherits. */
static bool keep_type(Maker *maker, PyTypeObject *type, int slot, int phase)
{
    uint64_t version = type->tp_version_tag;
    if (version == 0 || (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) == 0) {
        return false; /* CPython sets the tag to zero when the class is changed */
    }
    for (int i = 0; i < maker->n_types; i++) {
        if (maker->types[i].type == type && maker->types[i].phase <= phase) {
            return true;
        }
    }
    if (maker->n_types < KEPT_TYPES) {
        maker->types[maker->n_types].type = type;
        maker->types[maker->n_types++].phase = phase;
    }
    uint64_t mask = 0, expected = 0;
    memset(&mask, 0xff, sizeof type->tp_version_tag);
    memcpy(&expected, &type->tp_version_tag, sizeof type->tp_version_tag);
    add_word(maker, slot, phase, &type->tp_version_tag, expected, mask, false);
    return true;
}

/* From here on the instance has the attributes that it had. */
static bool keep_attributes(Maker *maker, int slot)
{
    PyObject *object = maker->objects[slot];
    if (maker->slots[slot].kept & HAS_ATTRIBUTES) {
        return true;
    }
    PyObject **place = is_node(object) && !blamed(maker, slot) ? dj_instance_dict_place(object) : NULL;
    if (place == NULL) {
        return false;
    }
    int phase = words_phase(maker, slot);
    add_pointer(maker, slot, phase, &object->ob_type, Py_TYPE(object));
    add_pointer(maker, slot, phase, place, *place);
    keep_version(maker, slot, phase, *place);
    maker->slots[slot].kept |= HAS_ATTRIBUTES | HAS_CLASS;
    return true;
}

/* From here on the dictionary has the items that it had, in their order. */
static bool keep_items(Maker *maker, int slot)
{
    PyObject *object = maker->objects[slot];
    if (!PyDict_Check(object) || blamed(maker, slot)) {
        return false;
    }
    if (!(maker->slots[slot].kept & HAS_ITEMS)) {
        maker->slots[slot].kept |= HAS_ITEMS;
        keep_class(maker, slot);
        keep_version(maker, slot, words_phase(maker, slot), object);
    }
    return true;
}

static bool keep_length(Maker *maker, int slot)
{
    PyObject *object = maker->objects[slot];
    if (!PyList_CheckExact(object) || blamed(maker, slot)) {
        return keep_items(maker, slot);
    }
    add_word(maker, slot, words_phase(maker, slot), &((PyVarObject *)object)->ob_size, (uint64_t)Py_SIZE(object), ALL_BYTES,
             false);
    return true;
}

/* Constants of torch and of CPython, and classes that are not made by a program. */
static bool lives_for_ever(PyObject *object)
{
    static const char *const of_torch[] = {"torch.dtype", "torch.layout", "torch.memory_format", "torch.qscheme"};
    if (object == NULL || object == Py_None || PyBool_Check(object) || object == Py_Ellipsis || object == Py_NotImplemented
        || (PyType_Check(object) && (((PyTypeObject *)object)->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0)) {
        return true;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(of_torch); i++) {
        if (class_is_fixed(object) && strcmp(Py_TYPE(object)->tp_name, of_torch[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool keep_identity(Maker *maker, int slot, int phase, PyObject *object);

/* Whether it is that tuple or another one of the same objects makes no difference to what guards read of it. */
static bool keep_tuple(Maker *maker, int slot, int phase, PyObject *tuple)
{
    add_pointer(maker, slot, phase, &tuple->ob_type, &PyTuple_Type);
    add_word(maker, slot, phase, &((PyVarObject *)tuple)->ob_size, (uint64_t)PyTuple_GET_SIZE(tuple), ALL_BYTES, false);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject **item = &PyTuple_GET_ITEM(tuple, i);
        add_pointer(maker, slot, phase, item, *item);
        if (!keep_identity(maker, slot, phase, *item)) {
            return false;
        }
    }
    return true;
}

/* From here on it is the same object that lies where it lay, though the place has no version: see above. The object is
 * `slot`'s, which becomes FIXED. */
static bool keep_identity(Maker *maker, int slot, int phase, PyObject *object)
{
    if (lives_for_ever(object)) {
        return true;
    }
    PyObject *witness = NULL;
    if (PyDict_CheckExact(object)) {
        keep_version(maker, slot, phase, object);
        return true;
    }
    if (PyTuple_CheckExact(object) && !dj_is_plain_constant(object)) {
        return keep_tuple(maker, slot, phase, object);
    }
    if (dj_is_plain_constant(object)) {
        witness = Py_NewRef(object);
    }
    else if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) && !dj_is_tensor(object)) {
        witness = PyWeakref_NewRef(object, NULL);
        if (witness != NULL) {
            add_pointer(maker, slot, phase, &((PyWeakReference *)witness)->wr_object, object);
        }
    }
    bool kept = witness != NULL && PyList_Append(maker->witnesses, witness) == 0;
    Py_XDECREF(witness);
    if (!kept) {
        PyErr_Clear();
    }
    return kept;
}

/* ---- accesses ---- */

/* The attribute is read without a descriptor of its own: out of the instance's dictionary, or the class's as it is. */
static bool attribute_is_kept(Maker *maker, int base, PyObject *name)
{
    PyObject *object = maker->objects[base];
    if (PyType_Check(object) || !is_node(object)) {
        return false;
    }
    PyObject *found = dj_type_lookup(Py_TYPE(object), name);
    if (found != NULL && Py_TYPE(found)->tp_descr_get != NULL) {
        /* a function is hidden by an attribute of the instance; a descriptor with a setter is not */
        if (Py_TYPE(found)->tp_descr_set != NULL || dj_instance_lookup(object, name) == NULL) {
            return false;
        }
    }
    return keep_attributes(maker, base) && keep_type(maker, Py_TYPE(object), base, words_phase(maker, base));
}

/* The place in which an access finds its object, where that is one that only assignments change; NULL: none. Words that the
 * place's address needs are added. */
static PyObject **place_of(Maker *maker, const Instruction *instruction)
{
    int base = instruction->b;
    PyObject *object = maker->objects[base];
    if (instruction->op == OP_CELL_CONTENTS) {
        return PyCell_Check(object) ? &((PyCellObject *)object)->ob_ref : NULL;
    }
    if (instruction->op == OP_ATTR && PyFunction_Check(object)) {
        PyFunctionObject *function = (PyFunctionObject *)object;
        if (PyUnicode_CompareWithASCIIString(instruction->payload, "__defaults__") == 0) {
            return &function->func_defaults;
        }
        if (PyUnicode_CompareWithASCIIString(instruction->payload, "__kwdefaults__") == 0) {
            return &function->func_kwdefaults;
        }
        return PyUnicode_CompareWithASCIIString(instruction->payload, "__code__") == 0 ? &function->func_code : NULL;
    }
    bool item = instruction->op == OP_SEQUENCE_ITEM
             || (instruction->op == OP_ITEM && PyLong_CheckExact(instruction->payload));
    if (item && PyList_CheckExact(object)) {
        Py_ssize_t index = instruction->op == OP_ITEM ? PyLong_AsSsize_t(instruction->payload) : instruction->number;
        index += index < 0 ? PyList_GET_SIZE(object) : 0;
        if (index < 0 || index >= PyList_GET_SIZE(object)) {
            PyErr_Clear();
            return NULL;
        }
        if (!(maker->slots[base].kept & HAS_ITEMS)) {
            maker->slots[base].kept |= HAS_ITEMS;
            int phase = words_phase(maker, base);
            PyListObject *list = (PyListObject *)object;
            add_word(maker, base, phase, &list->ob_base.ob_size, (uint64_t)Py_SIZE(object), ALL_BYTES, false);
            add_pointer(maker, base, phase, &list->ob_item, list->ob_item);
        }
        return &((PyListObject *)object)->ob_item[index];
    }
    return NULL;
}

/* What is read is fixed by comparing the place, and a witness. */
static bool place_is_kept(Maker *maker, const Instruction *instruction)
{
    int base = instruction->b, slot = instruction->a;
    if (maker->slots[base].standing != FIXED || blamed(maker, base) || blamed(maker, slot)) {
        return false;
    }
    PyObject **place = place_of(maker, instruction);
    if (place == NULL) {
        return false;
    }
    int phase = words_phase(maker, base);
    Py_ssize_t words_before = maker->words.count;
    add_pointer(maker, slot, phase, place, *place);
    if (!keep_identity(maker, slot, phase, *place)) {
        maker->words.count = words_before;
        return false;
    }
    return true;
}

/* Attributes that CPython never lets anyone assign to. */
static bool attribute_is_constant(PyObject *object, PyObject *name)
{
    static const char *const of_functions[] = {"__closure__", "__globals__", "__builtins__", NULL};
    static const char *const of_methods[] = {"__func__", "__self__", NULL};
    static const char *const of_properties[] = {"fget", "fset", "fdel", NULL};
    const char *const *names = PyFunction_Check(object)             ? of_functions
                             : PyMethod_Check(object)               ? of_methods
                             : Py_IS_TYPE(object, &PyProperty_Type) ? of_properties
                                                                    : of_functions + 3;
    for (; *names != NULL; names++) {
        if (PyUnicode_CompareWithASCIIString(name, *names) == 0) {
            return true;
        }
    }
    return false;
}

static bool access_is_kept(Maker *maker, const Instruction *instruction)
{
    int base = instruction->b;
    PyObject *object = base >= 0 ? maker->objects[base] : NULL;
    bool fixed = base >= 0 && maker->slots[base].standing == FIXED;
    switch (instruction->op) {
    case OP_CONST:
        return true;
    case OP_CONST_WEAK: /* compared before anything in the object is looked at: words of a phase are in this order */
        add_pointer(maker, instruction->a, 1, &((PyWeakReference *)instruction->payload)->wr_object,
                    maker->objects[instruction->a]);
        return true;
    case OP_TYPE_OF:
        keep_class(maker, base);
        return true;
    case OP_TYPE_ATTR:
        return PyType_Check(object) && !blamed(maker, base)
            && keep_type(maker, (PyTypeObject *)object, base, words_phase(maker, base));
    case OP_INSTANCE_ATTR:
        return attribute_is_kept(maker, base, instruction->payload);
    case OP_ATTR:
        return fixed && (attribute_is_constant(object, instruction->payload) || place_is_kept(maker, instruction));
    case OP_ITEM:
    case OP_SEQUENCE_ITEM:
        return (PyTuple_Check(object) && fixed) || keep_items(maker, base) || place_is_kept(maker, instruction);
    case OP_DICT_KEY:
        return !PyODict_Check(object) && keep_items(maker, base);
    case OP_CLOSURE_CELL:
        return true;
    case OP_CELL_CONTENTS:
        return place_is_kept(maker, instruction);
    default:
        return false;
    }
}

/* Reading the attribute runs no Python. */
static bool reads_quietly(const Maker *maker, const Instruction *instruction)
{
    if (instruction->op == OP_ITEM) {
        return PyUnicode_CheckExact(instruction->payload) || PyLong_CheckExact(instruction->payload);
    }
    if (instruction->op != OP_ATTR) {
        return true;
    }
    PyObject *object = maker->objects[instruction->b];
    return PyFunction_Check(object) || PyMethod_Check(object) || Py_IS_TYPE(object, &PyProperty_Type)
        || PyCFunction_CheckExact(object);
}

static void remember_access(Maker *maker, const Instruction *instruction)
{
    Slot *slots = maker->slots;
    int base = instruction->b, slot = instruction->a;
    bool known = base < 0 || (slots[base].standing != LOOSE && !slots[base].late);
    if (known && access_is_kept(maker, instruction)) {
        slots[slot].standing = FIXED;
        slots[slot].phase = (unsigned char)(base >= 0 ? words_phase(maker, base) : 1);
        return;
    }
    bool late = (base >= 0 && slots[base].late) || !reads_quietly(maker, instruction);
    int phase = base >= 0 ? steps_phase(slots[base].phase) : 0;
    for (Py_ssize_t i = 0; instruction->op == OP_TOGETHER && i < instruction->number; i++) {
        const Slot *part = &slots[instruction->slots[i]];
        int after = steps_phase(part->phase);
        late = late || part->late;
        phase = after > phase ? after : phase;
    }
    slots[slot] = (Slot){.standing = LOOSE, .late = late, .phase = (unsigned char)phase};
    if (phase >= MAX_PHASES) {
        maker->failed = true;
    }
    if (late != maker->late) {
        return; /* in its own pass */
    }
    Step *step = add_step(maker, STEP_READ, slot, phase);
    step->instruction = instruction;
    if (!late && is_node(maker->objects[slot]) && !blamed(maker, slot)) {
        step->expected = true;
        slots[slot].standing = ROOT;
    }
}

/* ---- leaves ---- */

static bool hooks_are_kept(Maker *maker, int slot)
{
    if (!keep_attributes(maker, slot)) {
        return false;
    }
    for (int i = 0; i < DJ_N_HOOK_TABLES; i++) {
        PyObject *hooks = dj_instance_lookup(maker->objects[slot], dj_hook_table_name(i));
        int phase = words_phase(maker, slot);
        if (dj_watch(hooks)) {
            keep_version(maker, slot, phase, hooks);
        }
        else { /* hooks that come and go between two calls don't matter */
            add_word(maker, slot, phase, &((PyDictObject *)hooks)->ma_used, 0, ALL_BYTES, false);
        }
    }
    return true;
}

/* From here on the function runs the code that it ran. */
static bool code_is_kept(Maker *maker, int slot, PyObject *reference)
{
    PyFunctionObject *function = (PyFunctionObject *)maker->objects[slot];
    int phase = words_phase(maker, slot);
    add_pointer(maker, slot, phase, &function->func_code, function->func_code);
    add_pointer(maker, slot, phase, &((PyWeakReference *)reference)->wr_object, function->func_code);
    return true;
}

static bool all_are_known(const Maker *maker, const Instruction *instruction)
{
    if (instruction->op == OP_SAME_OBJECT) {
        return maker->slots[instruction->a].standing != LOOSE && maker->slots[instruction->b].standing != LOOSE;
    }
    for (Py_ssize_t i = 0; i < instruction->number; i++) {
        if (maker->slots[instruction->slots[i]].standing == LOOSE) {
            return false;
        }
    }
    return true;
}

static bool leaf_is_kept(Maker *maker, const Instruction *instruction)
{
    int slot = instruction->a;
    if (instruction->op == OP_SAME_OBJECT || instruction->op == OP_NOT_ALIASED) {
        return all_are_known(maker, instruction);
    }
    if (slot < 0 || maker->slots[slot].standing == LOOSE || maker->slots[slot].late) {
        return false;
    }
    bool fixed = maker->slots[slot].standing == FIXED;
    PyObject *object = maker->objects[slot];
    switch (instruction->op) {
    case OP_TYPE:
    case OP_TYPE_WEAK:
        if (fixed) {
            keep_class(maker, slot);
        }
        return fixed;
    case OP_ID:
    case OP_ID_WEAK:
        return fixed;
    case OP_CODE:
        return fixed && code_is_kept(maker, slot, instruction->payload);
    case OP_EQUALS:
        return fixed && dj_is_plain_constant(instruction->payload);
    case OP_LEN:
        return fixed && (PyTuple_Check(object) || keep_length(maker, slot));
    case OP_DICT_KEYS:
        return !PyODict_Check(object) && keep_items(maker, slot);
    case OP_DICT_CONTAINS:
    case OP_DICT_MISSING:
        return keep_items(maker, slot);
    case OP_NO_INSTANCE_ATTR:
        return keep_attributes(maker, slot);
    case OP_NO_TYPE_ATTR:
        return PyType_Check(object) && !blamed(maker, slot)
            && keep_type(maker, (PyTypeObject *)object, slot, words_phase(maker, slot));
    case OP_NO_HOOKS:
        return hooks_are_kept(maker, slot);
    default:
        return false;
    }
}

/* Calls `visit` for each slot that a leaf reads. */
static void visit_leaf_slots(const Instruction *instruction, void (*visit)(void *, int), void *data)
{
    if (instruction->a >= 0) {
        visit(data, instruction->a);
    }
    if (instruction->op == OP_SAME_OBJECT) {
        visit(data, instruction->b);
    }
    for (Py_ssize_t i = 0; instruction->slots != NULL && i < instruction->number; i++) {
        visit(data, instruction->slots[i]);
    }
}

typedef struct {
    const Maker *maker;
    bool late;
    int phase;
} LeafPlace;

static void place_leaf(void *data, int slot)
{
    LeafPlace *place = data;
    const Slot *found = &place->maker->slots[slot];
    place->late = place->late || found->late;
    place->phase = found->phase > place->phase ? found->phase : place->phase;
}

static void remember_leaf(Maker *maker, const Instruction *instruction)
{
    LeafPlace place = {.maker = maker, .late = dj_guard_runs_python(instruction)};
    visit_leaf_slots(instruction, place_leaf, &place);
    if (place.late != maker->late || (!place.late && leaf_is_kept(maker, instruction))) {
        return;
    }
    int phase = steps_phase(place.phase);
    if (!place.late && instruction->op == OP_TENSOR && maker->slots[instruction->a].standing == FIXED && phase == 2) {
        MadeStep *made = grow(maker, &maker->tensors, sizeof *made);
        *made = (MadeStep){.step = {.slot = instruction->a, .instruction = instruction}};
        return;
    }
    add_step(maker, STEP_LEAF, instruction->a, phase)->instruction = instruction;
}

static void remember_locals(Maker *maker)
{
    for (int slot = 0; slot < maker->program->n_locals; slot++) {
        PyObject *object = maker->objects[slot];
        if (object != NULL && is_node(object) && !blamed(maker, slot)) {
            add_step(maker, STEP_LOCAL, slot, 0);
            maker->slots[slot].standing = ROOT;
        }
    }
}

static void pass_over(Maker *maker)
{
    const GuardProgram *program = maker->program;
    for (Py_ssize_t i = 0; i < program->n_instructions; i++) {
        const Instruction *instruction = &program->instructions[i];
        if (instruction->op < OP_LAST_ACCESS) {
            if (!maker->late || maker->slots[instruction->a].late) {
                remember_access(maker, instruction);
            }
        }
        else {
            remember_leaf(maker, instruction);
        }
    }
}

/* ---- putting together ---- */

typedef struct {
    const Maker *maker;
    int *held; /* NULL: count only */
    Py_ssize_t count;
} Holding;

static void hold(void *data, int slot)
{
    Holding *holding = data;
    if (!holding->maker->slots[slot].late) {
        if (holding->held != NULL) {
            holding->held[holding->count] = slot;
        }
        holding->count++;
    }
}

static void hold_all(Holding *holding, const Step *step, const Step *end)
{
    holding->count = 0;
    for (; step < end; step++) {
        if (step->instruction->op >= OP_LAST_ACCESS) {
            visit_leaf_slots(step->instruction, hold, holding);
        }
        else if (step->instruction->b >= 0) {
            hold(holding, step->instruction->b);
        }
        else if (step->instruction->op == OP_TOGETHER) {
            for (Py_ssize_t i = 0; i < step->instruction->number; i++) {
                hold(holding, step->instruction->slots[i]);
            }
        }
    }
}

/* What late steps use must outlive the Python code that they run. */
static bool hold_for_late_steps(Maker *maker)
{
    GuardMemo *memo = maker->memo;
    Holding holding = {.maker = maker};
    hold_all(&holding, memo->steps + memo->n_early, memo->steps + memo->n_steps);
    memo->held = holding.held = PyMem_New(int, holding.count + 1);
    if (memo->held == NULL) {
        return false;
    }
    hold_all(&holding, memo->steps + memo->n_early, memo->steps + memo->n_steps);
    memo->n_held = holding.count;
    return true;
}

static void put_words(Maker *maker, int phase)
{
    GuardMemo *memo = maker->memo;
    Step step = {.kind = STEP_WORDS, .slot = -1, .first = memo->n_words, .quick_first = memo->n_quick};
    const MadeWord *made = maker->words.items;
    for (Py_ssize_t i = 0; i < maker->words.count; i++) {
        if (made[i].phase == phase) {
            memo->words[memo->n_words++] = made[i].word;
            if (!made[i].word.watched) {
                memo->quick[memo->n_quick++] = made[i].word;
            }
        }
    }
    step.count = memo->n_words - step.first;
    step.quick_count = memo->n_quick - step.quick_first;
    if (step.count > 0) {
        memo->steps[memo->n_steps++] = step;
    }
}

static void put_tensors(Maker *maker)
{
    GuardMemo *memo = maker->memo;
    const MadeStep *made = maker->tensors.items;
    for (Py_ssize_t i = 0; i < maker->tensors.count; i++) {
        memo->tensors[i] = (TensorPair){made[i].step.instruction->payload, maker->objects[made[i].step.slot]};
        memo->tensor_leaves[i] = made[i].step.instruction;
    }
    memo->n_tensors = maker->tensors.count;
    if (memo->n_tensors > 0) {
        memo->steps[memo->n_steps++] = (Step){.kind = STEP_TENSORS, .slot = -1, .count = memo->n_tensors};
    }
}

/* From the piles to arrays, phase by phase. `first_late`: where the late steps start among the steps. */
static bool put_together(Maker *maker, Py_ssize_t first_late)
{
    GuardMemo *memo = maker->memo;
    const MadeStep *made = maker->steps.items;
    memo->steps = PyMem_New(Step, maker->steps.count + MAX_PHASES + 2);
    memo->words = PyMem_New(Word, maker->words.count + 1);
    memo->quick = PyMem_New(Word, maker->words.count + 1);
    memo->tensors = PyMem_New(TensorPair, maker->tensors.count + 1);
    memo->tensor_leaves = PyMem_New(const Instruction *, maker->tensors.count + 1);
    if (memo->steps == NULL || memo->words == NULL || memo->quick == NULL || memo->tensors == NULL
        || memo->tensor_leaves == NULL) {
        return false;
    }
    for (int phase = 0; phase <= MAX_PHASES; phase++) {
        if (phase & 1) {
            put_words(maker, phase);
            continue;
        }
        if (phase == 2) {
            put_tensors(maker);
        }
        for (Py_ssize_t i = 0; i < first_late; i++) {
            if (made[i].phase == phase) {
                memo->steps[memo->n_steps++] = made[i].step;
            }
        }
    }
    memo->n_early = memo->n_steps;
    for (Py_ssize_t i = first_late; i < maker->steps.count; i++) {
        memo->steps[memo->n_steps++] = made[i].step;
    }
    memo->epoch = dj_watch_epoch;
    bool gains = memo->n_steps + memo->n_tensors + memo->n_words / WORDS_A_STEP < maker->program->n_instructions;
    return gains && hold_for_late_steps(maker);
}

void dj_memo_drop(GuardMemo *memo)
{
    PyMem_Free(memo->steps);
    PyMem_Free(memo->words);
    PyMem_Free(memo->quick);
    PyMem_Free(memo->tensors);
    PyMem_Free(memo->tensor_leaves);
    PyMem_Free(memo->held);
    memo->steps = NULL;
    memo->words = memo->quick = NULL;
    memo->held = NULL;
    memo->tensors = NULL;
    memo->tensor_leaves = NULL;
    memo->n_steps = memo->n_early = memo->n_words = memo->n_quick = memo->n_tensors = memo->n_held = 0;
    Py_CLEAR(memo->witnesses);
}

bool dj_memo_make(const GuardProgram *program, GuardMemo *memo, PyObject *const *slots)
{
    dj_memo_drop(memo);
    Maker maker = {.program = program, .memo = memo, .objects = slots};
    const int collecting = PyGC_Disable(); /* nothing may change meanwhile, and a collection runs destructors */
    maker.slots = PyMem_Calloc((size_t)program->n_slots + 1, sizeof(Slot));
    maker.witnesses = memo->witnesses = PyList_New(0);
    bool made = maker.slots != NULL && maker.witnesses != NULL;
    if (made) {
        remember_locals(&maker);
        pass_over(&maker);
        Py_ssize_t first_late = maker.steps.count;
        maker.late = true;
        pass_over(&maker);
        made = !maker.failed && put_together(&maker, first_late);
    }
    if (collecting) {
        PyGC_Enable();
    }
    PyErr_Clear();
    PyMem_Free(maker.slots);
    PyMem_Free(maker.words.items);
    PyMem_Free(maker.steps.items);
    PyMem_Free(maker.tensors.items);
    return made;
}

#endif
