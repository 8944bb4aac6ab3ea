/* TrainingCall: a compiled forward graph whose results have a gradient, computed by a compiled backward graph.
 *
 * In: both as callables, and what of the forward's results is whose. Out: a callable with the graph's inputs, and a node
 * of autograd's graph for each call, without Python between them and the two compiled graphs. For graphs that return no
 * alias of an input, and write none but by themselves; torch's own wrapper does the others. Where the backward pass is to
 * be differentiated again, a callable that runs the graph with autograd gives the gradients. */
#include "training_call.h"

#include "dynajit.h"
#include "graph_values.h"
#include "plan_executor.h"

#include <algorithm>
#include <memory>
#include <optional>
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

using dynajit::Value;
using dynajit::Values;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

struct Layout {
    bool contiguous;               /* else these strides */
    std::vector<int64_t> strides;
};

using Flags = std::vector<bool>;

struct TrainingCall {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *forward;  /* inputs -> returns, saved tensors, saved numbers */
    PyObject *backward; /* saved numbers, saved tensors, gradients of returns -> gradients of inputs */
    PyObject *partial;  /* a mapping: which gradients there are, as bytes -> backward that takes only those; NULL: zeros */
    PyObject *again;    /* inputs, gradients of returns -> differentiable gradients of inputs, or None; NULL: can't */
    Py_ssize_t n_saved;   /* tensors */
    Py_ssize_t n_checked; /* the first of them: of which the program may write in place meanwhile */
    std::vector<bool> *differentiable; /* of each return */
    std::vector<Py_ssize_t> *wanted;   /* inputs that backward has gradients for */
    std::vector<Layout> *layouts;      /* of the gradients that backward takes */
    std::vector<Flags> *reaches; /* of each gradient that backward takes: which of the inputs in `wanted`; empty: all */
    std::vector<Flags> *uses_up; /* of each: the results whose backward fails from then on; empty: all */
};

/* Nodes are counted by std::shared_ptr in some releases of torch, by c10::intrusive_ptr in others. */
using NodePointer = decltype(torch::autograd::Edge::function);

template <typename N, typename Pointer = NodePointer> Pointer owned(N *node)
{
    if constexpr (requires { deleteNode(node); }) {
        return Pointer(node, [](auto *dying) { deleteNode(dying); });
    }
    else {
        return Pointer::unsafe_steal_from_new(node);
    }
}

template <typename N, typename Pointer = NodePointer> Pointer another_to(N *node)
{
    if constexpr (requires { node->getptr(); }) {
        return node->getptr();
    }
    else {
        return Pointer::reclaim_copy(node);
    }
}

/* An exception that Python has raised, thrown. */
[[noreturn]] void throw_python()
{
    python_error error;
    error.persist();
    throw std::move(error);
}

/* Calls a compiled graph, which is none of the user's code. */
Values call_off(PyObject *graph, Values &&given, bool releases)
{
    struct Region {
        HookRegion region;
        Region()
        {
            dj_hook_enter_off(&region);
        }
        ~Region()
        {
            dj_hook_leave(&region);
        }
    } region;
    return dynajit::call_graph(graph, std::move(given), releases);
}

/* For each result with a history: the backward pass that used up what its backward needs, -1 if none did. */
using UsedUp = std::shared_ptr<std::vector<int>>;

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
            release_objects();
            Py_DECREF(reinterpret_cast<PyObject *>(call_));
        }
    }

    Backward(const Backward &) = delete;
    Backward &operator=(const Backward &) = delete;

    std::string name() const override
    {
        return "DynajitBackward";
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
        saved_.clear();
        kept_.clear();
        if (Py_IsInitialized()) {
            pybind11::gil_scoped_acquire gil;
            release_objects();
        }
    }

    /* The graph's inputs, for a backward pass that is to be differentiated. */
    void keep_inputs(PyObject *const *args, Py_ssize_t count)
    {
        for (Py_ssize_t i = 0; i < count; i++) {
            inputs_.push_back(Py_NewRef(args[i]));
            versions_.push_back(version_of(args[i]));
        }
    }

    /* What backward needs, from the forward's results behind those returned. */
    void save(Values &items, size_t first, const std::vector<Node *> &siblings)
    {
        const bool packed = at::SavedTensorDefaultHooks::is_enabled() && at::SavedTensorDefaultHooks::get_hooks();
        const size_t n_saved = static_cast<size_t>(call_->n_saved), n_checked = static_cast<size_t>(call_->n_checked);
        for (size_t i = 0; i < n_saved; i++) {
            /* an operator may leave out a result that its backward does not need here */
            at::Tensor tensor = siblings.empty() ? std::move(items[first + i].tensor) : items[first + i].tensor;
            if (!tensor.defined()) {
                order_.push_back(false);
                kept_.emplace_back();
                continue;
            }
            const bool is_output = tensor.requires_grad() && tensor.grad_fn().get() == this;
            if (!is_output && tensor.requires_grad()
                && std::find(siblings.begin(), siblings.end(), tensor.grad_fn().get()) != siblings.end()) {
                tensor = tensor.detach(); /* two nodes that keep each other's results would keep each other alive */
            }
            if (i < n_checked || packed || tensor.requires_grad()) {
                order_.push_back(true);
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

    void keep_shapes(const std::vector<ResultShape> &shapes)
    {
        shapes_ = shapes;
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
        if (create_graph && inputs_are_unchanged()) {
            variable_list found;
            if (differentiate_again(gradients, found)) {
                return found;
            }
        }
        at::NoGradGuard no_grad;
        HookRegion region;
        dj_hook_enter_off(&region);
        PyObject *backward = compiled_backward();
        dj_hook_leave(&region);
        if (backward == nullptr) {
            throw_python();
        }
        Values arguments = push(gradients, backward != call_->backward);
        gradients.clear();
        if (!torch::autograd::get_current_graph_task_keep_graph()) {
            release_variables(); /* the engine would do so when all is computed: now the plan drops them one by one */
        }
        variable_list found = take(call_off(backward, std::move(arguments), true));
        return create_graph ? undifferentiable(std::move(found)) : found;
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

    /* The backward graph for the gradients that there are; borrowed from the call or its mapping. */
    PyObject *compiled_backward()
    {
        if (call_->partial == nullptr) {
            return call_->backward;
        }
        PyObject *key = started_from_as_bytes();
        PyObject *found = key != nullptr ? PyObject_GetItem(call_->partial, key) : nullptr;
        Py_XDECREF(key);
        Py_XDECREF(found); /* the mapping holds it */
        return found == Py_None ? call_->backward : found;
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

    void release_objects()
    {
        for (std::vector<PyObject *> *objects : {&numbers_, &inputs_}) {
            std::vector<PyObject *> dying;
            dying.swap(*objects); /* what dies may run Python */
            for (PyObject *object : dying) {
                Py_DECREF(object);
            }
        }
    }

    static int64_t version_of(PyObject *object)
    {
        if (!THPVariable_Check(object)) {
            return 0;
        }
        const at::Tensor &tensor = THPVariable_Unpack(object);
        return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
    }

    bool inputs_are_unchanged() const
    {
        for (size_t i = 0; i < inputs_.size(); i++) {
            if (version_of(inputs_[i]) != versions_[i]) {
                return false;
            }
        }
        return !inputs_.empty();
    }

    /* Gradients with a history, from a run of the graph with autograd. False: it has none to give. */
    bool differentiate_again(const variable_list &gradients, variable_list &found)
    {
        PyObject *inputs = PyTuple_New(static_cast<Py_ssize_t>(inputs_.size()));
        PyObject *given = PyTuple_New(static_cast<Py_ssize_t>(gradients.size()));
        for (size_t i = 0; inputs != nullptr && i < inputs_.size(); i++) {
            PyTuple_SET_ITEM(inputs, static_cast<Py_ssize_t>(i), Py_NewRef(inputs_[i]));
        }
        for (size_t i = 0; given != nullptr && i < gradients.size(); i++) {
            PyObject *gradient = gradients[i].defined() ? THPVariable_Wrap(gradients[i]) : Py_NewRef(Py_None);
            PyTuple_SET_ITEM(given, static_cast<Py_ssize_t>(i), gradient);
        }
        PyObject *result = nullptr;
        if (inputs != nullptr && given != nullptr) {
            at::AutoGradMode grad(true);
            HookRegion region;
            dj_hook_enter_off(&region);
            PyObject *arguments[] = {inputs, given};
            result = PyObject_Vectorcall(call_->again, arguments, 2, nullptr);
            dj_hook_leave(&region);
        }
        Py_XDECREF(inputs);
        Py_XDECREF(given);
        if (result == nullptr) {
            throw_python();
        }
        const bool differentiated = result != Py_None;
        PyObject *items = differentiated ? PySequence_Fast(result, "gradients are a sequence") : nullptr;
        Py_DECREF(result);
        if (differentiated) {
            if (items == nullptr) {
                throw_python();
            }
            Values values;
            for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); i++) {
                values.emplace_back(PySequence_Fast_GET_ITEM(items, i));
            }
            Py_DECREF(items);
            found = take(std::move(values));
        }
        return differentiated;
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

    /* A gradient with the strides that the backward graph was compiled for. */
    at::Tensor laid_out(const at::Tensor &given, uint32_t number)
    {
        at::Tensor gradient = given.defined() ? given : zeros_for(number);
        const c10::DispatchKeySet keys = gradient.key_set();
        if (keys.has(c10::DispatchKey::FuncTorchBatched) || keys.has(c10::DispatchKey::Batched)
            || keys.has(c10::DispatchKey::Python)) {
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

    /* With create_graph, gradients that say so when they are differentiated again. */
    static variable_list undifferentiable(variable_list &&found)
    {
        at::AutoGradMode grad(true);
        for (at::Tensor &gradient : found) {
            if (gradient.defined()) {
                gradient = gradient.detach().requires_grad_();
            }
        }
        auto error = std::make_shared<torch::autograd::DelayedError>(
            "a compiled backward graph can't be differentiated again (double backward): run the model with dynajit "
            "disabled for that",
            static_cast<int64_t>(found.size()));
        return (*error)(std::move(found));
    }

    TrainingCall *call_; /* owned */
    Flags started_from_; /* of each gradient that backward takes: whether the last pass had it */
    std::vector<size_t> mine_; /* numbers of this node's results among those with a history */
    UsedUp used_up_; /* shared by the nodes of one call */
    std::vector<ResultShape> shapes_; /* of all results, where there are several nodes */
    std::vector<SavedVariable> saved_;
    variable_list kept_;
    std::vector<bool> order_; /* whether each saved tensor is in saved_ or in kept_ */
    std::vector<PyObject *> numbers_;
    std::vector<PyObject *> inputs_;
    std::vector<int64_t> versions_; /* of the inputs, when the graph had run */
};

/* An output that is no view to autograd: what it is a view of is nobody's but the graph's. */
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

/* Whether results have a history: also where it ends in the graph itself, which detached what it was given. */
bool any_requires_grad(PyObject *const *args, Py_ssize_t n_args)
{
    return std::any_of(args, args + n_args, [](PyObject *arg) {
        return THPVariable_Check(arg) && THPVariable_Unpack(arg).requires_grad();
    });
}

/* Edges to the inputs behind the results `mine`; to all if nothing is known of that, or if these are all results. */
torch::autograd::edge_list edges_to(const TrainingCall *self, PyObject *const *args, const std::vector<size_t> &mine)
{
    torch::autograd::edge_list edges;
    const bool all = self->reaches->empty() || mine.size() == self->reaches->size();
    for (size_t i = 0; i < self->wanted->size(); i++) {
        const at::Tensor &tensor = THPVariable_Unpack(args[(*self->wanted)[i]]);
        const bool behind = all || std::any_of(mine.begin(), mine.end(), [&](size_t number) {
            return (*self->reaches)[number][i];
        });
        const bool wanted = behind && tensor.requires_grad();
        edges.push_back(wanted ? torch::autograd::impl::gradient_edge(tensor) : torch::autograd::Edge());
    }
    return edges;
}

/* The results with a history, by number, in groups of which each gets a node of autograd's: those behind which are the
 * same of the inputs that have a history themselves. A backward pass goes on to all that is behind a node, without a
 * gradient if there is none, and uses up what is saved there. */
std::vector<std::vector<size_t>> groups_of(const TrainingCall *self, PyObject *const *args)
{
    const size_t count = self->layouts->size();
    std::vector<std::vector<size_t>> groups;
    std::vector<std::vector<bool>> keys;
    for (size_t number = 0; number < count; number++) {
        std::vector<bool> key;
        for (size_t i = 0; i < self->wanted->size() && !self->reaches->empty(); i++) {
            const at::Tensor &tensor = THPVariable_Unpack(args[(*self->wanted)[i]]);
            key.push_back(tensor.requires_grad() && tensor.grad_fn() && (*self->reaches)[number][i]);
        }
        const size_t place = static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
        if (place == keys.size()) {
            keys.push_back(std::move(key));
            groups.emplace_back();
        }
        groups[place].push_back(number);
    }
    return groups;
}

/* The nodes of one call, not yet with what they need. */
class Nodes {
public:
    Nodes(TrainingCall *self, PyObject *const *args) : self_(self), of_(self->layouts->size())
    {
        const UsedUp used_up = std::make_shared<std::vector<int>>();
        for (std::vector<size_t> &group : groups_of(self, args)) {
            for (size_t number : group) {
                of_[number] = nodes_.size();
            }
            torch::autograd::edge_list edges = edges_to(self, args, group);
            Backward *made = new Backward(self, std::move(edges), std::move(group), used_up);
            backwards_.push_back(made);
            nodes_.push_back(owned(made));
        }
    }

    void set_history(const at::Tensor &result, size_t number)
    {
        torch::autograd::set_history(result, nodes_[of_[number]]);
        shapes_.push_back({result.sizes().vec(), result.options()});
    }

    void save(Values &&items, size_t first, PyObject *const *args, Py_ssize_t n_args)
    {
        std::vector<torch::autograd::Node *> siblings;
        if (backwards_.size() > 1) {
            siblings.assign(backwards_.begin(), backwards_.end());
        }
        for (Backward *backward : backwards_) {
            backward->save(items, first, siblings);
            if (!siblings.empty()) {
                backward->keep_shapes(shapes_);
            }
            if (self_->again != nullptr) {
                backward->keep_inputs(args, n_args);
            }
        }
    }

private:
    TrainingCall *self_;
    std::vector<size_t> of_; /* of each result with a history: its node */
    std::vector<Backward *> backwards_;
    std::vector<NodePointer> nodes_;
    std::vector<ResultShape> shapes_;
};

/* The first of the results, with their place in autograd's graph. */
PyObject *with_history(TrainingCall *self, PyObject *const *args, Py_ssize_t n_args, Values &&items)
{
    const size_t n_returns = self->differentiable->size();
    if (items.size() < n_returns + static_cast<size_t>(self->n_saved)) {
        PyErr_SetString(PyExc_RuntimeError, "the forward graph returns less than it was said to");
        return nullptr;
    }
    std::optional<Nodes> nodes;
    if (at::GradMode::is_enabled() && any_requires_grad(args, n_args)) {
        nodes.emplace(self, args);
    }
    size_t number = 0;
    PyObject *returns = PyTuple_New(static_cast<Py_ssize_t>(n_returns));
    for (size_t i = 0; returns != nullptr && i < n_returns; i++) {
        const bool differentiable = (*self->differentiable)[i];
        if (nodes && items[i].tensor.defined()) {
            /* of one with a history, too: it would be found to require gradients */
            items[i].tensor = without_view(items[i].tensor);
            if (differentiable) {
                nodes->set_history(items[i].tensor, number);
            }
        }
        number += differentiable;
        PyTuple_SET_ITEM(returns, static_cast<Py_ssize_t>(i), items[i].wrap());
    }
    if (nodes && returns != nullptr) {
        nodes->save(std::move(items), n_returns, args, n_args);
    }
    return returns;
}

PyObject *call(TrainingCall *self, PyObject *const *args, Py_ssize_t n_args)
{
    Values given;
    given.reserve(static_cast<size_t>(n_args));
    for (Py_ssize_t i = 0; i < n_args; i++) {
        given.emplace_back(args[i]);
    }
    std::optional<Values> items;
    {
        at::AutoGradMode no_grad(false);
        items.emplace(call_off(self->forward, std::move(given), false));
    }
    return with_history(self, args, n_args, std::move(*items));
}

PyObject *training_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    TrainingCall *self = reinterpret_cast<TrainingCall *>(object);
    const Py_ssize_t n_args = PyVectorcall_NARGS(nargsf);
    if (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) > 0) {
        PyErr_SetString(PyExc_TypeError, "a compiled graph takes no keyword arguments");
        return nullptr;
    }
    for (Py_ssize_t place : *self->wanted) {
        if (place >= n_args || !THPVariable_Check(args[place])) {
            return PyErr_Format(PyExc_TypeError, "input %zd of the compiled graph must be a tensor", place);
        }
    }
    try {
        return call(self, args, n_args);
    }
    catch (...) {
        dynajit::translate_exception();
    }
    return nullptr;
}

/* ---- building ---- */

template <typename T, typename Convert>
bool read_all(PyObject *given, std::vector<T> &result, Convert convert)
{
    PyObject *items = PySequence_Fast(given, "a sequence is needed");
    for (Py_ssize_t i = 0; items != nullptr && i < PySequence_Fast_GET_SIZE(items) && !PyErr_Occurred(); i++) {
        result.push_back(convert(PySequence_Fast_GET_ITEM(items, i)));
    }
    Py_XDECREF(items);
    return !PyErr_Occurred();
}

Layout layout_of(PyObject *given)
{
    Layout layout{given == Py_None, {}};
    if (!layout.contiguous) {
        read_all(given, layout.strides, PyLong_AsLongLong);
    }
    return layout;
}

Flags flags_of(PyObject *given)
{
    Flags flags;
    read_all(given, flags, [](PyObject *item) { return PyObject_IsTrue(item) == 1; });
    return flags;
}

/* Whether a table is empty or has so many rows and columns; raises. */
bool fits(const std::vector<Flags> &table, size_t rows, size_t columns)
{
    const bool fine = table.empty() || (table.size() == rows && std::all_of(table.begin(), table.end(), [=](const Flags &row) {
                                            return row.size() == columns;
                                        }));
    if (!fine) {
        PyErr_SetString(PyExc_ValueError, "reaches and uses_up have a row for each gradient that backward takes");
    }
    return fine;
}

PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *names[] = {"forward", "backward", "n_saved", "n_checked", "differentiable", "wanted",
                                  "layouts", "again",    "partial", "reaches",   "uses_up",        nullptr};
    PyObject *forward, *backward, *differentiable, *wanted, *layouts, *again = Py_None, *partial = Py_None;
    PyObject *reaches = nullptr, *uses_up = nullptr;
    Py_ssize_t n_saved, n_checked;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOnnOOO|OOOO:TrainingCall", const_cast<char **>(names), &forward,
                                     &backward, &n_saved, &n_checked, &differentiable, &wanted, &layouts, &again,
                                     &partial, &reaches, &uses_up)) {
        return nullptr;
    }
    TrainingCall *self = reinterpret_cast<TrainingCall *>(type->tp_alloc(type, 0));
    if (self == nullptr) {
        return nullptr;
    }
    self->vectorcall = training_call;
    self->forward = Py_NewRef(forward);
    self->backward = Py_NewRef(backward);
    self->again = again != Py_None ? Py_NewRef(again) : nullptr;
    self->partial = partial != Py_None ? Py_NewRef(partial) : nullptr;
    self->n_saved = n_saved;
    self->n_checked = n_checked;
    self->differentiable = new std::vector<bool>();
    self->wanted = new std::vector<Py_ssize_t>();
    self->layouts = new std::vector<Layout>();
    self->reaches = new std::vector<Flags>();
    self->uses_up = new std::vector<Flags>();
    bool fine = read_all(differentiable, *self->differentiable, [](PyObject *item) { return PyObject_IsTrue(item) == 1; })
        && read_all(wanted, *self->wanted, PyLong_AsSsize_t) && read_all(layouts, *self->layouts, layout_of)
        && (reaches == nullptr || read_all(reaches, *self->reaches, flags_of))
        && (uses_up == nullptr || read_all(uses_up, *self->uses_up, flags_of))
        && fits(*self->reaches, self->layouts->size(), self->wanted->size())
        && fits(*self->uses_up, self->layouts->size(), self->layouts->size());
    if (!fine) {
        Py_CLEAR(self);
    }
    return reinterpret_cast<PyObject *>(self);
}

int call_traverse(PyObject *object, visitproc visit, void *arg)
{
    TrainingCall *self = reinterpret_cast<TrainingCall *>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->forward);
    Py_VISIT(self->backward);
    Py_VISIT(self->again);
    Py_VISIT(self->partial);
    return 0;
}

int call_clear(PyObject *object)
{
    TrainingCall *self = reinterpret_cast<TrainingCall *>(object);
    Py_CLEAR(self->forward);
    Py_CLEAR(self->backward);
    Py_CLEAR(self->again);
    Py_CLEAR(self->partial);
    return 0;
}

void call_dealloc(PyObject *object)
{
    TrainingCall *self = reinterpret_cast<TrainingCall *>(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    call_clear(object);
    delete self->differentiable;
    delete self->wanted;
    delete self->layouts;
    delete self->reaches;
    delete self->uses_up;
    type->tp_free(object);
    Py_DECREF(type);
}

PyMemberDef call_members[] = {
    {"forward", T_OBJECT, offsetof(TrainingCall, forward), READONLY, "The compiled forward graph."},
    {"backward", T_OBJECT, offsetof(TrainingCall, backward), READONLY, "The compiled backward graph."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(TrainingCall, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot call_slots[] = {
    {Py_tp_doc,
     const_cast<char *>(
         "TrainingCall(forward, backward, n_saved, n_checked, differentiable, wanted, layouts, again=None, partial=None, "
         "reaches=(), uses_up=())\n--\n\n"
         "forward(*inputs) returns len(differentiable) results, n_saved tensors and numbers; backward(*numbers, *saved, "
         "*gradients) a gradient for each input, of which those in `wanted` are used. layouts: strides of each gradient "
         "that backward takes, None for contiguous. The first n_checked saved tensors may not be written in place "
         "before backward. again(inputs, gradients) gives a differentiable gradient for each input where backward is "
         "itself differentiated (create_graph), or None if it can't. partial: a mapping that keeps what it gave; "
         "partial[defined], with a byte for each result that has a gradient, is a backward that takes the defined gradients "
         "only, or None: the others are zeros then. reaches: for each such result, which of `wanted` are behind it; "
         "uses_up: which results have no backward any more after its own.")},
    {Py_tp_new, reinterpret_cast<void *>(call_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(call_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void *>(call_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(call_clear)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_members, call_members},
    {0, nullptr},
};

PyType_Spec call_spec = {
    "dynajit._C.TrainingCall",
    sizeof(TrainingCall),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
    call_slots,
};

} // namespace

int dj_training_call_init(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &call_spec, nullptr);
    int status = type != nullptr ? PyModule_AddType(module, reinterpret_cast<PyTypeObject *>(type)) : -1;
    Py_XDECREF(type);
    return status;
}
