/* Room on a thread's stack of Python frames for dynajit's own frames, on top of the program's.
 *
 * The limit that a program sets counts its own frames. While dynajit compiles, the thread (no other one) has room for
 * DJ_DEEP_ROOM frames more, even at the very end of the program's own; `sys.getrecursionlimit` says what it said.
 * compat_3NN.c implements it. */
#ifndef DYNAJIT_RECURSION_H
#define DYNAJIT_RECURSION_H

#include <Python.h>

enum { DJ_DEEP_ROOM = 20000 };

typedef struct {
    int limit; /* of the thread, as it was raised */
    int added;
} RecursionRoom;

RecursionRoom dj_recursion_room_enter(PyThreadState *tstate);
/* A limit that was set meanwhile stays. */
void dj_recursion_room_leave(PyThreadState *tstate, RecursionRoom room);

#endif
