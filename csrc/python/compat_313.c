/* CPython 3.13.
 *
 * Against 3.12: a frame's code is `f_executable`, `instr_ptr` is the instruction about to begin rather than the one
 * before it, and attributes without a dict lie inside the object. */
#define Py_BUILD_CORE 1
#include "python/compat.h"
#include "python/recursion.h"

#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* CPython's headers' own */
#include <internal/pycore_frame.h>

#include <internal/pycore_code.h>
#pragma GCC diagnostic pop

bool dj_frame_is_fresh_call(Frame *frame)
{
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    const int generators = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    if (frame->owner != FRAME_OWNED_BY_THREAD || frame->f_locals != NULL || !PyFunction_Check(frame->f_funcobj)) {
        return false;
    }
    PyCodeObject *code = _PyFrame_GetCode(frame);
    return (code->co_flags & (wanted | generators)) == wanted && frame->instr_ptr == _PyCode_CODE(code);
}

PyCodeObject *dj_frame_code(Frame *frame)
{
    return _PyFrame_GetCode(frame);
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
    PyCodeObject *old_code = _PyFrame_GetCode(frame);
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
    frame->f_executable = Py_NewRef((PyObject *)new_code);
    frame->f_globals = function->func_globals;
    frame->f_builtins = function->func_builtins;
    frame->instr_ptr = _PyCode_CODE(new_code);
    frame->stacktop = new_code->co_nlocalsplus;
    Py_DECREF(old_code);
    Py_DECREF(old_function);
    return true;
}

/* The evaluator clears a frame with functions that 3.13 does not export. So it is given a frame that has nothing left
 * to do but to return what is on its stack. */
PyObject *dj_frame_finish(PyThreadState *tstate, Frame *frame, PyObject *result)
{
    PyObject *error = result == NULL ? PyErr_GetRaisedException() : NULL;
    PyCodeObject *old_code = _PyFrame_GetCode(frame);
    for (int i = 0; i < old_code->co_nlocalsplus; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
    frame->f_executable = Py_NewRef((PyObject *)dj_return_stub);
    frame->instr_ptr = _PyCode_CODE(dj_return_stub);
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

bool dj_few_c_calls_left(const PyThreadState *tstate)
{
    return tstate->c_recursion_remaining < Py_C_RECURSION_LIMIT / 2;
}

#endif
