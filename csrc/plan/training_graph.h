/* A compiled training graph, and the inputs of one call of it, with which it can run again.
 *
 * In: the compiled graphs of forward and backward. Out: what `training_node.h` makes autograd's nodes of. Of
 * `training_call.cpp` alone. */
#ifndef DYNAJIT_TRAINING_GRAPH_H
#define DYNAJIT_TRAINING_GRAPH_H

#include "call/call.h"
#include "plan/graph_values.h"
#include "plan/plan_run.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

namespace {

using dynajit::NativePlan;
using dynajit::Output;
using dynajit::PlanRun;
using dynajit::Run;
using dynajit::Slot;
using dynajit::throw_python;
using dynajit::Value;
using dynajit::Values;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

struct Layout {
    bool contiguous;               /* else these strides */
    std::vector<int64_t> strides;
};

using Flags = std::vector<bool>;

/* An input or a result that eager's operations keep: backward fails if it has been written by then. */
struct VersionCheck {
    bool is_result;
    Py_ssize_t place;
    Flags read_by; /* of each gradient that backward takes: whether its backward reads the tensor */
    std::string name; /* of eager's node that a result is of; empty: of none, or the tensor is an input */
    uint32_t output;  /* which of the node's outputs the result is */
};

/* Eager's operations that keep tensors for their backward, which runs once. Those are one that the same results are computed
 * from, of the same inputs. */
struct Saving {
    Flags results; /* of each gradient that backward takes: whether its pass goes through them */
    Flags through; /* of each: whether one for it does */
    Flags inputs;  /* of each of `wanted`: whether one for it does */
    Flags own;     /* the results that one such operation gave itself; none: they gave none */
};

/* Inputs in `wanted`, by number, that the same results are computed from: each group has a node of autograd's, to which
 * these results lead, so that a pass from a result goes on to no other inputs, and comes by no result that does not lead
 * to what it is asked for. */
struct Group {
    std::vector<size_t> results, inputs;
};

/* A saved tensor: itself; an alias, which keeps what the tensor is now whatever `.data =` makes of it; an alias whose writes
 * are counted apart, as of `.data`. */
enum KeptAs : Py_ssize_t { KEPT_ITSELF, KEPT_AS_ALIAS, KEPT_COUNTED_APART };

struct TrainingCall {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *forward;  /* inputs -> returns, saved tensors, saved numbers */
    PyObject *backward; /* saved numbers, saved tensors, gradients of returns -> gradients of inputs */
    PyObject *partial;  /* a mapping: which gradients there are, as bytes -> backward that takes only those; NULL: zeros */
    PyObject *usual;    /* the backward that ran last, at first the one of all gradients */
    PyObject *made_of;  /* the arguments that it was made of, for who writes it down */
    PyObject *again;    /* inputs, gradients of returns -> differentiable gradients of inputs, or None; NULL: can't */
    PyObject *holds;    /* () -> whether backward still computes what eager's would; NULL: always */
    Py_ssize_t n_saved;   /* tensors */
    Py_ssize_t n_checked; /* the first of them: of which the program may write in place meanwhile */
    std::vector<bool> *differentiable; /* of each return */
    std::vector<Py_ssize_t> *wanted;   /* inputs that backward has gradients for */
    std::vector<size_t> *ranks;        /* of each of them: how many gradients arrive before its own in eager mode */
    std::vector<Layout> *layouts;      /* of the gradients that backward takes */
    std::vector<Flags> *reaches; /* of each gradient that backward takes: which of the inputs in `wanted`; empty: all */
    std::vector<Saving> *saving;
    bool can_be_used_up; /* each result was computed by some of these */
    std::vector<Group> *groups;
    std::vector<std::pair<size_t, size_t>> *group_of; /* of each of `wanted`: its group, and place there; none: SIZE_MAX */
    std::vector<Flags> *through; /* of each: which other results, then which views, it was computed from; empty: unknown */
    std::vector<std::vector<size_t>> *links; /* of each: those that no other result lies between, views aside */
    std::vector<size_t> *order;  /* of results with a gradient: none before those that it was computed from */
    std::vector<VersionCheck> *checks;
    bool draws; /* random numbers, of the CPU's generator alone */
    std::vector<Py_ssize_t> *written; /* inputs that forward writes */
    std::vector<Py_ssize_t> *copied;  /* those of them that it computes results of */
    std::vector<Py_ssize_t> *kept_as; /* of each saved tensor, a KeptAs; empty: themselves */
    std::vector<Py_ssize_t> *updated; /* inputs that are written, with autograd, what the first returns hold */
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

/* Does not keep the node alive. */
template <typename Pointer = NodePointer> auto weak(const Pointer &node)
{
    if constexpr (requires { std::weak_ptr<typename Pointer::element_type>(node); }) {
        return std::weak_ptr<typename Pointer::element_type>(node);
    }
    else {
        return c10::weak_intrusive_ptr<typename Pointer::element_type>(node);
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

constexpr char BACKWARD_NAME[] = "DynajitBackward";

/* A node that hands on what it is given: with the name of one of eager's, for the words of an error, or with ours. */
struct Named : torch::autograd::Node {
    std::string named;
    explicit Named(const std::string &name) : named(name)
    {
    }
    std::string name() const override
    {
        return named;
    }
    variable_list apply(variable_list &&gradients) override
    {
        return std::move(gradients);
    }
};

/* How often a watched tensor had been written when the graph had run; none of its memory is kept. */
struct Seen {
    c10::VariableVersion counter;
    uint32_t version = 0;
    c10::SmallVector<int64_t, 5> sizes;
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    NodePointer origin; /* of an input, which an edge of this graph's node leads to */
    uint32_t output = 0;

    Seen(const at::Tensor &tensor, bool is_result)
    {
        if (tensor.is_inference()) {
            return; /* not counted */
        }
        counter = torch::autograd::impl::version_counter(tensor);
        version = counter.current_version();
        sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
        dtype = tensor.scalar_type();
        device = tensor.device();
        if (!is_result && tensor.requires_grad()) {
            origin = tensor.grad_fn();
            output = tensor.output_nr();
        }
    }

    bool is_written() const
    {
        return counter.enabled() && counter.current_version() != version;
    }

    /* Raise as torch does for a tensor that an operation has saved. */
    [[noreturn]] void refuse(const VersionCheck &check) const
    {
        at::Tensor like = at::empty({}, at::device(device).dtype(dtype)).expand(sizes).detach();
        torch::autograd::impl::set_version_counter(like, c10::VariableVersion(version));
        const NodePointer from = check.name.empty() ? origin : owned<torch::autograd::Node>(new Named(check.name));
        if (from) {
            torch::autograd::impl::set_gradient_edge(like, {from, check.name.empty() ? output : check.output});
        }
        const SavedVariable saved(like, false);
        for (uint32_t i = version; i != counter.current_version(); i++) {
            torch::autograd::impl::bump_version(like);
        }
        saved.unpack();
        throw std::runtime_error("one of the variables needed for gradient computation has been modified by an inplace "
                                 "operation");
    }
};

/* While there is one, code that runs is none of the user's. */
class HooksOff {
public:
    HooksOff()
    {
        dj_hook_enter_off(&region_);
    }
    ~HooksOff()
    {
        dj_hook_leave(&region_);
    }
    HooksOff(const HooksOff &) = delete;
    HooksOff &operator=(const HooksOff &) = delete;

private:
    HookRegion region_;
};

Values call_off(PyObject *graph, Values &&given, bool releases)
{
    const HooksOff off;
    return dynajit::call_graph(graph, std::move(given), releases);
}

int64_t version_of(const at::Tensor &tensor)
{
    return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

void drop_objects(std::vector<PyObject *> &held)
{
    std::vector<PyObject *> dying;
    dying.swap(held); /* what dies may run Python */
    for (PyObject *object : dying) {
        Py_XDECREF(object);
    }
}

/* The state of the CPU's generator. */
at::Tensor random_state()
{
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    return generator.get_state();
}

/* Has a graph draw what it drew before: from here on the generator is in this state, if there is one. */
class DrawnAgain {
public:
    explicit DrawnAgain(const at::Tensor &state) : before_(state.defined() ? random_state() : at::Tensor())
    {
        set(state);
    }

    ~DrawnAgain()
    {
        set(before_);
    }

    DrawnAgain(const DrawnAgain &) = delete;
    DrawnAgain &operator=(const DrawnAgain &) = delete;

private:
    static void set(const at::Tensor &state)
    {
        if (state.defined()) {
            at::Generator generator = at::detail::getDefaultCPUGenerator();
            const std::lock_guard<std::mutex> lock(generator.mutex());
            generator.set_state(state);
        }
    }

    at::Tensor before_;
};

/* The inputs of one call of a graph, or of operations that ran as captured, that can run again, for a backward pass that is
 * to be differentiated. Held by the call's nodes until they have run, and as long by the calls that were given this one's
 * results.
 *
 * What another compiled graph gave, and backward does not need, is memory that eager's operations need not keep: if
 * nobody else holds it, that graph runs again. */
class GraphInputs {
public:
    /* graph: what gives the results of the inputs. random: the generator's state before the call, if the graph draws.
     * written: inputs that it writes. */
    GraphInputs(PyObject *graph, const at::Tensor &random, const std::vector<Py_ssize_t> &written = {})
        : graph_(Py_NewRef(graph)), random_(random), written_(written)
    {
    }

    ~GraphInputs()
    {
        if (!Py_IsInitialized()) {
            return;
        }
        pybind11::gil_scoped_acquire gil;
        drop_objects(values_);
        /* a chain of calls that only hold each other, one after the other */
        std::vector<std::shared_ptr<GraphInputs>> waiting;
        take_origins(waiting);
        while (!waiting.empty()) {
            const std::shared_ptr<GraphInputs> last = std::move(waiting.back());
            waiting.pop_back();
            if (last.use_count() == 1) {
                last->take_origins(waiting);
            }
        }
        Py_DECREF(graph_);
    }

    GraphInputs(const GraphInputs &) = delete;
    GraphInputs &operator=(const GraphInputs &) = delete;

    void add(const at::Tensor &tensor)
    {
        values_.push_back(THPVariable_Wrap(tensor));
        versions_.push_back(::version_of(tensor));
    }

    void add(PyObject *object)
    {
        values_.push_back(Py_NewRef(object));
        versions_.push_back(version_of(object));
    }

    /* An input that is the result at `place` of another call. */
    void add_lent(const at::Tensor &tensor, const std::shared_ptr<GraphInputs> &origin, size_t place)
    {
        lent_.emplace(values_.size(), Lent{WeakTensor(tensor.getIntrusivePtr()),
                                           torch::autograd::impl::gradient_edge(tensor), origin, place});
        values_.push_back(nullptr);
        versions_.push_back(0);
    }

    /* All inputs, held from now on. False: one was written, or is gone and the graph that gave it can't run again. */
    bool has_all()
    {
        for (size_t i = 0; i < values_.size(); i++) {
            if (version_of(values_[i]) != versions_[i] && !is_written(static_cast<Py_ssize_t>(i))) {
                return false;
            }
        }
        for (auto &[place, lent] : lent_) {
            at::Tensor tensor(lent.tensor.lock());
            if (tensor.defined() && tensor._version() != 0) {
                tensor.reset(); /* what it was is gone */
            }
            if (!tensor.defined() && lent.origin->has_all()) {
                Values made = lent.origin->run();
                tensor = dynajit::without_view(made.at(lent.place).tensor);
                torch::autograd::impl::set_gradient_edge(tensor, lent.edge);
            }
            if (!tensor.defined()) {
                return false;
            }
            values_[place] = THPVariable_Wrap(tensor);
        }
        lent_.clear();
        return !values_.empty();
    }

    /* For another run: copies of those that it writes, as what they are now has nothing to do with the results. */
    Values values() const
    {
        at::AutoGradMode no_grad(false);
        Values given;
        for (size_t i = 0; i < values_.size(); i++) {
            if (is_written(static_cast<Py_ssize_t>(i))) {
                given.emplace_back(THPVariable_Unpack(values_[i]).clone());
            }
            else {
                given.emplace_back(values_[i]);
            }
        }
        return given;
    }

    bool is_written(Py_ssize_t place) const
    {
        return std::find(written_.begin(), written_.end(), place) != written_.end();
    }

    /* What the graph gives of them. */
    Values run() const
    {
        Values given = values();
        at::AutoGradMode no_grad(false);
        const DrawnAgain drawn(random_);
        return call_off(graph_, std::move(given), false);
    }

    const at::Tensor &random() const
    {
        return random_;
    }

    static int64_t version_of(PyObject *object)
    {
        return object != nullptr && THPVariable_Check(object) ? ::version_of(THPVariable_Unpack(object)) : 0;
    }

private:
    /* An input that only others hold, and the result of another graph that it is. */
    using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    struct Lent {
        WeakTensor tensor;
        torch::autograd::Edge edge;
        std::shared_ptr<GraphInputs> origin;
        size_t place;
    };

    void take_origins(std::vector<std::shared_ptr<GraphInputs>> &into)
    {
        for (auto &[place, lent] : lent_) {
            into.push_back(std::move(lent.origin));
        }
        lent_.clear();
    }

    PyObject *graph_; /* owned */
    at::Tensor random_;
    std::vector<Py_ssize_t> written_;
    std::vector<PyObject *> values_; /* NULL for those that are lent */
    std::vector<int64_t> versions_;  /* when the graph had run */
    std::map<size_t, Lent> lent_;
};

/* On autograd's node of results that are no compiled graph's: what gives them again. */
class RunsAgain : public torch::autograd::FunctionPostHook {
public:
    /* places: of each of the node's outputs that is a result, which one it is. */
    RunsAgain(const std::shared_ptr<GraphInputs> &inputs, const std::map<uint32_t, size_t> &places)
        : inputs(inputs), places(places)
    {
    }

    variable_list operator()(const variable_list &outputs, const variable_list &) override
    {
        if (!torch::autograd::get_current_graph_task_keep_graph()) {
            inputs.reset();
        }
        return outputs;
    }

    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &) const override
    {
    }

    std::shared_ptr<GraphInputs> inputs;
    const std::map<uint32_t, size_t> places;
};

/* Whether a backward pass, for the inputs `asked` alone if there are any, runs a node, or is asked for what it is given. */
template <typename Info> bool is_asked(const Info *asked, torch::autograd::Node *node)
{
    if (asked == nullptr || asked->empty()) {
        return true;
    }
    const auto found = asked->find(node);
    return found != asked->end() && found->second.should_execute();
}

/* Results that others of the same call were computed from, while a backward pass runs.
 *
 * Eager's pass from one of the others comes by them: hooks are told of their gradients, and `torch.autograd.grad` may ask
 * for them. A compiled graph computes such a gradient nowhere, so where somebody hears of it the graph runs again. Held by
 * the nodes of one call. */
struct InnerResults {
    std::vector<torch::autograd::Node *> nodes; /* each result's own; nullptr: it is gone */
    std::vector<decltype(weak(NodePointer()))> views; /* those of views of results, numbered after these */
    int pass = -1;
    Flags heard;           /* results that somebody hears of in this pass */
    variable_list waiting; /* parts of their gradients, of results that were computed from them */

    /* Find out who hears of what, once in a pass. */
    void begin()
    {
        const int current = torch::autograd::get_current_graph_task_id();
        if (current == pass) {
            return;
        }
        pass = current;
        waiting.assign(count(), at::Tensor());
        heard.assign(count(), false);
        for (size_t i = 0; i < count(); i++) {
            const NodePointer view = i < nodes.size() ? NodePointer() : views[i - nodes.size()].lock();
            torch::autograd::Node *node = i < nodes.size() ? nodes[i] : view.get();
            heard[i] = node != nullptr && is_heard_of(node);
        }
    }

    size_t count() const
    {
        return nodes.size() + views.size();
    }

    Flags heard_among(const Flags &among) const
    {
        Flags found(heard);
        std::transform(heard.begin(), heard.end(), among.begin(), found.begin(), std::logical_and<bool>());
        return found;
    }

    bool any_heard(const Flags &among) const
    {
        const Flags found = heard_among(among);
        return std::find(found.begin(), found.end(), true) != found.end();
    }

private:
    static bool is_heard_of(torch::autograd::Node *node)
    {
        const auto &hooks = node->post_hooks();
        const bool is_followed = std::any_of(hooks.begin(), hooks.end(), [](const auto &hook) {
            return dynamic_cast<RunsAgain *>(hook.get()) == nullptr;
        });
        const auto *asked = torch::autograd::get_current_graph_task_exec_info();
        if (!is_asked(asked, node)) {
            return false;
        }
        if (!node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty() || !node->pre_hooks().empty()
            || is_followed) {
            return true;
        }
        const auto found = asked != nullptr ? asked->find(node) : decltype(asked->find(node)){};
        return asked != nullptr && found != asked->end() && found->second.captures_ && !found->second.captures_->empty();
    }
};

} // namespace

#endif
