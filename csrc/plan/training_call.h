/* Ways into the module: compiled training graphs as nodes of autograd's graph, and what happens around graphs. */
#ifndef DYNAJIT_TRAINING_CALL_H
#define DYNAJIT_TRAINING_CALL_H

#include <Python.h>

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

int dj_training_call_init(PyObject *module);
int dj_runtime_call_init(PyObject *module);
int dj_graph_values_init(PyObject *module);
/* What a RuntimeCall calls, if it does nothing else, and whether autocast is off inside; else the object itself. Borrowed. */
PyObject *dj_plain_graph(PyObject *callable, bool *no_autocast);

#ifdef __cplusplus
}
#endif

#endif
