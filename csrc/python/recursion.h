/* How deep a thread's calls are.
 *
 * Python frames. The limit that a program sets counts its own frames. While dynajit compiles, the thread (no other one) has room for
 * DJ_DEEP_ROOM frames more, even at the very end of the program's own; `sys.getrecursionlimit` says what it said.
 * compat_3NN.c implements it.
 *
 * C's stack. CPython runs the call of one Python function by another without a call in C, unless an evaluator is
 * installed. So a program under dynajit would need far more of C's stack than under eager: the evaluator goes away where
 * the stack is deep, and what is called there runs eagerly. recursion.c implements it. */
#ifndef DYNAJIT_RECURSION_H
#define DYNAJIT_RECURSION_H

#include <Python.h>
#include <stdbool.h>

enum { DJ_DEEP_ROOM = 20000 };

typedef struct {
    int limit; /* of the thread, as it was raised */
    int added;
} RecursionRoom;

RecursionRoom dj_recursion_room_enter(PyThreadState *tstate);
/* A limit that was set meanwhile stays. */
void dj_recursion_room_leave(PyThreadState *tstate, RecursionRoom room);

/* More than half of the calls in C that CPython counts are in use. compat_3NN.c implements it. */
bool dj_few_c_calls_left(const PyThreadState *tstate);
/* Three quarters of C's stack, or half of the calls in C, are in use. */
bool dj_stack_is_deep(const PyThreadState *tstate);
/* Nearly all of C's stack is in use; RecursionError is set. */
bool dj_stack_is_full(void);

#endif
