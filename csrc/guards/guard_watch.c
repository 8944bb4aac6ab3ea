/* Watching dictionaries: one number that grows when any of them changes or dies.
 *
 * In: dictionaries that a memory of guards looks at. Out: dj_watch_epoch. While it stands still none of them has been
 * written to, so none of their versions need be read. CPython 3.12 and later call back for dictionaries that are watched;
 * earlier ones have no watchers, and versions are read each time. Nothing is kept of a dictionary but CPython's own bit in
 * it, so there is nothing to leak, and what the callback does needs no interpreter: it may come while one shuts down. */
#include "guards/guard_memo.h"

#ifdef DJ_DICT_VERSIONS

uint64_t dj_watch_epoch = 1;

#ifdef PY_FOREACH_DICT_EVENT /* there are watchers */

static int watcher = -1;
static bool asked;

static int changed(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    (void)event;
    (void)dict;
    (void)key;
    (void)value;
    dj_watch_epoch++;
    return 0;
}

bool dj_watch(PyObject *dict)
{
    if (!asked) {
        asked = true;
        watcher = PyDict_AddWatcher(changed); /* there are eight; others may have them all */
    }
    if (watcher < 0 || PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        return false;
    }
    return true;
}

void dj_unwatch(PyObject *dict)
{
    if (watcher >= 0 && PyDict_Unwatch(watcher, dict) < 0) {
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

void dj_unwatch(PyObject *dict)
{
    (void)dict;
}

#endif

#endif
