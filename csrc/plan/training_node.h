/* Autograd's node of a compiled training graph: what its backward needs, and which results it is the node of.
 *
 * In: the compiled backward graph, what forward saved, gradients of results. Out: gradients of inputs. Of
 * `training_call.cpp`, which makes the nodes, and includes this alone. */
#ifndef DYNAJIT_TRAINING_NODE_H
#define DYNAJIT_TRAINING_NODE_H

#include "call/call.h"
#include "plan/cast_weights.h"
#include "plan/training_graph.h"
#include "plan/training_parts.h"
#include "plan/training_shared.h"

#include <algorithm>
#include <memory>
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

using AllSeen = std::shared_ptr<std::vector<Seen>>;

/* What has to be known of a result to make zeros in the place of its gradient. */
struct ResultShape {
    std::vector<int64_t> sizes;
    at::TensorOptions options;
};

/* Autograd's node of the inputs that the same results are computed from; see `Group`. */
class Backward : public torch::autograd::Node {
public:
    Backward(TrainingCall *call, torch::autograd::edge_list &&edges, size_t group, const std::shared_ptr<Shared> &shared)
        : Node(std::move(edges)), call_(call), group_(group), mine_((*call->groups)[group].results), shared_(shared)
    {
        Py_INCREF(reinterpret_cast<PyObject *>(call));
        shared_->nodes.push_back(this);
    }

    ~Backward() override
    {
        if (Py_IsInitialized()) {
            pybind11::gil_scoped_acquire gil;
            shared_->nodes[group_] = nullptr;
            drop_objects(numbers_);
            shared_.reset();
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
        if (torch::autograd::get_current_graph_task_id() != ran_in_) {
            return; /* the node dies */
        }
        shared_->use_up(come_by(), needed_);
        /* another backward pass may start from other results, or ask for other inputs; what keeps nothing runs again */
        if (shared_->is_all_used_up() && (is_only() || shared_->has_found_all())) {
            shared_->clear();
        }
    }

    /* The graph's inputs, for a backward pass that is to be differentiated. `saved`: the memory that is kept anyway;
     * copies: of `copied`, in order. */
    void keep_inputs(PyObject *const *args, Py_ssize_t count, const std::set<const void *> &saved, const at::Tensor &random,
                     const variable_list &copies)
    {
        shared_->inputs = std::make_shared<GraphInputs>(call_->forward, random, *call_->written);
        for (Py_ssize_t i = 0; i < count; i++) {
            const at::Tensor tensor = THPVariable_Check(args[i]) ? THPVariable_Unpack(args[i]) : at::Tensor();
            const bool is_kept = tensor.defined() && tensor.has_storage()
                && saved.count(tensor.storage().unsafeGetStorageImpl()) != 0;
            const bool is_updated = std::find(call_->updated->begin(), call_->updated->end(), i) != call_->updated->end();
            const bool is_held = !is_updated && (is_kept || is_kept_by_eager(i) || shared_->inputs->is_written(i));
            const Origin origin = is_held ? Origin() : origin_of(tensor);
            const auto copied = std::find(call_->copied->begin(), call_->copied->end(), i);
            if (copied != call_->copied->end()) {
                shared_->inputs->add(copies.at(static_cast<size_t>(copied - call_->copied->begin())));
            }
            else if (origin.inputs != nullptr) {
                shared_->inputs->add_lent(tensor, origin.inputs, origin.place);
            }
            else if (is_updated) {
                shared_->inputs->add(tensor.clone()); /* with its history */
            }
            else {
                shared_->inputs->add(args[i]);
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
            return {found->shared_->inputs, place};
        }
        for (const auto &hook : edge.function->post_hooks()) {
            const RunsAgain *found = dynamic_cast<RunsAgain *>(hook.get());
            if (found != nullptr && found->places.count(edge.input_nr) != 0) {
                return {found->inputs, found->places.at(edge.input_nr)};
            }
        }
        return {};
    }

    /* What backward needs, from the forward's results after those returned. */
    void save(Values &items, size_t first, const std::vector<Node *> &others)
    {
        const bool packed = at::SavedTensorDefaultHooks::is_enabled() && at::SavedTensorDefaultHooks::get_hooks();
        const size_t n_saved = static_cast<size_t>(call_->n_saved), n_checked = static_cast<size_t>(call_->n_checked);
        for (size_t i = 0; i < n_saved; i++) {
            /* an operator may leave out a result that its backward does not need here */
            at::Tensor tensor = others.empty() ? std::move(items[first + i].tensor) : items[first + i].tensor;
            if (!tensor.defined()) {
                shared_->order.push_back(false);
                shared_->kept.emplace_back();
                continue;
            }
            const Py_ssize_t kept_as = call_->kept_as->empty() ? KEPT_ITSELF : (*call_->kept_as)[i];
            if (kept_as != KEPT_ITSELF) {
                tensor = kept_as == KEPT_AS_ALIAS ? tensor.tensor_data() : tensor.variable_data();
            }
            const bool is_output = tensor.requires_grad() && tensor.grad_fn().get() == this;
            if (!is_output && tensor.requires_grad()
                && std::find(others.begin(), others.end(), tensor.grad_fn().get()) != others.end()) {
                tensor = tensor.detach(); /* a node that keeps a result whose node leads to it would keep itself alive */
            }
            if (i < n_checked || packed || tensor.requires_grad()) {
                shared_->order.push_back(true);
                shared_->saved_versions.push_back(version_of(tensor));
                shared_->saved.emplace_back(tensor.is_view() && !is_output ? tensor.detach() : tensor, is_output);
            }
            else {
                shared_->order.push_back(false);
                shared_->kept.push_back(std::move(tensor));
            }
        }
    }

    void keep_numbers(Values &items, size_t first)
    {
        for (size_t i = first + static_cast<size_t>(call_->n_saved); i < items.size(); i++) {
            numbers_.push_back(items[i].wrap());
        }
    }

    /* Have gradients that somebody waits for handed out before all are computed, and those that somebody sees in eager's
     * order. `items`, `first`: as for `save`. */
    void split(PyObject *const *args, const Values &items, size_t first)
    {
        const torch::autograd::edge_list edges = next_edges();
        if (!std::any_of(edges.begin(), edges.end(), is_observed)) {
            return;
        }
        bool no_autocast = false;
        PyObject *plan = dynajit::plain_graph(call_->usual, &no_autocast);
        std::vector<Part> parts;
        if (is_only() && dynajit::is_plan_executor(plan)) {
            parts = parts_of(call_, *dynajit::native_plan(plan), args, items, first, edges);
            split_plan_ = parts.empty() ? nullptr : plan;
        }
        if (parts.empty()) {
            parts.push_back(whole_of(call_, (*call_->groups)[group_].inputs, edges));
        }
        const c10::Device device = split_plan_ != nullptr ? dynajit::native_plan(plan)->device : c10::Device(at::kCPU);
        split_from_.resize(edges.size());
        std::vector<uint64_t> waiting; /* the nodes that were made before this one */
        for (size_t i = 0; i < group_; i++) {
            waiting.push_back(shared_->nodes[i]->sequence_nr());
        }
        NodePointer next;
        for (size_t i = parts.size(); i-- > 0;) {
            have_arrive(parts[i].places, edges, next.get(), waiting);
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
        part_ = std::move(parts[0]);
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
        Flags starts(call_->layouts->size(), false);
        starts[number] = true;
        shared_->refuse_used_up(starts, needed());
        if (shared_->is_cleared) {
            throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
        }
        variable_list gradients(call_->layouts->size());
        gradients[number] = gradient;
        Values parts;
        const Flags heard = inner_->heard_among((*call_->through)[number]);
        const size_t count = (*call_->through)[number].size();
        TORCH_CHECK(ask_again(gradients, "parts_at", heard, parts) && parts.size() == count, CANNOT_END);
        if (!torch::autograd::get_current_graph_task_keep_graph()) {
            shared_->use_up(starts, needed());
        }
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
        dynajit::keep_casts();
        variable_list gradients(call_->layouts->size());
        for (size_t i = 0; i < mine_.size() && i < given.size(); i++) {
            gradients[mine_[i]] = std::move(given[i]);
        }
        start_from(gradients);
        if (!is_only()) {
            if (is_found()) {
                return own_part();
            }
            gradients = shared_->take_gradients();
            start_from(gradients);
        }
        shared_->refuse_used_up(come_by(), needed_);
        refuse_written();
        variable_list found;
        if (std::find(started_from_.begin(), started_from_.end(), true) == started_from_.end() || !any_needed()) {
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
        const bool is_cleared = shared_->is_cleared;
        PyObject *backward = compiled_backward();
        Values arguments = push(gradients, backward != call_->backward);
        gradients.clear();
        if (!torch::autograd::get_current_graph_task_keep_graph()) {
            shared_->started_from = is_only() ? Flags() : started_from_;
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
        /* what is computed of nothing that was kept is linear in these */
        const bool has_history = create_graph && (!is_cleared || std::any_of(
            given_gradients.begin(), given_gradients.end(), [](const at::Tensor &each) {
                return each.defined() && each.requires_grad();
            }));
        return handed_out(has_history ? undifferentiable(std::move(found), given_gradients) : std::move(found));
    }

    /* Whether an input is memory that eager's operations keep: then it is read as it is when backward runs. */
    bool is_kept_by_eager(Py_ssize_t place) const
    {
        return std::any_of(call_->checks->begin(), call_->checks->end(), [=](const VersionCheck &each) {
            return !each.is_result && each.place == place;
        });
    }

private:
    /* Whether there is no other node of this call. */
    bool is_only() const
    {
        return call_->groups->size() == 1;
    }

    /* Note which results this backward pass starts from. */
    void start_from(const variable_list &gradients)
    {
        ran_in_ = torch::autograd::get_current_graph_task_id();
        started_from_.assign(gradients.size(), false);
        for (size_t i = 0; i < gradients.size(); i++) {
            started_from_[i] = gradients[i].defined();
        }
        needed_ = needed();
    }

    /* The results that this pass has come by: eager's operations run, and are used up, though there be no gradient. */
    Flags come_by() const
    {
        return shared_->passing.empty() ? Flags(started_from_.size(), true) : shared_->passed;
    }

    /* Of each of the inputs in `wanted`, whether this pass is asked for its gradient, or for what is after it; empty: it is
     * for all of them. */
    Flags needed()
    {
        const auto *asked = torch::autograd::get_current_graph_task_exec_info();
        Flags found;
        if (asked == nullptr || asked->empty()) {
            return found;
        }
        for (size_t i = 0; i < call_->wanted->size(); i++) {
            const torch::autograd::Edge edge = edge_of(i);
            found.push_back(edge.is_valid() && is_asked(asked, edge.function.get()));
        }
        return found;
    }

    bool any_needed() const
    {
        return needed_.empty() || std::find(needed_.begin(), needed_.end(), true) != needed_.end();
    }

    /* Whether another node has found this one's gradients in this pass. */
    bool is_found() const
    {
        shared_->begin();
        return !shared_->started_from.empty() && !shared_->found.empty()
            && std::all_of(mine_.begin(), mine_.end(), [&](size_t number) {
                   return shared_->started_from[number] == started_from_[number];
               });
    }

    variable_list own_part()
    {
        variable_list own;
        for (size_t input : (*call_->groups)[group_].inputs) {
            own.push_back(std::exchange(shared_->found[input], at::Tensor()));
        }
        return in_turn(std::move(own));
    }

    void refuse_written() const
    {
        for (size_t i = 0; seen_ != nullptr && i < seen_->size(); i++) {
            const VersionCheck &check = (*call_->checks)[i];
            if ((*seen_)[i].is_written() && started_from_any([&](size_t j) { return check.read_by[j]; })) {
                (*seen_)[i].refuse(check);
            }
        }
    }

    /* The gradients of the first part, and what the other parts need; all of them where there is one part. */
    variable_list handed_out(variable_list &&found)
    {
        if (!is_only()) {
            shared_->started_from = started_from_;
            shared_->found = std::move(found);
            for (size_t i = 0; i < shared_->found.size(); i++) {
                if (!needed_.empty() && !needed_[i]) {
                    shared_->found[i].reset(); /* its node does not run */
                }
            }
            return own_part();
        }
        return split_plan_ == nullptr ? in_turn(std::move(found)) : handed_out(std::make_unique<Pass>(std::move(found)));
    }

    /* Gradients of all that edges led to at first, as they lead there now. */
    variable_list in_turn(variable_list &&found) const
    {
        return split_from_.empty() ? std::move(found) : Pass(std::move(found)).until(part_);
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
            PyObject *key = key_of_partial();
            found = key != nullptr ? PyObject_GetItem(call_->partial, key) : nullptr;
            Py_XDECREF(key);
            if (found == nullptr) {
                throw_python();
            }
            Py_DECREF(found); /* the mapping holds it */
            if (found == Py_None && shared_->is_cleared) {
                throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
            }
            found = found == Py_None ? call_->backward : found;
        }
        Py_INCREF(found);
        Py_XSETREF(call_->usual, found);
        return found;
    }

    /* A byte for each result; where what was saved is gone also one for each input: what is asked for needs none of it. */
    PyObject *key_of_partial() const
    {
        std::string bytes(started_from_.begin(), started_from_.end());
        for (size_t i = 0; shared_->is_cleared && i < call_->wanted->size(); i++) {
            const size_t place = started_from_.size() + static_cast<size_t>((*call_->wanted)[i]);
            bytes.resize(std::max(bytes.size(), place + 1), 0);
            bytes[place] = needed_.empty() || needed_[i];
        }
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
        PyObject *key = key_of_partial();
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
        const Values items = shared_->inputs->run();
        auto saved = shared_->saved.begin();
        auto version = shared_->saved_versions.begin();
        auto kept = shared_->kept.begin();
        for (size_t i = 0; i < shared_->order.size(); i++) {
            const at::Tensor before = shared_->order[i] ? (saved++)->get_raw_data().value_or(at::Tensor()) : *kept++;
            const at::Tensor &made = items.at(call_->differentiable->size() + i).tensor;
            if (shared_->order[i] && before.defined() && version_of(before) != *version++) {
                continue; /* backward, if it needs this, finds out */
            }
            if (before.defined() && made.defined() && before.has_storage() && !is_close(before, made)) {
                return false;
            }
        }
        return true;
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

    /* Whether it is so of a result that this backward pass starts from. */
    template <typename Test> bool started_from_any(Test &&test) const
    {
        for (size_t i = 0; i < started_from_.size(); i++) {
            if (started_from_[i] && test(i)) {
                return true;
            }
        }
        return false;
    }

    /* Whether this pass gives a result a gradient of its own that is between those that it starts from and the inputs. */
    bool has_heard_inside() const
    {
        if (inner_ == nullptr || inner_->pass != torch::autograd::get_current_graph_task_id()) {
            return false;
        }
        return started_from_any([&](size_t i) { return inner_->any_heard((*call_->through)[i]); });
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
        if (shared_->inputs == nullptr || !shared_->inputs->has_all() || !gives_the_same_again()) {
            return false;
        }
        Values own = shared_->inputs->values();
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
            const DrawnAgain drawn(shared_->inputs->random());
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
        arguments.reserve(numbers_.size() + shared_->order.size() + gradients.size());
        for (PyObject *number : numbers_) {
            arguments.emplace_back(number);
        }
        auto saved = shared_->saved.begin();
        auto kept = shared_->kept.begin();
        for (bool is_packed : shared_->order) {
            const Py_ssize_t place = static_cast<Py_ssize_t>(arguments.size());
            if (shared_->is_cleared) {
                if (!only_defined || is_needed(place)) {
                    throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
                }
                arguments.emplace_back(at::empty({0}));
                continue;
            }
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
        at::Tensor gradient = given.defined() && !given._is_zerotensor() ? given : zeros_for(number);
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

    /* Whether a result that this backward pass starts from was computed from one of the inputs in `wanted`. */
    bool is_reached(size_t input) const
    {
        return call_->reaches->empty() || started_from_any([&](size_t i) { return (*call_->reaches)[i][input]; });
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

    /* The edge to one of the inputs in `wanted`. */
    torch::autograd::Edge edge_of(size_t input)
    {
        if (is_only()) {
            return own_edge(input);
        }
        const auto [group, place] = (*call_->group_of)[input];
        Backward *node = group < shared_->nodes.size() ? shared_->nodes[group] : nullptr;
        return node != nullptr ? node->own_edge(place) : torch::autograd::Edge();
    }

    /* What the edge that was this one at first leads to. */
    torch::autograd::Edge own_edge(size_t at_first)
    {
        const auto [node, place] = split_from_.empty() ? std::make_pair<Node *>(this, std::move(at_first)) : split_from_[at_first];
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
    int ran_in_ = -1; /* the last pass */
    Flags started_from_; /* of each gradient that backward takes: whether the last pass had it */
    Flags needed_;       /* which of the inputs in `wanted` it was for; empty: all */
    size_t group_;
    const std::vector<size_t> &mine_; /* numbers of this node's results among those with a history */
    std::shared_ptr<Shared> shared_;
    std::vector<ResultShape> shapes_; /* of all results, where there are several nodes */
    std::shared_ptr<InnerResults> inner_; /* nullptr: no result was computed from another one */
    AllSeen seen_; /* of each watched tensor; shared by the nodes of one call */
    std::vector<PyObject *> numbers_;
    PyObject *split_plan_ = nullptr; /* the plan that this is the first part of, borrowed; nullptr: of all plans all */
    Part part_;
    std::vector<std::pair<Node *, size_t>> split_from_; /* of each edge at first: whose it is now, which one; empty: it is the same */
};

} // namespace

#endif
