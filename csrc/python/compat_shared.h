/* What is written the same for every release, over what its compat file says of an object's attributes.
 *
 * In:  the including file's three functions below. Out: `dj_instance_lookup`, `dj_store_beside` and
 * `dj_set_next`. Included by one compat file of a build, after CPython's own headers. */
#ifndef DYNAJIT_COMPAT_SHARED_H
#define DYNAJIT_COMPAT_SHARED_H

#include "python/compat.h"

/* Values kept beside or inside an object whose class has managed dictionaries; NULL once they are in a dictionary. */
static PyDictValues *values_beside(PyObject *object);
/* How many of the keys have a place among them. */
static Py_ssize_t count_places(const PyDictValues *values, const PyDictKeysObject *keys);
/* The dictionary of such an object, or NULL. */
static PyObject *attribute_dict(PyObject *object);

/* Attributes not yet in a dict: at most 30, so a scan. */
static PyObject *inline_value(PyTypeObject *type, PyDictValues *values, PyObject *name)
{
    PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
    if (!DK_IS_UNICODE(keys)) {
        return NULL;
    }
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    Py_ssize_t size = count_places(values, keys);
    for (Py_ssize_t i = 0; i < size; i++) {
        if (entries[i].me_key == name
            || (entries[i].me_key != NULL && PyUnicode_GET_LENGTH(entries[i].me_key) == PyUnicode_GET_LENGTH(name)
                && PyUnicode_Compare(entries[i].me_key, name) == 0)) {
            return values->values[i];
        }
    }
    return NULL;
}

PyObject *dj_instance_lookup(PyObject *object, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject *dict;
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        PyDictValues *values = values_beside(object);
        if (values != NULL) {
            return inline_value(type, values, name);
        }
        dict = attribute_dict(object);
    }
    else {
        PyObject **pointer = _PyObject_GetDictPtr(object);
        dict = pointer != NULL ? *pointer : NULL;
    }
    if (dict == NULL) {
        return NULL;
    }
    PyObject *value = PyDict_GetItemWithError(dict, name);
    if (value == NULL) {
        PyErr_Clear();
    }
    return value;
}

Py_ssize_t dj_store_beside(PyObject *object, PyObject *const *names, PyObject *const *given, Py_ssize_t n,
                           uint8_t *places)
{
    PyTypeObject *type = Py_TYPE(object);
    PyDictValues *values = (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0 ? values_beside(object) : NULL;
    PyDictKeysObject *keys = values != NULL ? ((PyHeapTypeObject *)type)->ht_cached_keys : NULL;
    if (keys == NULL || !DK_IS_UNICODE(keys)) {
        return 0;
    }
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    Py_ssize_t size = count_places(values, keys), i = 0;
    for (; i < n; i++) {
        Py_ssize_t at = places[i];
        if (at >= size || entries[at].me_key != names[i]) {
            for (at = 0; at < size && entries[at].me_key != names[i]; at++) {
            }
        }
        if (at == size || values->values[at] != NULL) {
            break;
        }
        places[i] = (uint8_t)at;
        values->values[at] = Py_NewRef(given[i]);
        _PyDictValues_AddToInsertionOrder(values, at);
    }
    return i;
}

int dj_set_next(PyObject *set, Py_ssize_t *position, PyObject **item, Py_hash_t *hash)
{
    return _PySet_NextEntry(set, position, item, hash);
}

#endif
