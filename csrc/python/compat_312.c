/* CPython 3.12. */
#define Py_BUILD_CORE 1
#include "python/compat.h"
#include "python/recursion.h"

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000

#include <internal/pycore_frame.h>

#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>

#define DJ_CODE_FIELD f_code
#define DJ_FUNCTION_FIELD f_funcobj
#define DJ_INSTRUCTION_FIELD prev_instr
#define DJ_START(code) (_PyCode_CODE(code) - 1)
#include "python/compat_frame.h"
#include "python/compat_shared.h"

static PyDictValues *values_beside(PyObject *object)
{
    PyDictOrValues place = *_PyObject_DictOrValuesPointer(object);
    return _PyDictOrValues_IsValues(place) ? _PyDictOrValues_GetValues(place) : NULL;
}

static Py_ssize_t count_places(const PyDictValues *values, const PyDictKeysObject *keys)
{
    (void)values;
    return keys->dk_nentries;
}

static PyObject *attribute_dict(PyObject *object)
{
    return _PyDictOrValues_GetDict(*_PyObject_DictOrValuesPointer(object));
}

PyObject **dj_instance_dict_place(PyObject *object)
{
    if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        PyDictOrValues *place = _PyObject_DictOrValuesPointer(object);
        bool in_dict = !_PyDictOrValues_IsValues(*place) && _PyDictOrValues_GetDict(*place) != NULL;
        return in_dict ? (PyObject **)place : NULL;
    }
    PyObject **place = _PyObject_GetDictPtr(object);
    return place != NULL && *place != NULL ? place : NULL;
}

bool dj_few_c_calls_left(const PyThreadState *tstate)
{
    return tstate->c_recursion_remaining < C_RECURSION_LIMIT / 2;
}

#endif
