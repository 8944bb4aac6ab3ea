/* Names of compiled graphs in torch.profiler's and NVTX's traces.
 *
 * In: a call and the graph's name. Out: the call's result, with a range of that name around it if somebody records. With
 * nobody recording this is one look at a thread-local flag. */
#include "call/call.h"

#include <string>
#include <utility>

#include <ATen/record_function.h>

extern "C" PyObject *dj_call_marked(PyObject *name, PyObject *function, PyObject *const *args, size_t nargsf,
                                    PyObject *kwnames)
{
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!callbacks.has_value()) {
        return PyObject_Vectorcall(function, args, nargsf, kwnames);
    }
    const char *text = PyUnicode_AsUTF8(name);
    if (text == nullptr) {
        return nullptr;
    }
    at::RecordFunction mark(std::move(*callbacks));
    mark.before(std::string(text));
    return PyObject_Vectorcall(function, args, nargsf, kwnames);
}
