/* The tests that the guard program's leaves make on one object.
 *
 * In: an object from the running program and what the trace relied on. Out: whether it still holds. No user code runs
 * here except where two constants of an unknown type are compared. An error counts as "does not hold"; the caller
 * clears it. */
#include "guards/guards.h"

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool same_text(PyObject *a, PyObject *b)
{
    return PyUnicode_GET_LENGTH(a) == PyUnicode_GET_LENGTH(b) && PyUnicode_KIND(a) == PyUnicode_KIND(b)
        && memcmp(PyUnicode_DATA(a), PyUnicode_DATA(b), (size_t)PyUnicode_GET_LENGTH(a) * PyUnicode_KIND(a)) == 0;
}

static bool same_bytes(PyObject *a, PyObject *b)
{
    return PyBytes_GET_SIZE(a) == PyBytes_GET_SIZE(b)
        && memcmp(PyBytes_AS_STRING(a), PyBytes_AS_STRING(b), (size_t)PyBytes_GET_SIZE(a)) == 0;
}

static bool same_items(PyObject *a, PyObject *b)
{
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++) {
        if (!dj_const_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) {
            return false;
        }
    }
    return true;
}

bool dj_const_equal(PyObject *value, PyObject *expected)
{
    if (value == expected) {
        return true;
    }
    PyTypeObject *type = Py_TYPE(expected);
    if (Py_TYPE(value) != type || type == &PyBool_Type) {
        return false;
    }
    if (type == &PyUnicode_Type) {
        return same_text(value, expected);
    }
    if (type == &PyFloat_Type) {
        return same_bits(PyFloat_AS_DOUBLE(value), PyFloat_AS_DOUBLE(expected));
    }
    if (type == &PyComplex_Type) {
        Py_complex a = PyComplex_AsCComplex(value);
        Py_complex b = PyComplex_AsCComplex(expected);
        return same_bits(a.real, b.real) && same_bits(a.imag, b.imag);
    }
    if (type == &PyBytes_Type) {
        return same_bytes(value, expected);
    }
    if (type == &PyTuple_Type) {
        return same_items(value, expected);
    }
    if (type == &PySlice_Type) {
        PySliceObject *a = (PySliceObject *)value;
        PySliceObject *b = (PySliceObject *)expected;
        return dj_const_equal(a->start, b->start) && dj_const_equal(a->stop, b->stop)
            && dj_const_equal(a->step, b->step);
    }
    return PyObject_RichCompareBool(value, expected, Py_EQ) == 1;
}

bool dj_length_is(PyObject *value, Py_ssize_t length)
{
    if (PyList_Check(value) || PyTuple_Check(value)) {
        return Py_SIZE(value) == length;
    }
    if (PyDict_Check(value)) {
        return PyDict_GET_SIZE(value) == length;
    }
    if (PyAnySet_Check(value)) {
        return PySet_GET_SIZE(value) == length;
    }
    return false;
}

/* As a dictionary finds it: what is equal and hashes differently is another key, such as a tensor of equal value. */
static bool same_key(PyObject *key, PyObject *expected)
{
    return key == expected || (dj_const_equal(key, expected) && PyObject_Hash(key) == PyObject_Hash(expected));
}

static bool odict_keys_are(PyObject *value, PyObject *keys)
{
    PyObject *iterator = PyODict_Type.tp_iter(value);
    bool same = iterator != NULL;
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = PyIter_Next(iterator);
        same = key != NULL && same_key(key, PyTuple_GET_ITEM(keys, i));
        Py_XDECREF(key);
    }
    Py_XDECREF(iterator);
    return same;
}

bool dj_dict_keys_are(PyObject *value, PyObject *keys)
{
    if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != PyTuple_GET_SIZE(keys)) {
        return false;
    }
    if (PyODict_Check(value)) {
        return odict_keys_are(value, keys);
    }
    Py_ssize_t position = 0, i = 0;
    PyObject *key;
    while (PyDict_Next(value, &position, &key, NULL)) {
        if (i >= PyTuple_GET_SIZE(keys) || !same_key(key, PyTuple_GET_ITEM(keys, i))) {
            return false;
        }
        i++;
    }
    return i == PyTuple_GET_SIZE(keys);
}

/* `constants` maps each expected constant to itself. */
bool dj_set_equals(PyObject *value, PyObject *constants)
{
    if (!PyAnySet_Check(value) || PySet_GET_SIZE(value) != PyDict_GET_SIZE(constants)) {
        return false;
    }
    Py_ssize_t position = 0;
    PyObject *item;
    Py_hash_t hash;
    while (dj_set_next(value, &position, &item, &hash)) {
        PyObject *expected = _PyDict_GetItem_KnownHash(constants, item, hash);
        if (expected == NULL || !dj_const_equal(item, expected)) {
            return false;
        }
    }
    return true;
}

static PyObject *hook_names[DJ_N_HOOK_TABLES];

PyObject *dj_hook_table_name(int i)
{
    return hook_names[i];
}

bool dj_module_has_no_hooks(PyObject *module)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(hook_names); i++) {
        PyObject *hooks = dj_instance_lookup(module, hook_names[i]);
        if (hooks == NULL || !PyDict_Check(hooks) || PyDict_GET_SIZE(hooks) != 0) {
            return false;
        }
    }
    return true;
}

enum { FEW = 12, TABLE = 1024 };

/* Open addressing over a table on the stack, no more of it than needed; more objects than fit it are compared pair by
 * pair. */
static bool distinct_by_table(PyObject *const *slots, const int *indices, Py_ssize_t n)
{
    PyObject *table[TABLE];
    size_t size = 32;
    while (size < 2 * (size_t)n) {
        size *= 2;
    }
    memset(table, 0, size * sizeof(PyObject *));
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *object = slots[indices[i]];
        size_t at = (((size_t)object >> 4) * 0x9E3779B1u >> 8) & (size - 1);
        while (table[at] != NULL) {
            if (table[at] == object) {
                return false;
            }
            at = (at + 1) & (size - 1);
        }
        table[at] = object;
    }
    return true;
}

bool dj_all_distinct(PyObject *const *slots, const int *indices, Py_ssize_t n)
{
    if (n > FEW && n <= TABLE / 2) {
        return distinct_by_table(slots, indices, n);
    }
    for (Py_ssize_t i = 1; i < n; i++) {
        for (Py_ssize_t j = 0; j < i; j++) {
            if (slots[indices[i]] == slots[indices[j]]) {
                return false;
            }
        }
    }
    return true;
}

int dj_guard_leaves_init(void)
{
    const char *const names[] = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        hook_names[i] = PyUnicode_InternFromString(names[i]);
        if (hook_names[i] == NULL) {
            return -1;
        }
    }
    return 0;
}
