/* What is done the same to every release's frames, over what its compat file says of where a frame keeps what.
 *
 * In:  DJ_INSTRUCTION_FIELD, and DJ_START(code), what is there at a call's start; DJ_FRAME_SIZE(code), if it is no field of
 * the code; DJ_CODE_FIELD and DJ_FUNCTION_FIELD, or, if a frame's slots are no plain pointers, DJ_TAGGED_SLOTS and the
 * functions below; DJ_CALLER_CLEARS_FRAMES if not the evaluator but its caller clears frames. Out: `dj_frame_is_fresh_call`,
 * `dj_frame_code`, `dj_frame_function`, `dj_frame_globals`, `dj_frame_become`, and where the including file does not have
 * them `dj_frame_params` and `dj_frame_finish`. Included by one compat file of a build, after CPython's own headers. */
#ifndef DYNAJIT_COMPAT_FRAME_H
#define DYNAJIT_COMPAT_FRAME_H

#include "python/compat.h"

#ifndef DJ_FRAME_SIZE /* how many pointers' room a frame takes */
#define DJ_FRAME_SIZE(code) ((code)->co_framesize)
#endif

#ifdef DJ_TAGGED_SLOTS
static PyCodeObject *code_of(const Frame *frame);
static PyFunctionObject *function_of(const Frame *frame);
/* Give a frame other code, or another function, and let go of what it had. */
static void set_code(Frame *frame, PyCodeObject *code);
static void set_function(Frame *frame, PyFunctionObject *function);
/* To the code's first instruction, with so many slots in use. */
static void go_to_start(Frame *frame, PyCodeObject *code, int slots);
/* Fill a slot that holds nothing; steals the object, which may be NULL. */
static void fill_slot(Frame *frame, Py_ssize_t at, PyObject *object);
static void clear_slot(Frame *frame, Py_ssize_t at);
#else
static PyCodeObject *code_of(const Frame *frame)
{
    return (PyCodeObject *)frame->DJ_CODE_FIELD;
}

static PyFunctionObject *function_of(const Frame *frame)
{
    return (PyFunctionObject *)frame->DJ_FUNCTION_FIELD;
}

static void set_code(Frame *frame, PyCodeObject *code)
{
    Py_SETREF(frame->DJ_CODE_FIELD, (void *)Py_NewRef((PyObject *)code));
}

static void set_function(Frame *frame, PyFunctionObject *function)
{
    Py_SETREF(frame->DJ_FUNCTION_FIELD, (void *)Py_NewRef((PyObject *)function));
}

static void go_to_start(Frame *frame, PyCodeObject *code, int slots)
{
    frame->DJ_INSTRUCTION_FIELD = DJ_START(code);
    frame->stacktop = slots;
}

static void fill_slot(Frame *frame, Py_ssize_t at, PyObject *object)
{
    frame->localsplus[at] = object;
}

PyObject *const *dj_frame_params(Frame *frame, PyObject **room, Py_ssize_t n)
{
    (void)room;
    (void)n;
    return frame->localsplus;
}
#endif

bool dj_frame_is_fresh_call(Frame *frame)
{
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    const int generators = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    if (frame->owner != FRAME_OWNED_BY_THREAD || frame->f_locals != NULL
        || !PyFunction_Check((PyObject *)function_of(frame))) {
        return false;
    }
    PyCodeObject *code = code_of(frame);
    return (code->co_flags & (wanted | generators)) == wanted && frame->DJ_INSTRUCTION_FIELD == DJ_START(code);
}

PyCodeObject *dj_frame_code(Frame *frame)
{
    return code_of(frame);
}

PyFunctionObject *dj_frame_function(Frame *frame)
{
    return function_of(frame);
}

PyObject *dj_frame_globals(Frame *frame)
{
    return frame->f_globals;
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
    PyCodeObject *new_code = (PyCodeObject *)function->func_code;
    if (!resize_top_frame(tstate, frame, DJ_FRAME_SIZE(code_of(frame)), DJ_FRAME_SIZE(new_code))) {
        return false;
    }
    Py_ssize_t n = n_params;
    for (Py_ssize_t i = 0; i < n_cells; i++) {
        fill_slot(frame, n++, Py_NewRef(cells[i]));
    }
    for (; n < new_code->co_nlocalsplus; n++) {
        fill_slot(frame, n, NULL);
    }
    frame->f_globals = function->func_globals;
    frame->f_builtins = function->func_builtins;
    go_to_start(frame, new_code, new_code->co_nlocalsplus);
    set_code(frame, new_code);
    set_function(frame, function); /* last: letting go of a function may run code that walks along the stack */
    return true;
}

#ifndef DJ_CALLER_CLEARS_FRAMES
#ifndef DJ_TAGGED_SLOTS
static void clear_slot(Frame *frame, Py_ssize_t at)
{
    Py_CLEAR(frame->localsplus[at]);
}
#endif

/* The evaluator clears a frame with functions that CPython does not export. So it is given a frame that has nothing
 * left to do but to return what is on its stack. */
PyObject *dj_frame_finish(PyThreadState *tstate, Frame *frame, PyObject *result)
{
    PyObject *error = result == NULL ? PyErr_GetRaisedException() : NULL;
    int n_locals = code_of(frame)->co_nlocalsplus;
    for (int i = 0; i < n_locals; i++) {
        clear_slot(frame, i);
    }
    fill_slot(frame, 0, result != NULL ? result : Py_NewRef(Py_None));
    go_to_start(frame, dj_return_stub, 1);
    set_code(frame, dj_return_stub);
    result = _PyEval_EvalFrameDefault(tstate, frame, 0);
    if (error != NULL) {
        /* returned first and raised after, so that no one sees the stub unwind */
        Py_CLEAR(result);
        PyErr_SetRaisedException(error);
    }
    return result;
}
#endif

#endif
