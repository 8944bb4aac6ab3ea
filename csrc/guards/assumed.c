/* What a trace takes to hold of Python's own library and torch, while nobody changes these.
 *
 * In: classes and dictionaries of modules, and what the trace found in them under which names, or did not find. Out: whether
 * it is there still. CPython gives a class another version when it, or a class that it inherits from, is changed; so it does
 * with a dictionary until 3.12, and from 3.12 on it tells watchers. While versions stand, nothing is looked up: a check
 * compares one number for each class, and one for each dictionary or for all of them. What was changed is looked up once,
 * name by name; a counter that somebody keeps in a class, or a module that was imported, make no difference. */
#include "guards/guards.h"
#include "python/heap_type.h"

#include <structmember.h>

typedef struct {
    PyObject *name;
    Py_hash_t hash;
    PyObject *found; /* NULL: nothing */
    bool weak;       /* `found` is a weak reference to it */
} Fact;

/* Of what has none at the moment. `UNKNOWN` is another one, so that it equals no version either. */
#define NO_VERSION UINT64_MAX
#define UNKNOWN (UINT64_MAX - 1)

typedef struct {
    PyObject *owner;       /* a class or a dictionary */
    uint64_t holds, fails; /* versions of it with which its facts hold, and with which they don't; or UNKNOWN */
    Py_ssize_t n_facts;
    Fact *facts;
} Place;

typedef struct {
    PyObject_HEAD
    Py_ssize_t n_classes, n_places; /* classes come first */
    Place *places;
    bool watched;   /* dj_library_epoch stands for all of the dictionaries */
    uint64_t epoch; /* with which they hold */
    Py_ssize_t searches;
} Assumed;

static PyTypeObject *assumed_type;

bool dj_is_assumed(PyObject *object)
{
    return Py_IS_TYPE(object, assumed_type);
}

static inline uint64_t class_version(PyObject *owner)
{
    const unsigned version = ((PyTypeObject *)owner)->tp_version_tag; /* 0 from a change to the next look-up */
    return version != 0 ? version : NO_VERSION;
}

static inline uint64_t dict_version(PyObject *owner)
{
#ifdef DJ_DICT_VERSIONS
    return dj_dict_version(owner);
#else
    (void)owner;
    return NO_VERSION;
#endif
}

static bool fact_holds(PyObject *owner, const Fact *fact)
{
    PyObject *now = PyType_Check(owner) ? dj_type_lookup((PyTypeObject *)owner, fact->name)
                                        : _PyDict_GetItem_KnownHash(owner, fact->name, fact->hash);
    if (!fact->weak) {
        return now == fact->found;
    }
    return now != Py_None && now == ((PyWeakReference *)fact->found)->wr_object; /* None: it is dead */
}

static uint64_t version_of(const Assumed *self, const Place *place)
{
    return place < self->places + self->n_classes ? class_version(place->owner) : dict_version(place->owner);
}

/* Looks up what the place has, unless that is known of its version. */
static bool search(Assumed *self, Place *place)
{
    const uint64_t version = version_of(self, place);
    if (version != NO_VERSION && (version == place->holds || version == place->fails)) {
        return version == place->holds;
    }
    bool holds = true;
    for (Py_ssize_t i = 0; i < place->n_facts && holds; i++) {
        holds = fact_holds(place->owner, &place->facts[i]);
    }
    self->searches++;
    const uint64_t now = version_of(self, place); /* looking up gives a class its next version */
    *(holds ? &place->holds : &place->fails) = now != NO_VERSION ? now : UNKNOWN;
    return holds;
}

static bool search_all(Assumed *self)
{
    for (Place *place = self->places; place < self->places + self->n_places; place++) {
        if (!search(self, place)) {
            return false;
        }
    }
    self->epoch = dj_library_epoch;
    return true;
}

bool dj_assumed_holds(PyObject *object)
{
    Assumed *self = (Assumed *)object;
    const Place *place = self->places, *dicts = place + self->n_classes;
    for (; place < dicts; place++) {
        if (class_version(place->owner) != place->holds) {
            return search_all(self);
        }
    }
    if (self->watched && self->epoch == dj_library_epoch) {
        return true;
    }
    for (const Place *end = self->places + self->n_places; place < end; place++) {
        if (dict_version(place->owner) != place->holds) {
            return search_all(self);
        }
    }
    self->epoch = dj_library_epoch;
    return true;
}

/* ---- building ---- */

/* (name,): nothing of that name; (name, object); (name, weak reference, True). */
static int read_fact(Fact *fact, PyObject *tuple)
{
    PyObject *name, *found = NULL;
    int weak = 0;
    if (!PyTuple_Check(tuple) || !PyArg_ParseTuple(tuple, "U|Op:fact", &name, &found, &weak)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "what is assumed under a name is a tuple");
        }
        return -1;
    }
    if (weak && !PyWeakref_CheckRef(found)) {
        PyErr_SetString(PyExc_TypeError, "what is held weakly is a weak reference");
        return -1;
    }
    fact->name = Py_NewRef(name);
    PyUnicode_InternInPlace(&fact->name);
    fact->hash = PyObject_Hash(fact->name);
    fact->found = Py_XNewRef(found);
    fact->weak = weak != 0;
    return 0;
}

static int read_place(Place *place, PyObject *owner, PyObject *facts)
{
    Py_ssize_t n = PyTuple_GET_SIZE(facts);
    place->owner = Py_NewRef(owner);
    place->holds = place->fails = UNKNOWN;
    place->facts = PyMem_Calloc((size_t)n + 1, sizeof(Fact));
    if (place->facts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; place->n_facts < n; place->n_facts++) {
        if (read_fact(&place->facts[place->n_facts], PyTuple_GET_ITEM(facts, place->n_facts)) < 0) {
            return -1;
        }
    }
    return 0;
}

static int read_places(Assumed *self, PyObject *places, PyTypeObject *kind)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
        PyObject *owner, *facts, *pair = PyTuple_GET_ITEM(places, i);
        if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "O!O!:place", kind, &owner, &PyTuple_Type, &facts)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "a place is a pair of what has names, and what is assumed of these");
            }
            return -1;
        }
        if (read_place(&self->places[self->n_places++], owner, facts) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *assumed_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"classes", "dicts", NULL};
    PyObject *classes, *dicts;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!:Assumed", names, &PyTuple_Type, &classes, &PyTuple_Type, &dicts)) {
        return NULL;
    }
    Assumed *self = (Assumed *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->n_classes = PyTuple_GET_SIZE(classes);
    self->places = PyMem_Calloc((size_t)(self->n_classes + PyTuple_GET_SIZE(dicts)) + 1, sizeof(Place));
    if (self->places == NULL) {
        PyErr_NoMemory();
    }
    if (self->places == NULL || read_places(self, classes, &PyType_Type) < 0 || read_places(self, dicts, &PyDict_Type) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->watched = true;
    for (Py_ssize_t i = self->n_classes; i < self->n_places; i++) {
        self->watched = dj_watch_library(self->places[i].owner) && self->watched;
    }
    return (PyObject *)self;
}

static int assumed_traverse(PyObject *object, visitproc visit, void *arg)
{
    Assumed *self = (Assumed *)object;
    Py_VISIT(Py_TYPE(object));
    for (Place *place = self->places; place < self->places + self->n_places; place++) {
        Py_VISIT(place->owner);
        for (Py_ssize_t i = 0; i < place->n_facts; i++) {
            Py_VISIT(place->facts[i].found);
        }
    }
    return 0;
}

static int assumed_clear(PyObject *object)
{
    Assumed *self = (Assumed *)object;
    Place *places = self->places, *end = places + self->n_places;
    self->places = NULL;
    self->n_places = self->n_classes = 0;
    for (Place *place = places; place < end; place++) {
        Py_XDECREF(place->owner);
        for (Py_ssize_t i = 0; i < place->n_facts; i++) {
            Py_DECREF(place->facts[i].name);
            Py_XDECREF(place->facts[i].found);
        }
        PyMem_Free(place->facts);
    }
    PyMem_Free(places);
    return 0;
}

static PyObject *assumed_check(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(dj_assumed_holds(object));
}

static PyMethodDef assumed_methods[] = {
    {"check", assumed_check, METH_NOARGS, "check()\n--\n\nWhether all of it holds."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef assumed_members[] = {
    {"searches", T_PYSSIZET, offsetof(Assumed, searches), READONLY,
     "How often a class or dictionary was found changed, and its names looked up."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot assumed_slots[] = {
    {Py_tp_doc,
     "Assumed(classes, dicts)\n--\n\n"
     "Pairs of a class, or a dictionary, and tuples (name,): it has no such; (name, object); (name, weak reference, True)."},
    DJ_COLLECTED_SLOTS(assumed, assumed_new, dj_dealloc),
    {Py_tp_methods, assumed_methods},
    {Py_tp_members, assumed_members},
    {0, NULL},
};

static PyType_Spec assumed_spec = DJ_CLASS(Assumed, "Assumed", DJ_COLLECTED, assumed_slots);

int dj_assumed_init(PyObject *module)
{
    assumed_type = dj_add_type(module, &assumed_spec);
    return assumed_type != NULL ? 0 : -1;
}
