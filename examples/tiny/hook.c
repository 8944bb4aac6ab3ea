/* The frame hook: CPython asks us before it runs a Python function (PEP 523).
 *
 * In: `call(function, args, callback)`. Out: what `function(*args)` returns. Meanwhile each frame that is about to run is
 * shown to `callback(code, globals, args)`; it returns None, and the frame runs as it is, or a function to call instead. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_frame.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030D0000
#error "CPython 3.11 or 3.12: frames look different in others"
#endif

static __thread PyObject *callback; /* borrowed from `call`; NULL: off */
static PyObject *empty_code;        /* of a function that does nothing */

/* A function's own frame, at its start, whose arguments are plain variables. */
static int is_plain_call(PyCodeObject *code, int throwing)
{
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    const int unwanted = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_VARARGS | CO_VARKEYWORDS | CO_NESTED;
    return !throwing && (code->co_flags & (wanted | unwanted)) == wanted && code->co_kwonlyargcount == 0
        && code->co_ncellvars == 0 && code->co_nfreevars == 0;
}

/* The frame was not run. 3.11 clears it in the evaluator's caller; in 3.12 the evaluator does, so it gets to run the frame
 * with the code of a function that does nothing. */
static PyObject *finish(PyThreadState *tstate, struct _PyInterpreterFrame *frame, PyObject *result)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error = PyErr_GetRaisedException();
    for (int i = 0; i < frame->f_code->co_nlocalsplus; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
    Py_SETREF(frame->f_code, (PyCodeObject *)Py_NewRef(empty_code));
    frame->prev_instr = _PyCode_CODE(frame->f_code) - 1;
    frame->stacktop = 0;
    Py_XDECREF(_PyEval_EvalFrameDefault(tstate, frame, 0));
    PyErr_SetRaisedException(error);
#else
    (void)tstate, (void)frame;
#endif
    return result;
}

static PyObject *eval_frame(PyThreadState *tstate, struct _PyInterpreterFrame *frame, int throwing)
{
    PyCodeObject *code = frame->f_code;
    if (callback == NULL || !is_plain_call(code, throwing)) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwing);
    }
    PyObject *args = PyTuple_New(code->co_argcount);
    for (int i = 0; args != NULL && i < code->co_argcount; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(frame->localsplus[i]));
    }
    PyObject *current = callback, *result = NULL;
    callback = NULL; /* neither the compiler nor what it made is to be compiled */
    PyObject *instead = args != NULL ? PyObject_CallFunction(current, "OOO", code, frame->f_globals, args) : NULL;
    if (instead != NULL && instead != Py_None) {
        result = PyObject_CallObject(instead, args);
    }
    callback = current;
    Py_XDECREF(args);
    Py_XDECREF(instead);
    return instead == Py_None ? _PyEval_EvalFrameDefault(tstate, frame, 0) : finish(tstate, frame, result);
}

static PyObject *call(PyObject *module, PyObject *arguments)
{
    PyObject *function, *args, *wanted, *outer = callback;
    if (!PyArg_ParseTuple(arguments, "OO!O:call", &function, &PyTuple_Type, &args, &wanted)) {
        return NULL;
    }
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction before = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    _PyInterpreterState_SetEvalFrameFunc(interpreter, eval_frame);
    callback = wanted;
    PyObject *result = PyObject_CallObject(function, args);
    callback = outer;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, before);
    return result;
}

static PyMethodDef methods[] = {{"call", call, METH_VARARGS, "call(function, args, callback)"}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "hook", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_hook(void)
{
    empty_code = (PyObject *)PyCode_NewEmpty("hook.c", "nothing", 1);
    return empty_code != NULL ? PyModule_Create(&definition) : NULL;
}
