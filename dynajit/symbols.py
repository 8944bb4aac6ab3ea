"""Expressions over symbolic sizes and numbers, in a form that the front, the aot layer and the back can read.

In: sympy expressions as torch's ShapeEnv makes them. Out: a tree: a number, a symbol's name (str), or a tuple
(operation, *trees); and what can be made of one: its value, Python text, nodes of an fx graph, words of a guard
program. One more operation: a row in `OPERATIONS`, and the sympy class's name in `_SYMPY` if it has one of its own.
"""

from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx

Tree: TypeAlias = Any  # int | float | bool | str | tuple[str, *Tree]


class Untranslatable(Exception):
    """The expression has no tree: a function that nobody here knows."""


class Operation(NamedTuple):
    """One operation: on numbers, in the fx graph, as text with {0} and {1} for its arguments, as a guard's word."""

    function: Callable[..., Any]
    target: Callable[..., Any]
    text: str
    word: int | None = None


def _where(condition: Any, then: Any, otherwise: Any) -> Any:
    return then if condition else otherwise


# The words' numbers are those of csrc/guards/relation.c.
WORD_CONST, WORD_LOAD, WORD_NOT, WORD_FLOAT = 0, 1, 2, 18
OPERATIONS: dict[str, Operation] = {
    "not": Operation(operator.not_, torch.sym_not, "(not {0})", WORD_NOT),
    "add": Operation(operator.add, operator.add, "({0} + {1})", 3),
    "mul": Operation(operator.mul, operator.mul, "({0}*{1})", 4),
    "floordiv": Operation(operator.floordiv, operator.floordiv, "({0}//{1})", 5),
    "mod": Operation(operator.mod, operator.mod, "({0} % {1})", 6),
    "pow": Operation(operator.pow, operator.pow, "({0}**{1})", 7),
    "min": Operation(min, torch.sym_min, "min({0}, {1})", 8),
    "max": Operation(max, torch.sym_max, "max({0}, {1})", 9),
    "eq": Operation(operator.eq, operator.eq, "({0} == {1})", 10),
    "ne": Operation(operator.ne, operator.ne, "({0} != {1})", 11),
    "lt": Operation(operator.lt, operator.lt, "({0} < {1})", 12),
    "le": Operation(operator.le, operator.le, "({0} <= {1})", 13),
    "gt": Operation(operator.gt, operator.gt, "({0} > {1})", 14),
    "ge": Operation(operator.ge, operator.ge, "({0} >= {1})", 15),
    "and": Operation(lambda a, b: bool(a and b), operator.and_, "({0} and {1})", 16),
    "or": Operation(lambda a, b: bool(a or b), operator.or_, "({0} or {1})", 17),
    "truediv": Operation(operator.truediv, operator.truediv, "({0} / {1})", 19),
    "float": Operation(float, torch.sym_float, "float({0})", 20),
    "abs": Operation(abs, abs, "abs({0})", 21),
    "trunc": Operation(math.trunc, math.trunc, "math.trunc({0})", 22),
    "floor": Operation(math.floor, math.floor, "math.floor({0})", 23),
    "ceil": Operation(math.ceil, math.ceil, "math.ceil({0})", 24),
    "round": Operation(round, round, "round({0})"),
    "round_to": Operation(round, round, "round({0}, {1})"),
    "copysign": Operation(math.copysign, math.copysign, "math.copysign({0}, {1})"),
    "where": Operation(_where, torch.sym_ite, "({1} if {0} else {2})"),
    "bitand": Operation(operator.and_, operator.and_, "({0} & {1})"),
    "bitor": Operation(operator.or_, operator.or_, "({0} | {1})"),
    "bitxor": Operation(operator.xor, operator.xor, "({0} ^ {1})"),
    "lshift": Operation(operator.lshift, operator.lshift, "({0} << {1})"),
    "rshift": Operation(operator.rshift, operator.rshift, "({0} >> {1})"),
}
_OF_MATH = ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp", "log", "asinh", "log2")
for _word, _name in enumerate(_OF_MATH, 25):
    OPERATIONS[f"math.{_name}"] = Operation(
        getattr(math, _name), getattr(torch, f"_sym_{_name}", getattr(math, _name)), f"math.{_name}({{0}})", _word
    )

# sympy's and torch's classes of expressions
_SYMPY: dict[str, str] = {
    "Abs": "abs",
    "Pow": "pow",
    "PowByNatural": "pow",
    "FloatPow": "pow",
    "FloatAdd": "add",
    "FloatMul": "mul",
    "FloatMax": "max",
    "FloatMin": "min",
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "PythonMod": "mod",
    "Mod": "mod",
    "Equality": "eq",
    "Unequality": "ne",
    "StrictLessThan": "lt",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "GreaterThan": "ge",
    "Not": "not",
    "IntTrueDiv": "truediv",
    "FloatTrueDiv": "truediv",
    "ToFloat": "float",
    "TruncToInt": "trunc",
    "FloorToInt": "floor",
    "CeilToInt": "ceil",
    "RoundToInt": "round",
    "RoundDecimal": "round_to",
    "Where": "where",
    "BitwiseFn_bitwise_and": "bitand",
    "BitwiseFn_bitwise_or": "bitor",
    "BitwiseFn_bitwise_xor": "bitxor",
    "LShift": "lshift",
    "RShift": "rshift",
}
_FOLDED = {"Add": "add", "Mul": "mul", "Max": "max", "Min": "min", "And": "and", "Or": "or"}


#: operands in an expression from which on a number is rather guarded than computed: programs that iterate on a number
#: (a root by Newton's method) make expressions that double with each step, and sympy takes minutes for the fifth
MAX_OPERANDS = 64
#: integers in C, by which guards compute, are from -INT_LIMIT up to, without, INT_LIMIT
INT_LIMIT = 1 << 63


def is_large(number: Any) -> bool:
    """Whether the number's expression has more than MAX_OPERANDS operands, a long integer counting as several."""
    if type(number) is int:
        return _words(number) > MAX_OPERANDS
    return is_symbolic(number) and _operands(number.node.expr) > MAX_OPERANDS


@functools.lru_cache(maxsize=4096)
def _operands(expr: Any) -> int:
    own = _words(int(expr)) if expr.is_Integer else len(expr.args)
    return own + sum(_operands(part) for part in expr.args)


def _words(number: int) -> int:
    return number.bit_length() // 64


def tree_of(expr: Any) -> Tree:
    """The tree of a sympy expression (or of a Python number). Raises Untranslatable."""
    if isinstance(expr, (int, float, bool)):
        return expr
    return _tree_of(expr)


@functools.lru_cache(maxsize=4096)
def _tree_of(expr: Any) -> Tree:
    kind = type(expr).__name__
    if expr.is_Symbol:
        return str(expr)
    if kind in ("BooleanTrue", "BooleanFalse"):
        return kind == "BooleanTrue"
    if getattr(expr, "is_Integer", False):
        return int(expr)
    if getattr(expr, "is_Float", False):
        return float(expr)
    if kind == "Identity":
        return _tree_of(expr.args[0])
    if kind == "Mul" and getattr(expr.args[0], "is_Rational", False) and not expr.args[0].is_Integer:
        # a product with a fraction, which is exact
        rest = expr.func(expr.args[0].p, *expr.args[1:])
        return "floordiv", _tree_of(rest), int(expr.args[0].q)
    if kind == "Pow" and not (expr.args[1].is_Integer and expr.args[1] >= 0):
        raise Untranslatable(str(expr))
    if kind == "Piecewise" and expr.args[-1].args[1] == True:  # noqa: E712  sympy's own truth
        pairs = [tuple(map(_tree_of, pair.args)) for pair in expr.args]
        return functools.reduce(lambda rest, pair: ("where", pair[1], pair[0], rest), pairs[-2::-1], pairs[-1][0])
    parts = [_tree_of(part) for part in expr.args]
    if kind in _FOLDED:
        return functools.reduce(lambda left, right: (_FOLDED[kind], left, right), parts)
    if kind == "ModularIndexing":
        return "mod", ("floordiv", parts[0], parts[1]), parts[2]
    if kind == "CeilDiv":
        return "mul", ("floordiv", ("mul", parts[0], -1), parts[1]), -1
    if kind == "TruncToFloat":
        return "float", ("trunc", *parts)
    if kind.startswith("OpaqueUnaryFn_") and f"math.{kind[14:]}" in OPERATIONS:
        return f"math.{kind[14:]}", *parts
    if kind not in _SYMPY:
        raise Untranslatable(str(expr))
    return _SYMPY[kind], *parts


def names_in(tree: Tree) -> list[str]:
    """The symbols of a tree, each once, in order."""
    if isinstance(tree, str):
        return [tree]
    if isinstance(tree, tuple):
        return list(dict.fromkeys(name for part in tree[1:] for name in names_in(part)))
    return []


def is_sum(tree: Tree) -> bool:
    """Whether the tree is made of sums and products alone: another number for each one of a symbol."""
    return not isinstance(tree, tuple) or (tree[0] in ("add", "mul", "float") and all(map(is_sum, tree[1:])))


def value_of(tree: Tree, values: Mapping[str, Any], limit: int | None = None) -> Any:
    """The tree's value for these values of its symbols. Raises OverflowError where an int on the way is below -limit,
    or reaches it. Of the two arms of "where" one is computed: the other may divide by zero."""
    if isinstance(tree, str):
        return values[tree]
    if not isinstance(tree, tuple):
        return tree
    if tree[0] == "where":
        return value_of(tree[2 if value_of(tree[1], values, limit) else 3], values, limit)
    found = OPERATIONS[tree[0]].function(*(value_of(part, values, limit) for part in tree[1:]))
    if limit is not None and type(found) is int and not -limit <= found < limit:
        raise OverflowError(tree[0])
    return found


def text_of(tree: Tree, names: Mapping[str, str] | None = None) -> str:
    """The tree as a Python expression, with other names for its symbols."""
    if isinstance(tree, str):
        return names.get(tree, tree) if names is not None else tree
    if not isinstance(tree, tuple):
        return repr(tree)
    return OPERATIONS[tree[0]].text.format(*(text_of(part, names) for part in tree[1:]))


def readable(tree: Tree, names: Mapping[str, str] | None = None) -> str:
    """`text_of` without the outermost brackets."""
    text = text_of(tree, names)
    inside = isinstance(tree, tuple) and text.startswith("(") and text.endswith(")")
    return text[1:-1] if inside else text


@functools.lru_cache(maxsize=4096)
def function_of(tree: Tree, names: tuple[str, ...]) -> Callable[..., Any]:
    """A Python function of these symbols that computes the tree; `computed` says which."""
    made: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {readable(tree)}", {"math": math})
    made.__dict__[_COMPUTES] = tree, names
    return made


def computed(function: Any) -> tuple[Tree, tuple[str, ...]] | None:
    """What a function of `function_of` was made of; None: it is another one."""
    found: tuple[Tree, tuple[str, ...]] | None = vars(function).get(_COMPUTES)
    return found


_COMPUTES = "_computes"


def words_of(tree: Tree, loads: Mapping[str, int]) -> tuple[int, ...] | None:
    """The tree as a guard's stack program (csrc/guards/relation.c), None if C can't; `loads` numbers the symbols."""
    if isinstance(tree, str):
        return WORD_LOAD, loads[tree]
    if isinstance(tree, bool) or type(tree) is int:
        return (WORD_CONST, int(tree)) if abs(tree) < 1 << 62 else None
    if type(tree) is float:
        return WORD_FLOAT, *struct.unpack("q", struct.pack("d", tree))
    word = OPERATIONS[tree[0]].word if isinstance(tree, tuple) else None
    if word is None:
        return None
    words: tuple[int, ...] = ()
    for part in tree[1:]:
        inner = words_of(part, loads)
        if inner is None:
            return None
        words += inner
    return *words, word


def node_of(
    tree: Tree,
    create: Callable[[Callable[..., Any], tuple[Any, ...]], fx.Node],
    leaf: Callable[[str], Any],
    made: dict[Tree, fx.Node],
) -> Any:
    """A node that computes the tree; `made` holds the nodes of trees met before, and gets the new ones."""
    if isinstance(tree, str):
        return made[tree] if tree in made else leaf(tree)
    if not isinstance(tree, tuple):
        return tree
    known = made.get(tree)
    if known is None:
        arguments = tuple(node_of(part, create, leaf, made) for part in tree[1:])
        known = made[tree] = create(OPERATIONS[tree[0]].target, arguments)
    return known


# of torch's symbolic numbers
SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(value: Any) -> bool:
    """Whether it is one of torch's symbolic numbers. A ragged size is none: it is a number equal to itself alone."""
    if isinstance(value, torch.SymInt):
        return not value.node.is_nested_int()
    return isinstance(value, (torch.SymFloat, torch.SymBool))


def has_symbols(value: Any) -> bool:
    """Whether it is a symbolic number, or a tensor with symbolic sizes or strides."""
    if isinstance(value, torch.Tensor):
        return not all(type(number) is int for number in (*value.shape, *value.stride()))
    return is_symbolic(value)


def plain(value: Any) -> Any:
    """A symbolic number that is a constant after all as that constant; anything else as it is. Adds no guard."""
    if not is_symbolic(value):
        return value
    found = value.node.expr
    if found.is_number or type(found).__name__ in ("BooleanTrue", "BooleanFalse"):
        return tree_of(found)
    return value


def last_position(sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
    """How many elements after a tensor's first its last one lies in memory; of a tensor that has elements."""
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
