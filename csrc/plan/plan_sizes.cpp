/* Sizes of a call plan that differ from call to call.
 *
 * In: a run whose inputs are set; later, one some of whose results tell more. Out: the values of the plan's symbols
 * (sizes and strides of tensors, ints and the bits of floats, and what Python functions compute of those), of its sizes,
 * which are sums of products of symbols, and with them the shapes, strides and bytes of its buffers, in a copy of the
 * plan's table that belongs to the run and then serves the next one. */
#include "plan/plan_executor.h"

#include <algorithm>

#include <c10/util/bit_cast.h>

namespace dynajit {
namespace {

int64_t of_tensor(const at::Tensor &tensor, const SymbolSource &source)
{
    if (!tensor.defined() || source.at >= tensor.dim()) {
        PyErr_SetString(PyExc_TypeError, "a tensor with the dimensions that the plan was made for is needed");
        throw PythonError();
    }
    return source.what == 0 ? tensor.size(source.at) : tensor.stride(source.at);
}

int64_t as_int(PyObject *object)
{
    int64_t value = object != nullptr && PyLong_Check(object) ? PyLong_AsLongLong(object) : -1;
    if (value == -1 && (PyErr_Occurred() || object == nullptr || !PyLong_Check(object))) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "an int is needed");
        }
        throw PythonError();
    }
    return value;
}

int64_t bits_of(PyObject *object)
{
    if (object == nullptr || !PyFloat_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a float is needed");
        throw PythonError();
    }
    return c10::bit_cast<int64_t>(PyFloat_AS_DOUBLE(object));
}

int64_t computed(const SymbolSource &source, const std::vector<int64_t> &symbols)
{
    PyObject *arguments = PyTuple_New(static_cast<Py_ssize_t>(source.symbols.size()));
    for (size_t i = 0; arguments != nullptr && i < source.symbols.size(); i++) {
        PyObject *number = PyLong_FromLongLong(symbols[static_cast<size_t>(source.symbols[i])]);
        if (number == nullptr) {
            Py_CLEAR(arguments);
            break;
        }
        PyTuple_SET_ITEM(arguments, static_cast<Py_ssize_t>(i), number);
    }
    PyObject *result = arguments != nullptr ? PyObject_Call(source.function, arguments, nullptr) : nullptr;
    Py_XDECREF(arguments);
    if (result == nullptr) {
        throw PythonError();
    }
    try {
        int64_t value = as_int(result);
        Py_DECREF(result);
        return value;
    }
    catch (...) {
        Py_DECREF(result);
        throw;
    }
}

int64_t value_of(Run &run, const SymbolSource &source, const std::vector<int64_t> &symbols)
{
    switch (source.what) {
    case 2:
        return as_int(run.slots[static_cast<size_t>(source.slot)].object);
    case 3:
        return computed(source, symbols);
    case 4:
        return bits_of(run.slots[static_cast<size_t>(source.slot)].object);
    default:
        return of_tensor(run.slots[static_cast<size_t>(source.slot)].tensor, source);
    }
}

/* Reads symbols that are found in slots, and computes the rest if any of those has changed; whether it has. */
bool bind_symbols(Run &run, SizedBuffers &sized, size_t first, size_t count, bool changed)
{
    const std::vector<SymbolSource> &sources = run.plan.symbols;
    sized.bound = false; /* until all are found */
    for (size_t i = first; i < first + count; i++) {
        if (sources[i].what == 3 && !changed) {
            continue; /* of the same symbols: those come before it */
        }
        int64_t value = value_of(run, sources[i], sized.symbols);
        changed |= value != sized.symbols[i];
        sized.symbols[i] = value;
    }
    return changed;
}

void bind_buffers(const NativePlan &plan, SizedBuffers &sized)
{
    for (size_t i = 0; i < plan.sizes.size(); i++) {
        int64_t sum = 0;
        for (const Term &term : plan.sizes[i]) {
            int64_t product = term.factor;
            for (int symbol : term.symbols) {
                product *= sized.symbols[static_cast<size_t>(symbol)];
            }
            sum += product;
        }
        sized.sizes[i] = sum;
    }
    for (const SpecPatch &patch : plan.patches) {
        BufferSpec &spec = sized.buffers[static_cast<size_t>(patch.slot)];
        int64_t value = sized.sizes[static_cast<size_t>(patch.size)];
        if (patch.what == 2) {
            bool empty = std::find(spec.sizes.begin(), spec.sizes.end(), 0) != spec.sizes.end();
            spec.bytes = empty || value < 0 ? 0 : static_cast<size_t>(value);
        }
        else {
            (patch.what == 0 ? spec.sizes : spec.strides)[static_cast<size_t>(patch.at)] = value;
        }
    }
}

} // namespace

void bind_sizes(Run &run)
{
    const NativePlan &plan = run.plan;
    if (plan.symbols.empty()) {
        return;
    }
    {
        std::lock_guard<std::mutex> guard(plan.spare_lock);
        if (!plan.spare.empty()) {
            run.sized = std::move(plan.spare.back());
            plan.spare.pop_back();
        }
    }
    if (run.sized == nullptr) {
        run.sized = std::make_unique<SizedBuffers>();
        run.sized->symbols.resize(plan.symbols.size());
        run.sized->sizes.resize(plan.sizes.size());
        run.sized->buffers = plan.buffers;
    }
    run.buffers = &run.sized->buffers;
    if (bind_symbols(run, *run.sized, 0, plan.from_inputs, !run.sized->bound)) {
        bind_buffers(plan, *run.sized);
    }
    run.sized->bound = true;
}

void bind_sizes(Run &run, const SizesStep &step)
{
    bind_symbols(run, *run.sized, step.first, step.count, true);
    bind_buffers(run.plan, *run.sized);
    run.sized->bound = true;
}

PyObject *number_of(const Run &run, const Output &output)
{
    int64_t size = run.sized->sizes[PyLong_AsSize_t(output.object)];
    return output.slot == -2 ? PyLong_FromLongLong(size) : PyFloat_FromDouble(c10::bit_cast<double>(size));
}

void give_back_sizes(Run &run)
{
    constexpr size_t most = 8;
    if (run.sized != nullptr) {
        run.buffers = nullptr;
        std::lock_guard<std::mutex> guard(run.plan.spare_lock);
        if (run.plan.spare.size() < most) {
            run.plan.spare.push_back(std::move(run.sized));
        }
    }
}

} // namespace dynajit
