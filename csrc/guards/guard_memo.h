/* Memory of a check that passed: what guard_memo_make.c makes and guard_memo.c runs. */
#ifndef DYNAJIT_GUARD_MEMO_H
#define DYNAJIT_GUARD_MEMO_H

#include "guards/guard_program.h"

#ifdef DJ_DICT_VERSIONS

/* Eight bytes that must be what they were: a version, a class, a pointer, a count. */
typedef struct {
    const void *address;
    uint64_t expected;
    uint64_t mask; /* of the bytes that count */
    int slot;      /* whose word it is */
    bool watched;  /* the version of a dictionary that dj_watch_epoch stands for */
} Word;

typedef enum {
    STEP_LOCAL,   /* the local is the object that it was */
    STEP_WORDS,   /* a run of words */
    STEP_TENSORS, /* the metadata of a run of tensors that are known to be the same objects */
    STEP_READ,    /* an access, made again */
    STEP_LEAF,    /* a test, made again */
} StepKind;

typedef struct {
    StepKind kind;
    int slot;
    bool expected;                       /* STEP_READ: the object must be the one that it was */
    const Instruction *instruction;      /* STEP_READ, STEP_LEAF */
    PyObject *object;                    /* borrowed, to be compared with only */
    Py_ssize_t first, count;             /* STEP_WORDS, STEP_TENSORS */
    Py_ssize_t quick_first, quick_count; /* STEP_WORDS: of those that no watcher stands for */
} Step;

struct GuardMemo {
    Py_ssize_t n_steps, n_early;
    Step *steps; /* the first n_early run no Python */
    Py_ssize_t n_words, n_quick;
    Word *words; /* in an order in which each address is readable if the words before hold */
    Word *quick; /* those that no watcher stands for */
    Py_ssize_t n_tensors;
    TensorPair *tensors;
    const Instruction **tensor_leaves;
    PyObject *witnesses; /* list: constants, and weak references, that settle which object lies in a place */
    uint64_t epoch;      /* no watched dictionary has changed while dj_watch_epoch is this */
    PyObject **slots;    /* the program's; borrowed, but for those of STEP_READ while a check runs */
    Py_ssize_t n_held;
    int *held;           /* slots that late steps use */
    bool armed, busy;
    int wait;            /* checks that pass before the next attempt to remember */
    int pause;           /* the next value of `wait` */
    unsigned proven;     /* checks passed by memory since it was made */
    unsigned char *blame; /* for each slot, how often something failed for it */
};

enum { DJ_MEMO_PATIENCE = 3 };

/* Fills steps, words and tensors from the slots of a check that passed. False, and nothing to be run, if there is no
 * memory or nothing is gained. */
bool dj_memo_make(const GuardProgram *program, GuardMemo *memo, PyObject *const *slots);
void dj_memo_drop(GuardMemo *memo); /* what dj_memo_make filled */

#endif
#endif
