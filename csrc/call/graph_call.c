/* GraphCall: a callable that no frame hook looks into.
 *
 * In: a call from replacement code. Out: what the compiled graph gives. Backends' wrappers are Python functions of their
 * own, which are not the user's program and are not to be captured. */
#include "call/call.h"
#include "python/heap_type.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;
    PyObject *name; /* in profiles; NULL: none */
    PyObject *dict;
    PyObject *weakrefs;
    char flat; /* `function` calls hardly any function written in Python */
} GraphCall;

enum { FEW_ARGUMENTS = 16 };

static inline PyObject *call(GraphCall *self, PyObject *function, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames)
{
    PyObject *all[FEW_ARGUMENTS];
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (PyMethod_Check(function) && kwnames == NULL && n < FEW_ARGUMENTS) {
        all[0] = PyMethod_GET_SELF(function);
        for (Py_ssize_t i = 0; i < n; i++) {
            all[i + 1] = args[i];
        }
        function = PyMethod_GET_FUNCTION(function);
        args = all;
        nargsf = (size_t)n + 1;
    }
    if (self->name != NULL) {
        return dj_call_marked(self->name, function, args, nargsf, kwnames);
    }
    return PyObject_Vectorcall(function, args, nargsf, kwnames);
}

static PyObject *graph_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    GraphCall *self = (GraphCall *)object;
    HookRegion region;
    PyObject *function = Py_NewRef(self->function); /* another may take its place meanwhile */
    bool paused = dj_hook_pause(&region, self->flat);
    PyObject *result = call(self, function, args, nargsf, kwnames);
    if (paused) {
        dj_hook_leave(&region);
    }
    Py_DECREF(function);
    return result;
}

static PyObject *graph_call_become(PyObject *object, PyObject *args)
{
    GraphCall *self = (GraphCall *)object;
    PyObject *function;
    int flat;
    if (!PyArg_ParseTuple(args, "Op:become", &function, &flat)) {
        return NULL;
    }
    self->flat = (char)flat;
    Py_SETREF(self->function, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyMethodDef graph_call_methods[] = {
    {"become", graph_call_become, METH_VARARGS,
     "become(fn, flat)\n--\n\nCalls from the next one on are of fn; those under way end as they began."},
    {NULL, NULL, 0, NULL},
};

static PyObject *graph_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fn", "name", "flat", NULL};
    PyObject *function, *name = NULL;
    int flat = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Up:GraphCall", names, &function, &name, &flat)) {
        return NULL;
    }
    if (!PyCallable_Check(function)) {
        return PyErr_Format(PyExc_TypeError, "a callable is needed, not %.200s", Py_TYPE(function)->tp_name);
    }
    GraphCall *self = (GraphCall *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = graph_call;
        self->function = Py_NewRef(function);
        self->name = Py_XNewRef(name);
        self->flat = (char)flat;
    }
    return (PyObject *)self;
}

#define GRAPH_CALL_FIELDS(apply) apply(function) apply(name) apply(dict)
DJ_HOLDS(GraphCall, graph_call, GRAPH_CALL_FIELDS)

static PyObject *graph_call_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<dynajit graph call of %R>", ((GraphCall *)self)->function);
}

static PyMemberDef graph_call_members[] = {
    {"fn", T_OBJECT, offsetof(GraphCall, function), READONLY, "What is called."},
    {"name", T_OBJECT, offsetof(GraphCall, name), READONLY, "What profiles show, or None."},
    {"__dictoffset__", T_PYSSIZET, offsetof(GraphCall, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(GraphCall, weakrefs), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(GraphCall, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef graph_call_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot graph_call_slots[] = {
    {Py_tp_doc, "GraphCall(fn, name=None, flat=False)\n--\n\nCalls fn so that no frame hook captures what runs in it; "
                "profiles show the name. `flat`: fn calls hardly any function written in Python."},
    DJ_COLLECTED_SLOTS(graph_call, graph_call_new, dj_dealloc),
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_repr, graph_call_repr},
    {Py_tp_members, graph_call_members},
    {Py_tp_methods, graph_call_methods},
    {Py_tp_getset, graph_call_getset},
    {0, NULL},
};

static PyType_Spec graph_call_spec =
    DJ_CLASS(GraphCall, "GraphCall", DJ_COLLECTED | Py_TPFLAGS_HAVE_VECTORCALL, graph_call_slots);

int dj_graph_call_init(PyObject *module)
{
    return dj_add_type(module, &graph_call_spec) != NULL ? 0 : -1;
}
