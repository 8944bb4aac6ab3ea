/* PlanExecutor, the Python object: a call plan given as tuples and numbers, turned into native steps.
 *
 * In: what dynajit/runtime/native.py makes of a plan. Out: a callable from the graph's inputs to the tuple of outputs.
 * One more kind of step: a struct in plan_executor.h, a case in `add_step`, an operator() of the executor. */
#include "plan/memory_pool.h"
#include "plan/plan_executor.h"
#include "plan/python_entry.h"
#include "python/heap_type.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <structmember.h>

namespace dynajit {
namespace {

PyTypeObject *executor_type;

struct ExecutorObject {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    NativePlan *plan;
    PyObject *dict;
    PyObject *weakrefs;
};

enum StepKind { kAlloc, kReuse, kKernel, kExtern, kView, kFree, kPython, kCpuKernel, kTouch, kDraw, kNumber, kSizes };

void need(bool fine)
{
    if (!fine) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "malformed plan");
        }
        throw PythonError();
    }
}

long as_long(PyObject *object)
{
    long value = PyLong_AsLong(object);
    need(value != -1 || !PyErr_Occurred());
    return value;
}

/* A borrowed item of a tuple or list. */
PyObject *item(PyObject *sequence, Py_ssize_t at)
{
    need(PyTuple_Check(sequence) || PyList_Check(sequence));
    need(at < PySequence_Fast_GET_SIZE(sequence));
    return PySequence_Fast_GET_ITEM(sequence, at);
}

Py_ssize_t length(PyObject *sequence)
{
    need(PyTuple_Check(sequence) || PyList_Check(sequence));
    return PySequence_Fast_GET_SIZE(sequence);
}

template <typename Number> std::vector<Number> numbers(PyObject *sequence)
{
    std::vector<Number> result;
    for (Py_ssize_t i = 0; i < length(sequence); i++) {
        result.push_back(static_cast<Number>(PyLong_AsLongLong(item(sequence, i))));
    }
    need(!PyErr_Occurred());
    return result;
}

int slot_number(const NativePlan &plan, PyObject *object)
{
    long slot = as_long(object);
    need(slot >= 0 && slot < static_cast<long>(plan.buffers.size()));
    return static_cast<int>(slot);
}

std::vector<int> slot_numbers(const NativePlan &plan, PyObject *sequence, bool may_be_none)
{
    std::vector<int> slots = numbers<int>(sequence);
    for (int slot : slots) {
        need(slot >= (may_be_none ? -1 : 0) && slot < static_cast<int>(plan.buffers.size()));
    }
    return slots;
}

BufferSpec buffer_spec(PyObject *given)
{
    BufferSpec spec;
    if (given == Py_None) {
        return spec;
    }
    PyObject *dtype = item(given, 2);
    need(THPDtype_Check(dtype));
    spec.known = true;
    spec.sizes = numbers<int64_t>(item(given, 0));
    spec.strides = numbers<int64_t>(item(given, 1));
    spec.dtype = reinterpret_cast<THPDtype *>(dtype)->scalar_type;
    spec.bytes = PyLong_AsSize_t(item(given, 3));
    need(!PyErr_Occurred() && spec.sizes.size() == spec.strides.size());
    return spec;
}

std::vector<int> numbers_below(PyObject *sequence, size_t bound)
{
    std::vector<int> found = numbers<int>(sequence);
    for (int number : found) {
        need(number >= 0 && static_cast<size_t>(number) < bound);
    }
    return found;
}

KernelStep kernel_step(const NativePlan &plan, PyObject *given)
{
    PyObject *kernel = item(given, 1);
    need(is_gpu_kernel(kernel));
    KernelStep step{kernel, gpu_kernel(kernel), slot_numbers(plan, item(given, 2), false), numbers<int>(item(given, 3)),
                    static_cast<unsigned>(as_long(item(given, 4))), numbers_below(item(given, 5), plan.symbols.size()),
                    static_cast<int>(as_long(item(given, 6)))};
    need(step.counted < static_cast<int>(plan.symbols.size()));
    for (int position : step.checked) {
        need(position >= 0 && position < static_cast<int>(step.slots.size()));
    }
    Py_INCREF(kernel);
    return step;
}

/* (kind, library, address, slots, what to call where a value is refused or None, name, symbols) */
CpuKernelStep cpu_kernel_step(const NativePlan &plan, PyObject *given)
{
    CpuKernelStep step{item(given, 1), nullptr, PyLong_AsVoidPtr(item(given, 2)), nullptr,
                       slot_numbers(plan, item(given, 3), false), numbers_below(item(given, 6), plan.symbols.size()), {}};
    need(!PyErr_Occurred());
    const char *name = PyUnicode_AsUTF8(item(given, 5));
    need(name != nullptr);
    step.name = name;
    PyObject *refused = item(given, 4);
    step.call = cpu_call(step.slots.size() + step.symbols.size(), refused != Py_None);
    step.refused = refused != Py_None ? Py_NewRef(refused) : nullptr;
    Py_INCREF(step.owner);
    return step;
}

/* slots, check, own: from place `at` on. */
Results results_at(const NativePlan &plan, PyObject *given, Py_ssize_t at)
{
    Results results{slot_numbers(plan, item(given, at), true), {}, slot_numbers(plan, item(given, at + 2), true)};
    for (int check : numbers<int>(item(given, at + 1))) {
        results.check.push_back(check != 0);
    }
    need(results.check.size() == results.slots.size() && results.own.size() == results.slots.size());
    return results;
}

/* (kind, name, overload, values for the schema's arguments, patches, slots, check, own, plain) */
ExternStep extern_step(const NativePlan &plan, PyObject *given)
{
    const char *name = PyUnicode_AsUTF8(item(given, 1));
    const char *overload = name != nullptr ? PyUnicode_AsUTF8(item(given, 2)) : nullptr;
    need(overload != nullptr);
    c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const auto &arguments = op.schema().arguments();
    PyObject *values = item(given, 3), *patches = item(given, 4);
    need(length(values) == static_cast<Py_ssize_t>(arguments.size()));
    std::vector<bool> is_patched(arguments.size(), false);
    ExternStep step{op, {}, {}, results_at(plan, given, 5), PyObject_IsTrue(item(given, 8)) == 1};
    for (Py_ssize_t i = 0; i < length(patches); i++) {
        PyObject *patch = item(patches, i);
        int kind = static_cast<int>(as_long(item(patch, 1)));
        Patch made{static_cast<int>(as_long(item(patch, 0))), kind,
                   kind < 3 ? slot_numbers(plan, item(patch, 2), true) : numbers_below(item(patch, 2), plan.sizes.size())};
        need(made.argument >= 0 && made.argument < static_cast<int>(arguments.size()));
        is_patched[static_cast<size_t>(made.argument)] = true;
        step.patches.push_back(std::move(made));
    }
    for (size_t i = 0; i < arguments.size(); i++) {
        PyObject *value = item(values, static_cast<Py_ssize_t>(i));
        step.arguments.push_back(is_patched[i] ? c10::IValue() : torch::jit::toIValue(value, arguments[i].real_type()));
    }
    return step;
}

void add_step(NativePlan &plan, PyObject *given)
{
    auto slot_at = [&](Py_ssize_t at) { return slot_number(plan, item(given, at)); };
    auto donors_at = [&](Py_ssize_t at) {
        Donors donors = {-1, -1};
        need(length(item(given, at)) <= static_cast<Py_ssize_t>(donors.size()));
        for (Py_ssize_t i = 0; i < length(item(given, at)); i++) {
            donors[static_cast<size_t>(i)] = slot_number(plan, item(item(given, at), i));
        }
        return donors;
    };
    auto flag_at = [&](Py_ssize_t at) { return PyObject_IsTrue(item(given, at)) == 1; };
    switch (as_long(item(given, 0))) {
    case kAlloc:
        plan.steps.emplace_back(AllocStep{slot_at(1), flag_at(2), donors_at(3)});
        break;
    case kReuse:
        plan.steps.emplace_back(ReuseStep{slot_at(1), slot_at(2), flag_at(3), donors_at(4)});
        break;
    case kKernel:
        plan.steps.emplace_back(kernel_step(plan, given));
        break;
    case kExtern:
        plan.steps.emplace_back(extern_step(plan, given));
        break;
    case kView:
        plan.steps.emplace_back(ViewStep{slot_at(1), slot_at(2), as_long(item(given, 3)), flag_at(4),
                                         static_cast<int>(as_long(item(given, 5))), flag_at(6)});
        need(std::get<ViewStep>(plan.steps.back()).size < static_cast<int>(plan.sizes.size()));
        break;
    case kFree:
        plan.steps.emplace_back(FreeStep{slot_numbers(plan, item(given, 1), false)});
        break;
    case kPython:
        plan.steps.emplace_back(PythonStep{Py_NewRef(item(given, 1)), slot_numbers(plan, item(given, 2), false),
                                           numbers_below(item(given, 3), plan.sizes.size()), results_at(plan, given, 4)});
        break;
    case kCpuKernel:
        plan.steps.emplace_back(cpu_kernel_step(plan, given));
        break;
    case kTouch:
        plan.steps.emplace_back(TouchStep{slot_at(1)});
        if (slot_at(1) < plan.inputs) {
            plan.written.push_back(slot_at(1));
        }
        break;
    case kDraw: {
        std::vector<int> slots = slot_numbers(plan, item(given, 1), false);
        need(slots.size() == 4 && as_long(item(given, 2)) > 0);
        plan.steps.emplace_back(DrawStep{{slots[0], slots[1], slots[2], slots[3]}, as_long(item(given, 2))});
        break;
    }
    case kNumber: {
        NumberStep step{slot_at(1), static_cast<int>(as_long(item(given, 2))), static_cast<int>(as_long(item(given, 3)))};
        need(step.source < static_cast<int>(plan.buffers.size()) && step.size < static_cast<int>(plan.sizes.size()));
        need(step.source >= 0 || step.size >= 0);
        plan.steps.emplace_back(step);
        break;
    }
    case kSizes: {
        SizesStep step{PyLong_AsSize_t(item(given, 1)), PyLong_AsSize_t(item(given, 2)),
                       slot_numbers(plan, item(given, 3), false)};
        need(!PyErr_Occurred() && step.first <= plan.symbols.size() && step.count <= plan.symbols.size() - step.first);
        plan.from_inputs = std::min(plan.from_inputs, step.first);
        plan.steps.emplace_back(std::move(step));
        break;
    }
    default:
        need(false);
    }
}

/* (what, slot or -1, dimension, function or None, symbols) */
SymbolSource symbol_source(const NativePlan &plan, PyObject *given)
{
    SymbolSource source{static_cast<int>(as_long(item(given, 0))), static_cast<int>(as_long(item(given, 1))),
                        as_long(item(given, 2)), nullptr, numbers_below(item(given, 4), plan.symbols.size())};
    need(source.what >= 0 && source.what <= 4 && source.slot < static_cast<int>(plan.buffers.size()) && source.at >= 0);
    need((source.what == 3) == (source.slot < 0));
    PyObject *function = item(given, 3);
    need(source.what != 3 || PyCallable_Check(function));
    source.function = source.what == 3 ? Py_NewRef(function) : nullptr;
    return source;
}

/* (symbols, sizes: lists of (factor, symbols), patches: (slot, what, at, size)) */
void add_sizes(NativePlan &plan, PyObject *given)
{
    PyObject *symbols = item(given, 0), *sizes = item(given, 1), *patches = item(given, 2);
    for (Py_ssize_t i = 0; i < length(symbols); i++) {
        plan.symbols.push_back(symbol_source(plan, item(symbols, i)));
    }
    plan.from_inputs = plan.symbols.size();
    for (Py_ssize_t i = 0; i < length(sizes); i++) {
        Polynomial &size = plan.sizes.emplace_back();
        for (Py_ssize_t j = 0; j < length(item(sizes, i)); j++) {
            PyObject *term = item(item(sizes, i), j);
            size.push_back(Term{as_long(item(term, 0)), numbers_below(item(term, 1), plan.symbols.size())});
        }
    }
    for (Py_ssize_t i = 0; i < length(patches); i++) {
        std::vector<int> patch = numbers<int>(item(patches, i));
        need(patch.size() == 4 && patch[0] >= 0 && static_cast<size_t>(patch[0]) < plan.buffers.size());
        const BufferSpec &spec = plan.buffers[static_cast<size_t>(patch[0])];
        need(patch[1] == 2 || (patch[2] >= 0 && static_cast<size_t>(patch[2]) < spec.sizes.size()));
        need(patch[3] >= 0 && static_cast<size_t>(patch[3]) < plan.sizes.size());
        plan.patches.push_back(SpecPatch{patch[0], patch[1], patch[2], patch[3]});
    }
}

void fill(NativePlan &plan, PyObject *device, int inputs, PyObject *buffers, PyObject *constants, PyObject *steps,
          PyObject *outputs, PyObject *sizes, PyObject *ends)
{
    need(THPDevice_Check(device));
    plan.device = reinterpret_cast<THPDevice *>(device)->device;
    plan.keys = c10::DispatchKeySet(plan.device.type() == c10::kCUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
    plan.allocator = plan.device.is_cpu() ? pool_allocator() : c10::GetAllocator(plan.device.type());
    for (Py_ssize_t i = 0; i < length(buffers); i++) {
        plan.buffers.push_back(buffer_spec(item(buffers, i)));
    }
    need(inputs >= 0 && inputs <= static_cast<int>(plan.buffers.size()));
    plan.inputs = inputs;
    if (sizes != nullptr) {
        add_sizes(plan, sizes);
    }
    for (Py_ssize_t i = 0; i < length(constants); i++) {
        int slot = slot_number(plan, item(item(constants, i), 0));
        PyObject *value = item(item(constants, i), 1);
        if (THPVariable_Check(value)) {
            plan.constants.emplace_back(slot, THPVariable_Unpack(value));
        }
        else {
            plan.objects.emplace_back(slot, Py_NewRef(value));
        }
    }
    for (Py_ssize_t i = 0; i < length(steps); i++) {
        add_step(plan, item(steps, i));
    }
    for (Py_ssize_t i = 0; i < length(outputs); i++) {
        PyObject *output = item(outputs, i);
        long slot = as_long(item(output, 0));
        need(slot >= -3 && slot < static_cast<long>(plan.buffers.size()));
        need(slot >= -1 || PyLong_AsSize_t(item(output, 1)) < plan.sizes.size());
        plan.outputs.push_back(Output{static_cast<int>(slot), Py_NewRef(item(output, 1))});
    }
    plan.ends.assign(plan.buffers.size(), plan.steps.size());
    for (Py_ssize_t i = 0; ends != nullptr && i < length(ends); i++) {
        plan.ends.at(static_cast<size_t>(i)) = PyLong_AsSize_t(item(ends, i));
        need(!PyErr_Occurred());
    }
}

PyObject *executor_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0) {
        PyErr_SetString(PyExc_TypeError, "a plan takes no keyword arguments");
        return nullptr;
    }
    Py_INCREF(object);
    PyObject *result = enter_from_python([&] {
        Run run(*reinterpret_cast<ExecutorObject *>(object)->plan);
        run.holds_gil = true;
        set_inputs(run, args, PyVectorcall_NARGS(nargsf));
        {
            GilReleased released;
            execute(run);
        }
        return wrap_outputs(run);
    });
    Py_DECREF(object);
    return result;
}

PyObject *executor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *names[] = {"device", "inputs", "buffers", "constants", "steps", "outputs", "sizes", "ends", nullptr};
    PyObject *device, *buffers, *constants, *steps, *outputs, *sizes = nullptr, *ends = nullptr;
    int inputs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OiOOOO|OO:PlanExecutor", const_cast<char **>(names), &device, &inputs,
                                     &buffers, &constants, &steps, &outputs, &sizes, &ends)) {
        return nullptr;
    }
    ExecutorObject *self = reinterpret_cast<ExecutorObject *>(type->tp_alloc(type, 0));
    if (self == nullptr) {
        return nullptr;
    }
    self->vectorcall = executor_call;
    self->plan = new NativePlan;
    try {
        fill(*self->plan, device, inputs, buffers, constants, steps, outputs, sizes, ends);
    }
    catch (...) {
        translate_exception();
        Py_CLEAR(self);
    }
    return reinterpret_cast<PyObject *>(self);
}

/* `apply` to each object that a plan holds, which may be null. */
template <typename Apply> void for_each_object(const NativePlan &plan, Apply &&apply)
{
    for (const auto &[slot, value] : plan.objects) {
        apply(value);
    }
    for (const SymbolSource &symbol : plan.symbols) {
        apply(symbol.function);
    }
    for (const Step &step : plan.steps) {
        if (const KernelStep *kernel = std::get_if<KernelStep>(&step)) {
            apply(kernel->owner);
        }
        else if (const PythonStep *python = std::get_if<PythonStep>(&step)) {
            apply(python->function);
        }
        else if (const CpuKernelStep *function = std::get_if<CpuKernelStep>(&step)) {
            apply(function->owner);
            apply(function->refused);
        }
    }
    for (const Output &output : plan.outputs) {
        apply(output.object);
    }
}

int executor_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    ExecutorObject *self = reinterpret_cast<ExecutorObject *>(object);
    Py_VISIT(self->dict);
    int stopped = 0;
    if (self->plan != nullptr) {
        for_each_object(*self->plan, [&](PyObject *held) {
            stopped = stopped == 0 && held != nullptr ? visit(held, arg) : stopped;
        });
    }
    return stopped;
}

int executor_clear(PyObject *object)
{
    ExecutorObject *self = reinterpret_cast<ExecutorObject *>(object);
    Py_CLEAR(self->dict);
    NativePlan *plan = self->plan;
    self->plan = nullptr;
    if (plan != nullptr) {
        for_each_object(*plan, [](PyObject *held) { Py_XDECREF(held); });
        delete plan;
    }
    return 0;
}

PyMemberDef executor_members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(ExecutorObject, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ExecutorObject, weakrefs), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ExecutorObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef executor_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot executor_slots[] = {
    {Py_tp_doc, const_cast<char *>("PlanExecutor(device, inputs, buffers, constants, steps, outputs, sizes=None, "
                                   "ends=())\n--\n\n"
                                   "Runs a call plan without Python between its steps. ends: for each slot how many of "
                                   "the steps there are up to the last that makes or reads its memory.")},
    DJ_COLLECTED_SLOTS(executor, executor_new, dj_dealloc),
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_members, executor_members},
    {Py_tp_getset, executor_getset},
    {0, nullptr},
};

PyType_Spec executor_spec = DJ_CLASS(ExecutorObject, "PlanExecutor", DJ_COLLECTED | Py_TPFLAGS_HAVE_VECTORCALL, executor_slots);

} // namespace

bool is_plan_executor(PyObject *object)
{
    return Py_IS_TYPE(object, executor_type);
}

NativePlan *native_plan(PyObject *object)
{
    if (!is_plan_executor(object)) {
        PyErr_SetString(PyExc_TypeError, "a PlanExecutor is needed");
        return nullptr;
    }
    return reinterpret_cast<ExecutorObject *>(object)->plan;
}

} // namespace dynajit

extern "C" int dj_plan_executor_init(PyObject *module)
{
    using namespace dynajit;
    executor_type = dj_add_type(module, &executor_spec);
    return executor_type != nullptr ? 0 : -1;
}
