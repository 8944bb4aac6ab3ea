/* GlobalState: torch's thread-wide and process-wide modes, as one guard.
 *
 * In: nothing; a snapshot is taken when the object is made. Out: whether the same modes hold now. Read straight from
 * torch's C++ state: no Python runs unless a torch-function or dispatch mode is active. To guard one more mode: one line
 * in `fields`. */
#include "guards/guards.h"
#include "python/heap_type.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/PyInterpreter.h>

namespace {

/* Members that torch keeps private: an explicit instantiation may name them. */
template <typename Tag, typename Tag::Member member>
struct Reach {
    friend typename Tag::Member reach(Tag)
    {
        return member;
    }
};

using PrecisionKey = std::pair<at::Float32Backend, at::Float32Op>;
using PrecisionTable = std::unordered_map<PrecisionKey, at::Float32Precision, c10::hash<PrecisionKey>>;

struct OfPrecision {
    using Member = PrecisionTable at::Context::*;
    friend Member reach(OfPrecision);
};
template struct Reach<OfPrecision, &at::Context::fp32_precision>;

using FunctionTLS = at::impl::PythonTorchFunctionTLS;

struct OfDisabled {
    using Member = at::impl::TorchFunctionDisabledState FunctionTLS::*;
    friend Member reach(OfDisabled);
};
template struct Reach<OfDisabled, &FunctionTLS::disabled_state_>;

struct OfFunctionModes {
    using Member = std::vector<std::shared_ptr<c10::SafePyObject>> FunctionTLS::*;
    friend Member reach(OfFunctionModes);
};
template struct Reach<OfFunctionModes, &FunctionTLS::stack_>;

/* Looking up how a backend computes with float32 matrices takes torch up to three searches in a table, which is most of
 * what a check would cost. So it is asked again only when one of these entries has changed, whose places never do. */
class Precision {
public:
    int64_t cpu = 0, cuda = 0;

    /* As it is now. */
    static const Precision &now()
    {
        static Precision known; /* whoever asks has the GIL */
        bool current = known.current_;
        for (size_t i = 0; i < n_; i++) {
            current = current && *known.entries_[i] == known.seen_[i];
        }
        if (!current) {
            known.read();
        }
        return known;
    }

private:
    static constexpr size_t n_ = 5;
    const at::Float32Precision *entries_[n_] = {};
    at::Float32Precision seen_[n_] = {};
    bool current_ = false;

    void read()
    {
        using at::Float32Backend, at::Float32Op;
        static const at::Float32Precision none = at::Float32Precision::NONE;
        static const PrecisionKey keys[n_] = {{Float32Backend::GENERIC, Float32Op::ALL},
                                              {Float32Backend::MKLDNN, Float32Op::ALL},
                                              {Float32Backend::MKLDNN, Float32Op::MATMUL},
                                              {Float32Backend::CUDA, Float32Op::ALL},
                                              {Float32Backend::CUDA, Float32Op::MATMUL}};
        const PrecisionTable &table = at::globalContext().*reach(OfPrecision());
        for (size_t i = 0; i < n_; i++) {
            auto found = table.find(keys[i]);
            entries_[i] = found != table.end() ? &found->second : &none;
            seen_[i] = *entries_[i];
        }
        cpu = of_context(Float32Backend::MKLDNN);
        cuda = of_context(Float32Backend::CUDA);
        current_ = true;
    }

    static int64_t of_context(at::Float32Backend backend)
    {
        at::Float32Precision set = at::globalContext().float32Precision(backend, at::Float32Op::MATMUL);
        /* not set, and set to full precision, are the same */
        return static_cast<int64_t>(set == at::Float32Precision::IEEE ? at::Float32Precision::NONE : set);
    }
};

/* Where torch keeps a thread's modes: the same places for as long as the thread lives. */
struct Places {
    const c10::AutogradState *autograd;
    const c10::impl::PODLocalDispatchKeySet *keys;
    const FunctionTLS *functions;
    const at::impl::SavedTensorDefaultHooksTLS *hooks;
};

const Places &places()
{
    static thread_local Places threads_own = {};
    Places *found = &threads_own;
    __asm__("" : "+r"(found)); /* so that the compiler does not ask for the thread's again at each use */
    if (found->autograd == nullptr) {
        *found = {&c10::AutogradState::get_tls_state(), &c10::impl::raw_local_dispatch_key_set,
                  &FunctionTLS::get_state(), &at::SavedTensorDefaultHooks::get_tls_state()};
    }
    return *found;
}

/* Thread-local and process-wide state, looked up once for a check. */
struct Torch {
    const Places &thread = places();
    const c10::AutogradState &autograd = *thread.autograd;
    const at::Context &context = at::globalContext();
    const c10::impl::PODLocalDispatchKeySet keys = *thread.keys;
    const Precision &precision = Precision::now();

    bool autocast(c10::DispatchKey key) const
    {
        return !keys.excluded().has(key); /* autocast is on where its key is not excluded */
    }

    bool any_autocast() const
    {
        return autocast(c10::DispatchKey::AutocastCPU) || autocast(c10::DispatchKey::AutocastCUDA);
    }

    /* torch includes this key while there are dispatch modes. */
    bool no_modes() const
    {
        return (thread.functions->*reach(OfFunctionModes())).empty() && !keys.included().has(c10::DispatchKey::Python);
    }
};

constexpr int64_t kOff = -1; /* for a mode that means nothing while another is off */

/* Hooks of torch's own (checkpoint, save_on_cpu) give back what they were given; a program's may do anything. */
bool is_torchs_own(PyObject *hook)
{
    if (!PyFunction_Check(hook))
        return false;
    PyObject *name = PyDict_GetItemString(PyFunction_GET_GLOBALS(hook), "__name__"); /* borrowed */
    const char *text = name != nullptr && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr;
    return text != nullptr && strncmp(text, "torch.", 6) == 0;
}

int64_t saved_tensor_hooks(const Torch &t)
{
    const auto &state = *t.thread.hooks;
    bool own = state.stack.empty() || is_torchs_own(state.stack.top().first.ptr(getPyInterpreter()));
    return static_cast<int64_t>(state.stack.size()) * 4 + !own * 2 + state.disabled_error_message.has_value();
}

/* What a field is known from, if the dispatch keys are those of the snapshot. */
enum class Known { kNever, kByKeys, kByKeysWithoutAutocast };

template <typename Read>
struct Field {
    const char *name;
    Read read; /* takes a Torch, gives an int64_t */
    Known known = Known::kNever;
};
template <typename Read>
Field(const char *, Read) -> Field<Read>;
template <typename Read>
Field(const char *, Read, Known) -> Field<Read>;

/* Likeliest to change first; what has words of its own before the dispatch keys, which cover most of it. */
constexpr auto fields = std::make_tuple(
    Field{"grad mode", [](const Torch &t) { return int64_t(t.autograd.get_grad_mode()); }},
    Field{"inference mode", [](const Torch &t) { return int64_t(t.autograd.get_inference_mode()); }},
    Field{"autocast on cpu", [](const Torch &t) { return int64_t(t.autocast(c10::DispatchKey::AutocastCPU)); },
          Known::kByKeys},
    Field{"autocast on cuda", [](const Torch &t) { return int64_t(t.autocast(c10::DispatchKey::AutocastCUDA)); },
          Known::kByKeys},
    Field{"autocast dtype on cpu",
     [](const Torch &t) {
         return t.autocast(c10::DispatchKey::AutocastCPU) ? int64_t(at::autocast::get_autocast_dtype(at::kCPU)) : kOff;
     },
          Known::kByKeysWithoutAutocast},
    Field{"autocast dtype on cuda",
     [](const Torch &t) {
         return t.autocast(c10::DispatchKey::AutocastCUDA) ? int64_t(at::autocast::get_autocast_dtype(at::kCUDA))
                                                           : kOff;
     },
          Known::kByKeysWithoutAutocast},
    Field{"autocast cache",
     [](const Torch &t) { return t.any_autocast() ? int64_t(at::autocast::is_autocast_cache_enabled()) : kOff; },
          Known::kByKeysWithoutAutocast},
    Field{"included dispatch keys", [](const Torch &t) { return int64_t(t.keys.included_); }, Known::kByKeys},
    Field{"excluded dispatch keys", [](const Torch &t) { return int64_t(t.keys.excluded_); }, Known::kByKeys},
    Field{"torch function disabled",
     [](const Torch &t) { return int64_t(t.thread.functions->*reach(OfDisabled())); }},
    Field{"forward-mode grad", [](const Torch &t) { return int64_t(t.autograd.get_fw_grad_mode()); }},
    Field{"default dtype", [](const Torch &) { return int64_t(c10::get_default_dtype_as_scalartype()); }},
    Field{"saved tensor hooks", saved_tensor_hooks},
    Field{"deterministic algorithms", [](const Torch &t) { return int64_t(t.context.deterministicAlgorithms()); }},
    Field{"deterministic algorithms, warn only",
     [](const Torch &t) { return int64_t(t.context.deterministicAlgorithmsWarnOnly()); }},
    Field{"fill uninitialized memory",
     [](const Torch &t) { return int64_t(t.context.deterministicFillUninitializedMemory()); }},
    Field{"float32 matmul precision on cpu", [](const Torch &t) { return t.precision.cpu; }},
    Field{"float32 matmul precision on cuda", [](const Torch &t) { return t.precision.cuda; }},
    Field{"number of threads", [](const Torch &) { return int64_t(at::get_num_threads()); }});
constexpr size_t n_fields = std::tuple_size_v<decltype(fields)>;

/* Calls `visit` with each field's number and value now, until it says stop. */
template <typename Visit, size_t... i>
bool visit_fields(const Torch &now, const Visit &visit, std::index_sequence<i...>)
{
    return (visit(i, std::get<i>(fields).name, std::get<i>(fields).read(now)) && ...);
}

template <typename Visit>
bool visit_fields(const Torch &now, const Visit &visit)
{
    return visit_fields(now, visit, std::make_index_sequence<n_fields>());
}

/* An active mode: by its class and, for a default device, by the device. A mode entered anew each call is a new object. */
struct Mode {
    PyObject *type;   /* owned */
    PyObject *device; /* owned, or null */
};

struct GlobalState {
    PyObject_HEAD
    c10::impl::PODLocalDispatchKeySet keys;
    int64_t values[n_fields];
    std::vector<Mode> *modes;
};

PyTypeObject *state_type;
PyObject *device_name;

PyObject *device_of(PyObject *mode)
{
    PyObject *device = dj_instance_lookup(mode, device_name);
    return device != nullptr && THPDevice_Check(device) ? device : nullptr;
}

/* Calls `visit` with each active mode, function modes first, until it says stop. */
template <typename Visit>
bool visit_modes(const Visit &visit)
{
    c10::impl::PyInterpreter *interpreter = getPyInterpreter();
    for (int64_t i = 0; i < at::impl::PythonTorchFunctionTLS::stack_len(); i++) {
        if (!visit(at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(interpreter))) {
            return false;
        }
    }
    for (int64_t i = 0; i < c10::impl::TorchDispatchModeTLS::stack_len(); i++) {
        if (!visit(c10::impl::TorchDispatchModeTLS::get_stack_at(i)->ptr(interpreter))) {
            return false;
        }
    }
    return true;
}

bool modes_hold(const Torch &torch, const std::vector<Mode> &modes)
{
    if (torch.no_modes()) {
        return modes.empty();
    }
    size_t i = 0;
    bool same = visit_modes([&](PyObject *mode) {
        if (i >= modes.size() || reinterpret_cast<PyObject *>(Py_TYPE(mode)) != modes[i].type) {
            return false;
        }
        PyObject *now = device_of(mode), *then = modes[i++].device;
        if (now == nullptr || then == nullptr) {
            return now == then;
        }
        return reinterpret_cast<THPDevice *>(now)->device == reinterpret_cast<THPDevice *>(then)->device;
    });
    return same && i == modes.size();
}

template <size_t i>
inline bool field_holds(const GlobalState *self, const Torch &now, bool same_keys, bool settled)
{
    constexpr const auto &field = std::get<i>(fields);
    if constexpr (field.known != Known::kNever) {
        if (field.known == Known::kByKeys ? same_keys : settled) {
            return true;
        }
    }
    return field.read(now) == self->values[i];
}

template <size_t... i>
inline bool fields_hold(const GlobalState *self, const Torch &now, bool same_keys, bool settled,
                        std::index_sequence<i...>)
{
    return (field_holds<i>(self, now, same_keys, settled) && ...);
}

bool holds(const GlobalState *self)
{
    const Torch now;
    const bool same_keys = now.keys.included_ == self->keys.included_ && now.keys.excluded_ == self->keys.excluded_;
    return fields_hold(self, now, same_keys, same_keys && !now.any_autocast(), std::make_index_sequence<n_fields>())
        && modes_hold(now, *self->modes);
}

/* ---- the object ---- */

PyObject *state_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *names[] = {nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":GlobalState", const_cast<char **>(names))) {
        return nullptr;
    }
    auto *self = reinterpret_cast<GlobalState *>(type->tp_alloc(type, 0));
    if (self == nullptr) {
        return nullptr;
    }
    const Torch now;
    self->keys = now.keys;
    visit_fields(now, [self](size_t i, const char *, int64_t value) {
        self->values[i] = value;
        return true;
    });
    self->modes = new std::vector<Mode>();
    visit_modes([&](PyObject *mode) {
        self->modes->push_back({Py_NewRef(reinterpret_cast<PyObject *>(Py_TYPE(mode))), Py_XNewRef(device_of(mode))});
        return true;
    });
    return reinterpret_cast<PyObject *>(self);
}

void state_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    auto *self = reinterpret_cast<GlobalState *>(object);
    if (self->modes != nullptr) {
        for (Mode &mode : *self->modes) {
            Py_DECREF(mode.type);
            Py_XDECREF(mode.device);
        }
    }
    delete self->modes;
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *state_check(PyObject *self, PyObject *)
{
    return PyBool_FromLong(dj_global_state_holds(self));
}

/* Adds a text, which may be NULL. */
bool append_text(PyObject *list, PyObject *text)
{
    bool added = text != nullptr && PyList_Append(list, text) == 0;
    Py_XDECREF(text);
    return added;
}

PyObject *state_difference(PyObject *object, PyObject *)
{
    const auto *self = reinterpret_cast<GlobalState *>(object);
    PyObject *list = PyList_New(0);
    const Torch now;
    bool fine = list != nullptr && visit_fields(now, [&](size_t i, const char *name, int64_t value) {
        long long is = value, was = self->values[i];
        return is == was || append_text(list, PyUnicode_FromFormat("%s was %lld, is %lld", name, was, is));
    });
    if (fine && !modes_hold(now, *self->modes)) {
        fine = append_text(list, PyUnicode_FromString("the stack of torch-function and dispatch modes changed"));
    }
    if (!fine) {
        Py_CLEAR(list);
    }
    return list;
}

PyObject *state_values(PyObject *object, void *)
{
    const auto *self = reinterpret_cast<GlobalState *>(object);
    PyObject *dict = PyDict_New();
    bool fine = dict != nullptr && visit_fields(Torch(), [&](size_t i, const char *name, int64_t) {
        PyObject *value = PyLong_FromLongLong(self->values[i]);
        bool set = value != nullptr && PyDict_SetItemString(dict, name, value) == 0;
        Py_XDECREF(value);
        return set;
    });
    if (!fine) {
        Py_CLEAR(dict);
    }
    return dict;
}

PyObject *state_modes(PyObject *object, void *)
{
    const auto &modes = *reinterpret_cast<GlobalState *>(object)->modes;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != nullptr && i < modes.size(); i++) {
        PyObject *pair = PyTuple_Pack(2, modes[i].type, modes[i].device != nullptr ? modes[i].device : Py_None);
        if (pair == nullptr || PyList_Append(list, pair) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
    }
    return list;
}

PyMethodDef state_methods[] = {
    {"check", state_check, METH_NOARGS, "check()\n--\n\nWhether the modes are those of the snapshot."},
    {"difference", state_difference, METH_NOARGS, "difference()\n--\n\nOne text for each mode that changed."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef state_getset[] = {
    {"values", state_values, nullptr, "Name of each mode and its value as an int.", nullptr},
    {"modes", state_modes, nullptr, "(class, device or None) of each active mode object.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot state_slots[] = {
    {Py_tp_doc, const_cast<char *>("GlobalState()\n--\n\nA snapshot of torch's modes, now.")},
    {Py_tp_new, reinterpret_cast<void *>(state_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(state_dealloc)},
    {Py_tp_methods, state_methods},
    {Py_tp_getset, state_getset},
    {0, nullptr},
};

PyType_Spec state_definition = DJ_CLASS(GlobalState, "GlobalState", Py_TPFLAGS_IMMUTABLETYPE, state_slots);

} // namespace

bool dj_is_global_state(PyObject *object)
{
    return Py_IS_TYPE(object, state_type);
}

bool dj_global_state_holds(PyObject *snapshot)
{
    return holds(reinterpret_cast<GlobalState *>(snapshot));
}

bool dj_torch_is_watched(void)
{
    const c10::impl::PODLocalDispatchKeySet &keys = *places().keys;
    /* Beyond its default, torch includes a key while something records or replaces operations: a tracer of TorchScript,
     * dispatch modes, make_fx with pre_dispatch, functionalization, the Python dispatcher, a transform of torch.func. */
    return !(keys.included() - c10::default_included_set).empty()
        || keys.excluded().has(c10::DispatchKey::PythonTLSSnapshot);
}

bool dj_fx_is_tracing(void)
{
    static PyObject *fx, *flag, *modules; /* whoever asks has the GIL */
    static unsigned int settled;          /* the version of nn.Module, which is patched while fx traces, when it did not */
    if (modules != nullptr && settled != 0 && reinterpret_cast<PyTypeObject *>(modules)->tp_version_tag == settled) {
        return false;
    }
    if (modules == nullptr) {
        fx = PyImport_ImportModule("torch.fx._symbolic_trace");
        flag = PyUnicode_InternFromString("_is_fx_tracing_flag");
        PyObject *module = PyImport_ImportModule("torch.nn.modules.module");
        modules = module != nullptr ? PyObject_GetAttrString(module, "Module") : nullptr;
        Py_XDECREF(module);
    }
    PyObject *value = fx != nullptr && flag != nullptr ? PyObject_GetAttr(fx, flag) : nullptr;
    PyErr_Clear();
    Py_XDECREF(value);
    if (value != Py_True && modules != nullptr && PyType_Check(modules)) {
        dj_type_lookup(reinterpret_cast<PyTypeObject *>(modules), flag); /* gives it a version */
        settled = reinterpret_cast<PyTypeObject *>(modules)->tp_version_tag;
    }
    return value == Py_True;
}

extern "C" int dj_global_state_init(PyObject *module)
{
    device_name = PyUnicode_InternFromString("device");
    state_type = dj_add_type(module, &state_definition);
    return device_name != nullptr && state_type != nullptr ? 0 : -1;
}
