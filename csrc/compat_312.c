/* CPython 3.12. */
#define Py_BUILD_CORE 1
#include "attribute_filler.h"
#include "compat.h"

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000

#include <internal/pycore_frame.h>

#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>

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
        PyDictOrValues dict_or_values = *_PyObject_DictOrValuesPointer(object);
        if (_PyDictOrValues_IsValues(dict_or_values)) {
            return inline_value(type, _PyDictOrValues_GetValues(dict_or_values), name);
        }
        dict = _PyDictOrValues_GetDict(dict_or_values);
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
        PyDictOrValues *place = _PyObject_DictOrValuesPointer(object);
        bool in_dict = !_PyDictOrValues_IsValues(*place) && _PyDictOrValues_GetDict(*place) != NULL;
        return in_dict ? (PyObject **)place : NULL;
    }
    PyObject **place = _PyObject_GetDictPtr(object);
    return place != NULL && *place != NULL ? place : NULL;
}

Py_ssize_t dj_store_beside(PyObject *object, PyObject *const *names, PyObject *const *given, Py_ssize_t n,
                           uint8_t *places)
{
    PyTypeObject *type = Py_TYPE(object);
    if ((type->tp_flags & Py_TPFLAGS_MANAGED_DICT) == 0) {
        return 0;
    }
    PyDictOrValues place = *_PyObject_DictOrValuesPointer(object);
    PyDictValues *values = _PyDictOrValues_IsValues(place) ? _PyDictOrValues_GetValues(place) : NULL;
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

#endif
