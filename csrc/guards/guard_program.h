/* The guard program's insides, shared by guard_program.c, guard_run.c, which runs all of it, and guard_memo.c, which runs less. */
#ifndef DYNAJIT_GUARD_PROGRAM_H
#define DYNAJIT_GUARD_PROGRAM_H

#include "guards/guards.h"

/* name, payload's checker */
#define OPS(X) \
    X(CONST, any) \
    X(CONST_WEAK, weak) \
    X(GLOBAL, text) \
    X(ATTR, text) \
    X(INSTANCE_ATTR, text) \
    X(TYPE_OF, any) \
    X(TYPE_ATTR, text) \
    X(ITEM, hashable) \
    X(SEQUENCE_ITEM, integer) \
    X(DICT_KEY, integer) \
    X(CELL_CONTENTS, any) \
    X(CLOSURE_CELL, integer) \
    X(CALL, any) \
    X(TOGETHER, slots) \
    X(TENSOR_SIZE, integer) \
    X(TENSOR_STRIDE, integer) \
    X(LAST_ACCESS, any) \
    X(TYPE, any) \
    X(TYPE_WEAK, weak) \
    X(ID, any) \
    X(ID_WEAK, weak) \
    X(CODE, weak) \
    X(EQUALS, any) \
    X(LEN, integer) \
    X(DICT_KEYS, tuple) \
    X(DICT_CONTAINS, hashable) \
    X(DICT_MISSING, hashable) \
    X(SET_EQUALS, dict) \
    X(NO_INSTANCE_ATTR, text) \
    X(NO_TYPE_ATTR, text) \
    X(NO_HOOKS, any) \
    X(TENSOR, tensor_spec) \
    X(NOT_ALIASED, slots) \
    X(SAME_OBJECT, any) \
    X(GLOBAL_STATE, global_state) \
    X(CELL_EMPTY, any) \
    X(RELATION, relation) \
    X(PREDICATE, any) \
    X(PREDICATE_OF_MANY, predicate_of_many) \
    X(ASSUMED, assumed)

typedef enum {
#define X(name, payload) OP_##name,
    OPS(X)
#undef X
    N_OPS
} Op;

typedef struct {
    Op op;
    int guard;
    int a;
    int b;
    PyObject *payload; /* owned */
    Py_ssize_t number; /* an integer payload, or a payload's hash, or a count of slots */
    int *slots;        /* owned; of what tests several slots */
    int64_t *words;    /* owned; of RELATION, and of GLOBAL where dictionaries have versions */
    Py_ssize_t n_words;
} Instruction;

typedef struct GuardMemo GuardMemo;

typedef struct {
    PyObject_HEAD
    Py_ssize_t n_locals;
    Py_ssize_t n_slots;
    Py_ssize_t n_instructions;
    Instruction *instructions;
    PyObject *globals;  /* or NULL */
    PyObject *builtins; /* or NULL */
    GuardMemo *memo;    /* or NULL */
    Py_ssize_t n_inputs;
    int *inputs; /* slots that are handed to the variant, as a tuple */
    const Instruction *suspect; /* the leaf that failed last time, if it looks at a local or a cell's contents alone; or NULL */
    const Instruction *suspect_access; /* what reads the cell; NULL: it is a local */
    int failed;                 /* the guard that `suspect` was looked for by */
} GuardProgram;

/* The words of a GLOBAL: what it found, for as long as neither dictionary changes. */
enum { GLOBALS_VERSION, BUILTINS_VERSION, FOUND, N_REMEMBERED };

/* ---- guard_run.c ---- */

/* Given the slots of a run in which everything held. */
typedef void (*WhenPassed)(GuardProgram *program, PyObject *const *slots);
/* All instructions, as in dj_guard_check. Without `passed` no leaf is tested: only what can be read counts. */
int dj_guard_run(GuardProgram *self, PyObject *const *locals, PyObject **inputs, WhenPassed passed);
const char *dj_guard_op_name(Op op);
/* New reference or NULL; NULL is a failed guard, with or without an error. */
PyObject *dj_guard_access(const GuardProgram *self, const Instruction *instruction, PyObject *const *slots);
bool dj_guard_leaf(const Instruction *instruction, PyObject *const *slots);
/* What the variant is handed, from the slots; new reference, or NULL with an error. */
PyObject *dj_guard_inputs(const GuardProgram *self, PyObject *const *slots);
/* Whether the leaf runs Python code. */
bool dj_guard_runs_python(const Instruction *instruction);
/* A constant whose equality is settled by CPython alone. */
bool dj_is_plain_constant(PyObject *constant);

/* ---- guard_memo.c, which guard_memo.h is about; on CPython 3.13 and later there is no memory ---- */

enum { DJ_MEMO_UNKNOWN = -2 };

/* -1 if all guards hold, the index of one that fails, or DJ_MEMO_UNKNOWN. `inputs` as in dj_guard_check. */
int dj_memo_check(const GuardProgram *program, PyObject *const *locals, PyObject **inputs);
/* The whole program has passed with these objects in its slots. */
void dj_memo_passed(GuardProgram *program, PyObject *const *slots);
void dj_memo_free(GuardProgram *program);
/* What memory looks at, for tests and reports: a list of (step, instruction or None, slot, count), or None without memory. */
PyObject *dj_memo_steps(const GuardProgram *program);

#endif
