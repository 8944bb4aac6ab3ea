"""Functions of `math` on a number that varies, where torch has no symbol for the result: `math.exp(-step / 20)`.

In: the function and its arguments. Out: the model of a number from outside, whose source is the call. So it varies by
itself, generated code computes it before the graph, and guards read it as they read the program's own numbers. A call
that raises is a guard that fails.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit import _C, symbols
from dynajit.guards.source import CallSource
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.symbolic import SymVal, from_symbolic, is_number

_MAX_INT = 1 << 31  # as for ints that the program hands over


def call_on_number(tx: Tracer, fn: Callable[..., Any], args: Sequence[Value]) -> Value | None:
    """`fn` on numbers that all follow from one that varies; None if the numbers at hand are needed."""
    if not _computes(fn) or tx.static_numbers or not all(map(is_number, args)):
        return None
    varying = [arg for arg in args if isinstance(arg, SymVal)]
    if not varying or not all(arg.varies for arg in varying):
        return None
    trees = [symbols.tree_of(arg.number.node.expr) if isinstance(arg, SymVal) else arg.const() for arg in args]
    names = {name for tree in trees for name in symbols.names_in(tree)}
    if len(names) != 1:
        return None
    (name,) = names
    shapes = tx.graph.shapes
    function = _function(fn, trees, name)
    try:
        found = function(shapes.symbols[name].hint)
    except (ArithmeticError, ValueError, TypeError):
        return None  # the numbers themselves say what is wrong
    text = ", ".join(symbols.readable(tree, {name: "{0}"}) for tree in trees)
    source = CallSource(shapes.source_of(name), function, f"{fn.__name__}({text})")
    if type(found) is bool:
        return tx.wrap(found, source)
    if type(found) is float and (not math.isfinite(found) or found == 0):
        return None  # such as no symbol can be
    if type(found) not in (int, float) or (type(found) is int and abs(found) >= _MAX_INT):
        return None
    tx.guard(source, "TYPE", type(found))
    return from_symbolic(tx, tx.graph.add_number(source, found), source)


def _computes(fn: Any) -> bool:
    """Whether it is a function of `math`, `abs`, or a method of numbers: C code that only computes."""
    if isinstance(fn, types.MethodDescriptorType):
        return fn.__objclass__ in (int, float)
    return fn is abs or (isinstance(fn, types.BuiltinFunctionType) and fn.__self__ is math)


def _function(fn: Callable[..., Any], trees: Sequence[symbols.Tree], name: str) -> Callable[[Any], Any]:
    """What the call gives, of the number that varies."""
    constants = {f"constant{at}": tree for at, tree in enumerate(trees) if not symbols.names_in(tree)}
    texts = [
        f"constant{at}" if f"constant{at}" in constants else symbols.readable(tree) for at, tree in enumerate(trees)
    ]
    source = f"lambda {name}: function({', '.join(texts)})"
    made: Callable[[Any], Any] = eval(source, {"math": math, "function": fn, **constants})
    _C.mark_ours(made.__code__)
    return made
