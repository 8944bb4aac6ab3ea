/* AttributeFiller: gives objects that replacement code has just made their attributes and entries.
 *
 * In: an object nobody else knows yet, and values for the names that the filler was made with. Out: the object with these
 * attributes, as `object.__dict__.update(...)` would give them: what its class says about setting attributes is not asked.
 * What the class says about the names, and where their values lie, is remembered by the version that CPython gives a class
 * when it changes; no two classes have the same. */
#include "python/objects.h"

#include <stdbool.h>

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *names;  /* a tuple of interned strings */
    unsigned version; /* of a class in which no name is a data descriptor; 0: of none */
    uint8_t *places;
} AttributeFiller;

static bool is_data_descriptor(PyTypeObject *type, PyObject *name)
{
    PyObject *found = dj_type_lookup(type, name);
    return found != NULL && Py_TYPE(found)->tp_descr_set != NULL;
}

/* Whether no name is a data descriptor of the class. */
static bool all_plain(AttributeFiller *self, PyTypeObject *type)
{
    if (self->version != 0 && self->version == type->tp_version_tag
        && (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) != 0) {
        return true;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->names); i++) {
        if (is_data_descriptor(type, PyTuple_GET_ITEM(self->names, i))) {
            return false;
        }
    }
    self->version = (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) != 0 ? type->tp_version_tag : 0;
    return true;
}

static int store_in_dict(PyObject *object, PyObject *const *names, PyObject *const *values, Py_ssize_t n)
{
    PyObject *dict = PyObject_GenericGetDict(object, NULL);
    int status = dict != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; i < n && status == 0; i++) {
        status = PyDict_SetItem(dict, names[i], values[i]);
    }
    Py_XDECREF(dict);
    return status;
}

static int store_plain(AttributeFiller *self, PyObject *object, PyObject *const *names, PyObject *const *values,
                       Py_ssize_t n)
{
    PyTypeObject *type = Py_TYPE(object);
    if ((type->tp_flags & Py_TPFLAGS_MANAGED_DICT) == 0 && type->tp_dictoffset != 0) {
        return store_in_dict(object, names, values, n);
    }
    for (Py_ssize_t done = 0; done < n; done++) {
        done += dj_store_beside(object, names + done, values + done, n - done, self->places + done);
        /* makes no dictionary where there is room beside the object */
        if (done < n && PyObject_GenericSetAttr(object, names[done], values[done]) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *fill(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    AttributeFiller *self = (AttributeFiller *)callable;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf), n = PyTuple_GET_SIZE(self->names);
    if (nargs != n + 1 || kwnames != NULL) {
        return PyErr_Format(PyExc_TypeError, "an object and %zd values are needed, not %zd arguments", n, nargs);
    }
    PyObject *object = args[0], *const *names = ((PyTupleObject *)self->names)->ob_item;
    int status;
    if (all_plain(self, Py_TYPE(object))) {
        status = store_plain(self, object, names, args + 1, n);
    }
    else {
        /* names that are properties, slots and the like go into the dictionary past them, the others as ever */
        status = store_in_dict(object, names, args + 1, n);
    }
    return status == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *filler_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *given;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "O!:AttributeFiller", &PyTuple_Type, &given)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "AttributeFiller() takes a tuple of names");
        }
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(given);
    AttributeFiller *self = (AttributeFiller *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = fill;
    self->places = PyMem_Calloc(n + 1, 1);
    self->names = PyTuple_New(n);
    if (self->places == NULL || self->names == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *name = PyTuple_GET_ITEM(given, i);
        if (!PyUnicode_CheckExact(name)) {
            Py_DECREF(self);
            return PyErr_Format(PyExc_TypeError, "a name is needed, not %.200s", Py_TYPE(name)->tp_name);
        }
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        PyTuple_SET_ITEM(self->names, i, name);
    }
    return (PyObject *)self;
}

static void filler_dealloc(PyObject *object)
{
    AttributeFiller *self = (AttributeFiller *)object;
    Py_XDECREF(self->names);
    PyMem_Free(self->places);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *filler_repr(PyObject *object)
{
    return PyUnicode_FromFormat("<filler of attributes %R>", ((AttributeFiller *)object)->names);
}

static PyMemberDef filler_members[] = {
    {"names", T_OBJECT, offsetof(AttributeFiller, names), READONLY, "The names, in the order of the values."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject filler_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynajit._C.AttributeFiller",
    .tp_doc = "AttributeFiller(names)\n--\n\nCalled with an object made just now and a value for each name.",
    .tp_basicsize = sizeof(AttributeFiller),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(AttributeFiller, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = filler_new,
    .tp_dealloc = filler_dealloc,
    .tp_repr = filler_repr,
    .tp_members = filler_members,
};

/* Entries of an instance of a subclass of dict or OrderedDict, without its own code. */
static PyObject *fill_entries(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs % 2 != 1 || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "fill_entries() takes a dictionary, and keys and values");
        return NULL;
    }
    bool ordered = PyODict_Check(args[0]);
    for (Py_ssize_t i = 1; i < nargs; i += 2) {
        int status = ordered ? PyODict_SetItem(args[0], args[i], args[i + 1]) : PyDict_SetItem(args[0], args[i], args[i + 1]);
        if (status < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *bare_object(PyObject *module, PyObject *cls)
{
    (void)module;
    if (!PyType_Check(cls)) {
        return PyErr_Format(PyExc_TypeError, "a class is needed, not %.200s", Py_TYPE(cls)->tp_name);
    }
    PyObject *nothing = PyTuple_New(0);
    PyObject *made = nothing != NULL ? PyBaseObject_Type.tp_new((PyTypeObject *)cls, nothing, NULL) : NULL;
    Py_XDECREF(nothing);
    return made;
}

static PyMethodDef methods[] = {
    {"fill_entries", (PyCFunction)(void (*)(void))fill_entries, METH_FASTCALL,
     "fill_entries(mapping, *keys_and_values)\n--\n\nEntries of a mapping made just now, past its class's `__setitem__`."},
    {"bare_object", bare_object, METH_O,
     "bare_object(cls)\n--\n\nobject.__new__(cls), for a class whose instances are known to be made by it."},
    {NULL, NULL, 0, NULL},
};

int dj_attribute_filler_init(PyObject *module)
{
    return PyModule_AddType(module, &filler_type) == 0 ? PyModule_AddFunctions(module, methods) : -1;
}
