/* CPython 3.11. */
#define Py_BUILD_CORE 1
#include "attribute_filler.h"
#include "compat.h"
#include "recursion.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

#include <internal/pycore_frame.h>

#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>

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

/* Attributes kept beside the object, not yet in a dict: at most 30, so a scan. */
static PyObject *inline_value(PyTypeObject *type, PyDictValues *values, PyObject *name)
{
    PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
    if (!DK_IS_UNICODE(keys)) {
        return NULL;
    }
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    for (Py_ssize_t i = 0; i < keys->dk_nentries; i++) {
        if (entries[i].me_key == name
            || (entries[i].me_key != NULL && PyUnicode_GET_LENGTH(entries[i].me_key) == PyUnicode_GET_LENGTH(name)
                && PyUnicode_Compare(entries[i].me_key, name) == 0)) {
            return values->values[i];
        }
    }
    return NULL;
}

PyObject *dj_instance_lookup(PyObject *object, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject *dict;
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        PyDictValues *values = *_PyObject_ValuesPointer(object);
        if (values != NULL) {
            return inline_value(type, values, name);
        }
        dict = *_PyObject_ManagedDictPointer(object);
    }
    else {
        PyObject **pointer = _PyObject_GetDictPtr(object);
        dict = pointer != NULL ? *pointer : NULL;
    }
    if (dict == NULL) {
        return NULL;
    }
    PyObject *value = PyDict_GetItemWithError(dict, name);
    if (value == NULL) {
        PyErr_Clear();
    }
    return value;
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

Py_ssize_t dj_store_beside(PyObject *object, PyObject *const *names, PyObject *const *given, Py_ssize_t n,
                           uint8_t *places)
{
    PyTypeObject *type = Py_TYPE(object);
    bool beside = (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0;
    PyDictValues *values = beside ? *_PyObject_ValuesPointer(object) : NULL;
    PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
    if (values == NULL || keys == NULL || !DK_IS_UNICODE(keys)) {
        return 0;
    }
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    Py_ssize_t size = keys->dk_nentries, i = 0;
    for (; i < n; i++) {
        Py_ssize_t at = places[i];
        if (at >= size || entries[at].me_key != names[i]) {
            for (at = 0; at < size && entries[at].me_key != names[i]; at++) {
            }
        }
        if (at == size || values->values[at] != NULL) {
            break;
        }
        places[i] = (uint8_t)at;
        values->values[at] = Py_NewRef(given[i]);
        _PyDictValues_AddToInsertionOrder(values, at);
    }
    return i;
}

int dj_set_next(PyObject *set, Py_ssize_t *position, PyObject **item, Py_hash_t *hash)
{
    return _PySet_NextEntry(set, position, item, hash);
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

#endif
