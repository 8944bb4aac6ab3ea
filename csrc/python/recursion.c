/* How much of C's stack the thread has used. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "python/recursion.h"

#include <pthread.h>
#include <stdint.h>

/* Addresses below which the stack is deep, and full: above all others before the thread has asked for them. */
static __thread struct {
    uintptr_t deep, full;
} marks = {.deep = UINTPTR_MAX, .full = UINTPTR_MAX};

static void find_marks(void)
{
    marks.deep = marks.full = 0; /* nothing is known of this thread's stack */
#ifdef __linux__
    pthread_attr_t attributes;
    void *lowest;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) {
        return;
    }
    if (pthread_attr_getstack(&attributes, &lowest, &size) == 0) {
        marks.deep = (uintptr_t)lowest + size / 4;
        marks.full = (uintptr_t)lowest + size / 16;
    }
    pthread_attr_destroy(&attributes);
#endif
}

bool dj_stack_is_deep(const PyThreadState *tstate)
{
    char here;
    if ((uintptr_t)&here >= marks.deep) {
        return dj_few_c_calls_left(tstate);
    }
    if (marks.deep == UINTPTR_MAX) {
        find_marks();
        return dj_stack_is_deep(tstate);
    }
    return true;
}

bool dj_stack_is_full(void)
{
    char here;
    if ((uintptr_t)&here >= marks.full) {
        return false;
    }
    if (marks.full == UINTPTR_MAX) {
        find_marks();
        return dj_stack_is_full();
    }
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded: the thread's C stack is full");
    return true;
}
