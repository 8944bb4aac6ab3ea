/* What CPython 3.13 and later have in common: attributes without a dict lie inside the object. */
#define Py_BUILD_CORE 1
#include "attribute_filler.h"
#include "compat.h"

#if PY_VERSION_HEX >= 0x030D0000

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* CPython's headers' own */
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>
#include <internal/pycore_setobject.h>
#pragma GCC diagnostic pop

/* Attributes kept inside the object, not yet in a dict: at most 30, so a scan. */
static PyObject *inline_value(PyTypeObject *type, PyDictValues *values, PyObject *name)
{
    PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
    if (!values->valid || !DK_IS_UNICODE(keys)) {
        return NULL;
    }
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    for (Py_ssize_t i = 0; i < keys->dk_nentries && i < values->capacity; i++) {
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
        dict = (PyObject *)_PyObject_GetManagedDict(object);
        if (dict == NULL && type->tp_flags & Py_TPFLAGS_INLINE_VALUES) {
            return inline_value(type, _PyObject_InlineValues(object), name);
        }
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
    bool beside = (type->tp_flags & Py_TPFLAGS_INLINE_VALUES) != 0 && _PyObject_GetManagedDict(object) == NULL;
    PyDictValues *values = beside ? _PyObject_InlineValues(object) : NULL;
    if (values != NULL && !values->valid) {
        return 0;
    }
    PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
    if (values == NULL || keys == NULL || !DK_IS_UNICODE(keys)) {
        return 0;
    }
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    Py_ssize_t size = Py_MIN(keys->dk_nentries, values->capacity), i = 0;
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
