/* CPython 3.14.
 *
 * Against 3.13: what a frame holds are tagged references (pycore_stackref.h), of which those to immortal objects are
 * not counted; an empty slot is PyStackRef_NULL, which is not 0. */
#define Py_BUILD_CORE 1
#include "python/compat.h"
#include "python/recursion.h"

#if PY_VERSION_HEX >= 0x030E0000 && PY_VERSION_HEX < 0x030F0000

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* CPython's headers' own */
#include <internal/pycore_frame.h>

#include <internal/pycore_code.h>
#include <internal/pycore_interpframe.h>
#include <internal/pycore_stackref.h>
#pragma GCC diagnostic pop

bool dj_frame_is_fresh_call(Frame *frame)
{
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    const int generators = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    if (frame->owner != FRAME_OWNED_BY_THREAD || frame->f_locals != NULL
        || !PyFunction_Check(PyStackRef_AsPyObjectBorrow(frame->f_funcobj))) {
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
    return _PyFrame_GetFunction(frame);
}

PyObject *dj_frame_globals(Frame *frame)
{
    return frame->f_globals;
}

PyObject *const *dj_frame_params(Frame *frame, PyObject **room, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        _PyStackRef local = frame->localsplus[i];
        room[i] = PyStackRef_IsNull(local) ? NULL : PyStackRef_AsPyObjectBorrow(local);
    }
    return room;
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
        frame->localsplus[n++] = PyStackRef_FromPyObjectNew(cells[i]);
    }
    for (; n < new_code->co_nlocalsplus; n++) {
        frame->localsplus[n] = PyStackRef_NULL;
    }
    _PyStackRef old_executable = frame->f_executable;
    _PyStackRef old_function = frame->f_funcobj;
    frame->f_funcobj = PyStackRef_FromPyObjectNew(function);
    frame->f_executable = PyStackRef_FromPyObjectNew(new_code);
    frame->f_globals = function->func_globals;
    frame->f_builtins = function->func_builtins;
    frame->instr_ptr = _PyCode_CODE(new_code);
    frame->stackpointer = frame->localsplus + new_code->co_nlocalsplus;
    PyStackRef_CLOSE(old_executable);
    PyStackRef_CLOSE(old_function);
    return true;
}

/* The evaluator clears a frame with functions that 3.14 does not export. So it is given a frame that has nothing left
 * to do but to return what is on its stack. */
PyObject *dj_frame_finish(PyThreadState *tstate, Frame *frame, PyObject *result)
{
    PyObject *error = result == NULL ? PyErr_GetRaisedException() : NULL;
    _PyStackRef old_executable = frame->f_executable;
    int n_locals = _PyFrame_GetCode(frame)->co_nlocalsplus;
    for (int i = 0; i < n_locals; i++) {
        _PyStackRef local = frame->localsplus[i];
        frame->localsplus[i] = PyStackRef_NULL;
        PyStackRef_XCLOSE(local);
    }
    frame->f_executable = PyStackRef_FromPyObjectNew(dj_return_stub);
    frame->instr_ptr = _PyCode_CODE(dj_return_stub);
    frame->localsplus[0] = PyStackRef_FromPyObjectSteal(result != NULL ? result : Py_NewRef(Py_None));
    frame->stackpointer = frame->localsplus + 1;
    PyStackRef_CLOSE(old_executable);
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
    (void)tstate; /* it measures the stack */
    return false;
}

#endif
