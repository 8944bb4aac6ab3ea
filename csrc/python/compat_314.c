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

#define DJ_TAGGED_SLOTS
#define DJ_INSTRUCTION_FIELD instr_ptr
#define DJ_START(code) _PyCode_CODE(code)
#include "python/compat_frame.h"

static void set_slot(_PyStackRef *slot, _PyStackRef now)
{
    _PyStackRef before = *slot;
    *slot = now;
    PyStackRef_XCLOSE(before);
}

static PyCodeObject *code_of(const Frame *frame)
{
    return _PyFrame_GetCode((Frame *)frame);
}

static void set_code(Frame *frame, PyCodeObject *code)
{
    set_slot(&frame->f_executable, PyStackRef_FromPyObjectNew(code));
}

static PyFunctionObject *function_of(const Frame *frame)
{
    return _PyFrame_GetFunction((Frame *)frame);
}

static void set_function(Frame *frame, PyFunctionObject *function)
{
    set_slot(&frame->f_funcobj, PyStackRef_FromPyObjectNew(function));
}

static void go_to_start(Frame *frame, PyCodeObject *code, int slots)
{
    frame->instr_ptr = _PyCode_CODE(code);
    frame->stackpointer = frame->localsplus + slots;
}

static void fill_slot(Frame *frame, Py_ssize_t at, PyObject *object)
{
    frame->localsplus[at] = object != NULL ? PyStackRef_FromPyObjectSteal(object) : PyStackRef_NULL;
}

static void clear_slot(Frame *frame, Py_ssize_t at)
{
    set_slot(&frame->localsplus[at], PyStackRef_NULL);
}

PyObject *const *dj_frame_params(Frame *frame, PyObject **room, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        _PyStackRef local = frame->localsplus[i];
        room[i] = PyStackRef_IsNull(local) ? NULL : PyStackRef_AsPyObjectBorrow(local);
    }
    return room;
}

bool dj_few_c_calls_left(const PyThreadState *tstate)
{
    (void)tstate; /* it measures the stack */
    return false;
}

#endif
