/* Variants of a code object: guards, replacement function, and the lookup among them.
 *
 * In: a code object and a frame's locals. Out: the variant whose guards hold. The state hangs in the code object's extra
 * slot and dies with the code object. */
#include "call/call.h"
#include "python/heap_type.h"

#include <structmember.h>

PyTypeObject *dj_VariantType;
static Py_ssize_t extra_index = -1;

Py_ssize_t dj_code_n_params(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0)
        + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* ---- Variant ---- */

static PyObject *variant_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"guards", "function", "needs_hook", "globals", "data", "key", "turn", NULL};
    PyObject *guards, *function, *globals, *data = Py_None, *key = Py_None;
    int needs_hook;
    unsigned char turn = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!pO!|OOb:Variant", names, dj_GuardProgramType, &guards,
                                     &PyFunction_Type, &function, &needs_hook, &PyDict_Type, &globals, &data, &key, &turn)) {
        return NULL;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    Py_ssize_t n_handed = dj_guard_n_locals(guards) + (dj_guard_n_inputs(guards) > 0);
    if (code->co_argcount != n_handed || dj_code_n_params(code) != code->co_argcount
        || code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR) || PyCode_GetNumFree(code) != 0) {
        return PyErr_Format(PyExc_ValueError,
                            "a variant's function must take exactly the %zd locals that its guards read, as positional "
                            "parameters, then their inputs if there are any, and have no free variables",
                            dj_guard_n_locals(guards));
    }
    if (dj_code_mark(code, DJ_OURS) < 0) {
        return NULL;
    }
    Variant *self = (Variant *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->guards = Py_NewRef(guards);
    self->function = Py_NewRef(function);
    self->globals = Py_NewRef(globals);
    self->data = Py_NewRef(data);
    self->key = Py_NewRef(key);
    self->needs_hook = (char)needs_hook;
    self->turn = turn;
    return (PyObject *)self;
}

#define VARIANT_FIELDS(apply) apply(guards) apply(function) apply(globals) apply(key) apply(data)
DJ_HOLDS(Variant, variant, VARIANT_FIELDS)

static PyMemberDef variant_members[] = {
    {"guards", T_OBJECT, offsetof(Variant, guards), READONLY, "The GuardProgram."},
    {"function", T_OBJECT, offsetof(Variant, function), READONLY, "The replacement function."},
    {"globals", T_OBJECT, offsetof(Variant, globals), READONLY, "The globals a frame must have."},
    {"key", T_OBJECT, offsetof(Variant, key), READONLY, "Only threads with this key see the variant."},
    {"data", T_OBJECT, offsetof(Variant, data), 0, "Whatever the capture wants to keep."},
    {"needs_hook", T_BOOL, offsetof(Variant, needs_hook), READONLY, "The callback stays on while it runs."},
    {"turn", T_UBYTE, offsetof(Variant, turn), READONLY, "It is tried after all of lower ones."},
    {"hits", T_ULONGLONG, offsetof(Variant, hits), READONLY, "Lookups that found this variant."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Variant, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot variant_slots[] = {
    {Py_tp_doc,
     "Variant(guards, function, needs_hook, globals, data=None, key=<the thread's key>, turn=0)\n--\n\n"
     "One compiled form of a code object: what must hold, and what to run then."},
    DJ_COLLECTED_SLOTS(variant, variant_new, dj_dealloc),
    {Py_tp_members, variant_members},
    {0, NULL},
};

static PyType_Spec variant_spec = DJ_CLASS(Variant, "Variant", DJ_COLLECTED, variant_slots);

/* ---- the state of a code object ---- */

static void drop_variants(CodeState *state)
{
    Variant **variants = state->variants;
    Py_ssize_t count = state->count;
    state->variants = NULL;
    state->count = state->capacity = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(variants[i]);
    }
    PyMem_Free(variants);
}

static void free_state(void *extra)
{
    CodeState *state = extra;
    if (state != NULL) {
        drop_variants(state);
        PyMem_Free(state);
    }
}

CodeState *dj_code_state(PyCodeObject *code)
{
    void *extra = NULL;
    if (dj_code_extra_get(code, extra_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return extra;
}

static CodeState *make_code_state(PyCodeObject *code)
{
    CodeState *state = dj_code_state(code);
    if (state != NULL) {
        return state;
    }
    state = PyMem_Calloc(1, sizeof(CodeState));
    if (state == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (dj_code_extra_set(code, extra_index, state) < 0) {
        PyMem_Free(state);
        return NULL;
    }
    return state;
}

int dj_code_mark(PyCodeObject *code, unsigned flags)
{
    CodeState *state = make_code_state(code);
    if (state == NULL) {
        return -1;
    }
    state->flags |= flags;
    return 0;
}

/* Where a variant that is at `i`, or is about to come in there, goes: before all others of its kind. */
static Py_ssize_t front(const CodeState *state, Py_ssize_t i, const Variant *variant)
{
    while (i > 0 && state->variants[i - 1]->turn >= variant->turn) {
        i--;
    }
    return i;
}

static int append_variant(CodeState *state, Variant *variant)
{
    if (state->count == state->capacity) {
        Py_ssize_t capacity = state->capacity ? 2 * state->capacity : 4;
        Variant **variants = PyMem_Realloc(state->variants, (size_t)capacity * sizeof(Variant *));
        if (variants == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        state->variants = variants;
        state->capacity = capacity;
    }
    /* The newest is the likeliest: it was made for the call at hand. */
    Py_ssize_t at = front(state, state->count, variant);
    memmove(state->variants + at + 1, state->variants + at, (size_t)(state->count - at) * sizeof(Variant *));
    state->variants[at] = (Variant *)Py_NewRef((PyObject *)variant);
    state->count++;
    return 0;
}

/* ---- lookup ---- */

static void move_to_front(CodeState *state, Py_ssize_t i, Variant *variant)
{
    /* A guard's user code may have changed the list meanwhile. */
    if (i < state->count && state->variants[i] == variant) {
        Py_ssize_t at = front(state, i, variant);
        memmove(state->variants + at + 1, state->variants + at, (size_t)(i - at) * sizeof(Variant *));
        state->variants[at] = variant;
    }
}

Variant *dj_lookup(CodeState *state, PyObject *key, PyObject *globals, PyObject *const *locals, MissList *misses,
                   PyObject **inputs)
{
    for (Py_ssize_t i = 0; i < state->count; i++) {
        Variant *variant = state->variants[i];
        if (variant->key != key || variant->globals != globals) {
            continue;
        }
        Py_INCREF(variant);
        int failed = misses != NULL ? dj_guard_check(variant->guards, locals, inputs)
                                    : dj_guard_check_again(variant->guards, locals, inputs);
        if (failed < 0) {
            variant->hits++;
            if (i > 0) {
                move_to_front(state, i, variant);
            }
            return variant;
        }
        if (misses != NULL && misses->count < DJ_MAX_MISSES) {
            misses->variant[misses->count] = variant;
            misses->guard[misses->count++] = failed;
        }
        else {
            Py_DECREF(variant);
        }
    }
    return NULL;
}

void dj_misses_clear(MissList *misses)
{
    while (misses->count > 0) {
        Py_DECREF(misses->variant[--misses->count]);
    }
}

PyObject *dj_misses_as_list(const MissList *misses)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < misses->count; i++) {
        PyObject *pair = Py_BuildValue("(Oi)", misses->variant[i], misses->guard[i]);
        if (pair == NULL || PyList_Append(list, pair) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
    }
    return list;
}

/* ---- Python ---- */

static bool is_code(PyObject *object)
{
    if (!PyCode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "a code object is needed, not %.200s", Py_TYPE(object)->tp_name);
        return false;
    }
    return true;
}

static PyObject *mark(PyObject *object, unsigned flags)
{
    if (!is_code(object) || dj_code_mark((PyCodeObject *)object, flags) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

#define MARKING(name, flags)                                \
    static PyObject *name(PyObject *module, PyObject *code) \
    {                                                       \
        (void)module;                                       \
        return mark(code, flags);                           \
    }

MARKING(mark_skip, DJ_SKIP)
MARKING(mark_ours, DJ_OURS)
MARKING(mark_run_only, DJ_RUN_ONLY)

/* A function of the module that is given a code object, and answers from its state, which is NULL where there is none. */
#define OF_STATE(name, answer)                                                             \
    static PyObject *name(PyObject *module, PyObject *object)                              \
    {                                                                                      \
        (void)module;                                                                      \
        return is_code(object) ? answer(dj_code_state((PyCodeObject *)object)) : NULL;     \
    }

static PyObject *flags_of(const CodeState *state)
{
    return PyLong_FromUnsignedLong(state != NULL ? state->flags : 0);
}

static PyObject *variants_of(const CodeState *state)
{
    Py_ssize_t count = state != NULL ? state->count : 0;
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyList_SET_ITEM(list, i, Py_NewRef((PyObject *)state->variants[i]));
    }
    return list;
}

static PyObject *reset(CodeState *state)
{
    if (state != NULL) {
        state->flags &= DJ_OURS;
        drop_variants(state);
    }
    Py_RETURN_NONE;
}

OF_STATE(code_flags, flags_of)
OF_STATE(variants, variants_of)
OF_STATE(reset_code, reset)

static PyObject *add_variant(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *code_object, *variant_object;
    if (!PyArg_ParseTuple(args, "O!O!:add_variant", &PyCode_Type, &code_object, dj_VariantType, &variant_object)) {
        return NULL;
    }
    PyCodeObject *code = (PyCodeObject *)code_object;
    Variant *variant = (Variant *)variant_object;
    Py_ssize_t n_locals = dj_code_n_params(code) + PyCode_GetNumFree(code);
    if (dj_guard_n_locals(variant->guards) != n_locals) {
        return PyErr_Format(PyExc_ValueError, "%U has %zd parameters and free variables; the variant's guards read %zd",
                            code->co_name, n_locals, dj_guard_n_locals(variant->guards));
    }
    CodeState *state = make_code_state(code);
    if (state == NULL || append_variant(state, variant) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"mark_skip", mark_skip, METH_O, "mark_skip(code)\n--\n\nFrames of this code always run as they are."},
    {"mark_ours", mark_ours, METH_O, "mark_ours(code)\n--\n\nThis code was generated: never capture it."},
    {"mark_run_only", mark_run_only, METH_O,
     "mark_run_only(code)\n--\n\nExisting variants are used; a miss runs the original and captures nothing."},
    {"code_flags", code_flags, METH_O, "code_flags(code)\n--\n\nThe OR of OURS, SKIP and RUN_ONLY."},
    {"variants", variants, METH_O, "variants(code)\n--\n\nThe code's variants in the order in which they are tried."},
    {"reset_code", reset_code, METH_O, "reset_code(code)\n--\n\nForget the code's variants, SKIP and RUN_ONLY."},
    {"add_variant", add_variant, METH_VARARGS, "add_variant(code, variant)\n--\n\nMake a variant known for this code."},
    {NULL, NULL, 0, NULL},
};

int dj_code_cache_init(PyObject *module)
{
    extra_index = dj_code_extra_index(free_state);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_RuntimeError, "dynajit: the interpreter has no free extra slot on code objects");
        return -1;
    }
    dj_VariantType = dj_add_type(module, &variant_spec);
    if (dj_VariantType == NULL || PyModule_AddIntConstant(module, "OURS", DJ_OURS) < 0
        || PyModule_AddIntConstant(module, "SKIP", DJ_SKIP) < 0
        || PyModule_AddIntConstant(module, "RUN_ONLY", DJ_RUN_ONLY) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
