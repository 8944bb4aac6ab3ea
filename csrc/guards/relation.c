/* Relations among numbers: a small stack program.
 *
 * In: the program's words (opcode, and an operand for CONST, FLOAT and LOAD) and the objects that LOAD reads, which
 * must be ints or floats. Out: whether the number left on the stack is not zero. The arithmetic is Python's: ints stay
 * ints, an operation with a float gives a float. What is no number, doesn't fit 64 bits, is an int that no double holds
 * exactly where one is needed, divides by zero, or is outside of a function's domain makes the relation false. The
 * opcodes' numbers are dynajit/symbols.py's. To add one: a name here, a case in of_ints() and of_floats(), or in
 * unary(), its name there. */
#include "guards/guards.h"

#include <math.h>

enum {
    REL_CONST, REL_LOAD, REL_NOT, REL_ADD, REL_MUL, REL_FLOORDIV, REL_MOD, REL_POW, REL_MIN, REL_MAX, REL_EQ, REL_NE,
    REL_LT, REL_LE, REL_GT, REL_GE, REL_AND, REL_OR, REL_FLOAT, REL_TRUEDIV, REL_TO_FLOAT, REL_ABS,
    REL_TRUNC, REL_FLOOR, REL_CEIL, REL_OF_MATH
};

/* The functions of Python's `math`, which are the C library's: opcodes from REL_OF_MATH on. */
static double (*const of_math[])(double) = {sqrt, cos, cosh, sin, sinh, tan, tanh, asin, acos, atan, exp, log, asinh,
                                            log2};

enum { REL_N_OPS = REL_OF_MATH + sizeof(of_math) / sizeof(of_math[0]) };

enum { REL_STACK = 64 };

typedef struct {
    bool is_float;
    long long integer;
    double real;
} Number;

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

static bool of_ints(long long op, long long left, long long right, long long *result)
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
    default:
        return false;
    }
}

/* Python's remainder has the divisor's sign, a zero too. */
static bool divide_floats(double left, double right, double *quotient, double *remainder)
{
    if (right == 0.0) {
        return false;
    }
    double rest = fmod(left, right);
    double whole = (left - rest) / right;
    if (rest != 0.0 && (right < 0.0) != (rest < 0.0)) {
        rest += right;
        whole -= 1.0;
    }
    *remainder = rest != 0.0 ? rest : copysign(0.0, right);
    *quotient = floor(whole);
    if (whole - *quotient > 0.5) {
        *quotient += 1.0;
    }
    return true;
}

/* How two numbers stand to each other, ints or floats; NaN is neither less, equal nor greater. */
typedef struct {
    bool less, equal, greater, both, either;
} Order;

static bool comparison(long long op, Order order, bool *result)
{
    switch (op) {
    case REL_EQ:
        *result = order.equal;
        return true;
    case REL_NE:
        *result = !order.equal;
        return true;
    case REL_LT:
        *result = order.less;
        return true;
    case REL_LE:
        *result = order.less || order.equal;
        return true;
    case REL_GT:
        *result = order.greater;
        return true;
    case REL_GE:
        *result = order.greater || order.equal;
        return true;
    case REL_AND:
        *result = order.both;
        return true;
    case REL_OR:
        *result = order.either;
        return true;
    default:
        return false;
    }
}

static bool of_floats(long long op, double left, double right, double *result)
{
    double other;
    switch (op) {
    case REL_ADD:
        *result = left + right;
        return true;
    case REL_MUL:
        *result = left * right;
        return true;
    case REL_TRUEDIV:
        *result = left / right;
        return right != 0.0;
    case REL_FLOORDIV:
        return divide_floats(left, right, result, &other);
    case REL_MOD:
        return divide_floats(left, right, &other, result);
    case REL_POW: /* of finite numbers only; where it overflows, Python raises, and negative roots are complex */
        *result = pow(left, right);
        return isfinite(left) && isfinite(right) && isfinite(*result) && !(left < 0.0 && right != floor(right));
    case REL_MIN:
        *result = right < left ? right : left;
        return true;
    case REL_MAX:
        *result = right > left ? right : left;
        return true;
    default:
        return false;
    }
}

/* The number as a double; false where it would be rounded. */
static bool as_double(Number number, double *result)
{
    *result = number.is_float ? number.real : (double)number.integer;
    return number.is_float || (number.integer >= -(1LL << 53) && number.integer <= 1LL << 53);
}

#define ORDER(a, b) ((Order){(a) < (b), (a) == (b), (a) > (b), (a) != 0 && (b) != 0, (a) != 0 || (b) != 0})

static bool binary(long long op, Number left, Number right, Number *result)
{
    double a, b;
    bool held;
    result->is_float = left.is_float || right.is_float || op == REL_TRUEDIV;
    if (result->is_float && (!as_double(left, &a) || !as_double(right, &b))) {
        return false;
    }
    if (comparison(op, result->is_float ? ORDER(a, b) : ORDER(left.integer, right.integer), &held)) {
        result->is_float = false;
        result->integer = held;
        return true;
    }
    return result->is_float ? of_floats(op, a, b, &result->real)
                            : of_ints(op, left.integer, right.integer, &result->integer);
}

static bool load(PyObject *object, Number *result)
{
    int overflow = 0;
    result->is_float = PyFloat_CheckExact(object);
    if (result->is_float) {
        result->real = PyFloat_AS_DOUBLE(object);
        return true;
    }
    if (!PyLong_CheckExact(object)) {
        return false;
    }
    result->integer = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
}

static bool is_true(Number number)
{
    return number.is_float ? number.real != 0.0 : number.integer != 0;
}

static bool to_float(Number *number)
{
    double found;
    if (!as_double(*number, &found)) {
        return false;
    }
    number->is_float = true;
    number->real = found;
    return true;
}

static bool absolute(Number *number)
{
    if (number->is_float) {
        number->real = fabs(number->real);
        return true;
    }
    return number->integer >= 0 || !__builtin_sub_overflow(0LL, number->integer, &number->integer);
}

static bool to_integer(Number *number, double whole)
{
    if (!number->is_float) {
        return true;
    }
    number->is_float = false;
    if (!(whole >= -0x1p63 && whole < 0x1p63)) {
        return false;
    }
    number->integer = (long long)whole;
    return true;
}

/* What Python raises for is infinite, or not a number, where the argument isn't. */
static bool call_of_math(long long op, Number *number)
{
    if (!to_float(number)) {
        return false;
    }
    double given = number->real;
    number->real = of_math[op - REL_OF_MATH](given);
    return isnan(number->real) ? isnan(given) : isfinite(number->real) || !isfinite(given);
}

static bool is_unary(long long op)
{
    return op == REL_NOT || (op >= REL_TO_FLOAT && op < REL_N_OPS);
}

static bool unary(long long op, Number *number)
{
    switch (op) {
    case REL_NOT:
        number->integer = !is_true(*number);
        number->is_float = false;
        return true;
    case REL_TO_FLOAT:
        return to_float(number);
    case REL_ABS:
        return absolute(number);
    case REL_TRUNC:
        return to_integer(number, trunc(number->real));
    case REL_FLOOR:
        return to_integer(number, floor(number->real));
    case REL_CEIL:
        return to_integer(number, ceil(number->real));
    default:
        return call_of_math(op, number);
    }
}

bool dj_relation_holds(const int64_t *words, Py_ssize_t n_words, const int *indices, PyObject *const *slots)
{
    Number stack[REL_STACK];
    Py_ssize_t depth = 0;
    for (Py_ssize_t i = 0; i < n_words; i++) {
        switch (words[i]) {
        case REL_CONST:
            stack[depth].is_float = false;
            stack[depth++].integer = words[++i];
            break;
        case REL_FLOAT: /* the operand is the double's bits */
            stack[depth].is_float = true;
            memcpy(&stack[depth++].real, &words[++i], sizeof(double));
            break;
        case REL_LOAD:
            if (!load(slots[indices[words[++i]]], &stack[depth++])) {
                return false;
            }
            break;
        default:
            if (is_unary(words[i])) {
                if (!unary(words[i], &stack[depth - 1])) {
                    return false;
                }
                break;
            }
            if (!binary(words[i], stack[depth - 2], stack[depth - 1], &stack[depth - 2])) {
                return false;
            }
            depth--;
        }
    }
    return is_true(stack[0]);
}

static bool has_operand(int64_t word)
{
    return word == REL_CONST || word == REL_FLOAT || word == REL_LOAD;
}

bool dj_relation_fits(const int64_t *words, Py_ssize_t n_words, Py_ssize_t n_loads)
{
    Py_ssize_t depth = 0;
    for (Py_ssize_t i = 0; i < n_words; i++) {
        if (has_operand(words[i])) {
            bool load_fits = words[i] != REL_LOAD || (i + 1 < n_words && words[i + 1] >= 0 && words[i + 1] < n_loads);
            if (++i >= n_words || !load_fits || ++depth > REL_STACK) {
                return false;
            }
        }
        else if (is_unary(words[i])) {
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
