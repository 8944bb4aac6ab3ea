/* Compiled graphs called from C++, with tensors in place of Python's objects. */
#ifndef DYNAJIT_GRAPH_VALUES_H
#define DYNAJIT_GRAPH_VALUES_H

#include <Python.h>

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dynajit {

/* What a graph takes or gives: a tensor, or another object of Python's. Made and destroyed with the GIL. */
class Value {
public:
    explicit Value(at::Tensor tensor) : tensor(std::move(tensor))
    {
    }
    /* Of an object that stays the caller's. */
    explicit Value(PyObject *object);
    Value(Value &&other) noexcept : tensor(std::move(other.tensor)), object(std::exchange(other.object, nullptr))
    {
    }
    ~Value()
    {
        Py_XDECREF(object);
    }
    Value(const Value &) = delete;
    Value &operator=(const Value &) = delete;
    Value &operator=(Value &&) = delete;

    PyObject *wrap() const; /* new reference */

    at::Tensor tensor;
    PyObject *object = nullptr; /* owned; of what is no tensor. None is neither */
};

using Values = std::vector<Value>;

/* The items of a sequence, which is let go of; NULL, with an error set, is thrown. `wanted`: what is said of another
 * object. */
Values values_of(PyObject *sequence, const char *wanted);

/* Calls a compiled graph. `releases`: what is given dies when the graph has read it for the last time, unless somebody else
 * holds it. Throws python_error and what operators throw. */
Values call_graph(PyObject *callable, Values &&given, bool releases);

/* What a RuntimeCall calls, if it does nothing else, and whether autocast is off inside; else the object itself. Borrowed. */
PyObject *plain_graph(PyObject *callable, bool *no_autocast);

/* A result that is no view to autograd: what it is a view of is nobody's but the graph's. */
at::Tensor without_view(const at::Tensor &tensor);

} // namespace dynajit

#endif
