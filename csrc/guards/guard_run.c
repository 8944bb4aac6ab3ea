/* Running a guard program: what each access reads, what each leaf tests, and all of them in their order.
 *
 * In: a program and a frame's locals. Out: -1, or the guard index of the first instruction that fails. */
#include "guards/guard_program.h"

static const char *const op_names[] = {
#define X(name, payload) #name,
    OPS(X)
#undef X
};

const char *dj_guard_op_name(Op op)
{
    return op_names[op];
}

#ifdef DJ_DICT_VERSIONS

static bool remembers_global(const GuardProgram *self)
{
    return self->globals != NULL && self->builtins != NULL;
}

static PyObject *remembered_global(const GuardProgram *self, const int64_t *words)
{
    bool same = (uint64_t)words[GLOBALS_VERSION] == dj_dict_version(self->globals)
             && (uint64_t)words[BUILTINS_VERSION] == dj_dict_version(self->builtins);
    return same ? (PyObject *)(intptr_t)words[FOUND] : NULL;
}

static void remember_global(const GuardProgram *self, int64_t *words, PyObject *value)
{
    words[GLOBALS_VERSION] = (int64_t)dj_dict_version(self->globals);
    words[BUILTINS_VERSION] = (int64_t)dj_dict_version(self->builtins);
    words[FOUND] = (int64_t)(intptr_t)value;
}

#endif

static PyObject *search_global(const GuardProgram *self, PyObject *name, Py_hash_t hash)
{
    PyObject *value = NULL;
    if (self->globals != NULL) {
        value = _PyDict_GetItem_KnownHash(self->globals, name, hash);
    }
    if (value == NULL && self->builtins != NULL && !PyErr_Occurred()) {
        value = _PyDict_GetItem_KnownHash(self->builtins, name, hash);
    }
    return value;
}

static inline PyObject *lookup_global(const GuardProgram *self, const Instruction *instruction)
{
#ifdef DJ_DICT_VERSIONS
    if (remembers_global(self)) {
        PyObject *known = remembered_global(self, instruction->words);
        if (known == NULL) {
            known = search_global(self, instruction->payload, instruction->number);
            remember_global(self, instruction->words, known);
        }
        return Py_XNewRef(known);
    }
#endif
    return Py_XNewRef(search_global(self, instruction->payload, instruction->number));
}

static PyObject *closure_cell(PyObject *function, Py_ssize_t index)
{
    if (!PyFunction_Check(function)) {
        return NULL;
    }
    PyObject *closure = PyFunction_GET_CLOSURE(function);
    if (closure == NULL || index < 0 || index >= PyTuple_GET_SIZE(closure)) {
        return NULL;
    }
    return Py_NewRef(PyTuple_GET_ITEM(closure, index));
}

static PyObject *tuple_of_slots(PyObject *const *slots, const int *wanted, Py_ssize_t n)
{
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(slots[wanted[i]]));
    }
    return tuple;
}

/* What a weak reference refers to; None once that is gone. */
static PyObject *referent(PyObject *reference)
{
    return ((PyWeakReference *)reference)->wr_object;
}

static inline PyObject *access_object(const GuardProgram *self, const Instruction *instruction, PyObject *const *slots)
{
    PyObject *base = instruction->b >= 0 ? slots[instruction->b] : NULL;
    switch (instruction->op) {
    case OP_CONST:
        return Py_NewRef(instruction->payload);
    case OP_CONST_WEAK:
        return referent(instruction->payload) != Py_None ? Py_NewRef(referent(instruction->payload)) : NULL;
    case OP_GLOBAL:
        return lookup_global(self, instruction);
    case OP_ATTR:
        return PyObject_GetAttr(base, instruction->payload);
    case OP_INSTANCE_ATTR:
        return dj_generic_getattr(base, instruction->payload);
    case OP_TYPE_OF:
        return Py_NewRef((PyObject *)Py_TYPE(base));
    case OP_TYPE_ATTR:
        return PyType_Check(base) ? Py_XNewRef(dj_type_lookup((PyTypeObject *)base, instruction->payload)) : NULL;
    case OP_ITEM:
        return dj_raw_item(base, instruction->payload, instruction->number);
    case OP_SEQUENCE_ITEM:
        return dj_sequence_item(base, instruction->number);
    case OP_DICT_KEY:
        return dj_dict_key(base, instruction->number);
    case OP_CELL_CONTENTS:
        return PyCell_Check(base) ? Py_XNewRef(PyCell_GET(base)) : NULL;
    case OP_CALL:
        return PyObject_CallOneArg(instruction->payload, base);
    case OP_TOGETHER:
        return tuple_of_slots(slots, instruction->slots, instruction->number);
    case OP_CLOSURE_CELL:
        return closure_cell(base, instruction->number);
    case OP_TENSOR_SIZE:
        return dj_tensor_size(base, instruction->number);
    case OP_TENSOR_STRIDE:
        return dj_tensor_stride(base, instruction->number);
    default:
        Py_UNREACHABLE();
    }
}

PyObject *dj_guard_access(const GuardProgram *self, const Instruction *instruction, PyObject *const *slots)
{
    return access_object(self, instruction, slots);
}

static bool predicate_holds(PyObject *predicate, PyObject *value)
{
    PyObject *answer = PyObject_CallOneArg(predicate, value);
    bool holds = answer != NULL && PyObject_IsTrue(answer) == 1;
    Py_XDECREF(answer);
    return holds;
}

static bool predicate_of_many_holds(const Instruction *instruction, PyObject *const *slots)
{
    PyObject *arguments = tuple_of_slots(slots, instruction->slots, instruction->number);
    if (arguments == NULL) {
        return false;
    }
    PyObject *answer = PyObject_CallObject(PyTuple_GET_ITEM(instruction->payload, 0), arguments);
    bool holds = answer != NULL && PyObject_IsTrue(answer) == 1;
    Py_XDECREF(answer);
    Py_DECREF(arguments);
    return holds;
}

static bool dict_has(PyObject *value, const Instruction *instruction)
{
    return _PyDict_GetItem_KnownHash(value, instruction->payload, instruction->number) != NULL;
}

static inline bool leaf_holds(const Instruction *instruction, PyObject *const *slots)
{
    PyObject *value = instruction->a >= 0 ? slots[instruction->a] : NULL;
    PyObject *payload = instruction->payload;
    switch (instruction->op) {
    case OP_TYPE:
        return (PyObject *)Py_TYPE(value) == payload;
    case OP_TYPE_WEAK:
        return referent(payload) == (PyObject *)Py_TYPE(value);
    case OP_ID:
        return value == payload;
    case OP_ID_WEAK: /* a dead reference gives None, which is never held weakly */
        return referent(payload) == value && value != Py_None;
    case OP_CODE:
        return PyFunction_Check(value) && PyFunction_GET_CODE(value) == referent(payload);
    case OP_EQUALS:
        return dj_const_equal(value, payload);
    case OP_LEN:
        return dj_length_is(value, instruction->number);
    case OP_DICT_KEYS:
        return dj_dict_keys_are(value, payload);
    case OP_DICT_CONTAINS:
        return PyDict_Check(value) && dict_has(value, instruction);
    case OP_DICT_MISSING:
        return PyDict_Check(value) && !dict_has(value, instruction) && !PyErr_Occurred();
    case OP_SET_EQUALS:
        return dj_set_equals(value, payload);
    case OP_NO_INSTANCE_ATTR:
        return dj_instance_lookup(value, payload) == NULL;
    case OP_NO_TYPE_ATTR:
        return PyType_Check(value) && dj_type_lookup((PyTypeObject *)value, payload) == NULL;
    case OP_NO_HOOKS:
        return dj_module_has_no_hooks(value);
    case OP_TENSOR:
        return dj_tensor_check(payload, value);
    case OP_NOT_ALIASED:
        return dj_all_distinct(slots, instruction->slots, instruction->number);
    case OP_SAME_OBJECT:
        return value == slots[instruction->b];
    case OP_GLOBAL_STATE:
        return dj_global_state_holds(payload);
    case OP_CELL_EMPTY:
        return PyCell_Check(value) && PyCell_GET(value) == NULL;
    case OP_RELATION:
        return dj_relation_holds(instruction->words, instruction->n_words, instruction->slots, slots);
    case OP_PREDICATE:
        return predicate_holds(payload, value);
    case OP_PREDICATE_OF_MANY:
        return predicate_of_many_holds(instruction, slots);
    case OP_ASSUMED:
        return dj_assumed_holds(payload);
    default:
        Py_UNREACHABLE();
    }
}

bool dj_guard_leaf(const Instruction *instruction, PyObject *const *slots)
{
    return leaf_holds(instruction, slots);
}

bool dj_is_plain_constant(PyObject *constant)
{
    if (PyTuple_CheckExact(constant)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constant); i++) {
            if (!dj_is_plain_constant(PyTuple_GET_ITEM(constant, i))) {
                return false;
            }
        }
        return true;
    }
    return constant == Py_None || PyBool_Check(constant) || PyLong_CheckExact(constant) || PyFloat_CheckExact(constant)
        || PyComplex_CheckExact(constant) || PyUnicode_CheckExact(constant) || PyBytes_CheckExact(constant);
}

bool dj_guard_runs_python(const Instruction *instruction)
{
    return instruction->op == OP_PREDICATE || instruction->op == OP_PREDICATE_OF_MANY
        || (instruction->op == OP_EQUALS && !dj_is_plain_constant(instruction->payload));
}

enum { INLINE_SLOTS = 256 };

PyObject *dj_guard_inputs(const GuardProgram *self, PyObject *const *slots)
{
    return tuple_of_slots(slots, self->inputs, self->n_inputs);
}

int dj_guard_run(GuardProgram *self, PyObject *const *locals, PyObject **inputs, WhenPassed passed)
{
    PyObject *inline_slots[INLINE_SLOTS];
    PyObject **slots = inline_slots;
    if (self->n_slots > INLINE_SLOTS) {
        slots = PyMem_New(PyObject *, self->n_slots);
        if (slots == NULL) {
            return self->n_instructions > 0 ? self->instructions[0].guard : 0;
        }
    }
    for (Py_ssize_t i = 0; i < self->n_locals; i++) {
        slots[i] = locals[i];
    }
    Py_ssize_t filled = self->n_locals;
    int failed = -1;
    const Instruction *end = self->instructions + self->n_instructions;
    for (const Instruction *instruction = self->instructions; instruction < end; instruction++) {
        if (instruction->op < OP_LAST_ACCESS) {
            PyObject *value = access_object(self, instruction, slots);
            if (value != NULL) {
                slots[filled++] = value;
                continue;
            }
        }
        else if (passed == NULL || leaf_holds(instruction, slots)) {
            continue;
        }
        failed = instruction->guard;
        break;
    }
    if (failed < 0 && passed != NULL) {
        passed(self, slots);
    }
    if (failed < 0 && inputs != NULL) {
        *inputs = dj_guard_inputs(self, slots);
        failed = *inputs == NULL ? 0 : -1;
    }
    while (filled > self->n_locals) {
        Py_DECREF(slots[--filled]);
    }
    if (slots != inline_slots) {
        PyMem_Free(slots);
    }
    if (failed >= 0) {
        PyErr_Clear();
    }
    return failed;
}
