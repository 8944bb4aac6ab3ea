/* TrainingCall: a compiled forward graph whose results have a gradient, computed by a compiled backward graph.
 *
 * In: both as callables, and what of the forward's results is whose. Out: a callable with the graph's inputs, and a node
 * of autograd's graph for each call, without Python between them and the two compiled graphs. For graphs that return no
 * alias of an input, and write none but by themselves; torch's own wrapper does the others. Where the backward pass is to
 * be differentiated again, a callable that runs the graph with autograd gives the gradients. */
#include "plan/python_entry.h"
#include "plan/training_results.h"
#include "python/heap_type.h"

#include <numeric>

namespace {

/* Whether results have a history: also where it ends in the graph itself, which detached what it was given. */
bool any_requires_grad(PyObject *const *args, Py_ssize_t n_args)
{
    return std::any_of(args, args + n_args, [](PyObject *arg) {
        return THPVariable_Check(arg) && THPVariable_Unpack(arg).requires_grad();
    });
}

torch::autograd::edge_list edges_to(const TrainingCall *self, PyObject *const *args, const Group &group)
{
    torch::autograd::edge_list edges;
    for (size_t input : group.inputs) {
        const at::Tensor &tensor = THPVariable_Unpack(args[(*self->wanted)[input]]);
        const bool wanted = (*self->group_of)[input].first != SIZE_MAX && tensor.requires_grad();
        edges.push_back(wanted ? torch::autograd::impl::gradient_edge(tensor) : torch::autograd::Edge());
    }
    return edges;
}

/* The groups of a call; the only one has all inputs, where nothing is known, or results are computed from none. */
void group(TrainingCall *self)
{
    const size_t count = self->layouts->size(), n_wanted = self->wanted->size();
    const std::vector<Flags> &reaches = *self->reaches;
    std::vector<Flags> keys;
    self->group_of->assign(n_wanted, {SIZE_MAX, 0});
    const auto group_with = [&](const Flags &key) {
        const size_t place = static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
        if (place == keys.size()) {
            keys.push_back(key);
            Group &made = self->groups->emplace_back();
            for (size_t number = 0; number < count; number++) {
                if (key[number]) {
                    made.results.push_back(number);
                }
            }
        }
        return place;
    };
    Flags without(count, !reaches.empty());
    std::vector<size_t> last_first(n_wanted); /* of nodes that are ready the engine runs the one made last */
    std::iota(last_first.begin(), last_first.end(), size_t{0});
    std::stable_sort(last_first.begin(), last_first.end(), [&](size_t a, size_t b) { return (*self->ranks)[a] > (*self->ranks)[b]; });
    for (size_t i : last_first) {
        Flags key(count, true);
        for (size_t number = 0; number < reaches.size(); number++) {
            key[number] = reaches[number][i];
            without[number] = without[number] && !key[number];
        }
        if (std::find(key.begin(), key.end(), true) != key.end()) {
            const size_t place = group_with(key);
            std::vector<size_t> &inputs = (*self->groups)[place].inputs;
            (*self->group_of)[i] = {place, inputs.size()};
            inputs.push_back(i);
        }
    }
    if (std::find(without.begin(), without.end(), true) != without.end()) {
        group_with(without);
    }
    if (self->groups->empty()) {
        group_with(Flags(count, true));
    }
    if (self->groups->size() == 1) { /* whose gradients backward gives in order */
        std::vector<size_t> &inputs = self->groups->front().inputs;
        inputs.resize(n_wanted);
        std::iota(inputs.begin(), inputs.end(), size_t{0});
    }
}

/* What a graph that is to run again needs as it was before the call: the state of the CPU's generator, if it draws, and
 * copies of the inputs `copied`. */
struct Before {
    at::Tensor random;
    variable_list copies;
};

/* The nodes of one call, not yet with what they need. */
class Nodes {
public:
    Nodes(TrainingCall *self, PyObject *const *args) : self_(self), shared_(std::make_shared<Shared>(self))
    {
        const size_t count = self->layouts->size();
        passing_.resize(count, nullptr);
        passed_to_.resize(count);
        if (count > 1) {
            shared_->passing.resize(count, nullptr);
        }
        if (!self->through->empty()) {
            inner_ = std::make_shared<InnerResults>();
            inner_->nodes.resize(count, nullptr);
        }
        for (size_t i = 0; i < self->groups->size(); i++) {
            Backward *made = new Backward(self, edges_to(self, args, (*self->groups)[i]), i, shared_);
            nodes_.push_back(owned<torch::autograd::Node>(made));
            made->set_inner(inner_);
            backwards_.push_back(made);
        }
    }

    void set_history(const at::Tensor &result, size_t number)
    {
        torch::autograd::set_history(result, passing_.size() > 1 ? passing_on(result, number) : nodes_[0]);
        shapes_.push_back({result.sizes().vec(), result.options()});
    }

    /* Count the writes of the watched tensors from here on. */
    void watch(PyObject *const *args, PyObject *returns)
    {
        if (self_->checks->empty()) {
            return;
        }
        const AllSeen seen = std::make_shared<std::vector<Seen>>();
        seen->reserve(self_->checks->size());
        for (const VersionCheck &each : *self_->checks) {
            PyObject *tensor = each.is_result ? PyTuple_GET_ITEM(returns, each.place) : args[each.place];
            seen->emplace_back(THPVariable_Unpack(tensor), each.is_result);
        }
        for (Backward *backward : backwards_) {
            backward->watch(seen);
        }
    }

    /* Before inputs get new values: the inputs with which the graph can run again. `before`: what that takes of the time
     * before the call. */
    void keep_inputs(const Values &items, size_t first, PyObject *const *args, Py_ssize_t n_args, const Before &before)
    {
        std::set<const void *> memories; /* of what is saved; with hooks, what they make of it is */
        const bool packed = at::SavedTensorDefaultHooks::is_enabled() && at::SavedTensorDefaultHooks::get_hooks();
        for (size_t i = first; i < items.size() && !packed; i++) {
            if (items[i].tensor.defined() && items[i].tensor.has_storage()) {
                memories.insert(items[i].tensor.storage().unsafeGetStorageImpl());
            }
        }
        if (self_->again != nullptr) {
            backwards_[0]->keep_inputs(args, n_args, memories, before.random, before.copies);
        }
    }

    /* Before an input gets a new value, whose node a result leads to: a node whose edges change, as those of one
     * that is split, can't be what another one leads to. */
    void link(const Values &items, size_t first, PyObject *const *args)
    {
        for (Backward *backward : backwards_) {
            backward->split(args, items, first);
        }
        for (size_t i = 0; i < passing_.size(); i++) {
            const size_t number = self_->order->empty() ? i : (*self_->order)[i];
            if (passing_[number] == nullptr) {
                continue;
            }
            passing_[number]->lead_to(std::move(passed_to_[number]));
        }
    }

    /* What backward needs; of a new value that eager keeps as well, the input that holds it. */
    void save(Values &&items, size_t first, PyObject *const *args)
    {
        for (size_t i = 0; i < self_->updated->size(); i++) {
            const Py_ssize_t place = (*self_->updated)[i];
            const at::Tensor &input = THPVariable_Unpack(args[place]), &made = items[i].tensor;
            for (size_t j = first; j < items.size() && backwards_[0]->is_kept_by_eager(place); j++) {
                const at::Tensor &saved = items[j].tensor;
                if (saved.defined() && saved.is_alias_of(made) && saved.sizes() == input.sizes()
                    && saved.strides() == input.strides()) {
                    items[j].tensor = input.detach();
                }
            }
        }
        std::vector<torch::autograd::Node *> others;
        std::copy_if(passing_.begin(), passing_.end(), std::back_inserter(others), [](Passing *each) { return each != nullptr; });
        if (backwards_.size() > 1) {
            others.insert(others.end(), backwards_.begin(), backwards_.end());
        }
        backwards_[0]->save(items, first, others);
        for (Backward *backward : backwards_) {
            backward->keep_numbers(items, first);
            if (backwards_.size() > 1) {
                backward->keep_shapes(shapes_);
            }
        }
    }

private:
    /* A node of one result alone, before that of several. */
    NodePointer passing_on(const at::Tensor &result, size_t number)
    {
        Backward *first = nullptr;
        for (size_t i = 0; i < backwards_.size(); i++) {
            const std::vector<size_t> &results = (*self_->groups)[i].results;
            if (std::find(results.begin(), results.end(), number) != results.end()) {
                first = first == nullptr ? backwards_[i] : first;
                passed_to_[number].emplace_back(nodes_[i], nodes_[i]->add_input_metadata(result));
            }
        }
        Passing *passing = new Passing(first, number, inner_, self_, shared_);
        passing_[number] = passing;
        return owned<torch::autograd::Node>(passing);
    }

    TrainingCall *self_;
    std::shared_ptr<Shared> shared_;
    std::vector<Passing *> passing_;       /* of each result with a history, where there are several */
    std::vector<torch::autograd::edge_list> passed_to_; /* of each of them */
    std::shared_ptr<InnerResults> inner_;
    std::vector<Backward *> backwards_;
    std::vector<NodePointer> nodes_;
    std::vector<ResultShape> shapes_;
};

/* The first of the results, with their place in autograd's graph. */
PyObject *with_history(TrainingCall *self, PyObject *const *args, Py_ssize_t n_args, Values &&items,
                       const Before &before)
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
            items[i].tensor = dynajit::without_view(items[i].tensor);
            if (differentiable) {
                nodes->set_history(items[i].tensor, number);
            }
        }
        number += differentiable;
        PyTuple_SET_ITEM(returns, static_cast<Py_ssize_t>(i), items[i].wrap());
    }
    if (nodes && returns != nullptr) {
        nodes->keep_inputs(items, n_returns, args, n_args, before);
        nodes->link(items, n_returns, args);
    }
    const Py_ssize_t n_updated = static_cast<Py_ssize_t>(self->updated->size());
    for (Py_ssize_t i = 0; returns != nullptr && i < n_updated; i++) {
        THPVariable_Unpack(args[(*self->updated)[static_cast<size_t>(i)]]).copy_(THPVariable_Unpack(PyTuple_GET_ITEM(returns, i)));
    }
    if (nodes && returns != nullptr) {
        nodes->watch(args, returns);
        nodes->save(std::move(items), n_returns, args);
    }
    if (returns != nullptr && n_updated > 0) {
        Py_SETREF(returns, PyTuple_GetSlice(returns, n_updated, static_cast<Py_ssize_t>(n_returns)));
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
    Before before;
    if (self->again != nullptr && at::GradMode::is_enabled()) {
        before.random = self->draws ? random_state() : at::Tensor();
        for (Py_ssize_t place : *self->copied) {
            before.copies.push_back(THPVariable_Unpack(args[place]).clone());
        }
    }
    std::optional<Values> items;
    {
        at::AutoGradMode no_grad(false);
        items.emplace(call_off(self->forward, std::move(given), false));
    }
    return with_history(self, args, n_args, std::move(*items), before);
}

PyObject *training_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    TrainingCall *self = reinterpret_cast<TrainingCall *>(object);
    const Py_ssize_t n_args = PyVectorcall_NARGS(nargsf);
    if (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) > 0) {
        PyErr_SetString(PyExc_TypeError, "a compiled graph takes no keyword arguments");
        return nullptr;
    }
    for (const VersionCheck &each : *self->checks) {
        if (!each.is_result && (each.place >= n_args || !THPVariable_Check(args[each.place]))) {
            return PyErr_Format(PyExc_TypeError, "input %zd of the compiled graph must be a tensor", each.place);
        }
    }
    for (const auto *places : {self->wanted, self->updated, self->copied}) {
        for (Py_ssize_t place : *places) {
            if (place >= n_args || !THPVariable_Check(args[place])) {
                return PyErr_Format(PyExc_TypeError, "input %zd of the compiled graph must be a tensor", place);
            }
        }
    }
    return dynajit::enter_from_python([&] { return call(self, args, n_args); });
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

/* (is_result, place, read_by, (name, output)) of a tensor that eager's operations keep; raises. */
VersionCheck version_check_of(PyObject *given)
{
    int is_result = 0;
    Py_ssize_t place = 0;
    PyObject *read_by = nullptr;
    const char *name = nullptr;
    unsigned int output = 0;
    if (!PyTuple_Check(given) || !PyArg_ParseTuple(given, "pnO(sI):checks", &is_result, &place, &read_by, &name, &output)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "checks: a tuple for each tensor");
        }
        return {};
    }
    return {is_result == 1, place, flags_of(read_by), name, output};
}

/* (results, through, inputs, own) of operations that keep tensors; raises. */
Saving saving_of(PyObject *given)
{
    PyObject *results = nullptr, *through = nullptr, *inputs = nullptr, *own = nullptr;
    PyObject *row = PySequence_Tuple(given);
    const bool fine = row != nullptr && PyArg_ParseTuple(row, "OOOO:saving", &results, &through, &inputs, &own);
    Saving saving = fine ? Saving{flags_of(results), flags_of(through), flags_of(inputs), flags_of(own)} : Saving();
    Py_XDECREF(row);
    return saving;
}

/* Whether the flags of those are as many as the gradients and inputs; raises. Finds out whether all can be used up. */
bool can_save(TrainingCall *self)
{
    const size_t count = self->layouts->size();
    Flags computed(count, false);
    for (const Saving &each : *self->saving) {
        if (each.results.size() != count || each.through.size() != count || each.own.size() != count
            || each.inputs.size() != self->wanted->size()) {
            PyErr_SetString(PyExc_ValueError, "saving: flags for each gradient, and for each wanted input");
            return false;
        }
        std::transform(computed.begin(), computed.end(), each.results.begin(), computed.begin(), std::logical_or<bool>());
    }
    self->can_be_used_up = std::find(computed.begin(), computed.end(), false) == computed.end();
    return true;
}

/* Whether the watched tensors are among the results, and their flags as many as the gradients; raises. */
bool can_be_checked(const TrainingCall *self)
{
    const Py_ssize_t count = static_cast<Py_ssize_t>(self->differentiable->size());
    for (const VersionCheck &each : *self->checks) {
        if (each.place < 0 || (each.is_result && each.place >= count) || each.read_by.size() != self->layouts->size()) {
            PyErr_SetString(PyExc_ValueError, "checks: places of inputs and results, with a flag for each gradient");
            return false;
        }
    }
    return true;
}

/* How many columns a table has: not less than `least`. */
size_t columns_of(const std::vector<Flags> &table, size_t least)
{
    return table.empty() ? least : std::max(table[0].size(), least);
}

/* Whether a table is empty or has so many rows and columns; raises. */
bool fits(const std::vector<Flags> &table, size_t rows, size_t columns)
{
    const bool fine = table.empty() || (table.size() == rows && std::all_of(table.begin(), table.end(), [=](const Flags &row) {
                                            return row.size() == columns;
                                        }));
    if (!fine) {
        PyErr_SetString(PyExc_ValueError, "reaches and through have a row for each gradient that backward takes");
    }
    return fine;
}

/* Of each result, those of the ones that it was computed from that no other lies between; raises. A view lies between
 * nothing: its own node hands on what comes by it, not what waits for others. */
bool link_results(TrainingCall *self)
{
    const std::vector<Flags> &through = *self->through;
    const size_t columns = through.empty() ? 0 : through[0].size();
    const auto is_between = [&](size_t from, size_t to) {
        for (size_t i = 0; i < through.size(); i++) {
            if (through[from][i] && through[i][to]) {
                return true;
            }
        }
        return false;
    };
    for (size_t i = 0; i < through.size(); i++) {
        self->order->push_back(i);
        std::vector<size_t> &links = self->links->emplace_back();
        for (size_t j = 0; j < columns; j++) {
            if (through[i][j] && (i == j || (j < through.size() && through[j][i]))) {
                PyErr_SetString(PyExc_ValueError, "through: no result is computed from itself");
                return false;
            }
            if (through[i][j] && !is_between(i, j)) {
                links.push_back(j);
            }
        }
    }
    const auto count = [&](size_t i) { return std::count(through[i].begin(), through[i].end(), true); };
    std::stable_sort(self->order->begin(), self->order->end(), [&](size_t i, size_t j) { return count(i) < count(j); });
    return true;
}

#define CALL_FIELDS(apply) \
    apply(forward) apply(backward) apply(usual) apply(made_of) apply(again) apply(holds) apply(partial)
#define CALL_VECTORS(apply)                                                                                     \
    apply(differentiable) apply(wanted) apply(ranks) apply(layouts) apply(reaches) apply(saving) apply(groups)  \
    apply(group_of) apply(through) apply(links) apply(order) apply(checks) apply(written) apply(copied)        \
    apply(kept_as) apply(updated)
#define MAKE_VECTOR(field) self->field = new std::remove_pointer_t<decltype(self->field)>();
#define DELETE_VECTOR(field) delete self->field;

PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *names[] = {"forward", "backward", "n_saved", "n_checked", "differentiable", "wanted",
                                  "layouts", "again",    "partial", "reaches",   "saving",         "checks",
                                  "draws",   "written",  "updated", "holds",     "through",        "arrival",
                                  "copied",  "kept_as",  nullptr};
    PyObject *forward, *backward, *differentiable, *wanted, *layouts, *again = Py_None, *partial = Py_None;
    PyObject *reaches = nullptr, *saving = nullptr, *checks = nullptr, *written = nullptr, *updated = nullptr;
    PyObject *holds = Py_None, *through = nullptr, *arrival = nullptr, *copied = nullptr, *kept_as = nullptr;
    Py_ssize_t n_saved, n_checked;
    int draws = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOnnOOO|OOOOOpOOOOOOO:TrainingCall", const_cast<char **>(names), &forward,
                                     &backward, &n_saved, &n_checked, &differentiable, &wanted, &layouts, &again,
                                     &partial, &reaches, &saving, &checks, &draws, &written, &updated,
                                     &holds, &through, &arrival, &copied, &kept_as)) {
        return nullptr;
    }
    TrainingCall *self = reinterpret_cast<TrainingCall *>(type->tp_alloc(type, 0));
    if (self == nullptr) {
        return nullptr;
    }
    self->vectorcall = training_call;
    self->forward = Py_NewRef(forward);
    self->backward = Py_NewRef(backward);
    self->usual = Py_NewRef(backward);
    self->made_of = Py_NewRef(args);
    self->again = again != Py_None ? Py_NewRef(again) : nullptr;
    self->holds = holds != Py_None ? Py_NewRef(holds) : nullptr;
    self->partial = partial != Py_None ? Py_NewRef(partial) : nullptr;
    self->n_saved = n_saved;
    self->n_checked = n_checked;
    self->draws = draws != 0;
    CALL_VECTORS(MAKE_VECTOR)
    std::vector<Py_ssize_t> arriving;
    bool fine = read_all(differentiable, *self->differentiable, [](PyObject *item) { return PyObject_IsTrue(item) == 1; })
        && read_all(wanted, *self->wanted, PyLong_AsSsize_t) && read_all(layouts, *self->layouts, layout_of)
        && (reaches == nullptr || read_all(reaches, *self->reaches, flags_of))
        && (saving == nullptr || read_all(saving, *self->saving, saving_of))
        && fits(*self->reaches, self->layouts->size(), self->wanted->size())
        && can_save(self)
        && (through == nullptr || read_all(through, *self->through, flags_of))
        && fits(*self->through, self->layouts->size(), columns_of(*self->through, self->layouts->size()))
        && link_results(self)
        && (checks == nullptr || read_all(checks, *self->checks, version_check_of)) && can_be_checked(self)
        && (written == nullptr || read_all(written, *self->written, PyLong_AsSsize_t))
        && (copied == nullptr || read_all(copied, *self->copied, PyLong_AsSsize_t))
        && (kept_as == nullptr || read_all(kept_as, *self->kept_as, PyLong_AsSsize_t))
        && (updated == nullptr || read_all(updated, *self->updated, PyLong_AsSsize_t))
        && (arrival == nullptr || read_all(arrival, arriving, PyLong_AsSsize_t));
    if (fine && !self->kept_as->empty() && self->kept_as->size() != static_cast<size_t>(n_saved)) {
        PyErr_SetString(PyExc_ValueError, "kept_as: a number for each saved tensor");
        fine = false;
    }
    if (fine && self->updated->size() > self->differentiable->size()) {
        PyErr_SetString(PyExc_ValueError, "updated: inputs whose new values are the first results");
        fine = false;
    }
    if (fine) {
        for (Py_ssize_t place : *self->wanted) {
            const auto found = std::find(arriving.begin(), arriving.end(), place);
            self->ranks->push_back(static_cast<size_t>(found - arriving.begin()));
        }
        group(self);
    }
    else {
        Py_CLEAR(self);
    }
    return reinterpret_cast<PyObject *>(self);
}

DJ_HOLDS(TrainingCall, call, CALL_FIELDS)

void call_dealloc(PyObject *object)
{
    TrainingCall *self = reinterpret_cast<TrainingCall *>(object);
    CALL_VECTORS(DELETE_VECTOR)
    dj_dealloc(object);
}

PyMemberDef call_members[] = {
    {"forward", T_OBJECT, offsetof(TrainingCall, forward), READONLY, "The compiled forward graph."},
    {"backward", T_OBJECT, offsetof(TrainingCall, backward), READONLY, "The compiled backward graph."},
    {"made_of", T_OBJECT, offsetof(TrainingCall, made_of), READONLY, "The arguments by position."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(TrainingCall, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot call_slots[] = {
    {Py_tp_doc,
     const_cast<char *>(
         "TrainingCall(forward, backward, n_saved, n_checked, differentiable, wanted, layouts, again=None, partial=None, "
         "reaches=(), saving=(), checks=(), draws=False, written=(), updated=(), holds=None, "
         "through=(), arrival=(), copied=(), kept_as=())\n--\n\n"
         "forward(*inputs) returns len(differentiable) results, n_saved tensors and numbers; backward(*numbers, *saved, "
         "*gradients) a gradient for each input, of which those in `wanted` are used. layouts: strides of each gradient "
         "that backward takes, None for contiguous. The first n_checked saved tensors may not be written in place "
         "before backward. again(inputs, gradients) gives a differentiable gradient for each input where backward is "
         "itself differentiated (create_graph), or None if it can't. partial: a mapping that keeps what it gave; "
         "partial[defined], with a byte for each result that has a gradient, is a backward that takes the defined gradients "
         "only, or None: the others are zeros then. reaches: for each such result, which of `wanted` it was computed from; "
         "saving: tuples (results, through, inputs, own) of eager's operations that keep tensors for their backward, which runs once: "
         "flags of the results that are computed of them, of those, and of the `wanted` inputs, that they are computed from, "
         "and of results that one of them gave itself. checks: tuples (is_result, place, read_by, "
         "(name, output)) of the inputs and results that may not be written before the backward of the results whose "
         "flag in read_by is set; eager's node that a result is of, and as which of its outputs. draws: whether forward draws "
         "random numbers, of the CPU's generator, as it has to again where it runs again. "
         "written: inputs that forward writes; copied: those that it computes results of. kept_as: of each saved tensor, whether it is "
         "kept itself (0), as an alias of what it is now (1), or as one whose writes are counted apart (2). updated: inputs that the call writes, so that "
         "autograd hears of it: their new values are forward's first results, which the call does not return. "
         "holds(): whether backward still computes what eager's would; if not, again gives the gradients. "
         "through: for each result that has a gradient, which other ones it was computed from, and which views of results "
         "that are taken after the call, see `link_views`. Where somebody hears of the "
         "gradient of one of these, again.parts_at(inputs, gradients, heard) gives what of the gradients gets to each result "
         "that `heard` has a byte for that is not 0, and again.ending_at(inputs, gradients, heard) the gradients of the inputs "
         "without that. arrival: inputs in the order in which eager's gradients arrive where a pass starts from all results; "
         "`engine_order` finds it.")},
    DJ_COLLECTED_SLOTS(call, call_new, call_dealloc),
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_members, call_members},
    {0, nullptr},
};

PyType_Spec call_spec = DJ_CLASS(TrainingCall, "TrainingCall", DJ_COLLECTED | Py_TPFLAGS_HAVE_VECTORCALL, call_slots);

} // namespace

namespace {

PyObject *has_gradient_hooks(PyObject *, PyObject *given)
{
    if (!THPVariable_Check(given)) {
        return PyErr_Format(PyExc_TypeError, "a tensor is needed");
    }
    const at::Tensor &tensor = THPVariable_Unpack(given);
    const NodePointer leaf = torch::autograd::impl::try_get_grad_accumulator(tensor); /* hooks of Python's need none yet */
    const bool is_waiting = tensor.requires_grad() && torch::autograd::impl::post_acc_grad_hooks(tensor) != nullptr;
    return PyBool_FromLong(is_waiting || (leaf && is_heard({leaf, 0})));
}

/* runs_again(function, inputs, results, random, kept) */
PyObject *runs_again(PyObject *, PyObject *const *args, Py_ssize_t count)
{
    if (count != 5 || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]) || (args[3] != Py_None && !THPVariable_Check(args[3]))) {
        return PyErr_Format(PyExc_TypeError, "runs_again: a function, tuples of inputs and results, a generator's state");
    }
    const auto inputs = std::make_shared<GraphInputs>(args[0], args[3] != Py_None ? THPVariable_Unpack(args[3]) : at::Tensor());
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); i++) {
        PyObject *input = PyTuple_GET_ITEM(args[1], i);
        const Backward::Origin origin = THPVariable_Check(input) ? Backward::origin_of(THPVariable_Unpack(input))
                                                                 : Backward::Origin();
        if (origin.inputs != nullptr) {
            inputs->add_lent(THPVariable_Unpack(input), origin.inputs, origin.place);
        }
        else if (args[4] != Py_True && THPVariable_Check(input) && THPVariable_Unpack(input).grad_fn()) {
            Py_RETURN_NONE; /* to hold it here takes as much memory as it saves elsewhere */
        }
        else {
            inputs->add(input);
        }
    }
    std::map<torch::autograd::Node *, std::map<uint32_t, size_t>> places;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[2]); i++) {
        PyObject *result = PyTuple_GET_ITEM(args[2], i);
        const at::Tensor tensor = THPVariable_Check(result) ? THPVariable_Unpack(result) : at::Tensor();
        if (tensor.defined() && tensor.grad_fn() && !tensor.is_view() && Backward::origin_of(tensor).inputs == nullptr) {
            places[tensor.grad_fn().get()].emplace(static_cast<uint32_t>(tensor.output_nr()), static_cast<size_t>(i));
        }
    }
    for (const auto &[node, own] : places) {
        node->add_post_hook(std::make_unique<RunsAgain>(inputs, own));
    }
    Py_RETURN_NONE;
}

/* engine_order(priorities, following, starts) */
PyObject *engine_order(PyObject *, PyObject *const *args, Py_ssize_t count)
{
    std::vector<uint64_t> priorities;
    std::vector<std::vector<size_t>> following;
    std::vector<size_t> starts;
    const auto numbers_of = [](PyObject *given) {
        std::vector<size_t> numbers;
        read_all(given, numbers, PyLong_AsSize_t);
        return numbers;
    };
    if (count != 3) {
        return PyErr_Format(PyExc_TypeError, "engine_order: priorities of nodes, those behind each, and those it starts from");
    }
    if (!read_all(args[0], priorities, PyLong_AsUnsignedLongLong) || !read_all(args[1], following, numbers_of)
        || !read_all(args[2], starts, PyLong_AsSize_t)) {
        return nullptr;
    }
    const auto are_nodes = [&](const std::vector<size_t> &numbers) {
        return std::all_of(numbers.begin(), numbers.end(), [&](size_t number) { return number < priorities.size(); });
    };
    if (following.size() != priorities.size() || !are_nodes(starts)
        || !std::all_of(following.begin(), following.end(), are_nodes)) {
        return PyErr_Format(PyExc_ValueError, "engine_order: numbers of nodes");
    }
    const std::vector<size_t> ends = order_of_ends(priorities, following, starts);
    PyObject *found = PyList_New(static_cast<Py_ssize_t>(ends.size()));
    for (size_t i = 0; found != nullptr && i < ends.size(); i++) {
        PyList_SET_ITEM(found, static_cast<Py_ssize_t>(i), PyLong_FromSize_t(ends[i]));
    }
    return found;
}

/* link_views(results, views) */
PyObject *link_views(PyObject *, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
        return PyErr_Format(PyExc_TypeError, "link_views: tuples of results and of views");
    }
    variable_list views;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); i++) {
        PyObject *view = PyTuple_GET_ITEM(args[1], i);
        if (!THPVariable_Check(view) || !THPVariable_Unpack(view).grad_fn()) {
            Py_RETURN_NONE; /* gradients are off */
        }
        views.push_back(THPVariable_Unpack(view));
    }
    try {
        std::map<size_t, Passing *> found;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); i++) {
            PyObject *result = PyTuple_GET_ITEM(args[0], i);
            const NodePointer node = THPVariable_Check(result) ? THPVariable_Unpack(result).grad_fn() : NodePointer();
            if (Passing *passing = dynamic_cast<Passing *>(node.get())) {
                found.emplace(passing->number(), passing);
            }
        }
        const std::vector<size_t> order = found.empty() ? std::vector<size_t>() : *found.begin()->second->call()->order;
        for (size_t number : order) {
            if (found.count(number) != 0) {
                found[number]->lead_to_views(views);
            }
        }
    }
    catch (...) {
        dynajit::translate_exception();
        return nullptr;
    }
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"link_views", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(link_views)), METH_FASTCALL,
     "link_views(results, views)\n--\n\n"
     "Have backward passes from the results of a `TrainingCall` come by those of the views, taken of results, that each was "
     "computed from: the last columns of its `through`."},
    {"runs_again", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(runs_again)), METH_FASTCALL,
     "runs_again(function, inputs, results, random, kept)\n--\n\n"
     "Note that function(*inputs) gives the results once more, from the state `random` of the CPU's generator if it is not "
     "None: compiled graphs that are given them need not keep them for a second differentiation. kept: whether autograd's "
     "nodes of the results keep all inputs; else nothing is noted where that would keep what may die."},
    {"engine_order", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(engine_order)), METH_FASTCALL,
     "engine_order(priorities, following, starts)\n--\n\n"
     "The nodes that lead to nothing, in the order in which autograd's engine comes by them in a pass from the nodes `starts`. "
     "priorities: of each node; following: numbers of the nodes that it leads to, one for each edge."},
    {"has_gradient_hooks", has_gradient_hooks, METH_O,
     "has_gradient_hooks(tensor)\n--\n\nWhether it is a leaf, and somebody is told when it has got its gradient."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

extern "C" int dj_training_call_init(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0) {
        return -1;
    }
    PyObject *type = PyType_FromModuleAndSpec(module, &call_spec, nullptr);
    int status = type != nullptr ? PyModule_AddType(module, reinterpret_cast<PyTypeObject *>(type)) : -1;
    Py_XDECREF(type);
    return status;
}
