/* Attributes of objects made just now: what attribute_filler.c asks of compat_3NN.c. */
#ifndef DYNAJIT_ATTRIBUTE_FILLER_H
#define DYNAJIT_ATTRIBUTE_FILLER_H

#include <Python.h>
#include <stdint.h>

/* Attributes of an object that nobody else knows yet, kept beside it rather than in a dict. `names` are interned, none is
 * a data descriptor of the class; `places` are the caller's, where each name was found last, 0 at first. Gives how many of
 * them were stored, from the first on: what keeps it from storing more is for the caller to do the ordinary way. */
Py_ssize_t dj_store_beside(PyObject *object, PyObject *const *names, PyObject *const *values, Py_ssize_t n,
                           uint8_t *places);

int dj_attribute_filler_init(PyObject *module);

#endif
