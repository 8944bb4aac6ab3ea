/* A backward graph that runs in parts, each of them a node of autograd's: what waits for a gradient, as the buckets of
 * DistributedDataParallel do, gets it while the rest is still computed.
 *
 * In: the call plan of a backward graph, and the edges to what takes its gradients. Out: `parts_of`, which gradients are
 * handed out after how many of its steps; `Continued`, the node of each part but the first, which is the graph's own node.
 * The state of a pass goes from one to the next along their edges, in the place of a gradient, so that autograd orders,
 * leaves out and drops them like all other nodes. Of `training_node.h` alone. */
#ifndef DYNAJIT_TRAINING_PARTS_H
#define DYNAJIT_TRAINING_PARTS_H

#include "plan/training_graph.h"
#include "plan/training_order.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace {

/* What is handed out when so many steps have run: numbers among the inputs in `wanted`. */
struct Part {
    size_t end;
    std::vector<size_t> places;
};

/* More parts hand gradients out hardly earlier: one has this share of their bytes at least. */
constexpr size_t MAX_PARTS = 32;

/* Whether somebody is told when a leaf has got its gradient. */
bool is_heard(const torch::autograd::Edge &edge)
{
    const auto *leaf = dynamic_cast<const torch::autograd::AccumulateGrad *>(edge.function.get());
    return leaf != nullptr && (!leaf->post_hooks().empty() || leaf->tensor_post_acc_grad_hooks() != nullptr);
}

/* Whether somebody sees when a leaf gets its gradient. */
bool is_observed(const torch::autograd::Edge &edge)
{
    return is_heard(edge) || (edge.is_valid() && edge.function->sequence_nr() == UINT64_MAX
                              && !edge.function->tensor_pre_hooks().empty());
}

const void *storage_of(const at::Tensor &tensor)
{
    return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

/* The parts of a plan with these edges; none: it is not worth a second one. `items`: what the forward graph gave, from
 * `first` on saved tensors, then numbers, which backward takes before them. */
std::vector<Part> parts_of(const TrainingCall *call, const NativePlan &plan, PyObject *const *args, const Values &items,
                           size_t first, const torch::autograd::edge_list &edges)
{
    struct Gradient {
        size_t end, place, bytes;
    };
    std::vector<Gradient> gradients;
    const size_t n_saved = static_cast<size_t>(call->n_saved), n_numbers = items.size() - first - n_saved;
    if (!plan.written.empty() || !std::any_of(edges.begin(), edges.end(), is_heard)) {
        return {};
    }
    std::map<const void *, size_t> reads; /* of what is saved, by memory: the steps up to the last that reads it */
    for (size_t i = 0; i < n_saved; i++) {
        size_t &end = reads[storage_of(items[first + i].tensor)];
        end = std::max(end, plan.ends.at(n_numbers + i));
    }
    size_t bytes = 0;
    for (size_t i = 0; i < edges.size(); i++) {
        if (!edges[i].is_valid()) {
            continue;
        }
        const size_t place = static_cast<size_t>((*call->wanted)[i]);
        const int slot = plan.outputs.at(place).slot;
        const at::Tensor &input = THPVariable_Unpack(args[place]);
        /* who is told may write the leaf: not before its last use */
        const auto read = reads.find(storage_of(input));
        const size_t last = read != reads.end() ? read->second : 0;
        const size_t end = std::max(slot >= 0 ? plan.ends[static_cast<size_t>(slot)] : 0, last);
        gradients.push_back({end, i, is_heard(edges[i]) ? input.nbytes() : 0});
        bytes += gradients.back().bytes;
    }
    const std::vector<size_t> &ranks = *call->ranks;
    std::stable_sort(gradients.begin(), gradients.end(), [&](const Gradient &a, const Gradient &b) {
        return ranks[a.place] != ranks[b.place] ? ranks[a.place] < ranks[b.place] : a.end < b.end;
    });
    for (size_t i = 1; i < gradients.size(); i++) {
        gradients[i].end = std::max(gradients[i].end, gradients[i - 1].end);
    }
    std::vector<Part> parts(1);
    size_t gathered = 0;
    for (size_t i = 0; i < gradients.size(); i++) {
        Part &part = parts.back();
        part.end = gradients[i].end;
        part.places.push_back(gradients[i].place);
        gathered += gradients[i].bytes;
        if (gathered * MAX_PARTS > bytes && i + 1 < gradients.size() && gradients[i + 1].end > part.end) {
            parts.emplace_back();
            gathered = 0;
        }
    }
    parts.back().end = SIZE_MAX;
    return parts.size() > 1 ? parts : std::vector<Part>();
}

/* All that the edges of a node lead to. inputs: their numbers among those in `wanted`. */
Part whole_of(const TrainingCall *call, const std::vector<size_t> &inputs, const torch::autograd::edge_list &edges)
{
    Part part{SIZE_MAX, {}};
    for (size_t i = 0; i < edges.size(); i++) {
        if (edges[i].is_valid()) {
            part.places.push_back(i);
        }
    }
    std::stable_sort(part.places.begin(), part.places.end(), [&](size_t a, size_t b) {
        return (*call->ranks)[inputs[a]] < (*call->ranks)[inputs[b]];
    });
    return part;
}

/* A backward pass on its way: gradients that have been computed, or the run that computes them. */
class Pass {
public:
    explicit Pass(variable_list &&found) : found_(std::move(found))
    {
    }

    /* reached: of each gradient, whether there is one. `arguments`: what the plan takes. */
    Pass(const TrainingCall *call, PyObject *executor, bool no_autocast, Values &&arguments, Flags &&reached)
        : places_(*call->wanted), reached_(std::move(reached))
    {
        for (const Value &each : arguments) {
            given_.emplace_back(each.tensor.defined() ? each.tensor : at::empty({0}), false);
        }
        run_ = std::make_unique<PlanRun>(executor, no_autocast, std::move(arguments));
    }

    ~Pass()
    {
        if (Py_IsInitialized()) {
            pybind11::gil_scoped_acquire gil;
            run_.reset();
        }
        else {
            static_cast<void>(run_.release());
        }
    }

    Pass(const Pass &) = delete;
    Pass &operator=(const Pass &) = delete;

    /* The gradients of a part. With the GIL. */
    variable_list until(const Part &part)
    {
        variable_list given;
        if (run_ == nullptr) {
            for (size_t place : part.places) {
                given.push_back(std::move(found_[place]));
            }
            return given;
        }
        refuse_written();
        const HooksOff off;
        run_->advance(part.end);
        Run &run = run_->run();
        for (size_t place : part.places) {
            const int slot = run.plan.outputs.at(static_cast<size_t>(places_[place])).slot;
            given.push_back(slot >= 0 && reached_[place] ? run.slots[static_cast<size_t>(slot)].tensor : at::Tensor());
        }
        for (const at::Tensor &gradient : given) {
            let_go(run, gradient);
        }
        if (part.end == SIZE_MAX) {
            run_.reset();
        }
        return given;
    }

    /* The pass as a gradient, which holds it; and the other way round. */
    static at::Tensor wrap(std::unique_ptr<Pass> pass, c10::Device device)
    {
        c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, pass.release(), drop, device));
        const c10::DispatchKeySet keys(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
        return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, caffe2::TypeMeta::Make<float>());
    }

    static Pass &of(const at::Tensor &wrapped)
    {
        if (!wrapped.defined() || !wrapped.has_storage() || wrapped.storage().data_ptr().get_deleter() != drop) {
            throw std::runtime_error("a hook of a compiled graph's node has replaced what the node passes on");
        }
        return *static_cast<Pass *>(wrapped.storage().data_ptr().get_context());
    }

private:
    static void drop(void *pass)
    {
        delete static_cast<Pass *>(pass);
    }

    /* Raise as torch does where a hook has written what is still to be read. */
    void refuse_written() const
    {
        const Run &run = run_->run();
        for (size_t i = 0; i < given_.size(); i++) {
            if (run.plan.ends[i] > run.done && given_[i].is_written()) {
                given_[i].refuse({});
            }
        }
    }

    /* Autograd takes a gradient over that nobody else holds. */
    static void let_go(Run &run, const at::Tensor &gradient)
    {
        const auto holds = [&](int slot) {
            return slot >= 0 && run.slots[static_cast<size_t>(slot)].tensor.is_same(gradient);
        };
        const auto &outputs = run.plan.outputs;
        if (!gradient.defined() || std::count_if(outputs.begin(), outputs.end(), [&](const Output &output) {
                return holds(output.slot);
            }) > 1) {
            return;
        }
        for (Slot &slot : run.slots) {
            if (slot.tensor.is_same(gradient)) {
                slot.tensor.reset();
            }
        }
    }

    variable_list found_;
    std::vector<Py_ssize_t> places_; /* of the gradients among the plan's results */
    Flags reached_;
    std::vector<Seen> given_;
    std::unique_ptr<PlanRun> run_; /* null: all has been found */
};

/* A part of a backward graph after the first. */
class Continued : public torch::autograd::Node {
public:
    Continued(Part &&part, c10::Device device) : part_(std::move(part))
    {
        add_input_metadata(at::empty({0}, at::device(device).dtype(at::kFloat)));
    }

    std::string name() const override
    {
        return BACKWARD_NAME;
    }

    variable_list apply(variable_list &&given) override
    {
        pybind11::gil_scoped_acquire gil;
        const at::NoGradGuard no_grad;
        at::Tensor pass = std::move(given.at(0));
        variable_list gradients = Pass::of(pass).until(part_);
        if (part_.end != SIZE_MAX) {
            gradients.push_back(std::move(pass));
        }
        return gradients;
    }

private:
    Part part_;
};

} // namespace

#endif
