/* CompiledFunction: what dynajit.compile returns for a function.
 *
 * In: a call. Out: the result of the variant whose guards hold, found without the frame hook; on a miss, of the original
 * function called with the callback on, so that the hook sees its frame and captures it. Binds to instances like a
 * function, can be weakly referenced, has a __dict__. */
#include "call/call.h"
#include "python/heap_type.h"
#include "python/recursion.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;
    PyObject *callback;
    PyObject *config;
    PyObject *key;
    PyObject *reduce;
    PyObject *recorded; /* what is called in the function's place while another tracer runs, or NULL */
    PyObject *inlined;  /* what torch.compile traces in the function's place, or NULL */
    char inlined_statically;
    PyObject *dict;
    PyObject *weakrefs;
    PyObject *known_code; /* whose state `known_state` is; NULL: not looked up yet */
    CodeState *known_state;
} CompiledFunction;

/* The arguments of one call, and the references among them that the callee's frame takes over (NULL: none). */
typedef struct {
    PyObject *const *args;
    size_t nargsf;
    PyObject *kwnames;
    PyObject **owned;
    Py_ssize_t n_owned;
} Call;

static PyTypeObject *CompiledType;
static bool force_eager; /* the stance: compiled functions run as they were written */

/* `passed`: no variant fits, and none will be made. */
static PyObject *call_original(CompiledFunction *self, PyObject *function, PyObject *callback, bool passed,
                               const Call *call)
{
    HookRegion region;
    dj_hook_enter(&region, callback, callback != NULL ? self->key : NULL);
    if (passed) {
        dj_hook_pass(function);
    }
    PyObject *result =
        dj_call_releasing(function, call->args, call->nargsf, call->kwnames, call->owned, call->n_owned);
    dj_hook_leave(&region);
    return result;
}

/* The variant for these locals, run; NULL without an error on a miss. */
static PyObject *run_hit(CompiledFunction *self, CodeState *state, PyFunctionObject *function, PyObject *const *locals,
                         Py_ssize_t n, const Call *call, bool *hit)
{
    PyObject *inputs = NULL;
    Variant *variant = dj_lookup(state, self->key, function->func_globals, locals, NULL, &inputs);
    if (variant == NULL) {
        return NULL;
    }
    *hit = true;
    PyObject *result = dj_run_variant(variant, self->callback, locals, n, call->owned, call->n_owned, inputs);
    Py_XDECREF(inputs);
    Py_DECREF(variant);
    return result;
}

static PyObject *try_variants(CompiledFunction *self, CodeState *state, PyFunctionObject *function,
                              const Call *call, bool *hit)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(call->nargsf);
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    const int variadic = CO_VARARGS | CO_VARKEYWORDS;
    if (call->kwnames == NULL && nargs == code->co_argcount && code->co_kwonlyargcount == 0 && !(code->co_flags & variadic)
        && function->func_closure == NULL) {
        return run_hit(self, state, function, call->args, nargs, call, hit);
    }
    BoundArguments bound;
    if (dj_bind(function, call->args, nargs, call->kwnames, &bound) != 1) {
        PyErr_Clear(); /* the original, called next, says what is wrong */
        return NULL;
    }
    PyObject *result = run_hit(self, state, function, bound.values, bound.n, call, hit);
    dj_bind_clear(&bound);
    return result;
}

/* What hangs in the code object, looked up once. */
static CodeState *state_of(CompiledFunction *self, PyObject *code)
{
    if (self->known_code == code) {
        return self->known_state;
    }
    CodeState *state = dj_code_state((PyCodeObject *)code);
    if (state != NULL) { /* it lives as long as the code */
        self->known_state = state;
        Py_XSETREF(self->known_code, Py_NewRef(code));
    }
    return state;
}

/* The call as it was written: to be seen by whoever traces or compiles. */
static PyObject *call_recorded(CompiledFunction *self, const Call *call)
{
    if (self->recorded == NULL) {
        return call_original(self, self->function, NULL, false, call);
    }
    HookRegion region;
    dj_hook_enter(&region, NULL, NULL);
    PyObject *recorded = Py_NewRef(self->recorded);
    PyObject *result = PyObject_Vectorcall(recorded, call->args, call->nargsf, call->kwnames);
    Py_DECREF(recorded);
    dj_hook_leave(&region);
    return result;
}

/* One call; what it returns may ask for another. */
static PyObject *one_call(CompiledFunction *self, const Call *call)
{
    if (force_eager || dj_thread_is_traced(PyThreadState_Get())) {
        return call_original(self, self->function, NULL, false, call);
    }
    if (dj_fx_is_tracing()) {
        return call_recorded(self, call); /* its modules' calls must be seen, even of plain tensors */
    }
    /* Guards may run Python code that drops the last outside reference to any of these. */
    Py_INCREF(self);
    PyObject *function = Py_NewRef(self->function);
    PyObject *code = Py_NewRef(PyFunction_GET_CODE(function));
    CodeState *state = state_of(self, code);
    PyObject *result = NULL;
    bool hit = false;
    if (state != NULL && state->count > 0 && !(state->flags & (DJ_SKIP | DJ_OURS))) {
        result = try_variants(self, state, (PyFunctionObject *)function, call, &hit);
    }
    if (!hit && dj_is_recorded()) { /* the dispatch keys of a tracer are no variant's */
        result = call_recorded(self, call);
    }
    else if (!hit) {
        bool passed = state != NULL && state->flags & DJ_RUN_ONLY;
        result = call_original(self, function, self->callback, passed, call);
    }
    Py_DECREF(code);
    Py_DECREF(function);
    Py_DECREF(self);
    return result;
}

static PyObject *compiled_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (dj_stack_is_full()) {
        return NULL;
    }
    Call call = {.args = args, .nargsf = nargsf, .kwnames = kwnames};
    return dj_finish_tails(one_call((CompiledFunction *)object, &call));
}

static PyObject *call_owning(PyObject *function, PyObject **owned_args, Py_ssize_t n)
{
    Call call = {.args = owned_args, .nargsf = (size_t)n, .owned = owned_args, .n_owned = n};
    return one_call((CompiledFunction *)function, &call);
}

static PyObject *tail(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    (void)module;
    if (n < 1 || !Py_IS_TYPE(args[0], CompiledType)) {
        PyErr_SetString(PyExc_TypeError, "tail takes a CompiledFunction and its arguments");
        return NULL;
    }
    return dj_new_tail(call_owning, args[0], args + 1, n - 1);
}

/* ---- the object ---- */

static PyObject *copy_attribute(PyObject *from, PyObject *dict, const char *name)
{
    PyObject *value = PyObject_GetAttrString(from, name);
    if (value == NULL || PyDict_SetItemString(dict, name, value) < 0) {
        Py_CLEAR(value);
    }
    Py_XDECREF(value);
    return value;
}

static PyObject *compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "callback", "config", "key", "reduce", NULL};
    PyObject *function, *callback, *config = Py_None, *key = Py_None, *reduce = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|OOO:CompiledFunction", names, &PyFunction_Type, &function,
                                     &callback, &config, &key, &reduce)) {
        return NULL;
    }
    if (!PyCallable_Check(callback)) {
        return PyErr_Format(PyExc_TypeError, "the callback must be callable, not %.200s", Py_TYPE(callback)->tp_name);
    }
    if (key == Py_None) {
        key = config != Py_None ? config : callback;
    }
    CompiledFunction *self = (CompiledFunction *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = compiled_call;
    self->function = Py_NewRef(function);
    self->callback = Py_NewRef(callback);
    self->config = Py_NewRef(config);
    self->key = Py_NewRef(key);
    self->reduce = Py_NewRef(reduce);
    PyObject *function_dict = ((PyFunctionObject *)function)->func_dict;
    self->dict = function_dict != NULL ? PyDict_Copy(function_dict) : PyDict_New();
    static const char *const copied[] = {"__name__", "__qualname__", "__doc__", "__module__"};
    for (size_t i = 0; self->dict != NULL && i < Py_ARRAY_LENGTH(copied); i++) {
        if (copy_attribute(function, self->dict, copied[i]) == NULL) {
            Py_CLEAR(self->dict);
        }
    }
    if (self->dict == NULL || PyDict_SetItemString(self->dict, "__wrapped__", function) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

#define COMPILED_FIELDS(apply)                                                  \
    apply(function) apply(callback) apply(config) apply(key) apply(reduce)      \
    apply(recorded) apply(inlined) apply(dict) apply(known_code)
DJ_HOLDS(CompiledFunction, compiled, COMPILED_FIELDS)

static PyObject *compiled_descr_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    (void)owner;
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

static PyObject *compiled_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<dynajit-compiled %R>", ((CompiledFunction *)self)->function);
}

static PyObject *compiled_reduce(PyObject *object, PyObject *unused)
{
    (void)unused;
    CompiledFunction *self = (CompiledFunction *)object;
    if (self->reduce != Py_None) {
        return PyObject_CallOneArg(self->reduce, object);
    }
    return PyObject_GetAttrString(object, "__qualname__"); /* pickle looks it up in __module__ */
}

/* To `isinstance` and `inspect.isfunction` it is a function: what TorchScript, torch.fx and torch.compile ask before they look
 * at the code. */
static PyObject *function_class(PyObject *self, void *unused)
{
    (void)self;
    (void)unused;
    return Py_NewRef((PyObject *)&PyFunction_Type);
}

/* What torch.compile traces in its place. It looks without calling descriptors (inspect.getattr_static), that is in the
 * `__dict__` that the type's descriptor gives; what is copied from `__dict__` as others read it (functools.wraps) is a
 * wrapper's own, which is not to be traced as the function. */
static const char inlined_name[] = "_torchdynamo_inline";

static PyObject *inlined_function(CompiledFunction *self)
{
    return self->inlined != NULL ? self->inlined : self->function;
}

static PyObject *static_dict(PyObject *object, void *unused)
{
    (void)unused;
    CompiledFunction *self = (CompiledFunction *)object;
    PyObject *copy = PyDict_Copy(self->dict);
    if (copy != NULL && PyDict_SetItemString(copy, inlined_name, inlined_function(self)) < 0) {
        Py_CLEAR(copy);
    }
    return copy;
}

static PyObject *compiled_getattro(PyObject *object, PyObject *name)
{
    if (PyUnicode_CompareWithASCIIString(name, "__dict__") == 0) {
        return PyObject_GenericGetDict(object, NULL);
    }
    CompiledFunction *self = (CompiledFunction *)object;
    if (!self->inlined_statically && PyUnicode_CompareWithASCIIString(name, inlined_name) == 0) {
        return Py_NewRef(inlined_function(self));
    }
    return PyObject_GenericGetAttr(object, name);
}

/* What introspection expects of a function and only the function knows. torch.compile guards what it traces by these. */
static PyObject *function_attribute(PyObject *self, void *name)
{
    return PyObject_GetAttrString(inlined_function((CompiledFunction *)self), name);
}

static PyObject *compiled_new_reference(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyGetSetDef compiled_getset[] = {
    {"__dict__", static_dict, PyObject_GenericSetDict, NULL, NULL},
    {"__class__", function_class, NULL, NULL, NULL},
    {"__code__", function_attribute, NULL, NULL, "__code__"},
    {"__globals__", function_attribute, NULL, NULL, "__globals__"},
    {"__closure__", function_attribute, NULL, NULL, "__closure__"},
    {"__defaults__", function_attribute, NULL, NULL, "__defaults__"},
    {"__kwdefaults__", function_attribute, NULL, NULL, "__kwdefaults__"},
    {"__annotations__", function_attribute, NULL, NULL, "__annotations__"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef compiled_members[] = {
    {"function", T_OBJECT, offsetof(CompiledFunction, function), READONLY, "The original function."},
    {"callback", T_OBJECT, offsetof(CompiledFunction, callback), READONLY, "Called on a miss."},
    {"config", T_OBJECT, offsetof(CompiledFunction, config), READONLY, "What the maker gave."},
    {"recorded", T_OBJECT, offsetof(CompiledFunction, recorded), 0,
     "Called in the function's place, with the same arguments, while another tracer or compiler runs; None: the function."},
    {"inlined", T_OBJECT, offsetof(CompiledFunction, inlined), 0,
     "The function that torch.compile traces in this one's place; None: the function."},
    {"inlined_statically", T_BOOL, offsetof(CompiledFunction, inlined_statically), 0,
     "Whether torch.compile finds what it traces in `__dict__` alone."},
    {"key", T_OBJECT, offsetof(CompiledFunction, key), READONLY, "Only variants with this key are used."},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFunction, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledFunction, weakrefs), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledFunction, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef compiled_methods[] = {
    {"__reduce__", compiled_reduce, METH_NOARGS, NULL},
    {"__copy__", compiled_new_reference, METH_NOARGS, NULL},
    {"__deepcopy__", compiled_new_reference, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot compiled_slots[] = {
    {Py_tp_doc, "CompiledFunction(function, callback, config=None, key=<config or callback>, reduce=None)"},
    DJ_COLLECTED_SLOTS(compiled, compiled_new, dj_dealloc),
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_getattro, compiled_getattro},
    {Py_tp_descr_get, compiled_descr_get},
    {Py_tp_repr, compiled_repr},
    {Py_tp_members, compiled_members},
    {Py_tp_getset, compiled_getset},
    {Py_tp_methods, compiled_methods},
    {0, NULL},
};

static PyType_Spec compiled_spec =
    DJ_CLASS(CompiledFunction, "CompiledFunction", DJ_COLLECTED | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, compiled_slots);

static PyObject *set_force_eager(PyObject *module, PyObject *value)
{
    (void)module;
    int truth = PyObject_IsTrue(value);
    if (truth < 0) {
        return NULL;
    }
    force_eager = truth != 0;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_force_eager", set_force_eager, METH_O,
     "set_force_eager(value)\n--\n\nWhether compiled functions run as they were written, in the whole process."},
    {"tail", (PyCFunction)(void (*)(void))tail, METH_FASTCALL,
     "tail(continuation, *arguments)\n--\n\nFor generated code to return: the call is made when its frame is gone."},
    {NULL, NULL, 0, NULL},
};

int dj_fast_call_init(PyObject *module)
{
    CompiledType = dj_add_type(module, &compiled_spec);
    return CompiledType != NULL ? PyModule_AddFunctions(module, functions) : -1;
}
