/* From a call to the variant that fits: binding, code cache, frame hook; and the callables that replacement code calls. */
#ifndef DYNAJIT_CALL_H
#define DYNAJIT_CALL_H

#include "guards/guards.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    unsigned char turn;
} Variant;

enum { DJ_OURS = 1, DJ_SKIP = 2, DJ_RUN_ONLY = 4 };

typedef struct {
    unsigned flags;
    Py_ssize_t count;
    Py_ssize_t capacity;
    Variant **variants; /* by turn; of one turn the most recently hit first */
} CodeState;

enum { DJ_MAX_MISSES = 32 };

/* Which guard failed in each variant that was tried; holds references until cleared. */
typedef struct {
    Py_ssize_t count;
    Variant *variant[DJ_MAX_MISSES];
    int guard[DJ_MAX_MISSES];
} MissList;

extern PyTypeObject *dj_VariantType;
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

/* ---- tail_call.c: calls that are made when the caller's frame is gone ---- */

/* Calls a function with references that it gives up as soon as the function's frame has its own. */
typedef PyObject *(*TailCaller)(PyObject *function, PyObject **owned_args, Py_ssize_t n);
/* What generated code returns for `caller` to be called when its frame is gone. */
PyObject *dj_new_tail(TailCaller caller, PyObject *function, PyObject *const *args, Py_ssize_t n);
/* Makes the calls that generated code asked for by returning them. Steals and may give NULL, as the call did. */
PyObject *dj_finish_tails(PyObject *result);

/* ---- profile_mark.cpp: the profiler's ranges ---- */
PyObject *dj_call_marked(PyObject *name, PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames);

#ifdef __cplusplus
}
#endif
#endif
