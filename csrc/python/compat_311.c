/* CPython 3.11. */
#define Py_BUILD_CORE 1
#include "python/compat.h"
#include "python/recursion.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

#include <internal/pycore_frame.h>

#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>

#define DJ_CALLER_CLEARS_FRAMES
#define DJ_CODE_FIELD f_code
#define DJ_FUNCTION_FIELD f_func
#define DJ_INSTRUCTION_FIELD prev_instr
#define DJ_START(code) (_PyCode_CODE(code) - 1)
#define DJ_FRAME_SIZE(code) (FRAME_SPECIALS_SIZE + (code)->co_nlocalsplus + (code)->co_stacksize)
#include "python/compat_frame.h"
#include "python/compat_shared.h"

int dj_compat_init(void)
{
    return 0;
}

PyObject *dj_frame_finish(PyThreadState *tstate, Frame *frame, PyObject *result)
{
    /* 3.11 clears the frame in the caller of the evaluator. */
    (void)tstate;
    (void)frame;
    return result;
}

void dj_frame_drop_locals(Frame *frame)
{
    /* A frame object that nobody but the frame itself holds was made for a walk along the stack. */
    if (frame->frame_obj == NULL || Py_REFCNT(frame->frame_obj) == 1) { /* else somebody may still look at them */
        for (int i = 0; i < frame->stacktop; i++) {
            Py_CLEAR(frame->localsplus[i]);
        }
    }
}

RecursionRoom dj_recursion_room_enter(PyThreadState *tstate)
{
    int added = Py_MAX(0, DJ_DEEP_ROOM - tstate->recursion_remaining);
    tstate->recursion_remaining += added;
    tstate->recursion_limit += added;
    return (RecursionRoom){.limit = tstate->recursion_limit, .added = added};
}

void dj_recursion_room_leave(PyThreadState *tstate, RecursionRoom room)
{
    if (tstate->recursion_limit == room.limit) {
        tstate->recursion_remaining -= room.added;
        tstate->recursion_limit -= room.added;
    }
}

bool dj_thread_is_traced(PyThreadState *tstate)
{
    return tstate->c_tracefunc != NULL || tstate->tracing > 0;
}

static PyDictValues *values_beside(PyObject *object)
{
    return *_PyObject_ValuesPointer(object);
}

static Py_ssize_t count_places(const PyDictValues *values, const PyDictKeysObject *keys)
{
    (void)values;
    return keys->dk_nentries;
}

static PyObject *attribute_dict(PyObject *object)
{
    return *_PyObject_ManagedDictPointer(object);
}

PyObject **dj_instance_dict_place(PyObject *object)
{
    if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        PyObject **place = _PyObject_ManagedDictPointer(object);
        return *_PyObject_ValuesPointer(object) == NULL && *place != NULL ? place : NULL;
    }
    PyObject **place = _PyObject_GetDictPtr(object);
    return place != NULL && *place != NULL ? place : NULL;
}

Py_ssize_t dj_code_extra_index(freefunc free_state)
{
    return _PyEval_RequestCodeExtraIndex(free_state);
}

int dj_code_extra_get(PyCodeObject *code, Py_ssize_t index, void **extra)
{
    return _PyCode_GetExtra((PyObject *)code, index, extra);
}

int dj_code_extra_set(PyCodeObject *code, Py_ssize_t index, void *extra)
{
    return _PyCode_SetExtra((PyObject *)code, index, extra);
}

bool dj_few_c_calls_left(const PyThreadState *tstate)
{
    (void)tstate; /* it does not count them */
    return false;
}

#endif
