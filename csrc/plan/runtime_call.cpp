/* RuntimeCall: what has to happen around a compiled graph at each call, without Python.
 *
 * In: the compiled graph as a callable; another that runs the graph operator by operator, which inputs the graph writes, and
 * which it casts as autocast does; whether autocast is off inside. Out: a callable with the same inputs. Where the memory of
 * a written input overlaps another input's, which a functional graph has no notion of, or autocast goes on with an earlier
 * cast, the graph is run operator by operator. */
#include "plan/cast_weights.h"
#include "plan/graph_values.h"
#include "python/heap_type.h"

#include <algorithm>
#include <vector>

#include <structmember.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace {

/* Where an input's elements lie: from the first to after the last, so that tensors whose elements take turns in memory
 * count as overlapping. */
struct Range {
    const char *start;
    const char *end;
    bool written;

    bool operator==(const Range &other) const
    {
        return start == other.start && end == other.end;
    }
};

struct RuntimeCall {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *compiled;
    PyObject *eager; /* or NULL: nothing is written or cast */
    bool no_autocast;
    std::vector<bool> *written;  /* of each input; those after the last one may be missing */
    std::vector<bool> *casts;    /* likewise: whether autocast may keep its cast */
    std::vector<Range> *ranges;  /* of the call at hand */
    std::vector<Range> *distinct; /* ranges that were found not to overlap */
};

bool range_of(const at::Tensor &tensor, Range *range)
{
    const c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
    if (impl->layout() != at::kStrided || !impl->has_storage() || impl->has_symbolic_sizes_strides()
        || impl->key_set().has(c10::DispatchKey::Python) || impl->numel() == 0) {
        return false;
    }
    int64_t last = 0;
    const c10::IntArrayRef sizes = impl->sizes(), strides = impl->strides();
    for (size_t i = 0; i < sizes.size(); i++) {
        last += (sizes[i] - 1) * strides[i];
    }
    range->start = static_cast<const char *>(impl->storage().data())
                 + impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
    range->end = range->start + (last + 1) * static_cast<int64_t>(impl->itemsize());
    return true;
}

void read_ranges(RuntimeCall *self, PyObject *const *args, Py_ssize_t n_args)
{
    self->ranges->clear();
    for (Py_ssize_t i = 0; i < n_args; i++) {
        Range range{};
        if (THPVariable_Check(args[i]) && range_of(THPVariable_Unpack(args[i]), &range)) {
            range.written = static_cast<size_t>(i) < self->written->size() && (*self->written)[static_cast<size_t>(i)];
            self->ranges->push_back(range);
        }
    }
}

bool any_overlap(std::vector<Range> ranges)
{
    std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) { return a.start < b.start; });
    const char *end_of_any = nullptr, *end_of_written = nullptr;
    for (const Range &range : ranges) {
        if (range.start < end_of_written || (range.written && range.start < end_of_any)) {
            return true;
        }
        end_of_any = std::max(end_of_any, range.end);
        if (range.written) {
            end_of_written = std::max(end_of_written, range.end);
        }
    }
    return false;
}

bool inputs_overlap(RuntimeCall *self, PyObject *const *args, Py_ssize_t n_args)
{
    if (self->written->empty()) {
        return false;
    }
    read_ranges(self, args, n_args);
    if (*self->ranges == *self->distinct) {
        return false; /* as in the last call */
    }
    if (any_overlap(*self->ranges)) {
        return true;
    }
    std::swap(self->ranges, self->distinct);
    return false;
}

bool has_earlier_casts(RuntimeCall *self, PyObject *const *args, Py_ssize_t n_args)
{
    std::vector<at::Tensor> weights;
    for (size_t i = 0; i < std::min(self->casts->size(), static_cast<size_t>(n_args)); i++) {
        if ((*self->casts)[i] && THPVariable_Check(args[i])) {
            weights.push_back(THPVariable_Unpack(args[i]));
        }
    }
    return !weights.empty() && dynajit::goes_on_with_casts(weights, self->eager == self->compiled);
}

PyObject *runtime_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    HANDLE_TH_ERRORS
    RuntimeCall *self = reinterpret_cast<RuntimeCall *>(object);
    const Py_ssize_t n_args = PyVectorcall_NARGS(nargsf);
    if (self->eager != nullptr && (has_earlier_casts(self, args, n_args) || inputs_overlap(self, args, n_args))) {
        return PyObject_Vectorcall(self->eager, args, nargsf, kwnames);
    }
    if (!self->no_autocast) {
        return PyObject_Vectorcall(self->compiled, args, nargsf, kwnames);
    }
    const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
    return PyObject_Vectorcall(self->compiled, args, nargsf, kwnames);
    END_HANDLE_TH_ERRORS
}

/* ---- building ---- */

bool read_places(PyObject *given, std::vector<bool> *places)
{
    if (given == nullptr) {
        return true;
    }
    PyObject *items = PySequence_Fast(given, "a sequence of positions is needed");
    for (Py_ssize_t i = 0; items != nullptr && i < PySequence_Fast_GET_SIZE(items); i++) {
        const Py_ssize_t place = PyLong_AsSsize_t(PySequence_Fast_GET_ITEM(items, i));
        if (place < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "positions of inputs are not negative");
            }
            break;
        }
        places->resize(std::max(places->size(), static_cast<size_t>(place) + 1));
        (*places)[static_cast<size_t>(place)] = true;
    }
    Py_XDECREF(items);
    return !PyErr_Occurred();
}

PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *names[] = {"compiled", "eager", "written", "no_autocast", "casts", nullptr};
    PyObject *compiled, *eager = Py_None, *written = nullptr, *casts = nullptr;
    int no_autocast = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOpO:RuntimeCall", const_cast<char **>(names), &compiled, &eager,
                                     &written, &no_autocast, &casts)) {
        return nullptr;
    }
    RuntimeCall *self = reinterpret_cast<RuntimeCall *>(type->tp_alloc(type, 0));
    if (self == nullptr) {
        return nullptr;
    }
    self->vectorcall = runtime_call;
    self->compiled = Py_NewRef(compiled);
    self->eager = eager != Py_None ? Py_NewRef(eager) : nullptr;
    self->no_autocast = no_autocast != 0;
    self->written = new std::vector<bool>();
    self->casts = new std::vector<bool>();
    self->ranges = new std::vector<Range>();
    self->distinct = new std::vector<Range>();
    if (!read_places(written, self->written) || !read_places(casts, self->casts)) {
        Py_CLEAR(self);
    }
    return reinterpret_cast<PyObject *>(self);
}

#define CALL_FIELDS(apply) apply(compiled) apply(eager)
DJ_HOLDS(RuntimeCall, call, CALL_FIELDS)

void call_dealloc(PyObject *object)
{
    RuntimeCall *self = reinterpret_cast<RuntimeCall *>(object);
    delete self->written;
    delete self->casts;
    delete self->ranges;
    delete self->distinct;
    dj_dealloc(object);
}

PyMemberDef call_members[] = {
    {"compiled", T_OBJECT, offsetof(RuntimeCall, compiled), READONLY, "The compiled graph."},
    {"eager", T_OBJECT, offsetof(RuntimeCall, eager), READONLY, "Runs the graph operator by operator, or None."},
    {"no_autocast", T_BOOL, offsetof(RuntimeCall, no_autocast), READONLY, "Whether autocast is off inside."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(RuntimeCall, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyObject *places_in(const std::vector<bool> &flags)
{
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found != nullptr && i < flags.size(); i++) {
        PyObject *place = flags[i] ? PyLong_FromSize_t(i) : nullptr;
        if (flags[i] && (place == nullptr || PyList_Append(found, place) < 0)) {
            Py_CLEAR(found);
        }
        Py_XDECREF(place);
    }
    return found;
}

PyObject *call_written(PyObject *object, void *)
{
    return places_in(*reinterpret_cast<RuntimeCall *>(object)->written);
}

PyObject *call_casts(PyObject *object, void *)
{
    return places_in(*reinterpret_cast<RuntimeCall *>(object)->casts);
}

PyGetSetDef call_getset[] = {
    {"written", call_written, nullptr, "The positions of the inputs that the graph writes.", nullptr},
    {"casts", call_casts, nullptr, "The positions of the inputs that it casts, of which autocast may keep a cast.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot call_slots[] = {
    {Py_tp_doc, const_cast<char *>(
                    "RuntimeCall(compiled, eager=None, written=(), no_autocast=False, casts=())\n--\n\n"
                    "Calls `compiled`; `eager` instead where the memory of an input in `written` overlaps another's, or "
                    "autocast goes on with another cast of one in `casts`.")},
    DJ_COLLECTED_SLOTS(call, call_new, call_dealloc),
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_members, call_members},
    {Py_tp_getset, call_getset},
    {0, nullptr},
};

PyType_Spec call_spec = DJ_CLASS(RuntimeCall, "RuntimeCall", DJ_COLLECTED | Py_TPFLAGS_HAVE_VECTORCALL, call_slots);

PyTypeObject *call_type;

} // namespace

PyObject *dynajit::plain_graph(PyObject *callable, bool *no_autocast)
{
    while (Py_IS_TYPE(callable, call_type)) {
        const RuntimeCall *call = reinterpret_cast<RuntimeCall *>(callable);
        if (call->eager != nullptr) {
            break;
        }
        *no_autocast = *no_autocast || call->no_autocast;
        callable = call->compiled;
    }
    return callable;
}

extern "C" int dj_runtime_call_init(PyObject *module)
{
    call_type = dj_add_type(module, &call_spec);
    return call_type != nullptr ? 0 : -1;
}
