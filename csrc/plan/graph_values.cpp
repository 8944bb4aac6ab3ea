/* Compiled graphs called from C++.
 *
 * In: a graph's callable and its arguments, which are given away. Out: its results. A call plan takes the tensors over, so
 * that one that nobody else holds dies after its last use in the plan, as in eager: what forward saved for backward, step by
 * step. Python functions get the same by giving the references up as soon as the function's frame holds them. */
#include "plan/graph_values.h"

#include "call/call.h"
#include "plan/plan_run.h"
#include "plan/python_entry.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace dynajit {
namespace {

/* A reference that is given up at the end of the block. */
struct Owned {
    PyObject *object;
    explicit Owned(PyObject *object) : object(object)
    {
    }
    ~Owned()
    {
        Py_DECREF(object);
    }
    Owned(const Owned &) = delete;
    Owned &operator=(const Owned &) = delete;
};

/* The function behind a bound method, which is put before the arguments. */
PyObject *plain_function(PyObject *callable, std::vector<PyObject *> &arguments)
{
    if (PyMethod_Check(callable)) {
        arguments.push_back(Py_NewRef(PyMethod_GET_SELF(callable)));
        return PyMethod_GET_FUNCTION(callable);
    }
    return callable;
}

PyObject *call_python(PyObject *callable, Values &&given, bool releases)
{
    std::vector<PyObject *> owned;
    const Owned held(Py_NewRef(callable));
    callable = plain_function(callable, owned);
    for (const Value &value : given) {
        owned.push_back(value.wrap());
    }
    given.clear();
    const std::vector<PyObject *> arguments(owned);
    const Py_ssize_t count = static_cast<Py_ssize_t>(owned.size());
    PyObject *result = releases && PyFunction_Check(callable)
                         ? dj_call_releasing(callable, arguments.data(), arguments.size(), nullptr, owned.data(), count)
                         : PyObject_Vectorcall(callable, arguments.data(), arguments.size(), nullptr);
    for (PyObject *object : owned) {
        Py_XDECREF(object);
    }
    return result;
}

} // namespace

Value::Value(PyObject *given)
{
    if (THPVariable_Check(given)) {
        tensor = THPVariable_Unpack(given);
    }
    else if (given != Py_None) {
        object = Py_NewRef(given);
    }
}

PyObject *Value::wrap() const
{
    return object != nullptr ? Py_NewRef(object) : THPVariable_Wrap(tensor);
}

Values values_of(PyObject *sequence, const char *wanted)
{
    PyObject *items = sequence != nullptr ? PySequence_Fast(sequence, wanted) : nullptr;
    Py_XDECREF(sequence);
    if (items == nullptr) {
        throw_python();
    }
    Values found;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); i++) {
        found.emplace_back(PySequence_Fast_GET_ITEM(items, i));
    }
    Py_DECREF(items);
    return found;
}

Values call_graph(PyObject *callable, Values &&given, bool releases)
{
    bool no_autocast = false;
    callable = plain_graph(callable, &no_autocast);
    if (is_plan_executor(callable)) {
        PlanRun run(callable, no_autocast, std::move(given));
        return run.finish();
    }
    const Autocast inside(no_autocast);
    return values_of(call_python(callable, std::move(given), releases), "a compiled graph returns a sequence");
}

at::Tensor without_view(const at::Tensor &tensor)
{
    if (!tensor.is_view()) {
        return tensor;
    }
    at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor plain = at::alias(tensor);
    /* backward may have saved the memory under another name: writes through this one count there */
    torch::autograd::impl::set_version_counter(plain, torch::autograd::impl::version_counter(tensor));
    return plain;
}

} // namespace dynajit

namespace {

/* call_giving(callable, list, returned): the list is empty from then on. */
PyObject *call_giving(PyObject *, PyObject *args)
{
    using namespace dynajit;
    PyObject *callable, *list;
    Py_ssize_t returned = 0;
    if (!PyArg_ParseTuple(args, "OO!|n:call_giving", &callable, &PyList_Type, &list, &returned)) {
        return nullptr;
    }
    return enter_from_python([&]() -> PyObject * {
        Values given;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
            given.emplace_back(PyList_GET_ITEM(list, i));
        }
        if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) < 0) {
            return nullptr;
        }
        Values results = call_graph(callable, std::move(given), true);
        for (size_t i = 0; i < results.size() && i < static_cast<size_t>(returned); i++) {
            if (results[i].tensor.defined()) {
                results[i].tensor = without_view(results[i].tensor);
            }
        }
        PyObject *found = PyTuple_New(static_cast<Py_ssize_t>(results.size()));
        for (size_t i = 0; found != nullptr && i < results.size(); i++) {
            PyTuple_SET_ITEM(found, static_cast<Py_ssize_t>(i), results[i].wrap());
        }
        return found;
    });
}

PyMethodDef methods[] = {
    {"call_giving", call_giving, METH_VARARGS,
     "call_giving(graph, arguments, returned=0)\n--\n\n"
     "Call a compiled graph with the items of a list, which is emptied: what nobody else holds dies after its last use. "
     "The first `returned` results are views of nothing to autograd."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

extern "C" int dj_graph_values_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
