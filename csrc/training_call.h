/* Ways into the module: compiled training graphs as nodes of autograd's graph, and what happens around graphs. */
#ifndef DYNAJIT_TRAINING_CALL_H
#define DYNAJIT_TRAINING_CALL_H

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

int dj_training_call_init(PyObject *module);
int dj_runtime_call_init(PyObject *module);

#ifdef __cplusplus
}
#endif

#endif
