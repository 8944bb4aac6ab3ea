/* Relations among integers: a small stack program.
 *
 * In: the program's words (opcode, and an operand for LOAD and CONST) and the objects that LOAD reads, which must be
 * ints. Out: whether the number left on the stack is not zero. What is no int, doesn't fit 64 bits or divides by zero
 * makes the relation false. The opcodes' numbers are dynajit/guards/relation.py's. To add one: a name here, a case in
 * binary(), its name there. */
#include "dynajit.h"

enum {
    REL_CONST, REL_LOAD, REL_NOT, REL_ADD, REL_MUL, REL_FLOORDIV, REL_MOD, REL_POW, REL_MIN, REL_MAX, REL_EQ, REL_NE,
    REL_LT, REL_LE, REL_GT, REL_GE, REL_AND, REL_OR, REL_N_OPS
};

enum { REL_STACK = 64 };

static bool power(long long base, long long exponent, long long *result)
{
    long long total = 1;
    if (exponent < 0) {
        return false;
    }
    while (exponent > 0) {
        if (((exponent & 1) && __builtin_mul_overflow(total, base, &total))
            || (exponent > 1 && __builtin_mul_overflow(base, base, &base))) {
            return false;
        }
        exponent >>= 1;
    }
    *result = total;
    return true;
}

/* Python's: the quotient is rounded down, the remainder has the divisor's sign. */
static bool divide(long long left, long long right, long long *quotient, long long *remainder)
{
    if (right == 0 || (right == -1 && left == LLONG_MIN)) {
        return false;
    }
    *quotient = left / right;
    *remainder = left % right;
    if (*remainder != 0 && (*remainder < 0) != (right < 0)) {
        *quotient -= 1;
        *remainder += right;
    }
    return true;
}

static bool binary(long long op, long long left, long long right, long long *result)
{
    long long other;
    switch (op) {
    case REL_ADD:
        return !__builtin_add_overflow(left, right, result);
    case REL_MUL:
        return !__builtin_mul_overflow(left, right, result);
    case REL_FLOORDIV:
        return divide(left, right, result, &other);
    case REL_MOD:
        return divide(left, right, &other, result);
    case REL_POW:
        return power(left, right, result);
    case REL_MIN:
        *result = left < right ? left : right;
        return true;
    case REL_MAX:
        *result = left > right ? left : right;
        return true;
    case REL_EQ:
        *result = left == right;
        return true;
    case REL_NE:
        *result = left != right;
        return true;
    case REL_LT:
        *result = left < right;
        return true;
    case REL_LE:
        *result = left <= right;
        return true;
    case REL_GT:
        *result = left > right;
        return true;
    case REL_GE:
        *result = left >= right;
        return true;
    case REL_AND:
        *result = left && right;
        return true;
    case REL_OR:
        *result = left || right;
        return true;
    default:
        return false;
    }
}

static bool load(PyObject *object, long long *result)
{
    int overflow = 0;
    if (!PyLong_CheckExact(object)) {
        return false;
    }
    *result = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
}

bool dj_relation_holds(const int64_t *words, Py_ssize_t n_words, const int *indices, PyObject *const *slots)
{
    long long stack[REL_STACK];
    Py_ssize_t depth = 0;
    for (Py_ssize_t i = 0; i < n_words; i++) {
        switch (words[i]) {
        case REL_CONST:
            stack[depth++] = words[++i];
            break;
        case REL_LOAD:
            if (!load(slots[indices[words[++i]]], &stack[depth++])) {
                return false;
            }
            break;
        case REL_NOT:
            stack[depth - 1] = !stack[depth - 1];
            break;
        default:
            if (!binary(words[i], stack[depth - 2], stack[depth - 1], &stack[depth - 2])) {
                return false;
            }
            depth--;
        }
    }
    return stack[0] != 0;
}

bool dj_relation_fits(const int64_t *words, Py_ssize_t n_words, Py_ssize_t n_loads)
{
    Py_ssize_t depth = 0;
    for (Py_ssize_t i = 0; i < n_words; i++) {
        if (words[i] == REL_CONST || words[i] == REL_LOAD) {
            bool load_fits = words[i] == REL_CONST || (i + 1 < n_words && words[i + 1] >= 0 && words[i + 1] < n_loads);
            if (++i >= n_words || !load_fits || ++depth > REL_STACK) {
                return false;
            }
        }
        else if (words[i] == REL_NOT) {
            if (depth < 1) {
                return false;
            }
        }
        else if (words[i] < 0 || words[i] >= REL_N_OPS || depth-- < 2) {
            return false;
        }
    }
    return depth == 1;
}
