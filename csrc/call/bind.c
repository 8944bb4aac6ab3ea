/* Lays a call's arguments out as the callee's fast locals, as CPython does when it starts a frame.
 *
 * In: a function and vectorcall arguments. Out: parameters in fast-local order (positional, keyword-only, *args,
 * **kwargs). Arguments that do not fit are not reported here: calling the function itself gives Python's own message. */
#include "call/call.h"

static Py_ssize_t find_name(PyObject *names, Py_ssize_t from, Py_ssize_t to, PyObject *keyword)
{
    for (Py_ssize_t i = from; i < to; i++) {
        if (PyTuple_GET_ITEM(names, i) == keyword) {
            return i;
        }
    }
    for (Py_ssize_t i = from; i < to; i++) {
        if (dj_const_equal(keyword, PyTuple_GET_ITEM(names, i))) {
            return i;
        }
    }
    return -1;
}

/* Keyword arguments, into their parameter or **kwargs. */
static int bind_keywords(PyCodeObject *code, PyObject *names, PyObject *const *values, PyObject *kwnames,
                         BoundArguments *bound)
{
    Py_ssize_t n_named = code->co_argcount + code->co_kwonlyargcount;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(kwnames); k++) {
        PyObject *keyword = PyTuple_GET_ITEM(kwnames, k);
        if (!PyUnicode_CheckExact(keyword)) {
            return 0;
        }
        Py_ssize_t i = find_name(names, code->co_posonlyargcount, n_named, keyword);
        if (i >= 0) {
            if (bound->values[i] != NULL) {
                return 0;
            }
            bound->values[i] = values[k];
        }
        else {
            if (bound->varkw == NULL) {
                return 0;
            }
            int known = PyDict_Contains(bound->varkw, keyword);
            if (known != 0 || PyDict_SetItem(bound->varkw, keyword, values[k]) < 0) {
                return known == 1 ? 0 : -1;
            }
        }
    }
    return 1;
}

static int bind_defaults(PyFunctionObject *function, PyCodeObject *code, PyObject *names, BoundArguments *bound)
{
    PyObject *defaults = function->func_defaults;
    Py_ssize_t n_defaults = defaults != NULL ? PyTuple_GET_SIZE(defaults) : 0;
    for (Py_ssize_t i = 0; i < code->co_argcount; i++) {
        if (bound->values[i] == NULL) {
            Py_ssize_t d = i - (code->co_argcount - n_defaults);
            if (d < 0) {
                return 0;
            }
            bound->values[i] = PyTuple_GET_ITEM(defaults, d);
        }
    }
    for (Py_ssize_t i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        if (bound->values[i] == NULL) {
            PyObject *value = NULL;
            if (function->func_kwdefaults != NULL) {
                value = PyDict_GetItemWithError(function->func_kwdefaults, PyTuple_GET_ITEM(names, i));
            }
            if (value == NULL) {
                return PyErr_Occurred() ? -1 : 0;
            }
            bound->values[i] = value;
        }
    }
    return 1;
}

static int make_varargs(PyCodeObject *code, PyObject *const *args, Py_ssize_t nargs, BoundArguments *bound)
{
    Py_ssize_t n_extra = nargs > code->co_argcount ? nargs - code->co_argcount : 0;
    if (!(code->co_flags & CO_VARARGS)) {
        return n_extra == 0;
    }
    bound->varargs = PyTuple_New(n_extra);
    if (bound->varargs == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < n_extra; i++) {
        PyTuple_SET_ITEM(bound->varargs, i, Py_NewRef(args[code->co_argcount + i]));
    }
    return 1;
}

int dj_bind(PyFunctionObject *function, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
            BoundArguments *bound)
{
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    PyObject *closure = function->func_closure;
    Py_ssize_t n_params = dj_code_n_params(code);
    Py_ssize_t n_named = code->co_argcount + code->co_kwonlyargcount;
    Py_ssize_t n_free = closure != NULL ? PyTuple_GET_SIZE(closure) : 0;
    bound->varargs = bound->varkw = NULL;
    bound->n = n_params + n_free;
    bound->values = bound->inline_values;
    if (bound->n > DJ_BIND_INLINE) {
        bound->values = PyMem_New(PyObject *, bound->n);
        if (bound->values == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    PyObject *names = code->co_localsplusnames;
    Py_ssize_t n_positional = nargs < code->co_argcount ? nargs : code->co_argcount;
    memset(bound->values, 0, (size_t)bound->n * sizeof(PyObject *));
    if (n_positional > 0) {
        memcpy(bound->values, args, (size_t)n_positional * sizeof(PyObject *));
    }
    int status = make_varargs(code, args, nargs, bound);
    if (status == 1 && code->co_flags & CO_VARKEYWORDS) {
        bound->varkw = PyDict_New();
        status = bound->varkw != NULL ? 1 : -1;
    }
    if (status == 1 && kwnames != NULL) {
        status = bind_keywords(code, names, args + nargs, kwnames, bound);
    }
    if (status == 1) {
        status = bind_defaults(function, code, names, bound);
    }
    if (status != 1) {
        dj_bind_clear(bound);
        return status;
    }
    Py_ssize_t n = n_named;
    if (bound->varargs != NULL) {
        bound->values[n++] = bound->varargs;
    }
    if (bound->varkw != NULL) {
        bound->values[n++] = bound->varkw;
    }
    for (Py_ssize_t i = 0; i < n_free; i++) {
        bound->values[n++] = PyTuple_GET_ITEM(closure, i);
    }
    return 1;
}

void dj_bind_clear(BoundArguments *bound)
{
    Py_CLEAR(bound->varargs);
    Py_CLEAR(bound->varkw);
    if (bound->values != bound->inline_values) {
        PyMem_Free(bound->values);
        bound->values = bound->inline_values;
    }
}
