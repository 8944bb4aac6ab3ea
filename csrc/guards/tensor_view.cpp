/* TensorSpec: what a trace relied on in one tensor, and its check against another, read from the TensorImpl.
 *
 * In: an example tensor, and which of its sizes and strides may vary. Out: whether another tensor has the same class,
 * dispatch keys, dtype, device, requires_grad, sizes and strides, and has a history. About 10 ns; no Python runs. */
#include "guards/guards.h"
#include "python/heap_type.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>

#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace {

constexpr int64_t kDynamic = INT64_MIN;

/* All that a check compares lies in one piece: of a hundred parameters' specs, each would be several cache misses. */
struct TensorSpec {
    PyObject_HEAD
    PyTypeObject *type; /* owned */
    uint64_t key_set;
    at::ScalarType dtype;
    c10::Device device;
    bool requires_grad;
    bool dual;    /* has a tangent of forward-mode differentiation */
    bool strided; /* strides exist and are guarded where not dynamic */
    int32_t dim;
    int64_t *numbers; /* sizes, then strides: `few`, or owned */
    int64_t few[8];
};

PyTypeObject *spec_type;

bool matches(const int64_t *expected, const int64_t *actual, int32_t dim)
{
    for (int32_t i = 0; i < dim; i++) {
        if (expected[i] != actual[i] && expected[i] != kDynamic) {
            return false;
        }
    }
    return true;
}

bool has_plain_sizes(const c10::TensorImpl *impl)
{
    return !impl->has_symbolic_sizes_strides();
}

/* The member that `TensorImpl::autograd_meta()`, a call into libc10 for each tensor, reads. An explicit instantiation may
 * name what is private. */
using MetaMember = std::unique_ptr<c10::AutogradMetaInterface> c10::TensorImpl::*;
constexpr MetaMember meta_member();
template <MetaMember member>
struct Reveal {
    friend constexpr MetaMember meta_member()
    {
        return member;
    }
};
template struct Reveal<&c10::TensorImpl::autograd_meta_>;

const torch::autograd::AutogradMeta *autograd_of(const c10::TensorImpl *impl)
{
    return static_cast<const torch::autograd::AutogradMeta *>((impl->*meta_member()).get());
}

bool is_dual(const torch::autograd::AutogradMeta *meta)
{
    return meta != nullptr && meta->fw_grad_ != nullptr && !meta->fw_grad_->empty();
}

/* As TensorImpl's, without its two calls. Only a view may need gradients without saying so itself: made where gradients
 * were off, it answers by its base. */
bool requires_grad(const torch::autograd::AutogradMeta *meta)
{
    return meta != nullptr && (meta->requires_grad_ || meta->grad_fn_ || (meta->is_view_ && meta->requires_grad()));
}

/* Whether autograd can tell where a tensor comes from. Not of one of many views, or one made where gradients were off,
 * once its memory was written: there eager raises. */
bool has_history(const c10::TensorImpl *impl, const torch::autograd::AutogradMeta *meta)
{
    if (meta == nullptr || !meta->is_view_ || !impl->version_counter().enabled()) {
        return true;
    }
    const auto *view = static_cast<const torch::autograd::DifferentiableViewMeta *>(meta);
    return !view->has_bw_view() || view->get_creation_meta() == torch::autograd::CreationMeta::DEFAULT
        || view->get_attr_version() == impl->version_counter().current_version()
        || (!view->grad_fn_ && !view->get_backward_view().base_.requires_grad());
}

bool check(const TensorSpec *spec, PyObject *value)
{
    if (Py_TYPE(value) != spec->type) {
        return false;
    }
    const c10::TensorImpl *impl = THPVariable_Unpack(value).unsafeGetTensorImpl();
    const torch::autograd::AutogradMeta *meta = autograd_of(impl);
    if (impl->key_set().raw_repr() != spec->key_set || impl->dtype() != spec->dtype || impl->device() != spec->device
        || requires_grad(meta) != spec->requires_grad || is_dual(meta) != spec->dual || !has_plain_sizes(impl)
        || !has_history(impl, meta)) {
        return false;
    }
    c10::IntArrayRef sizes = impl->sizes();
    return sizes.size() == static_cast<size_t>(spec->dim) && matches(spec->numbers, sizes.data(), spec->dim)
        && (!spec->strided || matches(spec->numbers + spec->dim, impl->strides().data(), spec->dim));
}

/* ---- building ---- */

/* None keeps the example's; a sequence gives each, None where it may vary. */
bool parse_dimensions(PyObject *given, c10::IntArrayRef actual, const char *what, int64_t *result)
{
    std::copy(actual.begin(), actual.end(), result);
    if (given == Py_None) {
        return true;
    }
    PyObject *items = PySequence_Fast(given, "sizes and strides must be sequences");
    if (items == nullptr) {
        return false;
    }
    bool fine = PySequence_Fast_GET_SIZE(items) == static_cast<Py_ssize_t>(actual.size());
    if (!fine) {
        PyErr_Format(PyExc_ValueError, "%s: %zd given for a tensor with %zd dimensions", what,
                     PySequence_Fast_GET_SIZE(items), static_cast<Py_ssize_t>(actual.size()));
    }
    for (Py_ssize_t i = 0; fine && i < PySequence_Fast_GET_SIZE(items); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(items, i);
        result[i] = item == Py_None ? kDynamic : PyLong_AsLongLong(item);
        fine = !PyErr_Occurred();
    }
    Py_DECREF(items);
    return fine;
}

bool fill(TensorSpec *self, PyObject *example, PyObject *sizes, PyObject *strides)
{
    const c10::TensorImpl *impl = THPVariable_Unpack(example).unsafeGetTensorImpl();
    if (!has_plain_sizes(impl)) {
        PyErr_SetString(PyExc_ValueError, "a tensor with symbolic sizes cannot be guarded natively");
        return false;
    }
    self->key_set = impl->key_set().raw_repr();
    self->dtype = c10::typeMetaToScalarType(impl->dtype());
    self->device = impl->device();
    self->requires_grad = requires_grad(autograd_of(impl));
    self->dual = is_dual(autograd_of(impl));
    self->strided = impl->layout() == c10::kStrided;
    const size_t dim = impl->sizes().size();
    self->dim = static_cast<int32_t>(dim);
    self->numbers = 2 * dim <= std::size(self->few) ? self->few : new int64_t[2 * dim];
    if (!parse_dimensions(sizes, impl->sizes(), "sizes", self->numbers)) {
        return false;
    }
    return !self->strided || parse_dimensions(strides, impl->strides(), "strides", self->numbers + dim);
}

PyObject *spec_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *names[] = {"example", "sizes", "strides", nullptr};
    PyObject *example, *sizes = Py_None, *strides = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO:TensorSpec", const_cast<char **>(names), &example, &sizes,
                                     &strides)) {
        return nullptr;
    }
    TensorSpec *self = nullptr;
    try {
        if (!THPVariable_Check(example)) {
            return PyErr_Format(PyExc_TypeError, "the example must be a tensor, not %.200s", Py_TYPE(example)->tp_name);
        }
        self = reinterpret_cast<TensorSpec *>(type->tp_alloc(type, 0));
        if (self != nullptr) {
            self->type = reinterpret_cast<PyTypeObject *>(Py_NewRef(reinterpret_cast<PyObject *>(Py_TYPE(example))));
            if (!fill(self, example, sizes, strides)) {
                Py_CLEAR(self);
            }
        }
    }
    catch (const std::exception &error) {
        /* nested and other custom tensors have no sizes to give */
        PyErr_SetString(PyExc_ValueError, error.what());
        Py_CLEAR(self);
    }
    return reinterpret_cast<PyObject *>(self);
}

#define SPEC_FIELDS(apply) apply(type)
DJ_HOLDS(TensorSpec, spec, SPEC_FIELDS)

void spec_dealloc(PyObject *object)
{
    TensorSpec *self = reinterpret_cast<TensorSpec *>(object);
    if (self->numbers != self->few) {
        delete[] self->numbers;
    }
    dj_dealloc(object);
}

/* ---- reading back ---- */

PyObject *dimensions_as_tuple(const int64_t *dimensions, int32_t dim)
{
    PyObject *tuple = PyTuple_New(dim);
    for (int32_t i = 0; tuple != nullptr && i < dim; i++) {
        PyObject *item = dimensions[i] == kDynamic ? Py_NewRef(Py_None) : PyLong_FromLongLong(dimensions[i]);
        if (item == nullptr) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

const TensorSpec &spec_of(PyObject *object)
{
    return *reinterpret_cast<TensorSpec *>(object);
}

PyObject *get_type(PyObject *self, void *)
{
    return Py_NewRef(reinterpret_cast<PyObject *>(reinterpret_cast<TensorSpec *>(self)->type));
}

PyObject *get_key_set(PyObject *self, void *)
{
    return PyLong_FromUnsignedLongLong(spec_of(self).key_set);
}

PyObject *get_dtype(PyObject *self, void *)
{
    return Py_NewRef(reinterpret_cast<PyObject *>(torch::getTHPDtype(spec_of(self).dtype)));
}

PyObject *get_device(PyObject *self, void *)
{
    return THPDevice_New(spec_of(self).device);
}

PyObject *get_requires_grad(PyObject *self, void *)
{
    return PyBool_FromLong(spec_of(self).requires_grad);
}

PyObject *get_dual(PyObject *self, void *)
{
    return PyBool_FromLong(spec_of(self).dual);
}

PyObject *get_sizes(PyObject *self, void *)
{
    return dimensions_as_tuple(spec_of(self).numbers, spec_of(self).dim);
}

PyObject *get_strides(PyObject *self, void *)
{
    const TensorSpec &spec = spec_of(self);
    return spec.strided ? dimensions_as_tuple(spec.numbers + spec.dim, spec.dim) : Py_NewRef(Py_None);
}

PyObject *spec_check(PyObject *self, PyObject *value)
{
    return PyBool_FromLong(dj_tensor_check(self, value));
}

PyGetSetDef spec_getset[] = {
    {"type", get_type, nullptr, "Exact Python class.", nullptr},
    {"key_set", get_key_set, nullptr, "Dispatch key set, as its raw 64 bits.", nullptr},
    {"dtype", get_dtype, nullptr, nullptr, nullptr},
    {"device", get_device, nullptr, nullptr, nullptr},
    {"requires_grad", get_requires_grad, nullptr, nullptr, nullptr},
    {"dual", get_dual, nullptr, "Whether it has a tangent of forward-mode differentiation.", nullptr},
    {"sizes", get_sizes, nullptr, "None where the size may vary.", nullptr},
    {"strides", get_strides, nullptr, "None where the stride may vary; None as a whole if not strided.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef spec_methods[] = {
    {"check", spec_check, METH_O, "check(value)\n--\n\nWhether a value is a tensor that fits."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot spec_slots[] = {
    {Py_tp_doc, const_cast<char *>(
                    "TensorSpec(example, sizes=None, strides=None)\n--\n\n"
                    "A tensor's metadata. sizes and strides: None to keep the example's, else a sequence with None where "
                    "the dimension may vary.")},
    DJ_COLLECTED_SLOTS(spec, spec_new, spec_dealloc),
    {Py_tp_getset, spec_getset},
    {Py_tp_methods, spec_methods},
    {0, nullptr},
};

PyType_Spec spec_definition = DJ_CLASS(TensorSpec, "TensorSpec", DJ_COLLECTED, spec_slots);

} // namespace

bool dj_is_tensor(PyObject *object)
{
    return THPVariable_Check(object);
}

bool dj_is_tensor_spec(PyObject *object)
{
    return Py_IS_TYPE(object, spec_type);
}

bool dj_tensor_check(PyObject *spec, PyObject *value)
{
    try {
        return check(reinterpret_cast<TensorSpec *>(spec), value);
    }
    catch (const std::exception &) {
        return false; /* custom tensors whose sizes raise */
    }
}

Py_ssize_t dj_tensors_check(const TensorPair *pairs, Py_ssize_t n)
{
    Py_ssize_t i = 0;
    try {
        while (i < n && check(reinterpret_cast<TensorSpec *>(pairs[i].spec), pairs[i].tensor)) {
            i++;
        }
    }
    catch (const std::exception &) {
        return i;
    }
    return i;
}

namespace {

PyObject *dimension_of(PyObject *object, Py_ssize_t dimension, bool stride)
{
    try {
        if (!THPVariable_Check(object)) {
            return nullptr;
        }
        const c10::TensorImpl *impl = THPVariable_Unpack(object).unsafeGetTensorImpl();
        if (!has_plain_sizes(impl) || (stride && impl->layout() != c10::kStrided)) {
            return nullptr;
        }
        c10::IntArrayRef all = stride ? impl->strides() : impl->sizes();
        bool there = dimension >= 0 && static_cast<size_t>(dimension) < all.size();
        return there ? PyLong_FromLongLong(all[static_cast<size_t>(dimension)]) : nullptr;
    }
    catch (const std::exception &) {
        return nullptr; /* custom tensors whose sizes raise */
    }
}

/* For generated code: (tensor, dimension) -> int. */
PyObject *read_dimension(PyObject *const *args, Py_ssize_t nargs, bool stride)
{
    Py_ssize_t dimension = nargs == 2 ? PyLong_AsSsize_t(args[1]) : -1;
    if (dimension < 0 && PyErr_Occurred()) {
        return nullptr;
    }
    PyObject *found = nargs == 2 ? dimension_of(args[0], dimension, stride) : nullptr;
    if (found == nullptr && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "a strided tensor and the number of one of its dimensions are needed");
    }
    return found;
}

PyObject *tensor_is_dual(PyObject *, PyObject *object)
{
    if (!THPVariable_Check(object)) {
        return PyErr_Format(PyExc_TypeError, "a tensor is needed, not %.200s", Py_TYPE(object)->tp_name);
    }
    return PyBool_FromLong(is_dual(autograd_of(THPVariable_Unpack(object).unsafeGetTensorImpl())));
}

PyObject *tensor_size(PyObject *, PyObject *const *args, Py_ssize_t nargs)
{
    return read_dimension(args, nargs, false);
}

PyObject *tensor_stride(PyObject *, PyObject *const *args, Py_ssize_t nargs)
{
    return read_dimension(args, nargs, true);
}

/* The int64 that has a float's bits: how a kernel is given it. */
PyObject *float_bits(PyObject *, PyObject *number)
{
    const double value = PyFloat_AsDouble(number);
    if (value == -1.0 && PyErr_Occurred()) {
        return nullptr;
    }
    int64_t bits;
    static_assert(sizeof bits == sizeof value);
    std::memcpy(&bits, &value, sizeof bits);
    return PyLong_FromLongLong(bits);
}

PyObject *float_of_bits(PyObject *, PyObject *bits)
{
    const int64_t given = PyLong_AsLongLong(bits);
    if (given == -1 && PyErr_Occurred()) {
        return nullptr;
    }
    double value;
    std::memcpy(&value, &given, sizeof value);
    return PyFloat_FromDouble(value);
}

PyMethodDef module_functions[] = {
    {"float_of_bits", float_of_bits, METH_O, "float_of_bits(bits)\n--\n\nThe float that has an int64's bits."},
    {"float_bits", float_bits, METH_O, "float_bits(number)\n--\n\nThe int64 that has a float's bits."},
    {"tensor_is_dual", tensor_is_dual, METH_O,
     "tensor_is_dual(tensor)\n--\n\nWhether a tensor has a tangent of forward-mode differentiation."},
    {"tensor_size", reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(tensor_size)), METH_FASTCALL,
     "tensor_size(tensor, dimension)\n--\n\nOne size of a tensor."},
    {"tensor_stride", reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(tensor_stride)), METH_FASTCALL,
     "tensor_stride(tensor, dimension)\n--\n\nOne stride of a tensor."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

PyObject *dj_tensor_size(PyObject *tensor, Py_ssize_t dimension)
{
    return dimension_of(tensor, dimension, false);
}

PyObject *dj_tensor_stride(PyObject *tensor, Py_ssize_t dimension)
{
    return dimension_of(tensor, dimension, true);
}

extern "C" int dj_tensor_view_init(PyObject *module)
{
    if (PyModule_AddFunctions(module, module_functions) < 0) {
        return -1;
    }
    spec_type = dj_add_type(module, &spec_definition);
    return spec_type != nullptr ? 0 : -1;
}
