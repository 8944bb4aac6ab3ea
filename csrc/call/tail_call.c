/* Calls that are made when the caller's frame is gone.
 *
 * Code that ends with a break returns `tail(continuation, *arguments)`; whoever ran that code makes the call. So the
 * continuation takes the frame's place: tracebacks show one frame where the user's program has one, the stack does not
 * grow with the number of breaks, and nothing but the continuation's own variables keeps the objects alive. */
#include "call/call.h"

#include <stddef.h>

typedef struct {
    PyObject_VAR_HEAD
    Py_ssize_t n;
    bool has_room;      /* for KEPT_ARGS and no more */
    TailCaller caller;
    PyObject *function;
    PyObject *args[1];
} Tail;

static PyTypeObject *TailType;

/* A break makes one and its caller takes it apart, so the last ones are kept: a chain through `function`. */
enum { KEPT_ARGS = 8, MAX_KEPT = 16 };

static Tail *kept;
static int n_kept;

static Tail *new_tail(Py_ssize_t n)
{
    if (n > KEPT_ARGS || kept == NULL) {
        return PyObject_NewVar(Tail, TailType, Py_MAX(n, KEPT_ARGS)); /* room for any that is kept */
    }
    Tail *self = kept;
    kept = (Tail *)self->function;
    n_kept--;
    _Py_NewReference((PyObject *)self);
    return self;
}

PyObject *dj_new_tail(TailCaller caller, PyObject *function, PyObject *const *args, Py_ssize_t n)
{
    Tail *self = new_tail(n);
    if (self == NULL) {
        return NULL;
    }
    self->has_room = n <= KEPT_ARGS;
    self->n = n;
    self->caller = caller;
    self->function = Py_NewRef(function);
    for (Py_ssize_t i = 0; i < n; i++) {
        self->args[i] = Py_NewRef(args[i]);
    }
    return (PyObject *)self;
}

PyObject *dj_finish_tails(PyObject *result)
{
    while (result != NULL && Py_IS_TYPE(result, TailType)) {
        Tail *self = (Tail *)result;
        result = self->caller(self->function, self->args, self->n);
        Py_DECREF(self);
    }
    return result;
}

static void tail_dealloc(PyObject *object)
{
    Tail *self = (Tail *)object;
    for (Py_ssize_t i = 0; i < self->n; i++) {
        Py_XDECREF(self->args[i]);
    }
    Py_DECREF(self->function);
    if (self->has_room && n_kept < MAX_KEPT) {
        self->function = (PyObject *)kept;
        kept = self;
        n_kept++;
        return; /* it keeps its reference to the type */
    }
    PyTypeObject *type = Py_TYPE(object);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyType_Slot tail_slots[] = {
    {Py_tp_doc, "A call for whoever ran the code that returns it."},
    {Py_tp_dealloc, tail_dealloc},
    {0, NULL},
};

static PyType_Spec tail_spec = {
    .name = "dynajit._C.Tail",
    .basicsize = offsetof(Tail, args),
    .itemsize = sizeof(PyObject *),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = tail_slots,
};

int dj_tail_call_init(PyObject *module)
{
    (void)module;
    TailType = (PyTypeObject *)PyType_FromSpec(&tail_spec);
    return TailType != NULL ? 0 : -1;
}
