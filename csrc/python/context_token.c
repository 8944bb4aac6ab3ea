/* Tokens of context variables.
 *
 * In: a token that `ContextVar.set` gave. Out: whether `ContextVar.reset` would take it, which nothing but trying tells
 * in Python, and a try takes effect. */
#define Py_BUILD_CORE 1
#include "python/objects.h"

#include <internal/pycore_context.h>

static PyObject *token_is_usable(PyObject *module, PyObject *object)
{
    (void)module;
    if (!PyContextToken_CheckExact(object)) {
        Py_RETURN_FALSE;
    }
    const struct _pycontexttokenobject *token = (const struct _pycontexttokenobject *)object;
    return PyBool_FromLong(!token->tok_used && (PyObject *)token->tok_ctx == PyThreadState_Get()->context);
}

static PyMethodDef methods[] = {
    {"token_is_usable", token_is_usable, METH_O,
     "token_is_usable(token)\n--\n\n"
     "Whether it is a token of a context variable, made in the running thread's context, that no reset took so far."},
    {NULL, NULL, 0, NULL},
};

int dj_context_token_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
