/* CPython 3.12. */
#define Py_BUILD_CORE 1
#include "python/compat.h"
#include "python/recursion.h"

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000

#include <internal/pycore_frame.h>

#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>

#include "python/compat_shared.h"

bool dj_frame_is_fresh_call(Frame *frame)
{
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    const int generators = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    return frame->owner == FRAME_OWNED_BY_THREAD && frame->f_locals == NULL
        && (frame->f_code->co_flags & (wanted | generators)) == wanted
        && frame->prev_instr == _PyCode_CODE(frame->f_code) - 1 && PyFunction_Check(frame->f_funcobj);
}

PyCodeObject *dj_frame_code(Frame *frame)
{
    return frame->f_code;
}

PyFunctionObject *dj_frame_function(Frame *frame)
{
    return (PyFunctionObject *)frame->f_funcobj;
}

PyObject *dj_frame_globals(Frame *frame)
{
    return frame->f_globals;
}

PyObject *const *dj_frame_params(Frame *frame, PyObject **room, Py_ssize_t n)
{
    (void)room;
    (void)n;
    return frame->localsplus;
}

/* The frame is the last one on the thread's data stack, so making room is moving the stack's top. */
static bool resize_top_frame(PyThreadState *tstate, Frame *frame, int old_size, int new_size)
{
    PyObject **base = (PyObject **)frame;
    if (tstate->datastack_top != base + old_size || new_size >= tstate->datastack_limit - base) {
        return false;
    }
    tstate->datastack_top = base + new_size;
    return true;
}

bool dj_frame_become(PyThreadState *tstate, Frame *frame, PyFunctionObject *function, Py_ssize_t n_params,
                     PyObject *const *cells, Py_ssize_t n_cells)
{
    PyCodeObject *old_code = frame->f_code;
    PyCodeObject *new_code = (PyCodeObject *)function->func_code;
    if (!resize_top_frame(tstate, frame, old_code->co_framesize, new_code->co_framesize)) {
        return false;
    }
    Py_ssize_t n = n_params;
    for (Py_ssize_t i = 0; i < n_cells; i++) {
        frame->localsplus[n++] = Py_NewRef(cells[i]);
    }
    for (; n < new_code->co_nlocalsplus; n++) {
        frame->localsplus[n] = NULL;
    }
    PyObject *old_function = frame->f_funcobj;
    frame->f_funcobj = Py_NewRef((PyObject *)function);
    frame->f_code = (PyCodeObject *)Py_NewRef((PyObject *)new_code);
    frame->f_globals = function->func_globals;
    frame->f_builtins = function->func_builtins;
    frame->prev_instr = _PyCode_CODE(new_code) - 1;
    frame->stacktop = new_code->co_nlocalsplus;
    Py_DECREF(old_code);
    Py_DECREF(old_function);
    return true;
}

/* 3.12 clears a frame in the evaluator, with functions it does not export. So the evaluator is given a frame that has
 * nothing left to do but to return what is on its stack. */
PyObject *dj_frame_finish(PyThreadState *tstate, Frame *frame, PyObject *result)
{
    PyObject *error = result == NULL ? PyErr_GetRaisedException() : NULL;
    PyCodeObject *old_code = frame->f_code;
    for (int i = 0; i < old_code->co_nlocalsplus; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
    frame->f_code = (PyCodeObject *)Py_NewRef((PyObject *)dj_return_stub);
    frame->prev_instr = _PyCode_CODE(dj_return_stub) - 1;
    frame->localsplus[0] = result != NULL ? result : Py_NewRef(Py_None);
    frame->stacktop = 1;
    Py_DECREF(old_code);
    result = _PyEval_EvalFrameDefault(tstate, frame, 0);
    if (error != NULL) {
        /* returned first and raised after, so that no one sees the stub unwind */
        Py_CLEAR(result);
        PyErr_SetRaisedException(error);
    }
    return result;
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
