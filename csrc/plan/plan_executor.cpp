/* PlanExecutor: runs a call plan without Python between its steps.
 *
 * In: a plan as plain data (see dynajit/runtime/native.py), built once by plan_builder.cpp; then the graph's inputs.
 * Out: the tuple of its outputs. Kernels go through the driver to the current stream, memory comes from torch's
 * allocator for the device or, on CPUs, from the memory pool; other operators are called through the dispatcher. The GIL
 * is released meanwhile. */
#include "plan/memory_pool.h"
#include "plan/plan_executor.h"

#include <array>
#include <dlfcn.h>
#include <numeric>

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <ATen/record_function.h>
#include <c10/util/bit_cast.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

namespace dynajit {
namespace {

[[noreturn]] void fail(const std::string &what)
{
    throw std::runtime_error(what);
}

bool same_strides(const at::Tensor &tensor, const BufferSpec &spec)
{
    for (size_t i = 0; i < spec.sizes.size(); i++) {
        if (spec.sizes[i] != 1 && tensor.stride(static_cast<int64_t>(i)) != spec.strides[i]) {
            return false;
        }
    }
    return true;
}

/* The tensor with the strides that kernels were compiled for. */
at::Tensor fixed(at::Tensor tensor, const BufferSpec &spec)
{
    if (tensor.sizes() != c10::IntArrayRef(spec.sizes)) {
        fail("the operator's fake implementation and its kernel disagree about a result's shape");
    }
    if (tensor.scalar_type() == spec.dtype && (tensor.numel() == 0 || same_strides(tensor, spec))) {
        return tensor;
    }
    at::Tensor made = at::empty_strided(spec.sizes, spec.strides, tensor.options().dtype(spec.dtype));
    return made.copy_(tensor);
}

void clear(Slot &slot, bool holds_gil)
{
    slot.tensor.reset();
    slot.memory.clear();
    slot.address = nullptr;
    if (slot.object != nullptr) {
        PyObject *object = slot.object;
        slot.object = nullptr;
        if (holds_gil) {
            Py_DECREF(object);
        }
        else {
            const GilTaken taken;
            Py_DECREF(object);
        }
    }
}

struct Executor {
    Run &run;
    const NativePlan &plan;

    explicit Executor(Run &run) : run(run), plan(run.plan)
    {
    }

    Slot &at(int slot)
    {
        return run.slots[static_cast<size_t>(slot)];
    }

    const BufferSpec &spec(int slot)
    {
        return (*run.buffers)[static_cast<size_t>(slot)];
    }

    void operator()(const AllocStep &step)
    {
        Slot &slot = at(step.slot);
        if (run.listener != nullptr) {
            at::Tensor given = run.listener->allocate(step.slot);
            if (given.defined()) {
                set_tensor(slot, std::move(given));
                return;
            }
        }
        if (takes_over(step.donors, step.slot)) {
            return;
        }
        if (step.as_tensor) {
            set_tensor(slot, empty_for(plan, spec(step.slot)));
        }
        else {
            slot.memory = plan.allocator->allocate(spec(step.slot).bytes);
            slot.address = static_cast<char *>(slot.memory.get());
        }
    }

    /* Whether the slot is in the memory of one of them now. */
    bool takes_over(const Donors &donors, int number)
    {
        for (int donor : donors) {
            if (donor >= 0 && holds_alone(at(donor).tensor, spec(number).bytes)) {
                set_tensor(at(number), view_of(at(donor).tensor, spec(number), 0));
                return true;
            }
        }
        return false;
    }

    /* Is a tensor's memory, of so many bytes, an allocator's, and nobody else's? */
    bool holds_alone(const at::Tensor &tensor, size_t bytes) const
    {
        if (!tensor.defined() || tensor.use_count() != 1 || !tensor.has_storage()) {
            return false;
        }
        const c10::Storage &storage = tensor.storage();
        const c10::DeleterFnPtr deleter = storage.data_ptr().get_deleter();
        const bool allocated = deleter != nullptr && (deleter == plan.allocator->raw_deleter()
                                                      || deleter == c10::GetCPUAllocator()->raw_deleter());
        return allocated && storage.use_count() == 1 && tensor.storage_offset() == 0 && storage.nbytes() == bytes;
    }

    void operator()(const ReuseStep &step)
    {
        if (takes_over(step.donors, step.slot)) {
            return;
        }
        Slot &base = at(step.base), &slot = at(step.slot);
        if (step.as_tensor) {
            const BufferSpec &wanted = spec(step.slot);
            set_tensor(slot, view_of(base.tensor, wanted, base.tensor.storage_offset() * base.tensor.element_size()
                                                              / elementSize(wanted.dtype)));
            return;
        }
        slot.address = base.address;
        slot.memory = std::move(base.memory);
        slot.tensor = base.tensor;
    }

    /* A tensor over the memory of another, of any dtype, that nobody sees to be a view. */
    at::Tensor view_of(const at::Tensor &base, const BufferSpec &wanted, int64_t offset)
    {
        at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), plan.keys,
                                                                   c10::scalarTypeToTypeMeta(wanted.dtype));
        made.unsafeGetTensorImpl()->set_sizes_and_strides(wanted.sizes, wanted.strides, offset);
        return made;
    }

    void operator()(const KernelStep &step)
    {
        unsigned programs = step.programs;
        if (step.counted >= 0) {
            programs = static_cast<unsigned>(run.sized->symbols[static_cast<size_t>(step.counted)]);
            if (programs == 0) {
                return; /* nothing is to be written */
            }
        }
        std::vector<char *> addresses;
        addresses.reserve(step.slots.size() + step.symbols.size() + 2);
        for (int slot : step.slots) {
            addresses.push_back(at(slot).address);
        }
        GpuKernel &kernel = *step.kernel;
        bool unaligned = false;
        for (int position : step.checked) {
            unaligned |= (reinterpret_cast<uintptr_t>(addresses[static_cast<size_t>(position)]) & 15) != 0;
        }
        if (unaligned && kernel.unaligned == nullptr) {
            load_unaligned(&kernel);
        }
        for (int symbol : step.symbols) {
            /* the kernel reads its low half */
            int64_t value = run.sized->symbols[static_cast<size_t>(symbol)];
            addresses.push_back(reinterpret_cast<char *>(static_cast<intptr_t>(value)));
        }
        CuFunction function = unaligned ? kernel.unaligned : kernel.function;
        unsigned shared = unaligned ? kernel.unaligned_shared : kernel.shared;
        unsigned threads = unaligned ? kernel.unaligned_threads : kernel.threads;
        /* Triton's kernels take two more: scratch memory, used by those that copy whole tiles, and a profiler's. What
         * is freed below is used again by later launches of this stream only. */
        c10::DataPtr scratch;
        if (kernel.scratch != 0 && !unaligned) {
            scratch = plan.allocator->allocate(static_cast<size_t>(kernel.scratch) * programs);
        }
        addresses.push_back(static_cast<char *>(scratch.get()));
        addresses.push_back(nullptr);
        std::vector<void *> params;
        params.reserve(addresses.size());
        for (char *&address : addresses) {
            params.push_back(&address);
        }
        const CudaDriver &cuda = cuda_driver();
        CuResult result = launch_kernel(kernel, function, programs, threads, shared, run.stream, params.data());
        if (result == kCuInvalidContext) {
            /* a thread that has not used the device yet */
            cuda_check(cuda.set_context(kernel.context), "entering a kernel's context");
            result = launch_kernel(kernel, function, programs, threads, shared, run.stream, params.data());
        }
        cuda_check(result, "launching a kernel");
        if (run.listener != nullptr) {
            run.listener->launched(step, programs, shared, threads, function, addresses);
        }
    }

    void operator()(const CpuKernelStep &step)
    {
        constexpr size_t kFew = 32;
        std::array<char *, kFew> few;
        std::vector<char *> many;
        char **addresses = few.data();
        if (step.slots.size() + step.symbols.size() > kFew) {
            many.resize(step.slots.size() + step.symbols.size());
            addresses = many.data();
        }
        for (size_t i = 0; i < step.slots.size(); i++) {
            addresses[i] = at(step.slots[i]).address;
            if (addresses[i] == nullptr && spec(step.slots[i]).bytes != 0) {
                fail("a kernel was given a tensor without memory of its own");
            }
        }
        for (size_t i = 0; i < step.symbols.size(); i++) {
            /* numbers and addresses are handed over alike */
            int64_t value = run.sized->symbols[static_cast<size_t>(step.symbols[i])];
            addresses[step.slots.size() + i] = reinterpret_cast<char *>(static_cast<intptr_t>(value));
        }
        std::optional<at::RecordFunction> mark;
        if (run.profiled) {
            auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
            if (callbacks.has_value()) {
                mark.emplace(std::move(*callbacks));
                mark->before(step.name);
            }
        }
        int status = step.call(step.function, addresses);
        mark.reset();
        if (step.refused != nullptr && status != 0) {
            std::vector<int> inputs(static_cast<size_t>(plan.inputs));
            std::iota(inputs.begin(), inputs.end(), 0);
            (*this)(PythonStep{step.refused, inputs, {}, {}});
        }
    }

    int64_t size(int number)
    {
        return run.sized->sizes[static_cast<size_t>(number)];
    }

    /* A number as Python's calls make a tensor of it: its dtype counts for less than other tensors'. */
    static at::Tensor wrapped(const c10::Scalar &number)
    {
        at::Tensor made = c10::scalar_to_tensor(number);
        made.unsafeGetTensorImpl()->set_wrapped_number(true);
        return made;
    }

    c10::IValue patched(const Patch &patch)
    {
        if (patch.kind == 3) {
            return size(patch.slots[0]);
        }
        if (patch.kind == 5) {
            return c10::bit_cast<double>(size(patch.slots[0]));
        }
        if (patch.kind == 7) {
            return wrapped(size(patch.slots[0]));
        }
        if (patch.kind == 9) {
            return wrapped(c10::bit_cast<double>(size(patch.slots[0])));
        }
        if (patch.kind == 4) {
            c10::List<int64_t> list;
            for (int number : patch.slots) {
                list.push_back(size(number));
            }
            return list;
        }
        if (patch.kind == 0) {
            return at(patch.slots[0]).tensor;
        }
        if (patch.kind == 1) {
            c10::List<at::Tensor> list;
            for (int slot : patch.slots) {
                list.push_back(at(slot).tensor);
            }
            return list;
        }
        c10::List<std::optional<at::Tensor>> list;
        for (int slot : patch.slots) {
            list.push_back(slot < 0 ? std::optional<at::Tensor>() : std::optional<at::Tensor>(at(slot).tensor));
        }
        return list;
    }

    void operator()(const ExternStep &step)
    {
        torch::jit::Stack stack(step.arguments);
        for (const Patch &patch : step.patches) {
            stack[static_cast<size_t>(patch.argument)] = patched(patch);
        }
        if (step.plain) {
            /* Nothing of autograd's is wanted: gradients are the graph's own affair, and no view or version counts. */
            at::AutoDispatchBelowADInplaceOrView below;
            step.op.callBoxed(stack);
        }
        else {
            step.op.callBoxed(stack);
        }
        std::vector<c10::IValue> results;
        if (stack.size() == 1 && stack[0].isTensorList()) {
            for (const at::Tensor &tensor : stack[0].toTensorVector()) {
                results.emplace_back(tensor);
            }
        }
        else {
            results = std::move(stack);
        }
        for (size_t i = 0; i < step.results.slots.size(); i++) {
            /* an operation may leave out a result that this machine's implementation does not need */
            if (step.results.slots[i] >= 0 && !results[i].isNone()) {
                keep(step.results, i, std::move(results[i]).toTensor());
            }
        }
    }

    /* One result of a call. */
    void keep(const Results &results, size_t i, at::Tensor tensor)
    {
        int slot = results.slots[i];
        if (results.own[i] >= 0) {
            set_tensor(at(results.own[i]), tensor);
        }
        bool check = results.check[i] && spec(slot).known && tensor.defined();
        set_tensor(at(slot), check ? fixed(std::move(tensor), spec(slot)) : std::move(tensor));
    }

    void operator()(const SizesStep &step)
    {
        {
            const GilTaken taken;
            bind_sizes(run, step);
        }
        for (int slot : step.results) {
            if (at(slot).tensor.defined()) {
                set_tensor(at(slot), fixed(std::move(at(slot).tensor), spec(slot)));
            }
        }
    }

    void operator()(const ViewStep &step)
    {
        const at::Tensor &base = at(step.base).tensor;
        if (step.detached) {
            set_tensor(at(step.slot), base.detach());
            return;
        }
        const BufferSpec &wanted = spec(step.slot);
        int64_t offset = base.storage_offset() + (step.size < 0 ? step.offset : size(step.size));
        set_tensor(at(step.slot), step.tracked ? at::as_strided(base, wanted.sizes, wanted.strides, offset)
                                               : view_of(base, wanted, offset));
    }

    void operator()(const FreeStep &step)
    {
        for (int slot : step.slots) {
            if (run.listener == nullptr || slot >= plan.inputs) { /* the recorder looks at inputs when the run is over */
                clear(at(slot), false);
            }
        }
    }

    void operator()(const TouchStep &step)
    {
        touch(at(step.slot).tensor);
    }

    void operator()(const DrawStep &step)
    {
        std::array<char *, 4> state = drawn_state(plan.device, step.increment);
        for (size_t i = 0; i < state.size(); i++) {
            at(step.slots[i]).address = state[i];
        }
    }

    void operator()(const NumberStep &step)
    {
        int64_t number = step.source < 0 ? size(step.size) : number_in(at(step.source).tensor);
        at(step.slot).address = reinterpret_cast<char *>(static_cast<intptr_t>(number));
    }

    void operator()(const PythonStep &step)
    {
        const GilTaken taken;
        PyObject *arguments = PyTuple_New(static_cast<Py_ssize_t>(step.inputs.size() + step.sizes.size()));
        for (size_t i = 0; arguments != nullptr && i < step.inputs.size(); i++) {
            Slot &slot = at(step.inputs[i]);
            PyObject *item = slot.tensor.defined() ? THPVariable_Wrap(slot.tensor)
                                                   : Py_NewRef(slot.object != nullptr ? slot.object : Py_None);
            PyTuple_SET_ITEM(arguments, static_cast<Py_ssize_t>(i), item);
        }
        for (size_t i = 0; arguments != nullptr && i < step.sizes.size(); i++) {
            PyTuple_SET_ITEM(arguments, static_cast<Py_ssize_t>(step.inputs.size() + i),
                             PyLong_FromLongLong(size(step.sizes[i])));
        }
        PyObject *results = arguments != nullptr ? PyObject_Call(step.function, arguments, nullptr) : nullptr;
        Py_XDECREF(arguments);
        if (results == nullptr) {
            throw PythonError();
        }
        const THPObjectPtr held(results);
        for (size_t i = 0; i < step.results.slots.size(); i++) {
            PyObject *item = PyTuple_GET_ITEM(results, static_cast<Py_ssize_t>(i));
            if (step.results.slots[i] < 0) {
                continue;
            }
            if (THPVariable_Check(item)) {
                keep(step.results, i, THPVariable_Unpack(item));
            }
            else {
                at(step.results.slots[i]).object = Py_NewRef(item);
            }
        }
    }
};

template <typename Result, size_t... I>
int call_with(void *function, char *const *addresses, std::index_sequence<I...>)
{
    using Pointer = Result (*)(decltype(static_cast<void>(I), static_cast<char *>(nullptr))...);
    if constexpr (std::is_void_v<Result>) {
        reinterpret_cast<Pointer>(function)(addresses[I]...);
        return 0;
    }
    else {
        return reinterpret_cast<Pointer>(function)(addresses[I]...);
    }
}

template <typename Result, size_t N> int call_of(void *function, char *const *addresses)
{
    return call_with<Result>(function, addresses, std::make_index_sequence<N>());
}

constexpr size_t kMostArguments = 96;

int call_with_array(void *function, char *const *addresses)
{
    return reinterpret_cast<int (*)(char *const *)>(function)(addresses);
}

template <typename Result, size_t... N> constexpr auto calls(std::index_sequence<N...>)
{
    return std::array<CpuCall, sizeof...(N)>{call_of<Result, N>...};
}

} // namespace

CpuCall cpu_call(size_t arity, bool checked)
{
    static constexpr auto plain = calls<void>(std::make_index_sequence<kMostArguments + 1>());
    static constexpr auto with_status = calls<int>(std::make_index_sequence<kMostArguments + 1>());
    return arity > kMostArguments ? call_with_array : checked ? with_status[arity] : plain[arity];
}

Run::~Run()
{
    for (Slot &slot : slots) {
        clear(slot, holds_gil);
    }
    give_back_sizes(*this);
}

void set_tensor(Slot &slot, at::Tensor tensor)
{
    slot.tensor = std::move(tensor);
    const c10::TensorImpl *impl = slot.tensor.unsafeGetTensorImpl();
    bool plain = slot.tensor.defined() && impl->has_storage() && !impl->has_symbolic_sizes_strides();
    slot.address = plain ? static_cast<char *>(const_cast<void *>(slot.tensor.const_data_ptr())) : nullptr;
}

void touch(const at::Tensor &tensor)
{
    if (tensor.defined() && !tensor.is_inference()) {
        tensor.unsafeGetTensorImpl()->bump_version();
    }
}

at::Tensor empty_for(const NativePlan &plan, const BufferSpec &spec)
{
    return at::detail::empty_strided_generic(spec.sizes, spec.strides, plan.allocator, plan.keys, spec.dtype);
}

CuStream current_stream(c10::Device device)
{
    if (device.type() != c10::kCUDA) {
        return nullptr;
    }
    /* torch's CUDA library, if there is one, is loaded; it can't be linked to, for the extension is built without it. */
    struct Functions {
        c10::Stream (*current)(c10::DeviceIndex);
        CuStream (*handle)(const c10::Stream *);
    };
    static const Functions functions = [] {
        void *library = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
        Functions found{};
        if (library != nullptr) {
            found.current = reinterpret_cast<c10::Stream (*)(c10::DeviceIndex)>(
                dlsym(library, "_ZN3c104cuda20getCurrentCUDAStreamEa"));
            found.handle = reinterpret_cast<CuStream (*)(const c10::Stream *)>(
                dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv"));
            if (found.current == nullptr || found.handle == nullptr) {
                throw CudaError("this torch does not say which stream is current");
            }
        }
        return found;
    }();
    if (functions.current == nullptr) {
        return nullptr; /* no CUDA in this torch: the driver is a test's */
    }
    c10::Stream stream = functions.current(device.index());
    return functions.handle(&stream);
}

namespace {

void need_count(const Run &run, Py_ssize_t count)
{
    if (count != run.plan.inputs) {
        PyErr_Format(PyExc_TypeError, "the plan takes %d inputs, not %zd", run.plan.inputs, count);
        throw PythonError();
    }
}

void set_constants(Run &run)
{
    for (const auto &[slot, tensor] : run.plan.constants) {
        set_tensor(run.slots[static_cast<size_t>(slot)], tensor);
    }
    for (const auto &[slot, object] : run.plan.objects) {
        run.slots[static_cast<size_t>(slot)].object = Py_NewRef(object);
    }
}

} // namespace

void set_inputs(Run &run, PyObject *const *inputs, Py_ssize_t count)
{
    need_count(run, count);
    for (int written : run.plan.written) { /* before any address is known: others may be views of it */
        if (THPVariable_Check(inputs[written])) {
            own_memory(THPVariable_Unpack(inputs[written]));
        }
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Slot &slot = run.slots[static_cast<size_t>(i)];
        if (THPVariable_Check(inputs[i])) {
            set_tensor(slot, THPVariable_Unpack(inputs[i]));
        }
        else {
            slot.object = Py_NewRef(inputs[i]);
        }
    }
    set_constants(run);
    bind_sizes(run);
}

void take_inputs(Run &run, Values &inputs)
{
    need_count(run, static_cast<Py_ssize_t>(inputs.size()));
    for (int written : run.plan.written) {
        own_memory(inputs[static_cast<size_t>(written)].tensor);
    }
    for (size_t i = 0; i < inputs.size(); i++) {
        if (inputs[i].tensor.defined()) {
            set_tensor(run.slots[i], std::move(inputs[i].tensor));
        }
        else {
            run.slots[i].object = inputs[i].object != nullptr ? std::exchange(inputs[i].object, nullptr) : Py_NewRef(Py_None);
        }
    }
    inputs.clear();
    set_constants(run);
    bind_sizes(run);
}

void execute(Run &run, size_t end)
{
    c10::OptionalDeviceGuard guard;
    if (run.plan.device.type() == c10::kCUDA) {
        guard.reset_device(run.plan.device);
    }
    run.stream = current_stream(run.plan.device);
    std::optional<PoolScope> pooled;
    if (run.plan.device.type() == c10::kCPU) {
        pooled.emplace();
    }
    run.profiled = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
    Executor executor(run);
    for (end = std::min(end, run.plan.steps.size()); run.done < end; run.done++) {
        std::visit(executor, run.plan.steps[run.done]);
    }
}

int64_t number_in(const at::Tensor &tensor)
{
    if (!tensor.defined() || !tensor.is_cpu() || tensor.numel() != 1) {
        throw std::runtime_error("a kernel was to be given a number, and there is none");
    }
    return AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, tensor.scalar_type(), "number_in", [&] {
        const scalar_t value = *tensor.const_data_ptr<scalar_t>();
        if constexpr (std::is_integral_v<scalar_t>) {
            return static_cast<int64_t>(value);
        }
        else {
            return c10::bit_cast<int64_t>(static_cast<double>(value));
        }
    });
}

PyObject *wrap_outputs(Run &run)
{
    const std::vector<Output> &outputs = run.plan.outputs;
    PyObject *result = PyTuple_New(static_cast<Py_ssize_t>(outputs.size()));
    for (size_t i = 0; result != nullptr && i < outputs.size(); i++) {
        PyObject *item;
        if (outputs[i].slot < -1) {
            item = number_of(run, outputs[i]);
        }
        else if (outputs[i].slot < 0) {
            item = Py_NewRef(outputs[i].object);
        }
        else {
            Slot &slot = run.slots[static_cast<size_t>(outputs[i].slot)];
            item = slot.tensor.defined() ? THPVariable_Wrap(slot.tensor)
                                         : Py_NewRef(slot.object != nullptr ? slot.object : Py_None);
        }
        if (item == nullptr) {
            Py_CLEAR(result);
            break;
        }
        PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), item);
    }
    return result;
}

void translate_exception()
{
    try {
        throw;
    }
    catch (const PythonError &) {
    }
    catch (const CudaError &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    catch (python_error &error) {
        error.restore();
    }
    catch (...) {
        torch::translate_exception_to_python(std::current_exception());
    }
}

} // namespace dynajit
