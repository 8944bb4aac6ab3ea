/* What dynajit needs to know of one CPython release. compat_3NN.c implements it, with what several releases have in
 * common in compat_since_3NN.c, compat_frame.h and compat_shared.h; nothing else looks into a frame.
 *
 * Support for one more release is one more compat_3NN.c, guarded as a whole by its version, an entry in setup.py and the
 * bound below. */
#ifndef DYNAJIT_COMPAT_H
#define DYNAJIT_COMPAT_H

#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "dynajit knows the insides of CPython 3.11 to 3.14; see compat.h for what another one needs"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct _PyInterpreterFrame Frame;
typedef PyObject *(*FrameEvaluator)(PyThreadState *, Frame *, int);

int dj_compat_init(void);

/* True for an ordinary function's frame that has not started: not a generator's, not a class body's or module's. */
bool dj_frame_is_fresh_call(Frame *frame);
PyCodeObject *dj_frame_code(Frame *frame);         /* borrowed */
PyFunctionObject *dj_frame_function(Frame *frame); /* borrowed */
PyObject *dj_frame_globals(Frame *frame);          /* borrowed */
/* The first n locals, borrowed: the frame's own array where it holds plain pointers, else copies in `room`. */
PyObject *const *dj_frame_params(Frame *frame, PyObject **room, Py_ssize_t n);

/* Turns a frame that has not started into a call of `function` with the frame's first n_params locals and the given
 * cells as arguments. False, and nothing changed, when the thread's stack has no room for the function's frame. */
bool dj_frame_become(PyThreadState *tstate, Frame *frame, PyFunctionObject *function, Py_ssize_t n_params,
                     PyObject *const *cells, Py_ssize_t n_cells);
/* Lets go of the variables of a frame that has returned, where its caller would only do so later. */
void dj_frame_drop_locals(Frame *frame);
#if PY_VERSION_HEX >= 0x030C0000
/* Code with one RETURN_VALUE, for frames that have nothing left to do. Without a RESUME a frame of it never counts as
 * started, so that neither tracebacks, nor sys._getframe, nor monitoring see it. */
extern PyCodeObject *dj_return_stub;
#endif
/* Ends a frame that will not be evaluated. Steals the result; NULL with an error set raises. Returns it. */
PyObject *dj_frame_finish(PyThreadState *tstate, Frame *frame, PyObject *result);

/* sys.settrace, or monitoring of lines or instructions, wants to see each line of this thread; or the frame is of such
 * a function, or of an audit hook, which the interpreter called by itself and which is no part of the program. */
bool dj_thread_is_traced(PyThreadState *tstate);

/* The instance's own attribute, past its type. Borrowed or NULL, no error set. `name` is an exact str. */
PyObject *dj_instance_lookup(PyObject *object, PyObject *name);

#if PY_VERSION_HEX < 0x030D0000
/* Dictionaries have versions: CPython gives a new one, never given before, to each that is made or written to. */
#define DJ_DICT_VERSIONS
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
static inline uint64_t dj_dict_version(PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_version_tag;
}
static inline const void *dj_dict_version_place(PyObject *dict)
{
    return &((PyDictObject *)dict)->ma_version_tag;
}
static inline PyObject *dj_dict_of_version(const void *place)
{
    return (PyObject *)((char *)(uintptr_t)place - offsetof(PyDictObject, ma_version_tag));
}
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
/* Where an instance keeps its dictionary; NULL if it has none, or its attributes lie beside it so far. */
PyObject **dj_instance_dict_place(PyObject *object);
#endif

/* Attributes of an object that nobody else knows yet, kept beside it rather than in a dict. `names` are interned, none is
 * a data descriptor of the class; `places` are the caller's, where each name was found last, 0 at first. Gives how many of
 * them were stored, from the first on: what keeps it from storing more is for the caller to do the ordinary way. */
Py_ssize_t dj_store_beside(PyObject *object, PyObject *const *names, PyObject *const *values, Py_ssize_t n,
                           uint8_t *places);

/* The next item of a set, borrowed, and its hash; 0 at the end. `position` starts at 0. */
int dj_set_next(PyObject *set, Py_ssize_t *position, PyObject **item, Py_hash_t *hash);

/* The slot for extra data on code objects. */
Py_ssize_t dj_code_extra_index(freefunc free_state);
int dj_code_extra_get(PyCodeObject *code, Py_ssize_t index, void **extra);
int dj_code_extra_set(PyCodeObject *code, Py_ssize_t index, void *extra);

#ifdef __cplusplus
}
#endif
#endif
