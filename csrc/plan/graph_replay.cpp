/* GraphReplay: a call plan recorded as a CUDA graph, replayed on other addresses.
 *
 * In: a PlanExecutor and inputs, while the current stream is captured. Out: a callable that runs the instantiated graph.
 * Inputs that only kernels read and outputs may lie elsewhere at each call: their addresses are put into the graph's
 * nodes, and so are the numbers that the host gives kernels. Inputs that an operator of torch's reads, whose nodes hide
 * their addresses, stay where they are ("pinned") or are copied ("copied") by a node in front. What is kept for a
 * backward graph stays in the graph's memory, at the same addresses at every call: as long as somebody holds it the
 * graph is not run again. So does what operators give the user, if the graph lends it; the user's other outputs are
 * memory of their own. A call that does not fit gives NotImplemented. */
#include "plan/graph_memory.h"
#include "plan/plan_executor.h"
#include "plan/python_entry.h"
#include "python/heap_type.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/python_variable.h>

#include <structmember.h>

namespace dynajit {
namespace {

PyTypeObject *replay_type;

struct Use {
    size_t parameter;
    int dynamic;
    ptrdiff_t offset;
};

struct KernelNode {
    CuGraphNode node;
    CuKernelNodeParams params;
    std::vector<char *> addresses;
    std::vector<Use> uses;
};

struct CopyNode {
    CuGraphNode node;
    int from, to; /* dynamics; -1: an address of the graph's own */
    char *source, *target;
    ptrdiff_t offset; /* of the dynamic one */
    size_t bytes;
};

/* An address, or a number in its place, that may differ from call to call. */
struct Dynamic {
    char *current = nullptr;
    bool pinned = false;
    bool hosted = false; /* an input on the CPU, or a number: no memory of the GPU's */
    bool checked = false; /* a kernel is the one for addresses that are multiples of 16 */
    size_t bytes = 0; /* of an output's memory */
    std::vector<size_t> kernels, copies;
};

struct ReplayOutput {
    enum { kObject, kNumber, kInput, kFresh, kKept } kind;
    int dynamic = -1;
    int64_t offset = 0; /* in elements; for inputs, from their first element */
    bool same = false;  /* the input itself */
    bool detached = false; /* a part of an input, and no view of it to autograd */
    BufferSpec spec;
    at::Tensor kept;
    PyObject *object = nullptr; /* owned */
};

struct Replay {
    NativePlan *plan = nullptr;
    PyObject *owner = nullptr;    /* the PlanExecutor */
    PyObject *launcher = nullptr; /* called in place of a launch, where torch has to be told */
    CuGraphExec exec = nullptr;
    void *context = nullptr;
    std::vector<Dynamic> dynamics; /* inputs, then memory of outputs and numbers */
    std::vector<std::pair<NumberStep, size_t>> numbers; /* and their places among the dynamics */
    bool binds_sizes = false; /* a call asks for sizes, or floats, of its inputs */
    std::vector<KernelNode> kernels;
    std::vector<CopyNode> copies;
    std::vector<ReplayOutput> outputs;
    GraphMemory memory; /* of the outputs that are kept or lent */
    std::vector<at::Tensor> statics;
    size_t returns = SIZE_MAX; /* outputs from here on are kept for a backward graph */
    bool lends = false;        /* the user's are in the graph's memory where operators give them */
};

/* Which input or output memory each slot lies in, by the plan's steps alone. */
std::vector<int> roots_of(const NativePlan &plan)
{
    std::vector<int> roots(plan.buffers.size());
    for (size_t i = 0; i < roots.size(); i++) {
        roots[i] = static_cast<int>(i);
    }
    for (const Step &step : plan.steps) {
        if (const ViewStep *view = std::get_if<ViewStep>(&step)) {
            roots[static_cast<size_t>(view->slot)] = roots[static_cast<size_t>(view->base)];
        }
        else if (const ReuseStep *reuse = std::get_if<ReuseStep>(&step)) {
            roots[static_cast<size_t>(reuse->slot)] = roots[static_cast<size_t>(reuse->base)];
        }
    }
    return roots;
}

struct Recorder : Listener {
    Replay &replay;
    Run &run;
    std::vector<int> roots;
    std::vector<int> dynamic_of; /* by root slot, -1: none */
    bool apart = false;          /* copies do not wait for one another */
    std::vector<CuGraphNode> before, copied; /* what these wait for, and they */

    Recorder(Replay &replay, Run &run)
        : replay(replay), run(run), roots(roots_of(run.plan)), dynamic_of(run.plan.buffers.size(), -1)
    {
    }

    at::Tensor allocate(int slot) override
    {
        return at::Tensor();
    }

    /* Called before the run. */
    void find_numbers()
    {
        for (const Step &step : run.plan.steps) {
            if (const NumberStep *number = std::get_if<NumberStep>(&step)) {
                if (number->source >= run.plan.inputs) {
                    throw CudaError("a number that the host computes");
                }
                dynamic_of[roots[static_cast<size_t>(number->slot)]] = static_cast<int>(replay.dynamics.size());
                replay.numbers.emplace_back(*number, replay.dynamics.size());
                replay.binds_sizes |= number->source < 0;
                replay.dynamics.emplace_back().hosted = true;
            }
        }
    }

    /* Output memory that kernels write: known by its slot. Called before the run. */
    void find_written_outputs()
    {
        std::vector<bool> allocated(dynamic_of.size(), false);
        for (const Step &step : run.plan.steps) {
            if (const AllocStep *alloc = std::get_if<AllocStep>(&step)) {
                allocated[static_cast<size_t>(alloc->slot)] = true;
            }
        }
        for (size_t n = 0; n < std::min(run.plan.outputs.size(), replay.returns); n++) {
            const Output &output = run.plan.outputs[n];
            if (output.slot < 0) {
                continue;
            }
            size_t root = static_cast<size_t>(roots[static_cast<size_t>(output.slot)]);
            if (allocated[root] && dynamic_of[root] < 0 && !read_by_operator(static_cast<int>(root))) {
                dynamic_of[root] = static_cast<int>(replay.dynamics.size());
                replay.dynamics.emplace_back().bytes = (*run.buffers)[root].bytes;
            }
        }
    }

    bool lies_in(const std::vector<int> &slots, int root) const
    {
        return std::any_of(slots.begin(), slots.end(),
                           [&](int slot) { return slot >= 0 && roots[static_cast<size_t>(slot)] == root; });
    }

    bool read_by_operator(int root) const
    {
        for (const Step &step : run.plan.steps) {
            if (const ExternStep *call = std::get_if<ExternStep>(&step)) {
                for (const Patch &patch : call->patches) {
                    if (lies_in(patch.slots, root)) {
                        return true;
                    }
                }
            }
            else if (const PythonStep *python = std::get_if<PythonStep>(&step)) {
                if (lies_in(python->inputs, root)) {
                    return true;
                }
            }
        }
        return false;
    }

    void launched(const KernelStep &step, unsigned programs, unsigned shared, unsigned threads, CuFunction function,
                  const std::vector<char *> &addresses) override
    {
        KernelNode node{latest_node(run.stream), {}, addresses, {}};
        node.params.function = function;
        node.params.grid[0] = programs;
        node.params.block[0] = threads;
        node.params.grid[1] = node.params.grid[2] = node.params.block[1] = node.params.block[2] = 1;
        node.params.shared = shared;
        for (size_t i = 0; i < step.slots.size(); i++) {
            size_t root = static_cast<size_t>(roots[static_cast<size_t>(step.slots[i])]);
            int dynamic = dynamic_of[root];
            if (dynamic < 0) {
                continue;
            }
            Dynamic &memory = replay.dynamics[static_cast<size_t>(dynamic)];
            if (memory.current == nullptr) {
                memory.current = run.slots[root].address;
            }
            node.uses.push_back(Use{i, dynamic, addresses[i] - memory.current});
            memory.checked |= function != step.kernel->unaligned
                              && std::find(step.checked.begin(), step.checked.end(), static_cast<int>(i))
                                     != step.checked.end();
            memory.kernels.push_back(replay.kernels.size());
        }
        replay.kernels.push_back(std::move(node));
    }

    /* From here on a copy waits for what is on the stream now, and for no other copy. */
    void part_copies()
    {
        apart = cuda_driver().set_latest != nullptr;
        before = apart ? latest_nodes(run.stream) : std::vector<CuGraphNode>();
    }

    /* What comes now waits for all of them. */
    void join_copies()
    {
        if (copied.size() > 1) {
            follow(run.stream, copied);
        }
        apart = false;
        copied.clear();
    }

    void copy(char *target, char *source, size_t bytes, int from, int to, ptrdiff_t offset)
    {
        if (bytes == 0) {
            return;
        }
        if (!copied.empty()) {
            follow(run.stream, before);
        }
        cuda_check(cuda_driver().copy_async(reinterpret_cast<CuPointer>(target), reinterpret_cast<CuPointer>(source),
                                            bytes, run.stream),
                   "recording a copy");
        replay.dynamics[static_cast<size_t>(from >= 0 ? from : to)].copies.push_back(replay.copies.size());
        replay.copies.push_back(CopyNode{latest_node(run.stream), from, to, source, target, offset, bytes});
        if (apart) {
            copied.push_back(replay.copies.back().node);
        }
    }
};

size_t extent(const at::Tensor &tensor)
{
    if (tensor.numel() == 0) {
        return 0;
    }
    int64_t last = 0;
    for (int64_t dim = 0; dim < tensor.dim(); dim++) {
        last += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    return static_cast<size_t>(last + 1) * tensor.element_size();
}

BufferSpec spec_of(const at::Tensor &tensor)
{
    return BufferSpec{true, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), 0};
}

/* Another tensor of the same memory. */
at::Tensor shared(const Replay &replay, const at::Tensor &memory, const BufferSpec &spec, int64_t offset)
{
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory.storage()), replay.plan->keys,
                                                               c10::scalarTypeToTypeMeta(spec.dtype));
    made.unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes, spec.strides, offset);
    return made;
}

/* Copied inputs lie where the graph has them; the copies come first. */
void place_inputs(Recorder &recorder, const std::vector<at::Tensor> &statics)
{
    Run &run = recorder.run;
    Replay &replay = recorder.replay;
    for (size_t i = 0; i < static_cast<size_t>(run.plan.inputs); i++) {
        replay.dynamics.emplace_back();
        Slot &slot = run.slots[i];
        if (!slot.tensor.defined() || slot.tensor.device().type() != run.plan.device.type()) {
            replay.dynamics[i].hosted = true;
            continue;
        }
        replay.dynamics[i].current = slot.address;
        if (statics[i].defined()) {
            char *target = static_cast<char *>(statics[i].data_ptr());
            recorder.copy(target, slot.address, extent(slot.tensor), static_cast<int>(i), -1, 0);
            set_tensor(slot, statics[i]);
        }
        else {
            recorder.dynamic_of[i] = static_cast<int>(i);
            replay.dynamics[i].pinned = recorder.read_by_operator(static_cast<int>(i));
        }
    }
}

/* What autograd takes the tensor for a view of, or the tensor itself. */
const void *first_of(const at::Tensor &tensor)
{
    return tensor.is_view() ? tensor._base().unsafeGetTensorImpl() : tensor.unsafeGetTensorImpl();
}

/* Where the output lies: in an input, in memory that kernels wrote, or in what an operator gave. */
void describe_outputs(Recorder &recorder, const std::vector<at::Tensor> &given)
{
    Run &run = recorder.run;
    Replay &replay = recorder.replay;
    std::map<const void *, int> inputs;
    std::map<const void *, std::vector<size_t>> groups;
    for (size_t i = 0; i < given.size(); i++) {
        if (given[i].defined()) {
            inputs[given[i].storage().data()] = static_cast<int>(i);
            inputs[run.slots[i].tensor.storage().data()] = static_cast<int>(i);
        }
    }
    for (size_t n = 0; n < run.plan.outputs.size(); n++) {
        const Output &output = run.plan.outputs[n];
        replay.outputs.emplace_back();
        ReplayOutput &made = replay.outputs.back();
        const at::Tensor tensor = output.slot >= 0 ? run.slots[static_cast<size_t>(output.slot)].tensor : at::Tensor();
        if (output.slot < -1) {
            made.kind = ReplayOutput::kNumber;
            replay.binds_sizes = true;
            continue;
        }
        if (!tensor.defined()) {
            made.kind = ReplayOutput::kObject;
            made.object = Py_NewRef(output.slot < 0 && output.object != nullptr ? output.object : Py_None);
            continue;
        }
        made.spec = spec_of(tensor);
        size_t root = static_cast<size_t>(recorder.roots[static_cast<size_t>(output.slot)]);
        int dynamic = recorder.dynamic_of[root];
        const void *storage = tensor.storage().data();
        auto input = tensor.numel() != 0 ? inputs.find(storage) : inputs.end();
        if (output.slot < run.plan.inputs || input != inputs.end()) {
            size_t at = output.slot < run.plan.inputs ? static_cast<size_t>(output.slot) : static_cast<size_t>(input->second);
            made.kind = ReplayOutput::kInput;
            made.dynamic = static_cast<int>(at);
            made.same = output.slot < run.plan.inputs;
            made.detached = first_of(tensor) != first_of(run.slots[at].tensor);
            made.offset = tensor.storage_offset() - run.slots[at].tensor.storage_offset();
        }
        else if (dynamic >= run.plan.inputs) {
            made.kind = ReplayOutput::kFresh;
            made.dynamic = dynamic;
            ptrdiff_t offset = static_cast<char *>(tensor.data_ptr()) - replay.dynamics[static_cast<size_t>(dynamic)].current;
            made.offset = offset / static_cast<ptrdiff_t>(tensor.element_size());
        }
        else if (n >= replay.returns || replay.lends) {
            made.kind = ReplayOutput::kKept;
            made.kept = shared(replay, tensor, made.spec, tensor.storage_offset());
            replay.memory.share(made.kept);
        }
        else {
            made.kind = ReplayOutput::kFresh;
            groups[storage].push_back(n);
        }
    }
    for (const auto &[storage, members] : groups) {
        char *low = nullptr, *high = nullptr;
        for (size_t n : members) {
            const at::Tensor &tensor = run.slots[static_cast<size_t>(run.plan.outputs[n].slot)].tensor;
            char *start = static_cast<char *>(tensor.data_ptr());
            low = low == nullptr ? start : std::min(low, start);
            high = std::max(high, start + extent(tensor));
        }
        int dynamic = static_cast<int>(replay.dynamics.size());
        replay.dynamics.emplace_back();
        Dynamic &memory = replay.dynamics.back();
        memory.bytes = static_cast<size_t>(high - low);
        at::Tensor target = at::detail::empty_strided_generic({static_cast<int64_t>(memory.bytes)}, {1}, run.plan.allocator,
                                                              run.plan.keys, at::kByte);
        memory.current = static_cast<char *>(target.data_ptr());
        recorder.copy(memory.current, low, memory.bytes, -1, dynamic, 0);
        for (size_t n : members) {
            const at::Tensor &tensor = run.slots[static_cast<size_t>(run.plan.outputs[n].slot)].tensor;
            ptrdiff_t offset = static_cast<char *>(tensor.data_ptr()) - low;
            if (offset % static_cast<ptrdiff_t>(tensor.element_size()) != 0) {
                throw CudaError("outputs of different dtypes share memory");
            }
            replay.outputs[n].dynamic = dynamic;
            replay.outputs[n].offset = offset / static_cast<ptrdiff_t>(tensor.element_size());
        }
    }
}

void record(Replay &replay, Run &run, PyObject *mutated)
{
    c10::OptionalDeviceGuard guard(run.plan.device);
    run.stream = current_stream(run.plan.device);
    Recorder recorder(replay, run);
    std::vector<at::Tensor> given;
    for (int i = 0; i < run.plan.inputs; i++) {
        given.push_back(run.slots[static_cast<size_t>(i)].tensor);
    }
    recorder.part_copies();
    place_inputs(recorder, replay.statics);
    recorder.join_copies();
    recorder.find_numbers();
    recorder.find_written_outputs();
    run.listener = &recorder;
    execute(run);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mutated); i++) {
        size_t at = static_cast<size_t>(PyLong_AsLong(PyTuple_GET_ITEM(mutated, i)));
        if (at < given.size() && replay.statics[at].defined()) {
            recorder.copy(static_cast<char *>(given[at].data_ptr()), static_cast<char *>(replay.statics[at].data_ptr()),
                          extent(given[at]), -1, static_cast<int>(at), 0);
        }
    }
    recorder.part_copies();
    describe_outputs(recorder, given);
    recorder.join_copies();
    cuda_check(cuda_driver().current_context(&replay.context), "recording");
}

/* ---- replaying ---- */

void update_kernel(Replay &replay, KernelNode &node)
{
    for (const Use &use : node.uses) {
        node.addresses[use.parameter] = replay.dynamics[static_cast<size_t>(use.dynamic)].current + use.offset;
    }
    std::vector<void *> params;
    for (char *&address : node.addresses) {
        params.push_back(&address);
    }
    node.params.params = params.data();
    cuda_check(cuda_driver().set_kernel_node(replay.exec, node.node, &node.params), "changing a recorded kernel");
}

void update_copy(Replay &replay, CopyNode &node)
{
    if (node.from >= 0) {
        node.source = replay.dynamics[static_cast<size_t>(node.from)].current + node.offset;
    }
    if (node.to >= 0) {
        node.target = replay.dynamics[static_cast<size_t>(node.to)].current + node.offset;
    }
    CuMemcpy3D params{};
    params.src_type = params.dst_type = kCuMemoryDevice;
    params.src = reinterpret_cast<CuPointer>(node.source);
    params.dst = reinterpret_cast<CuPointer>(node.target);
    params.width = node.bytes;
    params.height = params.depth = 1;
    cuda_check(cuda_driver().set_memcpy_node(replay.exec, node.node, &params, replay.context), "changing a recorded copy");
}

/* False: the graph does not fit these inputs. */
bool inputs_fit(const Replay &replay, const std::vector<at::Tensor> &inputs)
{
    for (size_t i = 0; i < inputs.size(); i++) {
        if (replay.dynamics[i].hosted) {
            continue;
        }
        const char *address = static_cast<const char *>(inputs[i].const_data_ptr());
        const Dynamic &memory = replay.dynamics[i];
        bool aligned = !memory.checked
                       || ((reinterpret_cast<uintptr_t>(address) ^ reinterpret_cast<uintptr_t>(memory.current)) & 15) == 0;
        if (address != memory.current && (memory.pinned || !aligned)) {
            return false;
        }
    }
    return true;
}

void move_to(Replay &replay, size_t dynamic, char *address, std::vector<bool> &stale_kernels, std::vector<bool> &stale_copies)
{
    Dynamic &memory = replay.dynamics[dynamic];
    if (memory.current == address) {
        return;
    }
    memory.current = address;
    for (size_t kernel : memory.kernels) {
        stale_kernels[kernel] = true;
    }
    for (size_t copy : memory.copies) {
        stale_copies[copy] = true;
    }
}

/* The numbers that kernels are given at this call; `run` has the sizes, where any of them is one. */
std::vector<int64_t> numbers_of(const Replay &replay, const Run *run, const std::vector<at::Tensor> &inputs)
{
    std::vector<int64_t> found;
    for (const auto &[number, dynamic] : replay.numbers) {
        found.push_back(number.source < 0 ? run->sized->sizes[static_cast<size_t>(number.size)]
                                          : number_in(inputs[static_cast<size_t>(number.source)]));
    }
    return found;
}

void aim(Replay &replay, const std::vector<at::Tensor> &inputs, const std::vector<int64_t> &numbers,
         std::vector<at::Tensor> &fresh)
{
    std::vector<bool> kernels(replay.kernels.size()), copies(replay.copies.size());
    for (size_t i = 0; i < numbers.size(); i++) {
        move_to(replay, replay.numbers[i].second, reinterpret_cast<char *>(static_cast<intptr_t>(numbers[i])), kernels,
                copies);
    }
    for (size_t i = 0; i < inputs.size(); i++) {
        if (!replay.dynamics[i].hosted) {
            move_to(replay, i, static_cast<char *>(const_cast<void *>(inputs[i].const_data_ptr())), kernels, copies);
        }
    }
    for (size_t i = inputs.size(); i < replay.dynamics.size(); i++) {
        if (replay.dynamics[i].hosted) {
            fresh.emplace_back();
            continue;
        }
        fresh.push_back(at::detail::empty_strided_generic({static_cast<int64_t>(replay.dynamics[i].bytes)}, {1},
                                                          replay.plan->allocator, replay.plan->keys, at::kByte));
        move_to(replay, i, static_cast<char *>(fresh.back().data_ptr()), kernels, copies);
    }
    for (size_t i = 0; i < kernels.size(); i++) {
        if (kernels[i]) {
            update_kernel(replay, replay.kernels[i]);
        }
    }
    for (size_t i = 0; i < copies.size(); i++) {
        if (copies[i]) {
            update_copy(replay, replay.copies[i]);
        }
    }
}

PyObject *wrap_output(const Replay &replay, const ReplayOutput &output, const std::vector<at::Tensor> &inputs,
                      const std::vector<at::Tensor> &fresh)
{
    if (output.kind == ReplayOutput::kObject) {
        return Py_NewRef(output.object);
    }
    if (output.kind == ReplayOutput::kInput) {
        const at::Tensor &base = inputs[static_cast<size_t>(output.dynamic)];
        if (output.same) {
            return THPVariable_Wrap(base);
        }
        return THPVariable_Wrap(at::as_strided(output.detached ? base.detach() : base, output.spec.sizes,
                                               output.spec.strides, base.storage_offset() + output.offset));
    }
    if (output.kind == ReplayOutput::kKept) {
        return THPVariable_Wrap(shared(replay, output.kept, output.spec, output.kept.storage_offset()));
    }
    const at::Tensor &memory = fresh[static_cast<size_t>(output.dynamic) - inputs.size()];
    return THPVariable_Wrap(shared(replay, memory, output.spec, output.offset));
}

void launch(Replay &replay)
{
    if (replay.launcher == nullptr) {
        cuda_check(cuda_driver().graph_launch(replay.exec, current_stream(replay.plan->device)), "launching a graph");
        return;
    }
    PyObject *done = PyObject_CallNoArgs(replay.launcher);
    if (done == nullptr) {
        throw PythonError();
    }
    Py_DECREF(done);
}

PyObject *play(Replay &replay, PyObject *const *args, Py_ssize_t count)
{
    if (count != replay.plan->inputs || replay.exec == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "the graph is not ready, or is given another number of inputs");
        return nullptr;
    }
    std::vector<at::Tensor> inputs(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; i++) {
        if (THPVariable_Check(args[i])) {
            inputs[static_cast<size_t>(i)] = THPVariable_Unpack(args[i]);
        }
    }
    if (replay.lends && consumed_on_other_streams(replay.plan->device)) {
        replay.memory.lose();
    }
    if (!inputs_fit(replay, inputs) || replay.memory.held() || replay.memory.lost()) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    std::optional<Run> run;
    if (replay.binds_sizes) {
        run.emplace(*replay.plan);
        run->holds_gil = true;
        set_inputs(*run, args, count);
    }
    const std::vector<int64_t> numbers = numbers_of(replay, run ? &*run : nullptr, inputs);
    c10::OptionalDeviceGuard guard;
    if (replay.plan->device.type() == c10::kCUDA) {
        guard.reset_device(replay.plan->device);
    }
    std::vector<at::Tensor> fresh;
    aim(replay, inputs, numbers, fresh);
    launch(replay);
    for (const Step &step : replay.plan->steps) {
        if (const TouchStep *touched = std::get_if<TouchStep>(&step)) {
            touch(inputs[static_cast<size_t>(touched->slot)]);
        }
    }
    PyObject *result = PyTuple_New(static_cast<Py_ssize_t>(replay.outputs.size()));
    for (size_t i = 0; result != nullptr && i < replay.outputs.size(); i++) {
        PyObject *item = replay.outputs[i].kind == ReplayOutput::kNumber
                             ? number_of(*run, replay.plan->outputs[i])
                             : wrap_output(replay, replay.outputs[i], inputs, fresh);
        if (item == nullptr) {
            Py_CLEAR(result);
            break;
        }
        PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), item);
    }
    return result;
}

/* ---- the Python object ---- */

struct ReplayObject {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Replay *replay;
};

/* The GIL is held: changing nodes and launching belong together. */
PyObject *replay_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_INCREF(object);
    PyObject *result = enter_from_python(
        [&] { return play(*reinterpret_cast<ReplayObject *>(object)->replay, args, PyVectorcall_NARGS(nargsf)); });
    Py_DECREF(object);
    return result;
}

PyObject *replay_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *names[] = {"executor", "inputs", "statics", "mutated", "returns", "lends", nullptr};
    PyObject *executor, *inputs, *statics, *mutated;
    Py_ssize_t returns = -1;
    int lends = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!|np:GraphReplay", const_cast<char **>(names), &executor,
                                     &PyTuple_Type, &inputs, &PyTuple_Type, &statics, &PyTuple_Type, &mutated,
                                     &returns, &lends)) {
        return nullptr;
    }
    NativePlan *plan = native_plan(executor);
    if (plan == nullptr) {
        return nullptr;
    }
    ReplayObject *self = reinterpret_cast<ReplayObject *>(type->tp_alloc(type, 0));
    if (self == nullptr) {
        return nullptr;
    }
    self->vectorcall = replay_call;
    self->replay = new Replay;
    self->replay->plan = plan;
    self->replay->owner = Py_NewRef(executor);
    self->replay->lends = lends != 0;
    self->replay->returns = returns < 0 ? SIZE_MAX : static_cast<size_t>(returns);
    try {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); i++) {
            PyObject *item = i < PyTuple_GET_SIZE(statics) ? PyTuple_GET_ITEM(statics, i) : Py_None;
            self->replay->statics.push_back(THPVariable_Check(item) ? THPVariable_Unpack(item) : at::Tensor());
        }
        Run run(*plan);
        run.holds_gil = true;
        set_inputs(run, &PyTuple_GET_ITEM(inputs, 0), PyTuple_GET_SIZE(inputs));
        record(*self->replay, run, mutated);
    }
    catch (...) {
        translate_exception();
        Py_CLEAR(self);
    }
    return reinterpret_cast<PyObject *>(self);
}

PyObject *replay_ready(PyObject *object, PyObject *args)
{
    Replay &replay = *reinterpret_cast<ReplayObject *>(object)->replay;
    unsigned long long exec;
    PyObject *launcher = Py_None;
    if (!PyArg_ParseTuple(args, "K|O:ready", &exec, &launcher)) {
        return nullptr;
    }
    replay.exec = reinterpret_cast<CuGraphExec>(exec);
    replay.memory.settle();
    replay.launcher = launcher == Py_None ? nullptr : Py_NewRef(launcher);
    Py_RETURN_NONE;
}

PyObject *replay_busy(PyObject *object, void *)
{
    return PyBool_FromLong(reinterpret_cast<ReplayObject *>(object)->replay->memory.held());
}

PyObject *replay_lost(PyObject *object, void *)
{
    return PyBool_FromLong(reinterpret_cast<ReplayObject *>(object)->replay->memory.lost());
}

PyObject *replay_patched(PyObject *object, void *)
{
    const Replay &replay = *reinterpret_cast<ReplayObject *>(object)->replay;
    Py_ssize_t kernels = 0;
    for (const KernelNode &node : replay.kernels) {
        kernels += !node.uses.empty();
    }
    return Py_BuildValue("(nn)", kernels, static_cast<Py_ssize_t>(replay.copies.size()));
}

int replay_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Replay *replay = reinterpret_cast<ReplayObject *>(object)->replay;
    if (replay != nullptr) {
        Py_VISIT(replay->owner);
        Py_VISIT(replay->launcher);
    }
    return 0;
}

int replay_clear(PyObject *object)
{
    Replay *replay = reinterpret_cast<ReplayObject *>(object)->replay;
    if (replay != nullptr) {
        Py_CLEAR(replay->launcher);
    }
    return 0;
}

void replay_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Replay *replay = reinterpret_cast<ReplayObject *>(object)->replay;
    if (replay != nullptr) {
        Py_CLEAR(replay->launcher);
        for (ReplayOutput &output : replay->outputs) {
            Py_CLEAR(output.object);
        }
        Py_CLEAR(replay->owner);
        delete replay;
    }
    type->tp_free(object);
    Py_DECREF(type);
}

PyMethodDef replay_methods[] = {
    {"ready", replay_ready, METH_VARARGS,
     "ready(exec, launcher=None)\n--\n\nThe instantiated graph, and what to call in place of launching it."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef replay_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ReplayObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef replay_getset[] = {
    {"busy", replay_busy, nullptr, "Does somebody still hold what an earlier call kept or lent?", nullptr},
    {"lost", replay_lost, nullptr, "Can it not be known when such memory is free again?", nullptr},
    {"patched", replay_patched, nullptr, "How many kernels and copies take addresses of inputs and outputs.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot replay_slots[] = {
    {Py_tp_doc, const_cast<char *>("GraphReplay(executor, inputs, statics, mutated, returns=-1, lends=False)\n--\n\n"
                                   "The plan recorded while the current stream is captured.")},
    DJ_COLLECTED_SLOTS(replay, replay_new, replay_dealloc),
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_methods, replay_methods},
    {Py_tp_members, replay_members},
    {Py_tp_getset, replay_getset},
    {0, nullptr},
};

PyType_Spec replay_spec = DJ_CLASS(ReplayObject, "GraphReplay", DJ_COLLECTED | Py_TPFLAGS_HAVE_VECTORCALL, replay_slots);

} // namespace
} // namespace dynajit

extern "C" int dj_graph_replay_init(PyObject *module)
{
    using namespace dynajit;
    replay_type = dj_add_type(module, &replay_spec);
    return replay_type != nullptr ? 0 : -1;
}
