/* What CPython 3.13 and later have in common: attributes without a dict lie inside the object. */
#define Py_BUILD_CORE 1
#include "python/compat.h"

#if PY_VERSION_HEX >= 0x030D0000

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* CPython's headers' own */
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>
#include <internal/pycore_setobject.h>
#pragma GCC diagnostic pop

#include "python/compat_shared.h"

static PyObject *attribute_dict(PyObject *object)
{
    return (PyObject *)_PyObject_GetManagedDict(object);
}

static PyDictValues *values_beside(PyObject *object)
{
    if ((Py_TYPE(object)->tp_flags & Py_TPFLAGS_INLINE_VALUES) == 0 || attribute_dict(object) != NULL) {
        return NULL;
    }
    PyDictValues *values = _PyObject_InlineValues(object);
    return values->valid ? values : NULL;
}

static Py_ssize_t count_places(const PyDictValues *values, const PyDictKeysObject *keys)
{
    return Py_MIN(keys->dk_nentries, values->capacity);
}

#endif
