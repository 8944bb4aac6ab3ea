/* ThreadState: torch's modes of one thread, put back where a block is left by an exception.
 *
 * In: nothing; a snapshot is taken on the way in. Out: a context manager, to be entered once. Modes are entered and left by
 * torch's Python code, and an interrupt (Ctrl+C) may come in the middle of that. */
#include "python/heap_type.h"
#include "python/objects.h"

#include <new>
#include <optional>

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/Exceptions.h>

namespace {

struct ThreadState {
    PyObject_HEAD
    std::optional<at::ThreadLocalState> before;
};

PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (kwargs != nullptr || PyTuple_GET_SIZE(args) != 0) {
        PyErr_SetString(PyExc_TypeError, "ThreadState() takes no arguments");
        return nullptr;
    }
    auto *self = reinterpret_cast<ThreadState *>(type->tp_alloc(type, 0));
    if (self != nullptr) {
        new (&self->before) std::optional<at::ThreadLocalState>();
    }
    return reinterpret_cast<PyObject *>(self);
}

void dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    reinterpret_cast<ThreadState *>(object)->before.~optional();
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *enter(PyObject *object, PyObject *)
{
    HANDLE_TH_ERRORS
    reinterpret_cast<ThreadState *>(object)->before.emplace();
    return Py_NewRef(object);
    END_HANDLE_TH_ERRORS
}

PyObject *leave(PyObject *object, PyObject *error)
{
    HANDLE_TH_ERRORS
    auto &before = reinterpret_cast<ThreadState *>(object)->before;
    if (before.has_value() && PyTuple_GET_SIZE(error) > 0 && PyTuple_GET_ITEM(error, 0) != Py_None) {
        at::ThreadLocalState::setThreadLocalState(*before);
    }
    before.reset();
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", leave, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char *>("ThreadState()\n--\n\n"
                                   "torch's modes of the running thread, put back where the block raises.")},
    {Py_tp_new, reinterpret_cast<void *>(make)},
    {Py_tp_dealloc, reinterpret_cast<void *>(dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = DJ_CLASS(ThreadState, "ThreadState", Py_TPFLAGS_IMMUTABLETYPE, slots);

} // namespace

extern "C" int dj_thread_state_init(PyObject *module)
{
    return dj_add_type(module, &spec) != nullptr ? 0 : -1;
}
