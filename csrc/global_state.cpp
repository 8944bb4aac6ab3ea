/* GlobalState: torch's thread-wide and process-wide modes, as one guard.
 *
 * In: nothing; a snapshot is taken when the object is made. Out: whether the same modes hold now. Read straight from
 * torch's C++ state: no Python runs unless a torch-function or dispatch mode is active. To guard one more mode: one line
 * in `fields`. */
#include "dynajit.h"

#include <cstdint>
#include <new>
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

/* Thread-local and process-wide state, looked up once for a check. */
struct Torch {
    const c10::AutogradState &autograd = c10::AutogradState::get_tls_state();
    const at::Context &context = at::globalContext();
    const c10::impl::PODLocalDispatchKeySet keys = c10::impl::raw_local_dispatch_key_set;

    bool autocast(c10::DispatchKey key) const
    {
        return !keys.excluded().has(key); /* autocast is on where its key is not excluded */
    }

    bool any_autocast() const
    {
        return autocast(c10::DispatchKey::AutocastCPU) || autocast(c10::DispatchKey::AutocastCUDA);
    }

    int64_t precision(at::Float32Backend backend) const
    {
        at::Float32Precision set = context.float32Precision(backend, at::Float32Op::MATMUL);
        /* not set, and set to full precision, are the same */
        return static_cast<int64_t>(set == at::Float32Precision::IEEE ? at::Float32Precision::NONE : set);
    }
};

constexpr int64_t kOff = -1; /* for a mode that means nothing while another is off */

int64_t saved_tensor_hooks(const Torch &)
{
    const auto &state = at::SavedTensorDefaultHooks::get_tls_state();
    return static_cast<int64_t>(state.stack.size()) * 2 + state.disabled_error_message.has_value();
}

struct Field {
    const char *name;
    int64_t (*read)(const Torch &);
};

/* Likeliest to change first; what has words of its own before the dispatch keys, which cover most of it. */
const Field fields[] = {
    {"grad mode", [](const Torch &t) { return int64_t(t.autograd.get_grad_mode()); }},
    {"inference mode", [](const Torch &t) { return int64_t(t.autograd.get_inference_mode()); }},
    {"autocast on cpu", [](const Torch &t) { return int64_t(t.autocast(c10::DispatchKey::AutocastCPU)); }},
    {"autocast on cuda", [](const Torch &t) { return int64_t(t.autocast(c10::DispatchKey::AutocastCUDA)); }},
    {"autocast dtype on cpu",
     [](const Torch &t) {
         return t.autocast(c10::DispatchKey::AutocastCPU) ? int64_t(at::autocast::get_autocast_dtype(at::kCPU)) : kOff;
     }},
    {"autocast dtype on cuda",
     [](const Torch &t) {
         return t.autocast(c10::DispatchKey::AutocastCUDA) ? int64_t(at::autocast::get_autocast_dtype(at::kCUDA))
                                                           : kOff;
     }},
    {"autocast cache",
     [](const Torch &t) { return t.any_autocast() ? int64_t(at::autocast::is_autocast_cache_enabled()) : kOff; }},
    {"included dispatch keys", [](const Torch &t) { return int64_t(t.keys.included_); }},
    {"excluded dispatch keys", [](const Torch &t) { return int64_t(t.keys.excluded_); }},
    {"torch function disabled",
     [](const Torch &) { return int64_t(at::impl::PythonTorchFunctionTLS::get_disabled_state()); }},
    {"forward-mode grad", [](const Torch &t) { return int64_t(t.autograd.get_fw_grad_mode()); }},
    {"default dtype", [](const Torch &) { return int64_t(c10::get_default_dtype_as_scalartype()); }},
    {"saved tensor hooks", saved_tensor_hooks},
    {"deterministic algorithms", [](const Torch &t) { return int64_t(t.context.deterministicAlgorithms()); }},
    {"deterministic algorithms, warn only",
     [](const Torch &t) { return int64_t(t.context.deterministicAlgorithmsWarnOnly()); }},
    {"fill uninitialized memory",
     [](const Torch &t) { return int64_t(t.context.deterministicFillUninitializedMemory()); }},
    {"float32 matmul precision on cpu", [](const Torch &t) { return t.precision(at::Float32Backend::MKLDNN); }},
    {"float32 matmul precision on cuda", [](const Torch &t) { return t.precision(at::Float32Backend::CUDA); }},
    {"number of threads", [](const Torch &) { return int64_t(at::get_num_threads()); }},
};
constexpr size_t n_fields = sizeof(fields) / sizeof(fields[0]);

/* An active mode: by its class and, for a default device, by the device. A mode entered anew each call is a new object. */
struct Mode {
    PyObject *type;   /* owned */
    PyObject *device; /* owned, or null */
};

struct GlobalState {
    PyObject_HEAD
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

bool no_modes()
{
    return at::impl::PythonTorchFunctionTLS::stack_len() == 0 && !c10::impl::TorchDispatchModeTLS::any_modes_set();
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

bool modes_hold(const std::vector<Mode> &modes)
{
    if (no_modes()) {
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

bool holds(const GlobalState *self)
{
    const Torch now;
    for (size_t i = 0; i < n_fields; i++) {
        if (fields[i].read(now) != self->values[i]) {
            return false;
        }
    }
    return modes_hold(*self->modes);
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
    for (size_t i = 0; i < n_fields; i++) {
        self->values[i] = fields[i].read(now);
    }
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

PyObject *state_difference(PyObject *object, PyObject *)
{
    const auto *self = reinterpret_cast<GlobalState *>(object);
    const Torch now;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != nullptr && i <= n_fields; i++) {
        PyObject *text = nullptr;
        if (i < n_fields) {
            long long is = fields[i].read(now), was = self->values[i];
            if (is == was) {
                continue;
            }
            text = PyUnicode_FromFormat("%s was %lld, is %lld", fields[i].name, was, is);
        }
        else if (modes_hold(*self->modes)) {
            break;
        }
        else {
            text = PyUnicode_FromString("the stack of torch-function and dispatch modes changed");
        }
        if (text == nullptr || PyList_Append(list, text) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(text);
    }
    return list;
}

PyObject *state_values(PyObject *object, void *)
{
    const auto *self = reinterpret_cast<GlobalState *>(object);
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != nullptr && i < n_fields; i++) {
        PyObject *value = PyLong_FromLongLong(self->values[i]);
        if (value == nullptr || PyDict_SetItemString(dict, fields[i].name, value) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
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

PyType_Spec state_definition = {
    "dynajit._C.GlobalState", sizeof(GlobalState), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, state_slots,
};

} // namespace

bool dj_is_global_state(PyObject *object)
{
    return Py_IS_TYPE(object, state_type);
}

bool dj_global_state_holds(PyObject *snapshot)
{
    return holds(reinterpret_cast<GlobalState *>(snapshot));
}

int dj_global_state_init(PyObject *module)
{
    device_name = PyUnicode_InternFromString("device");
    state_type = reinterpret_cast<PyTypeObject *>(PyType_FromModuleAndSpec(module, &state_definition, nullptr));
    return device_name != nullptr && state_type != nullptr ? PyModule_AddType(module, state_type) : -1;
}
