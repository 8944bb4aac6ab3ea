/* Declarations shared by the files of dynajit._C, one section a file.
 *
 * What differs between CPython releases is behind compat.h; what needs torch's C++ headers is behind the extern "C"
 * functions of tensor_view.cpp, global_state.cpp and profile_mark.cpp. Everything else is plain C over the public Python API. */
#ifndef DYNAJIT_H
#define DYNAJIT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "python/compat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* PyObject_Vectorcall for what is known to be a function, without its checks. */
static inline PyObject *dj_call_function(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return ((PyFunctionObject *)function)->vectorcall(function, args, nargsf, kwnames);
}

/* ---- guard_program.c: a flat list of accesses and leaves, evaluated over a frame's locals ---- */

extern PyTypeObject *dj_GuardProgramType;
int dj_guard_program_init(PyObject *module);
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

/* ---- object_access.c: reading objects without running the user's code ---- */

PyObject *dj_type_lookup(PyTypeObject *type, PyObject *name);                    /* borrowed or NULL, no error set */
PyObject *dj_generic_getattr(PyObject *object, PyObject *name);                  /* new or NULL, no error set */
PyObject *dj_raw_item(PyObject *container, PyObject *key, Py_hash_t hash);       /* new or NULL, no error set */
PyObject *dj_sequence_item(PyObject *container, Py_ssize_t index);               /* new or NULL, no error set */
PyAPI_FUNC(int) _PyDict_SetItem_KnownHash(PyObject *dict, PyObject *key, PyObject *item, Py_hash_t hash); /* CPython's */
PyObject *dj_dict_key(PyObject *dict, Py_ssize_t index);                         /* new or NULL, no error set */
int dj_object_access_init(PyObject *module);

/* ---- context_token.c: tokens of context variables ---- */

int dj_context_token_init(PyObject *module);

/* ---- tensor_view.cpp: a tensor's metadata read from its TensorImpl ---- */

int dj_tensor_view_init(PyObject *module);
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

int dj_global_state_init(PyObject *module);
bool dj_is_global_state(PyObject *object);
bool dj_global_state_holds(PyObject *snapshot);
/* Whether another tracer, a dispatch mode or a transform of torch.func is given each operation as the program calls it, or
 * was given the one that is running. Compiled graphs give them nothing, so what runs now must run as it was written. */
bool dj_torch_is_watched(void);
/* torch.fx.symbolic_trace runs: modules and proxies, not the dispatcher, tell it what the program does. */
bool dj_fx_is_tracing(void);

/* ---- code_cache.c: variants of a code object, in its extra slot ---- */

typedef struct {
    PyObject_HEAD
    PyObject *guards;   /* GuardProgram */
    PyObject *function; /* the replacement; its parameters are the original's parameters, then its cells */
    PyObject *globals;
    PyObject *key;
    PyObject *data;
    PyObject *weakrefs;
    unsigned long long hits;
    char needs_hook;
    char asked_last;
} Variant;

enum { DJ_OURS = 1, DJ_SKIP = 2, DJ_RUN_ONLY = 4 };

typedef struct {
    unsigned flags;
    Py_ssize_t count;
    Py_ssize_t capacity;
    Variant **variants; /* most recently hit first; those that are asked last behind the others */
} CodeState;

enum { DJ_MAX_MISSES = 32 };

/* Which guard failed in each variant that was tried; holds references until cleared. */
typedef struct {
    Py_ssize_t count;
    Variant *variant[DJ_MAX_MISSES];
    int guard[DJ_MAX_MISSES];
} MissList;

extern PyTypeObject *dj_VariantType;
int dj_code_cache_init(PyObject *module);
CodeState *dj_code_state(PyCodeObject *code);
int dj_code_mark(PyCodeObject *code, unsigned flags);
/* New reference to the variant that fits these locals, or NULL without an error. `inputs`: as in dj_guard_check. */
Variant *dj_lookup(CodeState *state, PyObject *key, PyObject *globals, PyObject *const *locals, MissList *misses,
                   PyObject **inputs);
void dj_misses_clear(MissList *misses);
PyObject *dj_misses_as_list(const MissList *misses);
/* Fast locals that are parameters: positional, keyword-only, *args, **kwargs. */
Py_ssize_t dj_code_n_params(PyCodeObject *code);

/* ---- frame_hook.c: the PEP 523 evaluator and the thread's callback ---- */

/* What a thread wants from the hook. */
typedef struct {
    PyObject *callback; /* NULL: off */
    PyObject *key;      /* variants of other keys are not seen; kept while a capture runs */
    bool shielded;      /* evaluate every frame with CPython's own evaluator, whoever else is in the chain */
} HookMode;

/* What hook_region_leave needs to undo. */
typedef struct {
    HookMode outer;
    int change;
    void *thread; /* whose mode it is: what is entered and left on one thread need not look for it twice */
} HookRegion;

int dj_frame_hook_init(PyObject *module);
PyObject *dj_hook_key(void);      /* borrowed or NULL */
void dj_hook_enter(HookRegion *region, PyObject *callback, PyObject *key);
/* For code that is not the user's: neither we nor another evaluator may capture it. */
void dj_hook_enter_off(HookRegion *region);
/* The same for the call of a compiled graph; false, and nothing to leave, if it would change nothing. `flat`: the graph
 * calls few functions written in Python. */
bool dj_hook_pause(HookRegion *region, bool flat);
void dj_hook_leave(HookRegion *region);
/* The next frame is this function's, unless the call fails, and nothing fits it: it runs as it is. */
void dj_hook_pass(PyObject *function);
/* Another tracer or compiler of torch is given what runs now, so it must run as it was written. */
bool dj_is_recorded(void);
/* Calls the variant's function with the callback on or off, as the variant asks. `owned`: see dj_call_releasing; `inputs`
 * may be NULL. */
PyObject *dj_run_variant(Variant *variant, PyObject *callback, PyObject *const *locals, Py_ssize_t n,
                         PyObject **owned, Py_ssize_t n_owned, PyObject *inputs);
/* Calls a Python function. Once its frame holds the arguments, the references in `owned` (NULL for none) are given up
 * and set to NULL, so that the function's own variables alone keep them alive. */
PyObject *dj_call_releasing(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                            PyObject **owned, Py_ssize_t n_owned);

/* ---- bind.c: a call's arguments laid out as the frame's fast locals ---- */

enum { DJ_BIND_INLINE = 16 };

typedef struct {
    PyObject **values;
    Py_ssize_t n;
    PyObject *varargs; /* owned, or NULL */
    PyObject *varkw;   /* owned, or NULL */
    PyObject *inline_values[DJ_BIND_INLINE];
} BoundArguments;

/* 1: bound. 0: these arguments do not fit the signature. -1: error set. Values are borrowed from the call. */
int dj_bind(PyFunctionObject *function, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
            BoundArguments *bound);
void dj_bind_clear(BoundArguments *bound);

/* ---- fast_call.c, tail_call.c, graph_call.c and graph_tape.c: the callables ---- */

bool dj_is_compiled_function(PyObject *object);
/* Calls a CompiledFunction with references that it gives up as soon as the function's frame has its own. */
PyObject *dj_call_compiled(PyObject *function, PyObject **owned_args, Py_ssize_t n);
/* Makes the calls that generated code asked for by returning them. Steals and may give NULL, as the call did. */
PyObject *dj_finish_tails(PyObject *result);
int dj_tail_call_init(PyObject *module);
int dj_fast_call_init(PyObject *module);
int dj_graph_call_init(PyObject *module);
int dj_graph_tape_init(PyObject *module);

/* ---- profile_mark.cpp: the profiler's ranges ---- */
PyObject *dj_call_marked(PyObject *name, PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames);

/* ---- cuda_driver.cpp, plan_builder.cpp, graph_replay.cpp: kernels for GPUs, call plans that run without Python ---- */

int dj_cuda_driver_init(PyObject *module);
int dj_plan_executor_init(PyObject *module);
int dj_graph_replay_init(PyObject *module);

/* ---- memory_pool.cpp: large blocks of CPU memory that are kept for the next tensors ---- */

int dj_memory_pool_init(PyObject *module);

#ifdef __cplusplus
}
#endif
#endif
