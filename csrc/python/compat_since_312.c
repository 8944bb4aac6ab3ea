/* What CPython 3.12 and later have in common, and 3.11 does not. */
#define Py_BUILD_CORE 1
#include "python/compat.h"
#include "python/recursion.h"

#if PY_VERSION_HEX >= 0x030C0000

#ifdef Py_GIL_DISABLED
#error "dynajit needs CPython with its global interpreter lock; this one is built without (free-threaded)"
#endif

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* CPython's headers' own */
#include <internal/pycore_frame.h>

#include <internal/pycore_instruments.h>
#include <internal/pycore_interp.h>
#include <opcode.h>
#pragma GCC diagnostic pop

PyCodeObject *dj_return_stub;

int dj_compat_init(void)
{
    const char instructions[] = {RETURN_VALUE, 0};
    PyObject *code = PyBytes_FromStringAndSize(instructions, sizeof instructions);
    PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
    PyObject *no_names = PyTuple_New(0);
    PyObject *name = PyUnicode_FromString("dynajit");
    if (code != NULL && nothing != NULL && no_names != NULL && name != NULL) {
        dj_return_stub = PyUnstable_Code_NewWithPosOnlyArgs(0, 0, 0, 0, 1, CO_OPTIMIZED | CO_NEWLOCALS, code, no_names,
                                                            no_names, no_names, no_names, no_names, name, name, name, 1,
                                                            nothing, nothing);
    }
    Py_XDECREF(code);
    Py_XDECREF(nothing);
    Py_XDECREF(no_names);
    Py_XDECREF(name);
    return dj_return_stub != NULL ? 0 : -1;
}

void dj_frame_drop_locals(Frame *frame)
{
    (void)frame; /* the evaluator has cleared it */
}

RecursionRoom dj_recursion_room_enter(PyThreadState *tstate)
{
    int added = Py_MAX(0, DJ_DEEP_ROOM - tstate->py_recursion_remaining);
    tstate->py_recursion_remaining += added;
    tstate->py_recursion_limit += added;
    return (RecursionRoom){.limit = tstate->py_recursion_limit, .added = added};
}

void dj_recursion_room_leave(PyThreadState *tstate, RecursionRoom room)
{
    if (tstate->py_recursion_limit == room.limit) {
        tstate->py_recursion_remaining -= room.added;
        tstate->py_recursion_limit -= room.added;
    }
}

bool dj_thread_is_traced(PyThreadState *tstate)
{
    if (tstate->c_tracefunc != NULL || tstate->tracing > 0) {
        return true;
    }
    /* sys.settrace and sys.setprofile have tools of their own, for all threads at once */
    const int own_tools = (1 << PY_MONITORING_SYS_TRACE_ID) | (1 << PY_MONITORING_SYS_PROFILE_ID);
    const int watchers = (1 << PY_MONITORING_DEBUGGER_ID) | (1 << PY_MONITORING_COVERAGE_ID);
    const uint8_t *tools = tstate->interp->monitors.tools;
    return ((tools[PY_MONITORING_EVENT_LINE] | tools[PY_MONITORING_EVENT_INSTRUCTION]) & ~own_tools) != 0
        || (tools[PY_MONITORING_EVENT_PY_START] & watchers) != 0;
}

Py_ssize_t dj_code_extra_index(freefunc free_state)
{
    return PyUnstable_Eval_RequestCodeExtraIndex(free_state);
}

int dj_code_extra_get(PyCodeObject *code, Py_ssize_t index, void **extra)
{
    return PyUnstable_Code_GetExtra((PyObject *)code, index, extra);
}

int dj_code_extra_set(PyCodeObject *code, Py_ssize_t index, void *extra)
{
    return PyUnstable_Code_SetExtra((PyObject *)code, index, extra);
}

#endif
