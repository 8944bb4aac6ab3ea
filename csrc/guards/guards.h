/* What must hold for a variant to be run: the guard program, and the tests that it and other rooms make. */
#ifndef DYNAJIT_GUARDS_H
#define DYNAJIT_GUARDS_H

#include "python/objects.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- guard_program.c: a flat list of accesses and leaves, evaluated over a frame's locals ---- */

extern PyTypeObject *dj_GuardProgramType;
/* -1 when every leaf holds, else the guard index of the first failing access or leaf. Never leaves an exception set. */
/* `inputs`, if not NULL: the tuple that a variant with these guards is handed after its locals; new reference. */
int dj_guard_check(PyObject *program, PyObject *const *locals, PyObject **inputs);
/* The same, for whom it does not matter which guard fails: the one that failed last time is asked first. */
int dj_guard_check_again(PyObject *program, PyObject *const *locals, PyObject **inputs);
/* The same tuple whether or not the guards hold; NULL without an error if something can't be reached. */
PyObject *dj_guard_read_inputs(PyObject *program, PyObject *const *locals);
Py_ssize_t dj_guard_n_inputs(PyObject *program);
Py_ssize_t dj_guard_n_locals(PyObject *program);

/* ---- guard_leaves.c: the tests that leaves make ---- */

/* Same exact type and same value; floats by their bits. `expected` is the constant. */
bool dj_const_equal(PyObject *value, PyObject *expected);
bool dj_length_is(PyObject *value, Py_ssize_t length);
bool dj_dict_keys_are(PyObject *value, PyObject *keys);
bool dj_set_equals(PyObject *value, PyObject *constants);
enum { DJ_N_HOOK_TABLES = 4 };

PyObject *dj_hook_table_name(int i); /* borrowed */
bool dj_module_has_no_hooks(PyObject *module);
bool dj_all_distinct(PyObject *const *slots, const int *indices, Py_ssize_t n);
int dj_guard_leaves_init(void);

/* ---- relation.c: relations among numbers, as a stack program ---- */

bool dj_relation_holds(const int64_t *words, Py_ssize_t n_words, const int *indices, PyObject *const *slots);
/* Whether it reads only n_loads objects, never too few numbers or too many, and leaves one. */
bool dj_relation_fits(const int64_t *words, Py_ssize_t n_words, Py_ssize_t n_loads);

/* ---- tensor_view.cpp: a tensor's metadata read from its TensorImpl ---- */

bool dj_is_tensor(PyObject *object);
bool dj_is_tensor_spec(PyObject *object);
bool dj_tensor_check(PyObject *spec, PyObject *value);
typedef struct {
    PyObject *spec;
    PyObject *tensor;
} TensorPair;
/* How many of them fit, from the first. */
Py_ssize_t dj_tensors_check(const TensorPair *pairs, Py_ssize_t n);
PyObject *dj_tensor_size(PyObject *tensor, Py_ssize_t dimension);   /* new or NULL, no error set */
PyObject *dj_tensor_stride(PyObject *tensor, Py_ssize_t dimension); /* new or NULL, no error set */

/* ---- global_state.cpp: torch's process-wide and thread-wide modes ---- */

bool dj_is_global_state(PyObject *object);
bool dj_global_state_holds(PyObject *snapshot);
/* Whether another tracer, a dispatch mode or a transform of torch.func is given each operation as the program calls it, or
 * was given the one that is running. Compiled graphs give them nothing, so what runs now must run as it was written. */
bool dj_torch_is_watched(void);
/* torch.fx.symbolic_trace runs: modules and proxies, not the dispatcher, tell it what the program does. */
bool dj_fx_is_tracing(void);

/* ---- assumed.c: what a trace takes to hold of Python's own library and torch ---- */

bool dj_is_assumed(PyObject *object);
bool dj_assumed_holds(PyObject *assumed);

/* ---- guard_watch.c ---- */

/* Grow when a watched dictionary changes or dies; do not where CPython has no watchers. */
extern uint64_t dj_watch_epoch, dj_library_epoch;
/* Whether the epoch stands for the dictionary from now on. */
bool dj_watch(PyObject *dict);
bool dj_watch_library(PyObject *dict);
void dj_unwatch(PyObject *dict);

#ifdef __cplusplus
}
#endif
#endif
