/* Autograd's node of a compiled training graph: what its backward needs, and which results it is the node of.
 *
 * In: the compiled backward graph, what forward saved, gradients of results. Out: gradients of inputs. Of
 * `training_call.cpp`, which makes the nodes, and includes this alone. */
#ifndef DYNAJIT_TRAINING_NODE_H
#define DYNAJIT_TRAINING_NODE_H

#include "call/call.h"
#include "plan/training_graph.h"
#include "plan/training_parts.h"
#include "plan/unreached_leaves.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <structmember.h>

#include <ATen/ATen.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace {

/* For each result with a history: the backward pass that used up what its backward needs, -1 if none did. */
using UsedUp = std::shared_ptr<std::vector<int>>;

using AllSeen = std::shared_ptr<std::vector<Seen>>;

/* What has to be known of a result to make zeros in the place of its gradient. */
struct ResultShape {
    std::vector<int64_t> sizes;
    at::TensorOptions options;
};

/* Autograd's node of some of a graph's results, of all of them mostly; see `groups_of`. */
class Backward : public torch::autograd::Node {
public:
    Backward(TrainingCall *call, torch::autograd::edge_list &&edges, std::vector<size_t> &&mine, const UsedUp &used_up)
        : Node(std::move(edges)), call_(call), mine_(std::move(mine)), used_up_(used_up)
    {
        Py_INCREF(reinterpret_cast<PyObject *>(call));
    }

    ~Backward() override
    {
        if (Py_IsInitialized()) {
            pybind11::gil_scoped_acquire gil;
            drop_objects(numbers_);
            inputs_.reset();
            Py_DECREF(reinterpret_cast<PyObject *>(call_));
        }
    }

    Backward(const Backward &) = delete;
    Backward &operator=(const Backward &) = delete;

    std::string name() const override
    {
        return BACKWARD_NAME;
    }

    void release_variables() override
    {
        if (!call_->uses_up->empty()) {
            use_up();
            if (std::find(used_up_->begin(), used_up_->end(), -1) != used_up_->end()) {
                return; /* another backward pass may start from the other results */
            }
        }
        else if (!saved_.empty() || !kept_.empty()) { /* eager's nodes that keep nothing run again */
            used_up_->assign(call_->layouts->size(), torch::autograd::get_current_graph_task_id());
        }
        else {
            return;
        }
        saved_.clear();
        kept_.clear();
        inputs_.reset();
    }

    /* The graph's inputs, for a backward pass that is to be differentiated. `saved`: the memory that is kept anyway. */
    void keep_inputs(PyObject *const *args, Py_ssize_t count, const std::set<const void *> &saved, const at::Tensor &random)
    {
        inputs_ = std::make_shared<GraphInputs>(call_->forward, random, *call_->written);
        for (Py_ssize_t i = 0; i < count; i++) {
            const at::Tensor tensor = THPVariable_Check(args[i]) ? THPVariable_Unpack(args[i]) : at::Tensor();
            const bool is_kept = tensor.defined() && tensor.has_storage()
                && saved.count(tensor.storage().unsafeGetStorageImpl()) != 0;
            const bool is_updated = std::find(call_->updated->begin(), call_->updated->end(), i) != call_->updated->end();
            const bool is_held = !is_updated && (is_kept || is_kept_by_eager(i) || inputs_->is_written(i));
            const Origin origin = is_held ? Origin() : origin_of(tensor);
            if (origin.inputs != nullptr) {
                inputs_->add_lent(tensor, origin.inputs, origin.place);
            }
            else if (is_updated) {
                inputs_->add(tensor.clone()); /* with its history */
            }
            else {
                inputs_->add(args[i]);
            }
        }
    }

    /* What a tensor is a result of that can run again, and which one; nothing where it can't. */
    struct Origin {
        std::shared_ptr<GraphInputs> inputs;
        size_t place = 0;
    };

    static Origin origin_of(const at::Tensor &tensor)
    {
        if (!tensor.defined() || !tensor.has_storage() || tensor.is_view() || !tensor.grad_fn() || ::version_of(tensor) != 0) {
            return {};
        }
        torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(tensor);
        if (dynamic_cast<Named *>(edge.function.get()) != nullptr && edge.function->num_outputs() > 0) {
            edge = edge.function->next_edge(0);
        }
        if (const Backward *found = dynamic_cast<Backward *>(edge.function.get())) {
            const Flags &differentiable = *found->call_->differentiable;
            size_t place = 0;
            for (size_t before = found->mine_.at(edge.input_nr); !differentiable[place] || before > 0; place++) {
                before -= differentiable[place];
            }
            return {found->inputs_, place};
        }
        for (const auto &hook : edge.function->post_hooks()) {
            const RunsAgain *found = dynamic_cast<RunsAgain *>(hook.get());
            if (found != nullptr && found->places.count(edge.input_nr) != 0) {
                return {found->inputs, found->places.at(edge.input_nr)};
            }
        }
        return {};
    }

    /* What backward needs, from the forward's results behind those returned. */
    void save(Values &items, size_t first, const std::vector<Node *> &others)
    {
        const bool packed = at::SavedTensorDefaultHooks::is_enabled() && at::SavedTensorDefaultHooks::get_hooks();
        const size_t n_saved = static_cast<size_t>(call_->n_saved), n_checked = static_cast<size_t>(call_->n_checked);
        for (size_t i = 0; i < n_saved; i++) {
            /* an operator may leave out a result that its backward does not need here */
            at::Tensor tensor = others.empty() ? std::move(items[first + i].tensor) : items[first + i].tensor;
            if (!tensor.defined()) {
                order_.push_back(false);
                kept_.emplace_back();
                continue;
            }
            const bool is_output = tensor.requires_grad() && tensor.grad_fn().get() == this;
            if (!is_output && tensor.requires_grad()
                && std::find(others.begin(), others.end(), tensor.grad_fn().get()) != others.end()) {
                tensor = tensor.detach(); /* a node that keeps a result whose node leads to it would keep itself alive */
            }
            if (i < n_checked || packed || tensor.requires_grad()) {
                order_.push_back(true);
                saved_versions_.push_back(version_of(tensor));
                saved_.emplace_back(tensor.is_view() && !is_output ? tensor.detach() : tensor, is_output);
            }
            else {
                order_.push_back(false);
                kept_.push_back(std::move(tensor));
            }
        }
        for (size_t i = first + n_saved; i < items.size(); i++) {
            numbers_.push_back(items[i].wrap());
        }
    }

    /* Have gradients that somebody waits for handed out before all are computed. `items`, `first`: as for `save`. */
    void split(PyObject *const *args, const Values &items, size_t first)
    {
        bool no_autocast = false;
        PyObject *plan = dynajit::plain_graph(call_->usual, &no_autocast);
        if (!dynajit::is_plan_executor(plan)) {
            return;
        }
        const torch::autograd::edge_list edges = next_edges();
        const c10::Device device = dynajit::native_plan(plan)->device;
        std::vector<Part> parts = parts_of(call_, *dynajit::native_plan(plan), args, items, first, edges);
        split_plan_ = parts.empty() ? nullptr : plan;
        split_from_.resize(parts.empty() ? 0 : edges.size());
        NodePointer next;
        for (size_t i = parts.size(); i-- > 0;) {
            const NodePointer node = i > 0 ? owned<Node>(new Continued(Part(parts[i]), device)) : NodePointer();
            torch::autograd::edge_list own;
            for (size_t j = 0; j < parts[i].places.size(); j++) {
                own.push_back(edges[parts[i].places[j]]);
                split_from_[parts[i].places[j]] = {i > 0 ? node.get() : this, j};
            }
            if (next) {
                own.emplace_back(next, 0);
            }
            (i > 0 ? node.get() : this)->set_next_edges(std::move(own));
            next = node;
        }
        if (!parts.empty()) {
            part_ = std::move(parts[0]);
        }
    }

    void keep_shapes(const std::vector<ResultShape> &shapes)
    {
        shapes_ = shapes;
    }

    const TrainingCall *call() const
    {
        return call_;
    }

    void set_inner(const std::shared_ptr<InnerResults> &inner)
    {
        inner_ = inner;
    }

    /* Of the gradient of one result: what gets to those that are heard of, by way of none of them, added to what waits
     * for them. */
    void hand_to_inner(size_t number, const at::Tensor &gradient)
    {
        if (number < used_up_->size() && (*used_up_)[number] != -1
            && (*used_up_)[number] != torch::autograd::get_current_graph_task_id()) {
            throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
        }
        variable_list gradients(call_->layouts->size());
        gradients[number] = gradient;
        Values parts;
        const Flags heard = inner_->heard_among((*call_->through)[number]);
        const size_t count = (*call_->through)[number].size();
        TORCH_CHECK(ask_again(gradients, "parts_at", heard, parts) && parts.size() == count, CANNOT_END);
        const bool create_graph = at::GradMode::is_enabled();
        for (size_t i = 0; i < parts.size(); i++) {
            at::Tensor part = std::move(parts[i].tensor);
            if (part.defined()) {
                part = create_graph ? part : part.detach();
                at::Tensor &whole = inner_->waiting.at(i);
                whole = whole.defined() ? whole + part : part;
            }
        }
    }

    /* The watched tensors, now that the graph has run. */
    void watch(const AllSeen &seen)
    {
        seen_ = seen;
    }

    variable_list apply(variable_list &&given) override
    {
        pybind11::gil_scoped_acquire gil;
        const bool create_graph = at::GradMode::is_enabled();
        variable_list gradients(call_->layouts->size());
        for (size_t i = 0; i < mine_.size() && i < given.size(); i++) {
            gradients[mine_[i]] = std::move(given[i]);
        }
        start_from(gradients);
        refuse_written();
        leave_out_leaves(unreached_leaves());
        variable_list found;
        if (std::find(started_from_.begin(), started_from_.end(), true) == started_from_.end()) {
            found.resize(call_->wanted->size()); /* as eager's operations hand on that there is none */
            return handed_out(std::move(found));
        }
        const bool holds = still_holds();
        const bool plain = std::all_of(gradients.begin(), gradients.end(), is_plain);
        const bool ends_inside = has_heard_inside();
        if ((create_graph || !holds || !plain || ends_inside) && differentiate_again(gradients, found, ends_inside)) {
            for (at::Tensor &gradient : found) {
                const bool has_history = gradient.defined() && gradient.requires_grad();
                gradient = create_graph || !has_history ? gradient : gradient.detach();
            }
            return handed_out(std::move(found));
        }
        TORCH_CHECK(!ends_inside, CANNOT_END);
        TORCH_CHECK(holds, "Python state that backward reads has changed since forward, and the graph can't run again");
        const variable_list given_gradients = create_graph ? gradients : variable_list();
        at::NoGradGuard no_grad;
        PyObject *backward = compiled_backward();
        Values arguments = push(gradients, backward != call_->backward);
        gradients.clear();
        if (!torch::autograd::get_current_graph_task_keep_graph()) {
            release_variables(); /* the engine would do so when all is computed: now the plan drops them one by one */
        }
        bool no_autocast = false;
        PyObject *plan = dynajit::plain_graph(backward, &no_autocast);
        if (split_plan_ != nullptr && plan == split_plan_ && !create_graph) {
            Flags reached;
            for (size_t i = 0; i < call_->wanted->size(); i++) {
                reached.push_back(is_reached(i));
            }
            return handed_out(std::make_unique<Pass>(call_, plan, no_autocast, std::move(arguments), std::move(reached)));
        }
        found = take(call_off(backward, std::move(arguments), true));
        return handed_out(create_graph ? undifferentiable(std::move(found), given_gradients) : std::move(found));
    }

    /* Whether an input is memory that eager's operations keep: then it is read as it is when backward runs. */
    bool is_kept_by_eager(Py_ssize_t place) const
    {
        return std::any_of(call_->watched->begin(), call_->watched->end(), [=](const Watched &each) {
            return !each.is_result && each.place == place;
        });
    }

private:
    /* Note which results this backward pass starts from. */
    void start_from(const variable_list &gradients)
    {
        started_from_.assign(gradients.size(), false);
        used_up_->resize(gradients.size(), -1);
        const int pass = torch::autograd::get_current_graph_task_id();
        for (size_t i = 0; i < gradients.size(); i++) {
            started_from_[i] = gradients[i].defined();
            if (started_from_[i] && (*used_up_)[i] != -1 && (mine_.size() == gradients.size() || (*used_up_)[i] != pass)) {
                throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
            }
        }
    }

    void refuse_written() const
    {
        for (size_t i = 0; seen_ != nullptr && i < seen_->size(); i++) {
            const Flags &behind = (*call_->watched)[i].behind;
            for (size_t j = 0; j < started_from_.size() && (*seen_)[i].is_written(); j++) {
                if (started_from_[j] && behind[j]) {
                    (*seen_)[i].refuse((*call_->watched)[i]);
                }
            }
        }
    }

    void use_up()
    {
        used_up_->resize(call_->uses_up->size(), -1);
        const int pass = torch::autograd::get_current_graph_task_id();
        for (size_t i = 0; i < started_from_.size(); i++) {
            for (size_t j = 0; started_from_[i] && j < used_up_->size(); j++) {
                if ((*used_up_)[j] == -1 && (*call_->uses_up)[i][j]) {
                    (*used_up_)[j] = pass;
                }
            }
        }
    }

    /* The gradients of the first part, and what the other parts need; all of them where there is one part. */
    variable_list handed_out(variable_list &&found)
    {
        return split_plan_ == nullptr ? std::move(found) : handed_out(std::make_unique<Pass>(std::move(found)));
    }

    variable_list handed_out(std::unique_ptr<Pass> pass)
    {
        variable_list gradients = pass->until(part_);
        gradients.push_back(Pass::wrap(std::move(pass), next_edge(num_outputs() - 1).function->input_metadata(0).device()));
        return gradients;
    }

    /* The backward graph for the gradients that there are; borrowed from the call or its mapping. */
    PyObject *compiled_backward()
    {
        PyObject *found = call_->backward;
        if (call_->partial != nullptr) {
            const HooksOff off;
            PyObject *key = started_from_as_bytes();
            found = key != nullptr ? PyObject_GetItem(call_->partial, key) : nullptr;
            Py_XDECREF(key);
            if (found == nullptr) {
                throw_python();
            }
            Py_DECREF(found); /* the mapping holds it */
            found = found == Py_None ? call_->backward : found;
        }
        Py_INCREF(found);
        Py_XSETREF(call_->usual, found);
        return found;
    }

    PyObject *started_from_as_bytes() const
    {
        const std::string bytes(started_from_.begin(), started_from_.end());
        return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
    }

    /* What was saved as argument `place` of the backward graph; it may have been written since if the graph of these
     * gradients makes no use of it. */
    at::Tensor unpacked(const SavedVariable &saved, Py_ssize_t place, bool is_partial)
    {
        try {
            return saved.unpack(another_to(this));
        }
        catch (const std::exception &) {
            if (!is_partial || is_needed(place)) {
                throw;
            }
            return at::empty({0});
        }
    }

    bool is_needed(Py_ssize_t place) const
    {
        PyObject *key = started_from_as_bytes();
        PyObject *answer = key != nullptr ? PyObject_CallMethod(call_->partial, "needs", "On", key, place) : nullptr;
        Py_XDECREF(key);
        const int needed = answer != nullptr ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (needed < 0) {
            throw_python();
        }
        return needed == 1;
    }

    /* Whether the graph computes again what it saved. Not if the program has written something through `.data` since:
     * eager's operations differentiate what they kept. What the program's hooks hold is theirs to unpack. */
    bool gives_the_same_again() const
    {
        /* inside of vmap random numbers are drawn otherwise, or not at all */
        const c10::impl::ExcludeDispatchKeyGuard no_vmap(
            c10::DispatchKeySet({c10::DispatchKey::VmapMode, c10::DispatchKey::FuncTorchVmapMode,
                c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode}));
        const Values items = inputs_->run();
        auto saved = saved_.begin();
        auto version = saved_versions_.begin();
        auto kept = kept_.begin();
        for (size_t i = 0; i < order_.size(); i++) {
            const at::Tensor before = order_[i] ? (saved++)->get_raw_data().value_or(at::Tensor()) : *kept++;
            const at::Tensor &made = items.at(call_->differentiable->size() + i).tensor;
            if (order_[i] && before.defined() && version_of(before) != *version++) {
                continue; /* backward, if it needs this, finds out */
            }
            if (before.defined() && made.defined() && before.has_storage() && !is_close(before, made)) {
                return false;
            }
        }
        return true;
    }

    /* The same but for the order in which a library's kernel adds up, in parts of the largest element. */
    static bool is_close(const at::Tensor &before, const at::Tensor &made)
    {
        at::AutoGradMode no_grad(false);
        if (before.sizes() != made.sizes()) {
            return false;
        }
        if (before.is_alias_of(made) || before.numel() == 0) {
            return true;
        }
        if (before.element_size() == 1) { /* there are floats of one byte that nothing compares */
            return at::equal(before.view(at::kByte), made.view(at::kByte));
        }
        if (!at::isFloatingType(before.scalar_type()) && !at::isComplexType(before.scalar_type())) {
            return at::equal(before, made);
        }
        const double largest = before.abs().nan_to_num(0, 0, 0).max().item<double>();
        return at::allclose(before, made, 1e-3, 1e-5 * (1 + largest), /*equal_nan=*/true);
    }

    /* Whether the compiled backward computes what eager's would now. */
    bool still_holds() const
    {
        if (call_->holds == nullptr) {
            return true;
        }
        HookRegion region;
        dj_hook_enter_off(&region);
        PyObject *answer = PyObject_CallNoArgs(call_->holds);
        dj_hook_leave(&region);
        if (answer == nullptr) {
            throw_python();
        }
        Py_DECREF(answer);
        return answer == Py_True;
    }

    static constexpr char CANNOT_END[] = "a gradient of a compiled graph's result is asked for that other results were "
                                         "computed from, and the graph can't run again";

    /* Whether this pass gives a result a gradient of its own that is between those that it starts from and the inputs. */
    bool has_heard_inside() const
    {
        if (inner_ == nullptr || inner_->pass != torch::autograd::get_current_graph_task_id()) {
            return false;
        }
        for (size_t i = 0; i < started_from_.size(); i++) {
            if (started_from_[i] && inner_->any_heard((*call_->through)[i])) {
                return true;
            }
        }
        return false;
    }

    /* Gradients from a run of the graph with autograd, with a history where gradients are on. False: it has none to
     * give. ends_inside: whether they are to end at the results that are heard of. */
    bool differentiate_again(const variable_list &gradients, variable_list &found, bool ends_inside)
    {
        Values results;
        const bool has_any = ask_again(gradients, ends_inside ? "ending_at" : nullptr,
                                       ends_inside ? inner_->heard : Flags(), results);
        if (has_any) {
            found = take(std::move(results));
        }
        return has_any;
    }

    /* What `again` gives, or a method of it for the results `heard`. False: nothing. */
    bool ask_again(const variable_list &gradients, const char *method, const Flags &heard, Values &results)
    {
        if (call_->again == nullptr) {
            return false;
        }
        if (inputs_ == nullptr || !inputs_->has_all() || !gives_the_same_again()) {
            return false;
        }
        Values own = inputs_->values();
        PyObject *inputs = PyTuple_New(static_cast<Py_ssize_t>(own.size()));
        PyObject *given = PyTuple_New(static_cast<Py_ssize_t>(gradients.size()));
        for (size_t i = 0; inputs != nullptr && i < own.size(); i++) {
            PyTuple_SET_ITEM(inputs, static_cast<Py_ssize_t>(i), own[i].wrap());
        }
        for (size_t i = 0; given != nullptr && i < gradients.size(); i++) {
            PyObject *gradient = gradients[i].defined() ? THPVariable_Wrap(gradients[i]) : Py_NewRef(Py_None);
            PyTuple_SET_ITEM(given, static_cast<Py_ssize_t>(i), gradient);
        }
        PyObject *result = nullptr;
        if (inputs != nullptr && given != nullptr) {
            const DrawnAgain drawn(inputs_->random());
            HookRegion region;
            dj_hook_enter_off(&region);
            PyObject *arguments[] = {inputs, given};
            if (method == nullptr) {
                result = PyObject_Vectorcall(call_->again, arguments, 2, nullptr);
            }
            else {
                const std::string bytes(heard.begin(), heard.end());
                result = PyObject_CallMethod(call_->again, method, "OOy#", inputs, given, bytes.data(),
                                             static_cast<Py_ssize_t>(bytes.size()));
            }
            dj_hook_leave(&region);
        }
        Py_XDECREF(inputs);
        Py_XDECREF(given);
        if (result == Py_None) {
            Py_DECREF(result);
            return false;
        }
        results = dynajit::values_of(result, "gradients are a sequence");
        return true;
    }

    Values push(const variable_list &gradients, bool only_defined)
    {
        Values arguments;
        arguments.reserve(numbers_.size() + order_.size() + gradients.size());
        for (PyObject *number : numbers_) {
            arguments.emplace_back(number);
        }
        auto saved = saved_.begin();
        auto kept = kept_.begin();
        for (bool is_packed : order_) {
            const Py_ssize_t place = static_cast<Py_ssize_t>(arguments.size());
            arguments.emplace_back(is_packed ? unpacked(*saved++, place, only_defined) : *kept++);
        }
        for (size_t i = 0; i < gradients.size(); i++) {
            if (!only_defined || gradients[i].defined()) {
                arguments.emplace_back(laid_out(gradients[i], static_cast<uint32_t>(i)));
            }
        }
        return arguments;
    }

    at::Tensor zeros_for(uint32_t number)
    {
        const auto found = std::find(mine_.begin(), mine_.end(), static_cast<size_t>(number));
        if (found != mine_.end()) {
            return input_metadata(static_cast<uint32_t>(found - mine_.begin())).zeros_like();
        }
        const ResultShape &shape = shapes_.at(number);
        return at::zeros(shape.sizes, shape.options);
    }

    /* Not one of several gradients that vmap is given at once, or of a tensor subclass: eager's operations take those. */
    static bool is_plain(const at::Tensor &gradient)
    {
        const c10::DispatchKeySet keys = gradient.defined() ? gradient.key_set() : c10::DispatchKeySet();
        return !keys.has(c10::DispatchKey::FuncTorchBatched) && !keys.has(c10::DispatchKey::Batched)
            && !keys.has(c10::DispatchKey::Python);
    }

    /* A gradient with the strides that the backward graph was compiled for. */
    at::Tensor laid_out(const at::Tensor &given, uint32_t number)
    {
        at::Tensor gradient = given.defined() ? given : zeros_for(number);
        if (!is_plain(gradient)) {
            throw std::runtime_error("a compiled backward graph takes plain tensors: no gradients inside of vmap, and "
                                     "none of a tensor subclass");
        }
        if (gradient.layout() != at::kStrided) {
            gradient = gradient.to_dense();
        }
        gradient = gradient.resolve_conj().resolve_neg();
        const Layout &layout = (*call_->layouts)[number];
        if (layout.contiguous) {
            return gradient.contiguous();
        }
        bool same = true;
        for (int64_t i = 0; i < gradient.dim(); i++) {
            same = same && (gradient.size(i) == 1 || gradient.stride(i) == layout.strides[static_cast<size_t>(i)]);
        }
        return same ? gradient : at::empty_strided(gradient.sizes(), layout.strides, gradient.options()).copy_(gradient);
    }

    variable_list take(Values &&results)
    {
        variable_list found;
        found.reserve(call_->wanted->size());
        for (size_t i = 0; i < call_->wanted->size(); i++) {
            const size_t place = static_cast<size_t>((*call_->wanted)[i]);
            const bool has_one = place < results.size() && is_reached(i);
            found.push_back(has_one ? std::move(results[place].tensor) : at::Tensor());
        }
        results.clear();
        return found;
    }

    /* Whether one of the inputs in `wanted` is behind a result that this backward pass starts from. */
    bool is_reached(size_t input) const
    {
        if (call_->reaches->empty()) {
            return true;
        }
        for (size_t i = 0; i < started_from_.size(); i++) {
            if (started_from_[i] && (*call_->reaches)[i][input]) {
                return true;
            }
        }
        return false;
    }

    /* With create_graph, gradients that say so when they are differentiated again: also where that ends at an input that
     * has none, or at what the gradients of the results were computed from. */
    variable_list undifferentiable(variable_list &&found, const variable_list &given)
    {
        at::AutoGradMode grad(true);
        const size_t count = found.size();
        for (size_t i = 0; i < count; i++) {
            if (found[i].defined()) {
                found[i] = leading_to(found[i], edge_of(i));
            }
        }
        for (const at::Tensor &gradient : given) {
            if (gradient.defined() && gradient.requires_grad()) {
                found.push_back(leading_to(gradient, torch::autograd::impl::gradient_edge(gradient)));
            }
        }
        auto error = std::make_shared<torch::autograd::DelayedError>(
            "a compiled backward graph can't be differentiated again (double backward): run the model with dynajit "
            "disabled for that",
            static_cast<int64_t>(found.size()));
        found = (*error)(std::move(found));
        found.resize(count);
        return std::move(found);
    }

    /* Edges to leaves with hooks that aren't behind what this backward pass starts from. */
    std::vector<std::pair<Node *, size_t>> unreached_leaves()
    {
        std::vector<std::pair<Node *, size_t>> found;
        for (size_t i = 0; !call_->reaches->empty() && i < call_->wanted->size(); i++) {
            if (is_leaf_with_hooks(edge_of(i)) && !is_reached(i)) {
                found.push_back(place_of(i));
            }
        }
        return found;
    }

    std::pair<Node *, size_t> place_of(size_t number)
    {
        return split_from_.empty() ? std::make_pair<Node *>(this, std::move(number)) : split_from_[number];
    }

    torch::autograd::Edge edge_of(size_t number)
    {
        const auto [node, place] = place_of(number);
        return node != nullptr && place < node->num_outputs() ? node->next_edge(place) : torch::autograd::Edge();
    }

    /* The tensor as a result of the edge's node, or as a leaf. */
    static at::Tensor leading_to(const at::Tensor &tensor, const torch::autograd::Edge &edge)
    {
        at::Tensor made = tensor.detach().requires_grad_();
        if (edge.is_valid()) {
            torch::autograd::impl::set_gradient_edge(made, edge);
        }
        return made;
    }

    TrainingCall *call_; /* owned */
    Flags started_from_; /* of each gradient that backward takes: whether the last pass had it */
    std::vector<size_t> mine_; /* numbers of this node's results among those with a history */
    UsedUp used_up_; /* shared by the nodes of one call */
    std::vector<ResultShape> shapes_; /* of all results, where there are several nodes */
    std::shared_ptr<InnerResults> inner_; /* nullptr: no result was computed from another one */
    AllSeen seen_; /* of each watched tensor; shared by the nodes of one call */
    std::vector<SavedVariable> saved_;
    std::vector<int64_t> saved_versions_;
    variable_list kept_;
    std::vector<bool> order_; /* whether each saved tensor is in saved_ or in kept_ */
    std::vector<PyObject *> numbers_;
    PyObject *split_plan_ = nullptr; /* the plan that this is the first part of, borrowed; nullptr: of all plans all */
    Part part_;
    std::vector<std::pair<Node *, size_t>> split_from_; /* of each gradient: which node hands it out, and at which edge */
    std::shared_ptr<GraphInputs> inputs_; /* nullptr: backward can't be differentiated again */
};

} // namespace

#endif
