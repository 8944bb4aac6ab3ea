/* StateChange: state of the whole process that is otherwise while anyone is inside of a `with` block.
 *
 * In: what is to be changed, and how. Out: a context manager. The first thread that enters changes the state, the last one
 * that leaves puts it back, unless somebody else has changed it meanwhile. Nothing written in Python runs on the way in or
 * out if nothing of the state is: an interrupt (Ctrl+C) comes before or after, and finds the block entered or left. */
#include "python/objects.h"
#include "python/heap_type.h"

#include <stdbool.h>

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *settings; /* a tuple: see `state_change_type` */
    PyObject *former;   /* while anyone is inside: what is to be put back, in the same order */
    PyObject *made;     /* what it was changed to, as it reads */
    PyObject *inside;   /* a dictionary: a thread's number -> how often it is inside */
    PyObject *weak;
} StateChange;

static PyObject *missing; /* what was no attribute */

/* A new reference to the attribute as it lies in its owner; `missing` if it does not. */
static PyObject *attribute_in(PyObject *owner, PyObject *name)
{
    PyObject *all = PyObject_GetAttrString(owner, "__dict__"), *found = NULL;
    if (all != NULL) {
        found = PyObject_GetItem(all, name);
        Py_DECREF(all);
        if (found == NULL && PyErr_ExceptionMatches(PyExc_KeyError)) {
            PyErr_Clear();
            found = Py_NewRef(missing);
        }
    }
    return found;
}

static bool is_attribute(PyObject *setting)
{
    return PyUnicode_Check(PyTuple_GET_ITEM(setting, 1));
}

static PyObject *now_of(PyObject *setting)
{
    PyObject *first = PyTuple_GET_ITEM(setting, 0);
    return is_attribute(setting) ? attribute_in(first, PyTuple_GET_ITEM(setting, 1)) : PyObject_CallNoArgs(first);
}

static int write_to(PyObject *setting, PyObject *value)
{
    PyObject *first = PyTuple_GET_ITEM(setting, 0), *second = PyTuple_GET_ITEM(setting, 1), *done;
    if (is_attribute(setting)) {
        return PyObject_SetAttr(first, second, value == missing ? NULL : value);
    }
    done = PyTuple_Check(value) ? PyObject_CallObject(second, value) : PyObject_CallOneArg(second, value);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* One setting back to what it was before, unless somebody has set something else since it was `made` so. */
static int put_one_back(PyObject *setting, PyObject *before, PyObject *made)
{
    PyObject *now = now_of(setting);
    if (now == NULL) {
        return -1;
    }
    int same = now == before ? 1 : PyObject_RichCompareBool(now, before, Py_EQ);
    int ours = same != 0 || made == NULL ? !same : PyObject_RichCompareBool(now, made, Py_EQ);
    Py_DECREF(now);
    return same < 0 || ours < 0 ? -1 : ours ? write_to(setting, before) : 0;
}

/* All that was changed, last first. An error that is set stays, and else the first that is met. */
static int put_back(StateChange *self)
{
    PyObject *type, *error, *trace, *former = self->former, *made = self->made;
    self->former = self->made = NULL;
    PyErr_Fetch(&type, &error, &trace);
    for (Py_ssize_t i = former != NULL ? PyTuple_GET_SIZE(former) : 0; i-- > 0;) {
        PyObject *before = PyTuple_GET_ITEM(former, i);
        if (before != NULL && put_one_back(PyTuple_GET_ITEM(self->settings, i), before, PyTuple_GET_ITEM(made, i)) < 0) {
            if (type == NULL) {
                PyErr_Fetch(&type, &error, &trace);
            }
            PyErr_Clear();
        }
    }
    Py_XDECREF(former);
    Py_XDECREF(made);
    PyErr_Restore(type, error, trace);
    return type != NULL ? -1 : 0;
}

static int change_one(StateChange *self, Py_ssize_t i)
{
    PyObject *setting = PyTuple_GET_ITEM(self->settings, i), *now = now_of(setting);
    if (now == NULL) {
        return -1;
    }
    PyTuple_SET_ITEM(self->former, i, now);
    if (PyTuple_GET_SIZE(setting) == 2 || now == PyTuple_GET_ITEM(setting, 2)) {
        return 0;
    }
    if (write_to(setting, PyTuple_GET_ITEM(setting, 2)) < 0) {
        return -1;
    }
    PyObject *made = now_of(setting);
    PyTuple_SET_ITEM(self->made, i, made);
    return made != NULL ? 0 : -1;
}

static int change(StateChange *self)
{
    Py_ssize_t count = PyTuple_GET_SIZE(self->settings);
    self->former = PyTuple_New(count);
    self->made = PyTuple_New(count);
    int status = self->former != NULL && self->made != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; i < count && status == 0; i++) {
        status = change_one(self, i);
    }
    return status == 0 ? 0 : put_back(self);
}

/* How often the thread is inside; -1 with an error set. */
static long count_of(StateChange *self, PyObject *thread)
{
    PyObject *count = PyDict_GetItemWithError(self->inside, thread);
    return count != NULL ? PyLong_AsLong(count) : PyErr_Occurred() ? -1 : 0;
}

static int add_to_count(StateChange *self, long added)
{
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    long count = thread != NULL ? count_of(self, thread) : -1;
    int status = -1;
    if (count == 0 && added < 0) {
        PyErr_SetString(PyExc_RuntimeError, "left by a thread that is not inside");
    }
    else if (count + added == 0 && count > 0) {
        status = PyDict_DelItem(self->inside, thread);
    }
    else if (count >= 0) {
        PyObject *number = PyLong_FromLong(count + added);
        status = number != NULL ? PyDict_SetItem(self->inside, thread, number) : -1;
        Py_XDECREF(number);
    }
    Py_XDECREF(thread);
    return status;
}

static PyObject *enter(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    StateChange *self = (StateChange *)object;
    if (add_to_count(self, 1) < 0) {
        return NULL;
    }
    if (self->former == NULL && change(self) < 0) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        add_to_count(self, -1);
        PyErr_Restore(type, error, trace);
        return NULL;
    }
    return Py_NewRef(object);
}

static PyObject *exit_block(PyObject *object, PyObject *error)
{
    (void)error;
    StateChange *self = (StateChange *)object;
    if (add_to_count(self, -1) < 0 || (PyDict_GET_SIZE(self->inside) == 0 && put_back(self) < 0)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *is_inside(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    long count = thread != NULL ? count_of((StateChange *)object, thread) : -1;
    Py_XDECREF(thread);
    return count < 0 ? NULL : PyBool_FromLong(count);
}

static PyObject *before(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    StateChange *self = (StateChange *)object;
    if (self->former != NULL) {
        return Py_NewRef(self->former);
    }
    PyObject *found = PyTuple_New(PyTuple_GET_SIZE(self->settings));
    for (Py_ssize_t i = 0; found != NULL && i < PyTuple_GET_SIZE(found); i++) {
        PyObject *now = now_of(PyTuple_GET_ITEM(self->settings, i));
        if (now == NULL) {
            Py_CLEAR(found);
            break;
        }
        PyTuple_SET_ITEM(found, i, now);
    }
    return found;
}

static PyObject *forked(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    StateChange *self = (StateChange *)object;
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    PyObject *count = thread != NULL ? Py_XNewRef(PyDict_GetItemWithError(self->inside, thread)) : NULL;
    PyDict_Clear(self->inside);
    int status = thread == NULL || PyErr_Occurred() ? -1
                 : count != NULL                    ? PyDict_SetItem(self->inside, thread, count)
                                                    : put_back(self);
    Py_XDECREF(count);
    Py_XDECREF(thread);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    bool fits = kwargs == NULL;
    for (Py_ssize_t i = 0; fits && i < PyTuple_GET_SIZE(args); i++) {
        PyObject *setting = PyTuple_GET_ITEM(args, i);
        Py_ssize_t size = PyTuple_Check(setting) ? PyTuple_GET_SIZE(setting) : 0;
        fits = size == 2 || size == 3;
    }
    if (!fits) {
        PyErr_SetString(PyExc_TypeError, "StateChange() takes tuples of two or three");
        return NULL;
    }
    StateChange *self = (StateChange *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->settings = Py_NewRef(args);
    self->inside = PyDict_New();
    if (self->inside == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

#define STATE_CHANGE_FIELDS(apply) apply(settings) apply(former) apply(made) apply(inside)
DJ_HOLDS(StateChange, state_change, STATE_CHANGE_FIELDS)

static PyMethodDef state_change_methods[] = {
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", exit_block, METH_VARARGS, NULL},
    {"is_inside", is_inside, METH_NOARGS, "is_inside()\n--\n\nWhether the running thread is inside."},
    {"before", before, METH_NOARGS, "before()\n--\n\nThe state as it is while nobody is inside, in the settings' order."},
    {"forked", forked, METH_NOARGS, "forked()\n--\n\nThe other threads are gone, and will not leave."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef state_change_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(StateChange, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "StateChange(*settings)\n--\n\n"
                "A setting is (object, name of an attribute, value) or (read, write, value): `write` takes what `read` gives,\n"
                "a tuple as arguments. Without the value nothing is changed, and what the block has changed is put back."},
    DJ_COLLECTED_SLOTS(state_change, make, dj_dealloc),
    {Py_tp_methods, state_change_methods},
    {Py_tp_members, state_change_members},
    {0, NULL},
};

static PyType_Spec spec = DJ_CLASS(StateChange, "StateChange", DJ_COLLECTED, slots);

static PyObject *set_collecting(PyObject *module, PyObject *flag)
{
    (void)module;
    int on = PyObject_IsTrue(flag);
    return on < 0 ? NULL : PyBool_FromLong(on ? PyGC_Enable() : PyGC_Disable());
}

static PyMethodDef methods[] = {
    {"set_collecting", set_collecting, METH_O,
     "set_collecting(flag)\n--\n\ngc.enable() or gc.disable(); whether it was enabled before."},
    {NULL, NULL, 0, NULL},
};

int dj_state_change_init(PyObject *module)
{
    missing = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    return missing != NULL && dj_add_type(module, &spec) != NULL ? PyModule_AddFunctions(module, methods) : -1;
}
