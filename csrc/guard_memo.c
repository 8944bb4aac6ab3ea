/* Memory of a check that passed: what need not be looked at again while nothing has changed.
 *
 * In: a guard program and the slots of a check that passed. Out: a list of steps, far fewer than the instructions, that
 * imply the same answer. A dictionary carries a version that CPython changes at every write and gives to no other
 * dictionary ever; so does a type. Where an object was read out of a dictionary, an instance's attributes or a class, one
 * comparison of versions implies that it is the same object still, and alive, and with it most of what was tested there:
 * types, identities, keys. What has no version (lists, cells, tensors' metadata, torch's modes) is read each time.
 *
 * A slot's standing:
 *   LOOSE   read at each check; nothing is known of it before
 *   ROOT    read at each check and compared with the address it had. Another object may have come to lie there, so its
 *           own tests are made again; what is read out of its dictionary is known by the dictionary's version
 *   FIXED   implied by the steps before: not read at all
 * Steps that may run Python come last (`late`), with references held to what they use.
 *
 * A step that fails proves nothing: the whole program is run then, and if it passes a new memory is made. What fails
 * again and again (a module that counts its calls, a local that is another object each time) becomes LOOSE. */
#include "guard_program.h"

#ifdef DJ_DICT_VERSIONS

enum { LOOSE, ROOT, FIXED };
enum { HAS_ATTRIBUTES = 1, HAS_ITEMS = 2 }; /* kept of a slot */
enum { FEWEST_INSTRUCTIONS = 24, PATIENCE = 3, MOST_CHECKS_BETWEEN = 4096, PROVEN = 512 };

typedef enum {
    STEP_LOCAL,
    STEP_CLASS,
    STEP_NODE,
    STEP_DICT,
    STEP_TYPE,
    STEP_HOOKS,
    STEP_TENSOR,
    STEP_READ,
    STEP_LEAF,
} StepKind;

typedef struct {
    StepKind kind;
    int slot;                       /* what is to blame if the step fails */
    bool expected;                  /* STEP_READ: the object must lie where it lay */
    PyObject *object;               /* borrowed, as is all below; alive if the steps before passed */
    const Instruction *instruction; /* STEP_READ, STEP_LEAF, STEP_TENSOR */
    union {
        struct {
            PyObject **place; /* STEP_NODE: where the object keeps its dictionary */
            PyObject *dict;
            uint64_t version; /* of the dictionary, or the type */
            PyTypeObject *type;
        };
        PyObject *hooks[DJ_N_HOOK_TABLES];
    };
} Step;

struct GuardMemo {
    Py_ssize_t n_steps, n_early, capacity;
    Step *steps;
    PyObject **slots; /* the program's; borrowed, but for those of STEP_READ while a check runs */
    Py_ssize_t n_held;
    int *held;        /* slots that late steps use */
    bool armed, busy;
    int wait;         /* checks that pass before the next attempt to remember */
    int pause;        /* the next value of `wait` */
    unsigned proven;  /* checks passed by memory since it was made */
    unsigned char *blame; /* for each slot, how often a step failed for it */
    /* while remembering */
    unsigned char *standing, *late, *kept, *classed;
};

/* ---- remembering ---- */

typedef struct {
    const GuardProgram *program;
    GuardMemo *memo;
    PyObject *const *slots;
    bool late;
    bool failed; /* no memory */
    int n_types;
    PyTypeObject *types[64]; /* kept so far; a class beyond them is looked at more than once */
} Maker;

static Step *add_step(Maker *maker, StepKind kind, int slot)
{
    static Step lost;
    GuardMemo *memo = maker->memo;
    if (memo->n_steps == memo->capacity) {
        Py_ssize_t capacity = memo->capacity != 0 ? 2 * memo->capacity : 64;
        Step *steps = PyMem_Realloc(memo->steps, (size_t)capacity * sizeof(Step));
        if (steps == NULL) {
            maker->failed = true;
            return &lost;
        }
        memo->steps = steps;
        memo->capacity = capacity;
    }
    Step *step = &memo->steps[memo->n_steps++];
    *step = (Step){.kind = kind, .slot = slot, .object = slot >= 0 ? maker->slots[slot] : NULL};
    return step;
}

static bool blamed(const Maker *maker, int slot)
{
    return maker->memo->blame[slot] >= PATIENCE;
}

/* An object whose class can't be assigned to. */
static bool class_is_fixed(PyObject *object)
{
    return (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0;
}

static bool type_version(PyTypeObject *type, uint64_t *version)
{
    *version = type->tp_version_tag;
    return type->tp_version_tag != 0 && (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) != 0;
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
    PyObject *object = maker->slots[slot];
    if (class_is_fixed(object) || maker->memo->classed[slot] || keep_attributes(maker, slot)) {
        return; /* who looks at a class will look at attributes, and that is one step */
    }
    maker->memo->classed[slot] = 1;
    add_step(maker, STEP_CLASS, slot)->type = Py_TYPE(object);
}

/* From here on the class is what it was, in all it has and inherits. */
static bool keep_type(Maker *maker, PyTypeObject *type, int slot)
{
    uint64_t version;
    if (!type_version(type, &version)) {
        return false;
    }
    for (int i = 0; i < maker->n_types; i++) {
        if (maker->types[i] == type) {
            return true;
        }
    }
    if (maker->n_types < (int)Py_ARRAY_LENGTH(maker->types)) {
        maker->types[maker->n_types++] = type;
    }
    Step *step = add_step(maker, STEP_TYPE, slot);
    step->type = type;
    step->version = version;
    return true;
}

/* From here on the instance has the attributes that it had. */
static bool keep_attributes(Maker *maker, int slot)
{
    PyObject *object = maker->slots[slot];
    if (maker->memo->kept[slot] & HAS_ATTRIBUTES) {
        return true;
    }
    PyObject **place = is_node(object) && !blamed(maker, slot) ? dj_instance_dict_place(object) : NULL;
    if (place == NULL) {
        return false;
    }
    Step *step = add_step(maker, STEP_NODE, slot);
    step->place = place;
    step->dict = *place;
    step->version = dj_dict_version(*place);
    step->type = Py_TYPE(object);
    maker->memo->kept[slot] |= HAS_ATTRIBUTES;
    maker->memo->classed[slot] = 1;
    return true;
}

/* From here on the dictionary has the items that it had, in their order. */
static bool keep_items(Maker *maker, int slot)
{
    PyObject *object = maker->slots[slot];
    if (!PyDict_Check(object) || blamed(maker, slot)) {
        return false;
    }
    if (!(maker->memo->kept[slot] & HAS_ITEMS)) {
        maker->memo->kept[slot] |= HAS_ITEMS;
        keep_class(maker, slot);
        Step *step = add_step(maker, STEP_DICT, slot);
        step->dict = object;
        step->version = dj_dict_version(object);
    }
    return true;
}

/* The attribute is read without a descriptor of its own: out of the instance's dictionary, or the class's as it is. */
static bool attribute_is_kept(Maker *maker, int base, PyObject *name)
{
    PyObject *object = maker->slots[base];
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
    return keep_attributes(maker, base) && keep_type(maker, Py_TYPE(object), base);
}

static bool access_is_kept(Maker *maker, const Instruction *instruction)
{
    int base = instruction->b;
    PyObject *object = base >= 0 ? maker->slots[base] : NULL;
    switch (instruction->op) {
    case OP_CONST:
        return true;
    case OP_TYPE_OF:
        keep_class(maker, base);
        return true;
    case OP_TYPE_ATTR:
        return PyType_Check(object) && !blamed(maker, base) && keep_type(maker, (PyTypeObject *)object, base);
    case OP_INSTANCE_ATTR:
        return attribute_is_kept(maker, base, instruction->payload);
    case OP_ITEM:
    case OP_SEQUENCE_ITEM:
        return (PyTuple_Check(object) && maker->memo->standing[base] == FIXED) || keep_items(maker, base);
    case OP_DICT_KEY:
        return !PyODict_Check(object) && keep_items(maker, base);
    case OP_CLOSURE_CELL:
        return true;
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
    PyObject *object = maker->slots[instruction->b];
    return PyFunction_Check(object) || PyMethod_Check(object) || Py_IS_TYPE(object, &PyProperty_Type)
        || PyCFunction_CheckExact(object);
}

static void remember_access(Maker *maker, const Instruction *instruction)
{
    GuardMemo *memo = maker->memo;
    int base = instruction->b, slot = instruction->a;
    bool known = base < 0 || (memo->standing[base] != LOOSE && !memo->late[base]);
    if (known && access_is_kept(maker, instruction)) {
        memo->standing[slot] = FIXED;
        return;
    }
    bool late = (base >= 0 && memo->late[base]) || !reads_quietly(maker, instruction);
    memo->late[slot] = late;
    memo->standing[slot] = LOOSE;
    if (late != maker->late) {
        return; /* in its own pass */
    }
    Step *step = add_step(maker, STEP_READ, slot);
    step->instruction = instruction;
    if (!late && is_node(maker->slots[slot]) && !blamed(maker, slot)) {
        step->expected = true;
        memo->standing[slot] = ROOT;
    }
}

static bool hooks_are_kept(Maker *maker, int slot)
{
    if (!keep_attributes(maker, slot)) {
        return false;
    }
    Step *step = add_step(maker, STEP_HOOKS, slot);
    for (int i = 0; i < DJ_N_HOOK_TABLES; i++) {
        step->hooks[i] = dj_instance_lookup(maker->slots[slot], dj_hook_table_name(i));
    }
    return true;
}

static bool same_object_is_kept(const GuardMemo *memo, const Instruction *instruction)
{
    return memo->standing[instruction->a] != LOOSE && memo->standing[instruction->b] != LOOSE;
}

static bool distinct_are_kept(const GuardMemo *memo, const Instruction *instruction)
{
    for (Py_ssize_t i = 0; i < instruction->number; i++) {
        if (memo->standing[instruction->slots[i]] == LOOSE) {
            return false;
        }
    }
    return true;
}

static bool leaf_is_kept(Maker *maker, const Instruction *instruction)
{
    GuardMemo *memo = maker->memo;
    int slot = instruction->a;
    if (instruction->op == OP_SAME_OBJECT) {
        return same_object_is_kept(memo, instruction);
    }
    if (instruction->op == OP_NOT_ALIASED) {
        return distinct_are_kept(memo, instruction);
    }
    if (slot < 0 || memo->standing[slot] == LOOSE || memo->late[slot]) {
        return false;
    }
    bool fixed = memo->standing[slot] == FIXED;
    PyObject *object = maker->slots[slot];
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
    case OP_EQUALS:
        return fixed && dj_is_plain_constant(instruction->payload);
    case OP_LEN:
        return (fixed && PyTuple_Check(object)) || keep_items(maker, slot);
    case OP_DICT_KEYS:
        return !PyODict_Check(object) && keep_items(maker, slot);
    case OP_DICT_CONTAINS:
    case OP_DICT_MISSING:
        return keep_items(maker, slot);
    case OP_NO_INSTANCE_ATTR:
        return keep_attributes(maker, slot);
    case OP_NO_TYPE_ATTR:
        return PyType_Check(object) && !blamed(maker, slot) && keep_type(maker, (PyTypeObject *)object, slot);
    case OP_NO_HOOKS:
        return hooks_are_kept(maker, slot);
    default:
        return false;
    }
}

static bool leaf_is_late(const GuardMemo *memo, const Instruction *instruction)
{
    if (dj_guard_runs_python(instruction)) {
        return true;
    }
    if (instruction->a >= 0 && memo->late[instruction->a]) {
        return true;
    }
    if (instruction->op == OP_SAME_OBJECT && memo->late[instruction->b]) {
        return true;
    }
    for (Py_ssize_t i = 0; instruction->slots != NULL && i < instruction->number; i++) {
        if (memo->late[instruction->slots[i]]) {
            return true;
        }
    }
    return false;
}

static void remember_leaf(Maker *maker, const Instruction *instruction)
{
    bool late = leaf_is_late(maker->memo, instruction);
    if (late != maker->late || (!late && leaf_is_kept(maker, instruction))) {
        return;
    }
    StepKind kind = instruction->op == OP_TENSOR && !late ? STEP_TENSOR : STEP_LEAF;
    add_step(maker, kind, instruction->a)->instruction = instruction;
}

static void remember_locals(Maker *maker)
{
    GuardMemo *memo = maker->memo;
    for (int slot = 0; slot < maker->program->n_locals; slot++) {
        PyObject *object = maker->slots[slot];
        memo->standing[slot] = LOOSE;
        if (object != NULL && is_node(object) && !blamed(maker, slot)) {
            add_step(maker, STEP_LOCAL, slot);
            memo->standing[slot] = ROOT;
        }
    }
}

static void pass_over(Maker *maker)
{
    const GuardProgram *program = maker->program;
    for (Py_ssize_t i = 0; i < program->n_instructions; i++) {
        const Instruction *instruction = &program->instructions[i];
        if (instruction->op < OP_LAST_ACCESS) {
            if (!maker->late || maker->memo->late[instruction->a]) {
                remember_access(maker, instruction);
            }
        }
        else {
            remember_leaf(maker, instruction);
        }
    }
}

static void hold(GuardMemo *memo, int slot)
{
    if (slot >= 0 && !memo->late[slot]) {
        memo->held[memo->n_held++] = slot;
    }
}

/* What late steps use must outlive the Python code that they run. */
static bool hold_for_late_steps(GuardMemo *memo)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = memo->n_early; i < memo->n_steps; i++) {
        count += 3 + memo->steps[i].instruction->number * (memo->steps[i].instruction->slots != NULL);
    }
    PyMem_Free(memo->held);
    memo->n_held = 0;
    memo->held = PyMem_New(int, count + 1);
    if (memo->held == NULL) {
        return false;
    }
    for (Py_ssize_t i = memo->n_early; i < memo->n_steps; i++) {
        const Instruction *instruction = memo->steps[i].instruction;
        bool access = instruction->op < OP_LAST_ACCESS;
        hold(memo, access ? -1 : instruction->a);
        hold(memo, access || instruction->op == OP_SAME_OBJECT ? instruction->b : -1);
        for (Py_ssize_t j = 0; instruction->slots != NULL && j < instruction->number; j++) {
            hold(memo, instruction->slots[j]);
        }
    }
    return true;
}

static bool allocate(GuardMemo *memo, Py_ssize_t n_slots)
{
    if (memo->slots != NULL) {
        return true;
    }
    size_t n = (size_t)n_slots + 1;
    memo->slots = PyMem_Calloc(n, sizeof(PyObject *));
    memo->blame = PyMem_Calloc(n, 5);
    if (memo->slots == NULL || memo->blame == NULL) {
        PyMem_Free(memo->slots);
        PyMem_Free(memo->blame);
        memo->slots = NULL;
        memo->blame = NULL;
        return false;
    }
    memo->standing = memo->blame + n;
    memo->late = memo->standing + n;
    memo->kept = memo->late + n;
    memo->classed = memo->kept + n;
    return true;
}

void dj_memo_passed(GuardProgram *program, PyObject *const *slots)
{
    if (program->n_instructions < FEWEST_INSTRUCTIONS) {
        return;
    }
    GuardMemo *memo = program->memo;
    if (memo == NULL) {
        program->memo = memo = PyMem_Calloc(1, sizeof(GuardMemo));
        if (memo != NULL) {
            memo->wait = 1;
            memo->pause = 1;
        }
        return;
    }
    if (memo->busy || memo->wait-- > 0) {
        return;
    }
    memo->wait = memo->pause;
    memo->pause = memo->pause < MOST_CHECKS_BETWEEN ? 2 * memo->pause : memo->pause;
    if (!allocate(memo, program->n_slots)) {
        return;
    }
    memset(memo->standing, 0, 4 * ((size_t)program->n_slots + 1));
    memo->n_steps = 0;
    memo->proven = 0;
    Maker maker = {.program = program, .memo = memo, .slots = slots};
    remember_locals(&maker);
    pass_over(&maker);
    memo->n_early = memo->n_steps;
    maker.late = true;
    pass_over(&maker);
    memcpy(memo->slots, slots, (size_t)program->n_slots * sizeof(PyObject *));
    memo->armed = !maker.failed && hold_for_late_steps(memo) && memo->n_steps < program->n_instructions;
}

/* ---- checking ---- */

static bool node_is_unchanged(const Step *step)
{
    return Py_TYPE(step->object) == step->type && *step->place == step->dict
        && dj_dict_version(step->dict) == step->version;
}

static bool type_is_unchanged(const Step *step)
{
    uint64_t version;
    return type_version(step->type, &version) && version == step->version;
}

static bool hooks_are_empty(const Step *step)
{
    Py_ssize_t count = 0;
    for (int i = 0; i < DJ_N_HOOK_TABLES; i++) {
        count |= PyDict_GET_SIZE(step->hooks[i]);
    }
    return count == 0;
}

static bool read_again(const GuardProgram *program, GuardMemo *memo, const Step *step)
{
    const Instruction *instruction = step->instruction;
    PyObject *base = instruction->b >= 0 ? memo->slots[instruction->b] : NULL;
    PyObject *value = dj_guard_access(program, instruction, base);
    if (value == NULL) {
        return false;
    }
    if (step->expected && value != step->object) {
        Py_DECREF(value);
        return false;
    }
    memo->slots[instruction->a] = value;
    return true;
}

static inline bool step_holds(const GuardProgram *program, GuardMemo *memo, const Step *step, PyObject *const *locals)
{
    switch (step->kind) {
    case STEP_LOCAL:
        return locals[step->slot] == step->object;
    case STEP_CLASS:
        return Py_TYPE(step->object) == step->type;
    case STEP_NODE:
        return node_is_unchanged(step);
    case STEP_DICT:
        return dj_dict_version(step->dict) == step->version;
    case STEP_TYPE:
        return type_is_unchanged(step);
    case STEP_HOOKS:
        return hooks_are_empty(step);
    case STEP_TENSOR:
        return dj_tensor_check(step->instruction->payload, memo->slots[step->slot]);
    case STEP_READ:
        return read_again(program, memo, step);
    case STEP_LEAF:
        return dj_guard_leaf(step->instruction, memo->slots);
    default:
        Py_UNREACHABLE();
    }
}

static void forget(GuardMemo *memo, const Step *failed)
{
    memo->armed = false;
    if (memo->blame[failed->slot] < PATIENCE) {
        memo->blame[failed->slot]++;
    }
    if (memo->proven >= PROVEN) {
        memo->pause = 1;
        memo->wait = 0;
    }
}

int dj_memo_check(const GuardProgram *program, PyObject *const *locals, PyObject **inputs)
{
    GuardMemo *memo = program->memo;
    if (memo == NULL || !memo->armed || memo->busy) {
        return DJ_MEMO_UNKNOWN;
    }
    memo->busy = true;
    memcpy(memo->slots, locals, (size_t)program->n_locals * sizeof(PyObject *));
    const Step *step = memo->steps, *early = memo->steps + memo->n_early, *end = memo->steps + memo->n_steps;
    while (step < early && step_holds(program, memo, step, locals)) {
        step++;
    }
    if (step == early && early < end) {
        for (Py_ssize_t i = 0; i < memo->n_held; i++) {
            Py_INCREF(memo->slots[memo->held[i]]);
        }
        while (step < end && step_holds(program, memo, step, locals)) {
            step++;
        }
        for (Py_ssize_t i = 0; i < memo->n_held; i++) {
            Py_DECREF(memo->slots[memo->held[i]]);
        }
    }
    int result = -1;
    if (step == end && inputs != NULL) {
        *inputs = dj_guard_inputs(program, memo->slots);
    }
    for (const Step *done = memo->steps; done < step; done++) {
        if (done->kind == STEP_READ) {
            Py_DECREF(memo->slots[done->instruction->a]);
        }
    }
    if (step == end && inputs != NULL && *inputs == NULL) {
        PyErr_Clear();
        result = 0;
    }
    else if (step == end) {
        memo->proven++;
    }
    else if (step->kind == STEP_LEAF || step->kind == STEP_TENSOR) {
        PyErr_Clear();
        result = step->instruction->guard; /* it fails whatever else has changed */
    }
    else {
        PyErr_Clear();
        forget(memo, step);
        result = DJ_MEMO_UNKNOWN;
    }
    memo->busy = false;
    return result;
}

void dj_memo_free(GuardProgram *program)
{
    GuardMemo *memo = program->memo;
    program->memo = NULL;
    if (memo != NULL) {
        PyMem_Free(memo->steps);
        PyMem_Free(memo->slots);
        PyMem_Free(memo->held);
        PyMem_Free(memo->blame);
        PyMem_Free(memo);
    }
}

#else /* this CPython gives dictionaries no versions */

void dj_memo_passed(GuardProgram *program, PyObject *const *slots)
{
    (void)program;
    (void)slots;
}

int dj_memo_check(const GuardProgram *program, PyObject *const *locals, PyObject **inputs)
{
    (void)program;
    (void)locals;
    (void)inputs;
    return DJ_MEMO_UNKNOWN;
}

void dj_memo_free(GuardProgram *program)
{
    (void)program;
}

#endif
