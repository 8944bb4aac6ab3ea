/* CPython 3.11. */
#define Py_BUILD_CORE 1
#include "python/compat.h"
#include "python/recursion.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

#include <internal/pycore_frame.h>

#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>

#include "python/compat_shared.h"

int dj_compat_init(void)
{
    return 0;
}

bool dj_frame_is_fresh_call(Frame *frame)
{
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    const int generators = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    return frame->owner == FRAME_OWNED_BY_THREAD && frame->f_locals == NULL
        && (frame->f_code->co_flags & (wanted | generators)) == wanted
        && frame->prev_instr == _PyCode_CODE(frame->f_code) - 1;
}

PyCodeObject *dj_frame_code(Frame *frame)
{
    return frame->f_code;
}

PyFunctionObject *dj_frame_function(Frame *frame)
{
    return frame->f_func;
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
static bool resize_top_frame(PyThreadState *tstate, Frame *frame, Py_ssize_t old_slots, Py_ssize_t new_slots)
{
    PyObject **base = (PyObject **)frame + FRAME_SPECIALS_SIZE;
    if (tstate->datastack_top != base + old_slots) {
        return false;
    }
    if (new_slots >= tstate->datastack_limit - base) {
        return false;
    }
    tstate->datastack_top = base + new_slots;
    return true;
}

bool dj_frame_become(PyThreadState *tstate, Frame *frame, PyFunctionObject *function, Py_ssize_t n_params,
                     PyObject *const *cells, Py_ssize_t n_cells)
{
    PyCodeObject *old_code = frame->f_code;
    PyCodeObject *new_code = (PyCodeObject *)function->func_code;
    if (!resize_top_frame(tstate, frame, old_code->co_nlocalsplus + old_code->co_stacksize,
                          new_code->co_nlocalsplus + new_code->co_stacksize)) {
        return false;
    }
    Py_ssize_t n = n_params;
    for (Py_ssize_t i = 0; i < n_cells; i++) {
        frame->localsplus[n++] = Py_NewRef(cells[i]);
    }
    for (; n < new_code->co_nlocalsplus; n++) {
        frame->localsplus[n] = NULL;
    }
    PyFunctionObject *old_function = frame->f_func;
    frame->f_func = (PyFunctionObject *)Py_NewRef((PyObject *)function);
    frame->f_code = (PyCodeObject *)Py_NewRef((PyObject *)new_code);
    frame->f_globals = function->func_globals;
    frame->f_builtins = function->func_builtins;
    frame->prev_instr = _PyCode_CODE(new_code) - 1;
    frame->stacktop = new_code->co_nlocalsplus;
    Py_DECREF(old_code);
    Py_DECREF(old_function);
    return true;
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
