/* The guard program: what must hold for a variant to be run.
 *
 * In: a frame's locals. Out: -1, or the guard index of the first instruction that fails. The program is a flat list. An
 * access reads an object and puts it into the next slot; a leaf tests a slot. Slots start with the locals. An instruction
 * is given as (name, guard_index, a, b, payload); for an access a is the slot written and b the slot read, for a leaf a
 * is the slot tested. To add an instruction: a name in OPS, a case in guard_run.c, a kind or source in
 * dynajit/guards/. */
#include "guards/guard_program.h"
#include "python/heap_type.h"

#include <structmember.h>

PyTypeObject *dj_GuardProgramType;

int dj_guard_check(PyObject *program, PyObject *const *locals, PyObject **inputs)
{
    GuardProgram *self = (GuardProgram *)program;
    PyObject **wanted = self->n_inputs > 0 ? inputs : NULL;
    int remembered = self->memo != NULL ? dj_memo_check(self, locals, wanted) : DJ_MEMO_UNKNOWN;
    return remembered != DJ_MEMO_UNKNOWN ? remembered : dj_guard_run(self, locals, wanted, dj_memo_passed);
}

/* Whether a leaf can be tested by itself: of one slot, or of none, by code that runs no Python. */
static bool stands_alone(const Instruction *leaf)
{
    switch (leaf->op) {
    case OP_EQUALS:
        return dj_is_plain_constant(leaf->payload);
    case OP_GLOBAL_STATE:
    case OP_ASSUMED:
    case OP_TYPE:
    case OP_TYPE_WEAK:
    case OP_ID:
    case OP_ID_WEAK:
    case OP_CODE:
    case OP_TENSOR:
        return true;
    default:
        return false;
    }
}

static bool reads_a(Op op)
{
    return op > OP_LAST_ACCESS && op != OP_NOT_ALIASED && op != OP_GLOBAL_STATE && op != OP_ASSUMED
           && op != OP_RELATION && op != OP_PREDICATE_OF_MANY;
}

/* Finds the leaf of a guard, if its slot is a local or what a cell among the locals contains. */
static void suspect_guard(GuardProgram *self, int guard)
{
    if (self->failed == guard) {
        return; /* looked for before */
    }
    self->failed = guard;
    self->suspect = NULL;
    for (Py_ssize_t i = 0; i < self->n_instructions; i++) {
        const Instruction *leaf = &self->instructions[i];
        if (leaf->guard != guard || leaf->op < OP_LAST_ACCESS || !stands_alone(leaf)) {
            continue;
        }
        const Instruction *access = NULL;
        if (reads_a(leaf->op) && leaf->a >= self->n_locals) {
            for (access = self->instructions; access->op > OP_LAST_ACCESS || access->a != leaf->a; access++) {
            }
            if (access->op != OP_CELL_CONTENTS || access->b >= self->n_locals) {
                continue;
            }
        }
        self->suspect = leaf;
        self->suspect_access = access;
    }
}

static bool suspect_fails(const GuardProgram *self, PyObject *const *locals)
{
    if (self->suspect == NULL || self->suspect_access == NULL) {
        return self->suspect != NULL && !dj_guard_leaf(self->suspect, locals);
    }
    PyObject *cell = locals[self->suspect_access->b];
    PyObject *contents = PyCell_Check(cell) ? PyCell_GET(cell) : NULL;
    Instruction leaf = *self->suspect;
    leaf.a = 0;
    return contents != NULL && !dj_guard_leaf(&leaf, &contents);
}

int dj_guard_check_again(PyObject *program, PyObject *const *locals, PyObject **inputs)
{
    GuardProgram *self = (GuardProgram *)program;
    if (suspect_fails(self, locals)) {
        return self->suspect->guard;
    }
    int failed = dj_guard_check(program, locals, inputs);
    if (failed >= 0) {
        suspect_guard(self, failed);
    }
    else if (self->suspect != NULL) {
        self->suspect = NULL;
        self->failed = -1;
    }
    return failed;
}

PyObject *dj_guard_read_inputs(PyObject *program, PyObject *const *locals)
{
    PyObject *inputs = NULL;
    dj_guard_run((GuardProgram *)program, locals, &inputs, NULL);
    return inputs;
}

Py_ssize_t dj_guard_n_inputs(PyObject *program)
{
    return ((GuardProgram *)program)->n_inputs;
}

Py_ssize_t dj_guard_n_locals(PyObject *program)
{
    return ((GuardProgram *)program)->n_locals;
}

/* ---- building ---- */

static int payload_any(Instruction *instruction, PyObject *payload, Py_ssize_t n_slots)
{
    (void)n_slots;
    instruction->payload = Py_NewRef(payload);
    return 0;
}

static int expect(bool right, Instruction *instruction, PyObject *payload, const char *what)
{
    if (!right) {
        PyErr_Format(PyExc_TypeError, "guard instruction %s needs %s, not %.200s", dj_guard_op_name(instruction->op), what,
                     Py_TYPE(payload)->tp_name);
        return -1;
    }
    instruction->payload = Py_NewRef(payload);
    return 0;
}

static int payload_hashable(Instruction *instruction, PyObject *payload, Py_ssize_t n_slots)
{
    instruction->number = PyObject_Hash(payload);
    return instruction->number == -1 ? -1 : payload_any(instruction, payload, n_slots);
}

static int payload_text(Instruction *instruction, PyObject *payload, Py_ssize_t n_slots)
{
    (void)n_slots;
#ifdef DJ_DICT_VERSIONS
    if (instruction->op == OP_GLOBAL) {
        instruction->words = PyMem_Calloc(N_REMEMBERED, sizeof(int64_t));
        if (instruction->words == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
#endif
    if (expect(PyUnicode_CheckExact(payload), instruction, payload, "a str") < 0) {
        return -1;
    }
    PyUnicode_InternInPlace(&instruction->payload);
    instruction->number = PyObject_Hash(instruction->payload);
    return 0;
}

static int payload_integer(Instruction *instruction, PyObject *payload, Py_ssize_t n_slots)
{
    (void)n_slots;
    if (expect(PyLong_CheckExact(payload), instruction, payload, "an int") < 0) {
        return -1;
    }
    instruction->number = PyLong_AsSsize_t(payload);
    return instruction->number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* A payload of one class, which is all that is asked of it. */
#define PAYLOAD_OF(name, is_right, what)                                                              \
    static int payload_##name(Instruction *instruction, PyObject *payload, Py_ssize_t n_slots)        \
    {                                                                                                 \
        (void)n_slots;                                                                                \
        return expect(is_right(payload), instruction, payload, what);                                 \
    }

PAYLOAD_OF(tuple, PyTuple_CheckExact, "a tuple")
PAYLOAD_OF(dict, PyDict_CheckExact, "a dict")
PAYLOAD_OF(weak, PyWeakref_CheckRef, "a weak reference")
PAYLOAD_OF(tensor_spec, dj_is_tensor_spec, "a TensorSpec")
PAYLOAD_OF(global_state, dj_is_global_state, "a GlobalState")
PAYLOAD_OF(assumed, dj_is_assumed, "an Assumed")

/* The numbers of slots in a tuple, to be freed; `reader`, for errors: who reads them. */
static int *read_slots(PyObject *tuple, Py_ssize_t n_slots, const char *reader)
{
    int *slots = PyMem_New(int, PyTuple_GET_SIZE(tuple) + 1);
    if (slots == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; slots != NULL && i < PyTuple_GET_SIZE(tuple); i++) {
        long slot = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        slots[i] = (int)slot;
        if (slot < 0 || slot >= n_slots) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "%s reads slot %ld of %zd", reader, slot, n_slots);
            }
            PyMem_Free(slots);
            slots = NULL;
        }
    }
    return slots;
}

static int payload_slots(Instruction *instruction, PyObject *payload, Py_ssize_t n_slots)
{
    if (expect(PyTuple_CheckExact(payload), instruction, payload, "a tuple of slots") < 0) {
        return -1;
    }
    instruction->number = PyTuple_GET_SIZE(payload);
    instruction->slots = read_slots(payload, n_slots, dj_guard_op_name(instruction->op));
    return instruction->slots != NULL ? 0 : -1;
}

/* (callable or words, slots) */
static int expect_with_slots(Instruction *instruction, PyObject *payload, Py_ssize_t n_slots)
{
    bool pair = PyTuple_CheckExact(payload) && PyTuple_GET_SIZE(payload) == 2;
    if (!pair) {
        return expect(false, instruction, payload, "a pair");
    }
    if (payload_slots(instruction, PyTuple_GET_ITEM(payload, 1), n_slots) < 0) {
        return -1;
    }
    Py_SETREF(instruction->payload, Py_NewRef(payload));
    return 0;
}

static int payload_predicate_of_many(Instruction *instruction, PyObject *payload, Py_ssize_t n_slots)
{
    return expect_with_slots(instruction, payload, n_slots);
}

static int payload_relation(Instruction *instruction, PyObject *payload, Py_ssize_t n_slots)
{
    if (expect_with_slots(instruction, payload, n_slots) < 0) {
        return -1;
    }
    PyObject *words = PyTuple_GET_ITEM(payload, 0);
    if (!PyTuple_CheckExact(words)) {
        return expect(false, instruction, words, "a tuple of words");
    }
    instruction->n_words = PyTuple_GET_SIZE(words);
    instruction->words = PyMem_New(int64_t, instruction->n_words + 1);
    if (instruction->words == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < instruction->n_words; i++) {
        instruction->words[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(words, i));
        if (instruction->words[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    if (!dj_relation_fits(instruction->words, instruction->n_words, instruction->number)) {
        PyErr_SetString(PyExc_ValueError, "guard instruction RELATION: no program that leaves one number");
        return -1;
    }
    return 0;
}

static int (*const payload_parsers[])(Instruction *, PyObject *, Py_ssize_t) = {
#define X(name, payload) payload_##payload,
    OPS(X)
#undef X
};

static bool reads_b(Op op)
{
    return op == OP_SAME_OBJECT
        || (op < OP_LAST_ACCESS && op != OP_CONST && op != OP_CONST_WEAK && op != OP_GLOBAL && op != OP_TOGETHER);
}

static int check_slots(const Instruction *instruction, Py_ssize_t n_slots)
{
    Op op = instruction->op;
    int a = instruction->a, b = instruction->b;
    bool fine = op < OP_LAST_ACCESS ? a == n_slots : !reads_a(op) || (a >= 0 && a < n_slots);
    fine = fine && (!reads_b(op) || (b >= 0 && b < n_slots)) && instruction->guard >= 0;
    if (!fine) {
        PyErr_Format(PyExc_ValueError, "guard instruction %s(guard %d, slots %d, %d) does not fit %zd slots so far",
                     dj_guard_op_name(op), instruction->guard, a, b, n_slots);
        return -1;
    }
    return 0;
}

static int parse_instruction(GuardProgram *self, PyObject *tuple)
{
    const char *name;
    int guard, a, b;
    PyObject *payload;
    if (!PyTuple_Check(tuple) || !PyArg_ParseTuple(tuple, "siiiO", &name, &guard, &a, &b, &payload)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "a guard instruction is a tuple (name, guard, a, b, payload)");
        }
        return -1;
    }
    int op = 0;
    while (op < N_OPS && strcmp(dj_guard_op_name((Op)op), name) != 0) {
        op++;
    }
    if (op == N_OPS || op == OP_LAST_ACCESS) {
        PyErr_Format(PyExc_ValueError, "no guard instruction is called %s", name);
        return -1;
    }
    Instruction *instruction = &self->instructions[self->n_instructions++];
    *instruction = (Instruction){.op = (Op)op, .guard = guard, .a = a, .b = b};
    if (check_slots(instruction, self->n_slots) < 0
        || payload_parsers[op](instruction, payload, self->n_slots) < 0) {
        return -1;
    }
    self->n_slots += op < OP_LAST_ACCESS;
    return 0;
}

static int set_globals(GuardProgram *self, PyObject *globals)
{
    if (globals == Py_None) {
        return 0;
    }
    if (!PyDict_Check(globals)) {
        PyErr_Format(PyExc_TypeError, "globals must be a dict, not %.200s", Py_TYPE(globals)->tp_name);
        return -1;
    }
    self->globals = Py_NewRef(globals);
    PyObject *builtins = PyDict_GetItemString(globals, "__builtins__");
    if (builtins == NULL) {
        builtins = PyEval_GetBuiltins();
    }
    else if (PyModule_Check(builtins)) {
        builtins = PyModule_GetDict(builtins);
    }
    if (builtins != NULL && PyDict_Check(builtins)) {
        self->builtins = Py_NewRef(builtins);
    }
    return 0;
}

static int set_inputs(GuardProgram *self, PyObject *slots)
{
    self->inputs = read_slots(slots, self->n_slots, "inputs");
    self->n_inputs = self->inputs != NULL ? PyTuple_GET_SIZE(slots) : 0;
    return self->inputs != NULL ? 0 : -1;
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"instructions", "n_locals", "globals", "inputs", NULL};
    PyObject *list, *globals = Py_None, *inputs = NULL;
    Py_ssize_t n_locals;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!n|OO!:GuardProgram", names, &PyList_Type, &list, &n_locals,
                                     &globals, &PyTuple_Type, &inputs)) {
        return NULL;
    }
    GuardProgram *self = (GuardProgram *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->n_locals = self->n_slots = n_locals;
    self->failed = -1;
    self->instructions = PyMem_Calloc((size_t)PyList_GET_SIZE(list) + 1, sizeof(Instruction));
    if (self->instructions == NULL) {
        PyErr_NoMemory();
        goto error;
    }
    if (set_globals(self, globals) < 0) {
        goto error;
    }
    Py_ssize_t n = PyList_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < n && i < PyList_GET_SIZE(list); i++) {
        if (parse_instruction(self, PyList_GET_ITEM(list, i)) < 0) {
            goto error;
        }
    }
    if (inputs != NULL && set_inputs(self, inputs) < 0) {
        goto error;
    }
    return (PyObject *)self;
error:
    Py_DECREF(self);
    return NULL;
}

/* ---- the object ---- */

static int program_traverse(PyObject *object, visitproc visit, void *arg)
{
    GuardProgram *self = (GuardProgram *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->globals);
    Py_VISIT(self->builtins);
    for (Py_ssize_t i = 0; i < self->n_instructions; i++) {
        Py_VISIT(self->instructions[i].payload);
    }
    return 0;
}

static int program_clear(PyObject *object)
{
    GuardProgram *self = (GuardProgram *)object;
    dj_memo_free(self);
    Instruction *instructions = self->instructions;
    Py_ssize_t n = self->n_instructions;
    self->instructions = NULL;
    self->n_instructions = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_XDECREF(instructions[i].payload);
        PyMem_Free(instructions[i].slots);
        PyMem_Free(instructions[i].words);
    }
    PyMem_Free(instructions);
    PyMem_Free(self->inputs);
    self->inputs = NULL;
    self->suspect = NULL;
    self->n_inputs = 0;
    Py_CLEAR(self->globals);
    Py_CLEAR(self->builtins);
    return 0;
}

static PyObject *program_check(PyObject *object, PyObject *locals)
{
    GuardProgram *self = (GuardProgram *)object;
    if (!PyTuple_Check(locals) || PyTuple_GET_SIZE(locals) != self->n_locals) {
        return PyErr_Format(PyExc_ValueError, "check needs a tuple of %zd locals", self->n_locals);
    }
    return PyLong_FromLong(dj_guard_check(object, &PyTuple_GET_ITEM(locals, 0), NULL));
}

static Py_ssize_t program_length(PyObject *object)
{
    return ((GuardProgram *)object)->n_instructions;
}

static PyObject *program_memory(PyObject *object, PyObject *unused)
{
    (void)unused;
    return dj_memo_steps((GuardProgram *)object);
}

static PyMethodDef program_methods[] = {
    {"check", program_check, METH_O,
     "check(locals)\n--\n\n-1 if all guards hold, else the guard index of the first that fails."},
    {"memory", program_memory, METH_NOARGS,
     "memory()\n--\n\nWhat a check looks at while nothing has changed: (step, instruction or None, slot, count) each; None: all."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef program_members[] = {
    {"n_locals", T_PYSSIZET, offsetof(GuardProgram, n_locals), READONLY, "Locals that a check takes."},
    {"n_slots", T_PYSSIZET, offsetof(GuardProgram, n_slots), READONLY, "Locals and accesses."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc,
     "GuardProgram(instructions, n_locals, globals=None, inputs=())\n--\n\n"
     "instructions: list of (name, guard_index, a, b, payload); see csrc/guards/guard_program.c. globals: where GLOBAL looks. "
     "inputs: slots that a variant is handed as a tuple, after the locals."},
    DJ_COLLECTED_SLOTS(program, program_new, dj_dealloc),
    {Py_tp_methods, program_methods},
    {Py_tp_members, program_members},
    {Py_sq_length, program_length},
    {0, NULL},
};

static PyType_Spec program_spec = DJ_CLASS(GuardProgram, "GuardProgram", DJ_COLLECTED, program_slots);

int dj_guard_program_init(PyObject *module)
{
    if (dj_guard_leaves_init() < 0) {
        return -1;
    }
    dj_GuardProgramType = dj_add_type(module, &program_spec);
    if (dj_GuardProgramType == NULL) {
        return -1;
    }
    PyObject *ops = PyList_New(0);
    for (int op = 0; ops != NULL && op < N_OPS; op++) {
        PyObject *name = op == OP_LAST_ACCESS ? NULL : PyUnicode_FromString(dj_guard_op_name((Op)op));
        if (name != NULL && PyList_Append(ops, name) < 0) {
            Py_CLEAR(ops);
        }
        Py_XDECREF(name);
    }
    PyObject *tuple = ops != NULL ? PyList_AsTuple(ops) : NULL;
    Py_XDECREF(ops);
    int status = PyModule_AddObjectRef(module, "GUARD_OPS", tuple);
    Py_XDECREF(tuple);
    return status;
}
