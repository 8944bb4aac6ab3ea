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

#include "python/compat_frame.h"

static PyCodeObject *code_of(const Frame *frame)
{
    return _PyFrame_GetCode((Frame *)frame);
}

static void set_code(Frame *frame, PyCodeObject *code)
{
    Py_SETREF(frame->f_executable, Py_NewRef((PyObject *)code));
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
    return frame->instr_ptr == _PyCode_CODE(code);
}

static void go_to_start(Frame *frame, PyCodeObject *code, int slots)
{
    frame->instr_ptr = _PyCode_CODE(code);
    frame->stacktop = slots;
}

bool dj_few_c_calls_left(const PyThreadState *tstate)
{
    return tstate->c_recursion_remaining < Py_C_RECURSION_LIMIT / 2;
}

#endif
