/* How a plan is entered from Python: what torch's own bindings do around a call of C++. */
#ifndef DYNAJIT_PYTHON_ENTRY_H
#define DYNAJIT_PYTHON_ENTRY_H

#include "plan/plan_executor.h"

#include <torch/csrc/Exceptions.h>

namespace dynajit {

/* What `call` gives. What operators warn of meanwhile is warned of by Python's `warnings` once it has returned; without
 * that torch writes it to stderr, past every filter. Null, and Python's exception is set, where `call` throws or gives null,
 * or a filter makes a warning an exception. With the GIL. */
template <typename Call>
PyObject *enter_from_python(const Call &call)
{
    PyObject *result = nullptr;
    try {
        torch::PyWarningHandler warned;
        try {
            result = call();
        }
        catch (...) {
            translate_exception();
        }
        if (result == nullptr) {
            warned.set_in_exception();
        }
    }
    catch (python_error &error) {
        Py_CLEAR(result);
        error.restore();
    }
    return result;
}

} // namespace dynajit

#endif
