/* Watching dictionaries: numbers that grow when any of them changes or dies.
 *
 * In: dictionaries that a memory of guards looks at, and those of modules of which something is assumed. Out:
 * dj_watch_epoch for the former, dj_library_epoch for the latter. While one stands still none of its dictionaries has been
 * written to, so none need be looked at. CPython 3.12 and later call back for dictionaries that are watched; earlier ones
 * have no watchers, and versions are read each time. Nothing is kept of a dictionary but CPython's own bit in it, so there
 * is nothing to leak, and what the callbacks do needs no interpreter: they may come while one shuts down. */
#include "guards/guards.h"

uint64_t dj_watch_epoch = 1, dj_library_epoch = 1;

#ifdef PY_FOREACH_DICT_EVENT /* there are watchers */

typedef struct {
    PyDict_WatchCallback callback;
    int id;
    bool asked;
} Watcher;

#define GROWS(epoch)                                                                                   \
    static int epoch##_grows(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)  \
    {                                                                                                  \
        (void)event;                                                                                   \
        (void)dict;                                                                                    \
        (void)key;                                                                                     \
        (void)value;                                                                                   \
        epoch++;                                                                                       \
        return 0;                                                                                      \
    }

GROWS(dj_watch_epoch)
GROWS(dj_library_epoch)

static Watcher of_memory = {dj_watch_epoch_grows, -1, false}, of_library = {dj_library_epoch_grows, -1, false};

static bool watch(Watcher *watcher, PyObject *dict)
{
    if (!watcher->asked) {
        watcher->asked = true;
        watcher->id = PyDict_AddWatcher(watcher->callback); /* there are eight; others may have them all */
    }
    if (watcher->id < 0 || PyDict_Watch(watcher->id, dict) < 0) {
        PyErr_Clear();
        return false;
    }
    return true;
}

bool dj_watch(PyObject *dict)
{
    return watch(&of_memory, dict);
}

bool dj_watch_library(PyObject *dict)
{
    return watch(&of_library, dict);
}

void dj_unwatch(PyObject *dict)
{
    if (of_memory.id >= 0 && PyDict_Unwatch(of_memory.id, dict) < 0) {
        PyErr_Clear();
    }
    dj_watch_epoch++;
}

#else

bool dj_watch(PyObject *dict)
{
    (void)dict;
    return false;
}

bool dj_watch_library(PyObject *dict)
{
    (void)dict;
    return false;
}

void dj_unwatch(PyObject *dict)
{
    (void)dict;
}

#endif
