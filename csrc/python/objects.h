/* Python's objects: read, filled and called without running the user's code. Every room's header begins with this one. */
#ifndef DYNAJIT_OBJECTS_H
#define DYNAJIT_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "python/compat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* PyObject_Vectorcall for what is known to be a function, without its checks. */
static inline PyObject *dj_call_function(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return ((PyFunctionObject *)function)->vectorcall(function, args, nargsf, kwnames);
}

PyObject *dj_type_lookup(PyTypeObject *type, PyObject *name);                    /* borrowed or NULL, no error set */
PyObject *dj_generic_getattr(PyObject *object, PyObject *name);                  /* new or NULL, no error set */
PyObject *dj_raw_item(PyObject *container, PyObject *key, Py_hash_t hash);       /* new or NULL, no error set */
PyObject *dj_sequence_item(PyObject *container, Py_ssize_t index);               /* new or NULL, no error set */
PyAPI_FUNC(int) _PyDict_SetItem_KnownHash(PyObject *dict, PyObject *key, PyObject *item, Py_hash_t hash); /* CPython's */
PyObject *dj_dict_key(PyObject *dict, Py_ssize_t index);                         /* new or NULL, no error set */

#ifdef __cplusplus
}
#endif
#endif
