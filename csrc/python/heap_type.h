/* What the module's classes written in C do alike: to be made, and to be let go of. */
#ifndef DYNAJIT_HEAP_TYPE_H
#define DYNAJIT_HEAP_TYPE_H

#include <Python.h>

/* For a class whose instances hold objects in fields, which `FIELDS(apply)` names: what the collector asks of them,
 * name_traverse and name_clear. */
#define DJ_HOLDS(Class, name, FIELDS)                                             \
    static int name##_traverse(PyObject *object, visitproc visit, void *arg)      \
    {                                                                             \
        Class *self = (Class *)object;                                            \
        Py_VISIT(Py_TYPE(object));                                                \
        FIELDS(DJ_VISIT_FIELD)                                                    \
        return 0;                                                                 \
    }                                                                             \
    static int name##_clear(PyObject *object)                                     \
    {                                                                             \
        Class *self = (Class *)object;                                            \
        FIELDS(DJ_CLEAR_FIELD)                                                    \
        return 0;                                                                 \
    }
#define DJ_VISIT_FIELD(field) Py_VISIT(self->field);
#define DJ_CLEAR_FIELD(field) Py_CLEAR(self->field);

/* tp_dealloc of instances that the collector knows, and that hold only what tp_clear lets go of. */
static inline void dj_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (type->tp_weaklistoffset > 0) {
        PyObject_ClearWeakRefs(object);
    }
    type->tp_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

/* What makes such a class; `dj_add_type` is given it. */
#define DJ_CLASS(Class, its_name, its_flags, its_slots)                                      \
    {                                                                                        \
        .name = "dynajit._C." its_name, .basicsize = sizeof(Class),                          \
        .flags = Py_TPFLAGS_DEFAULT | (its_flags), .slots = its_slots,                       \
    }
/* Its slots, after DJ_HOLDS(Class, name, ...), beside those that are its own. */
#define DJ_COLLECTED_SLOTS(name, its_new, its_dealloc)                                        \
    {Py_tp_new, (void *)(its_new)}, {Py_tp_dealloc, (void *)(its_dealloc)},                   \
        {Py_tp_traverse, (void *)name##_traverse}, {Py_tp_clear, (void *)name##_clear}
#define DJ_COLLECTED (Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE)

/* Makes the class, for as long as the process runs, and gives it to the module; NULL with an error set. */
static inline PyTypeObject *dj_add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return type != NULL && PyModule_AddType(module, type) == 0 ? type : NULL;
}

#endif
