/* CPython 3.12. */
#define Py_BUILD_CORE 1
#include "python/compat.h"
#include "python/recursion.h"

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000

#include <internal/pycore_frame.h>

#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>

#include "python/compat_frame.h"
#include "python/compat_shared.h"

static PyCodeObject *code_of(const Frame *frame)
{
    return frame->f_code;
}

static void set_code(Frame *frame, PyCodeObject *code)
{
    Py_SETREF(frame->f_code, (PyCodeObject *)Py_NewRef((PyObject *)code));
}

static PyFunctionObject *function_of(const Frame *frame)
{
    return (PyFunctionObject *)frame->f_funcobj;
}

static void set_function(Frame *frame, PyFunctionObject *function)
{
    Py_SETREF(frame->f_funcobj, Py_NewRef((PyObject *)function));
}

static int frame_size(const PyCodeObject *code)
{
    return code->co_framesize;
}

static bool is_at_start(const Frame *frame, PyCodeObject *code)
{
    return frame->prev_instr == _PyCode_CODE(code) - 1;
}

static void go_to_start(Frame *frame, PyCodeObject *code, int slots)
{
    frame->prev_instr = _PyCode_CODE(code) - 1;
    frame->stacktop = slots;
}

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
