/* Reading the user's objects without running the user's code.
 *
 * In: an object and a name, key or index. Out: a reference, or nothing. Guards use it at each call, and the capture
 * through the functions at the end; both see the same objects. */
#include "python/objects.h"

PyObject *dj_type_lookup(PyTypeObject *type, PyObject *name)
{
    PyObject *value = _PyType_Lookup(type, name);
    if (value == NULL && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return value;
}

/* Descriptors that are CPython's own: binding them runs no user code. */
static bool binds_quietly(PyObject *descriptor)
{
    PyTypeObject *type = Py_TYPE(descriptor);
    return type == &PyFunction_Type || type == &PyMethodDescr_Type || type == &PyMemberDescr_Type
        || type == &PyGetSetDescr_Type || type == &PyWrapperDescr_Type || type == &PyClassMethodDescr_Type
        || type == &PyStaticMethod_Type || type == &PyMethod_Type;
}

static PyObject *bind_descriptor(PyObject *descriptor, PyObject *instance, PyTypeObject *owner)
{
    descrgetfunc get = Py_TYPE(descriptor)->tp_descr_get;
    if (get == NULL) {
        return Py_NewRef(descriptor);
    }
    if (Py_IS_TYPE(descriptor, &PyClassMethod_Type)) {
        /* classmethod's own __get__ would also bind whatever it wraps, a property for example */
        PyObject *wrapped = PyObject_GetAttrString(descriptor, "__func__");
        PyObject *bound = NULL;
        if (wrapped != NULL && PyFunction_Check(wrapped)) {
            bound = PyMethod_New(wrapped, (PyObject *)owner);
        }
        Py_XDECREF(wrapped);
        return bound;
    }
    return binds_quietly(descriptor) ? get(descriptor, instance, (PyObject *)owner) : NULL;
}

static PyObject *own_attribute(PyObject *object, PyObject *name)
{
    if (PyType_Check(object)) {
        PyObject *attribute = dj_type_lookup((PyTypeObject *)object, name);
        return attribute != NULL ? bind_descriptor(attribute, NULL, (PyTypeObject *)object) : NULL;
    }
    return Py_XNewRef(dj_instance_lookup(object, name));
}

PyObject *dj_generic_getattr(PyObject *object, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject *result = NULL;
    PyObject *descriptor = Py_XNewRef(dj_type_lookup(type, name));
    if (descriptor != NULL && Py_TYPE(descriptor)->tp_descr_set != NULL && Py_TYPE(descriptor)->tp_descr_get != NULL) {
        result = bind_descriptor(descriptor, object, type);
    }
    else {
        result = own_attribute(object, name);
        if (result == NULL && descriptor != NULL && !PyErr_Occurred()) {
            result = bind_descriptor(descriptor, object, type);
        }
    }
    Py_XDECREF(descriptor);
    if (result == NULL) {
        PyErr_Clear();
    }
    return result;
}

PyObject *dj_sequence_item(PyObject *container, Py_ssize_t index)
{
    if (PyList_Check(container)) {
        Py_ssize_t size = PyList_GET_SIZE(container);
        index += index < 0 ? size : 0;
        return index >= 0 && index < size ? Py_NewRef(PyList_GET_ITEM(container, index)) : NULL;
    }
    if (PyTuple_Check(container)) {
        Py_ssize_t size = PyTuple_GET_SIZE(container);
        index += index < 0 ? size : 0;
        return index >= 0 && index < size ? Py_NewRef(PyTuple_GET_ITEM(container, index)) : NULL;
    }
    return NULL;
}

PyObject *dj_raw_item(PyObject *container, PyObject *key, Py_hash_t hash)
{
    if (PyDict_Check(container)) {
        PyObject *value = Py_XNewRef(_PyDict_GetItem_KnownHash(container, key, hash));
        if (value == NULL) {
            PyErr_Clear();
        }
        return value;
    }
    if (PyLong_CheckExact(key)) {
        Py_ssize_t index = PyLong_AsSsize_t(key);
        if (index == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return NULL;
        }
        return dj_sequence_item(container, index);
    }
    return NULL;
}

PyObject *dj_dict_key(PyObject *dict, Py_ssize_t index)
{
    if (index < 0 || !PyDict_Check(dict)) {
        return NULL;
    }
    if (PyODict_Check(dict)) {
        /* its order is its own, not the underlying dict's */
        PyObject *iterator = PyODict_Type.tp_iter(dict);
        PyObject *key = iterator != NULL ? PyIter_Next(iterator) : NULL;
        while (key != NULL && index-- > 0) {
            Py_SETREF(key, PyIter_Next(iterator));
        }
        Py_XDECREF(iterator);
        PyErr_Clear();
        return key;
    }
    Py_ssize_t position = 0;
    PyObject *key;
    while (PyDict_Next(dict, &position, &key, NULL)) {
        if (index-- == 0) {
            return Py_NewRef(key);
        }
    }
    return NULL;
}

/* ---- Python ---- */

static PyObject *type_lookup(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *type, *name;
    if (!PyArg_ParseTuple(args, "O!U:type_lookup", &PyType_Type, &type, &name)) {
        return NULL;
    }
    PyObject *value = dj_type_lookup((PyTypeObject *)type, name);
    if (value == NULL) {
        PyErr_SetObject(PyExc_KeyError, name);
        return NULL;
    }
    return Py_NewRef(value);
}

/* Of (object, name[, default]): what `look` finds. */
static PyObject *found_or_default(PyObject *args, const char *format, PyObject *(*look)(PyObject *, PyObject *))
{
    PyObject *object, *name, *fallback = NULL;
    if (!PyArg_ParseTuple(args, format, &object, &name, &fallback)) {
        return NULL;
    }
    PyObject *value = look(object, name);
    if (value == NULL && fallback != NULL) {
        return Py_NewRef(fallback);
    }
    if (value == NULL) {
        PyErr_SetObject(PyExc_AttributeError, name);
    }
    return value;
}

static PyObject *generic_getattr(PyObject *module, PyObject *args)
{
    (void)module;
    return found_or_default(args, "OU|O:generic_getattr", dj_generic_getattr);
}

static PyObject *instance_lookup(PyObject *object, PyObject *name)
{
    return Py_XNewRef(dj_instance_lookup(object, name));
}

static PyObject *instance_getattr(PyObject *module, PyObject *args)
{
    (void)module;
    return found_or_default(args, "OU|O:instance_getattr", instance_lookup);
}

static PyObject *raw_item(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *container, *key;
    if (!PyArg_ParseTuple(args, "OO:raw_item", &container, &key)) {
        return NULL;
    }
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1) {
        return NULL;
    }
    PyObject *value = dj_raw_item(container, key, hash);
    if (value == NULL) {
        PyErr_SetObject(PyExc_KeyError, key);
    }
    return value;
}

static PyObject *dict_key(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *dict;
    Py_ssize_t index;
    if (!PyArg_ParseTuple(args, "O!n:dict_key", &PyDict_Type, &dict, &index)) {
        return NULL;
    }
    PyObject *key = dj_dict_key(dict, index);
    if (key == NULL) {
        PyErr_Format(PyExc_IndexError, "the dict has no key number %zd", index);
    }
    return key;
}

static PyObject *dict_with_hashes(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs < 1 || !PyTuple_Check(args[0]) || nargs != 1 + 2 * PyTuple_GET_SIZE(args[0])) {
        PyErr_SetString(PyExc_TypeError, "dict_with_hashes() takes a tuple of hashes, and a key and a value for each");
        return NULL;
    }
    PyObject *made = PyDict_New();
    for (Py_ssize_t i = 0; made != NULL && i < PyTuple_GET_SIZE(args[0]); i++) {
        PyObject *given = PyTuple_GET_ITEM(args[0], i), *key = args[1 + 2 * i];
        Py_hash_t hash = given == Py_None ? PyObject_Hash(key) : PyLong_AsSsize_t(given);
        if ((hash == -1 && PyErr_Occurred()) || _PyDict_SetItem_KnownHash(made, key, args[2 + 2 * i], hash) < 0) {
            Py_CLEAR(made);
        }
    }
    return made;
}

/* As where a handler ends: a generator's frames know of the exception that the generator handles, not of its caller's. */
static PyObject *own_exception(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *handled = PyThreadState_Get()->exc_info->exc_value;
    return Py_NewRef(handled != NULL ? handled : Py_None);
}

static PyMethodDef methods[] = {
    {"type_lookup", type_lookup, METH_VARARGS,
     "type_lookup(type, name)\n--\n\nThe attribute in the type's MRO, no descriptor run. KeyError if there is none."},
    {"generic_getattr", generic_getattr, METH_VARARGS,
     "generic_getattr(object, name, default=<raise AttributeError>)\n--\n\n"
     "object.__getattribute__ without user code: instance attributes, slots, class constants, methods; a property or "
     "another Python-level descriptor counts as absent."},
    {"instance_getattr", instance_getattr, METH_VARARGS,
     "instance_getattr(object, name, default=<raise AttributeError>)\n--\n\nThe instance dict's entry only."},
    {"raw_item", raw_item, METH_VARARGS,
     "raw_item(container, key)\n--\n\nItem of a dict, list or tuple past any __getitem__ of a subclass. KeyError."},
    {"dict_key", dict_key, METH_VARARGS, "dict_key(dict, index)\n--\n\nThe index-th key in iteration order."},
    {"own_exception", own_exception, METH_NOARGS,
     "own_exception()\n--\n\nThe exception being handled, not counting what callers of a running generator handle."},
    {"dict_with_hashes", (PyCFunction)(void (*)(void))dict_with_hashes, METH_FASTCALL,
     "dict_with_hashes(hashes, *keys_and_values)\n--\n\n"
     "A dict whose keys are taken to have these hashes; None: ask the key."},
    {NULL, NULL, 0, NULL},
};

int dj_object_access_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
