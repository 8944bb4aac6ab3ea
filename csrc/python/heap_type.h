/* What the module's classes written in C do alike: to be made, and to be let go of. */
#ifndef DYNAJIT_HEAP_TYPE_H
#define DYNAJIT_HEAP_TYPE_H

#include <Python.h>

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

/* Makes the class, for as long as the process runs, and gives it to the module; NULL with an error set. */
static inline PyTypeObject *dj_add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return type != NULL && PyModule_AddType(module, type) == 0 ? type : NULL;
}

#endif
