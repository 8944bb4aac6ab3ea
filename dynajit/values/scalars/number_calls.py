"""Functions of `math` on a number that varies, where torch has no symbol for the result: `math.exp(-step / 20)`.

In: the function and its arguments. Out: the model of a number from outside, whose source is the call. So it varies by
itself, generated code computes it before the graph, and guards read it as they read the program's own numbers. A call
that raises is a guard that fails.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dynajit import _C, symbols
from dynajit.guards.source import CallSource
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.symbolic import SymVal, from_symbolic, is_number

_MAX_INT = 1 << 31  # as for ints that the program hands over
# what is told apart by its text
_SHOWN = (int, float, bool, complex, str, type(None))
NOTHING: Mapping[Any, Any] = types.MappingProxyType({})


def call_on_number(tx: Tracer, fn: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """`fn` on numbers that all follow from one that varies; None if the numbers at hand are needed."""
    given: dict[Any, Value] = {**dict(enumerate(args)), **kwargs}
    known = _computes(fn) and all(map(is_number, given.values()))
    called = called_on_number(tx, fn, given) if known else None
    if called is None:
        return None
    found, source = called
    if type(found) is bool or (type(found) is float and (math.isinf(found) or found == 0)):
        return tx.wrap(found, source)  # such as no symbol can be
    if type(found) not in (int, float) or (type(found) is int and abs(found) >= _MAX_INT):
        return None
    tx.guard(source, "TYPE", type(found))
    return from_symbolic(tx, tx.graph.add_number(source, found), source)


def called_on_number(
    tx: Tracer, fn: Callable[..., Any], args: Mapping[Any, Value], kinds: Mapping[Any, type] = NOTHING
) -> tuple[Any, CallSource] | None:
    """What `fn`, which only computes, gives for numbers that all follow from one that varies, and the source that says
    so; None if the numbers at hand are needed. `args`: by place and by name; of each in `kinds` that class is made."""
    varying = [arg for arg in args.values() if isinstance(arg, SymVal)]
    if tx.static_numbers or not varying or not all(arg.varies for arg in varying):
        return None
    if not all(isinstance(arg, SymVal) or (arg.is_const() and type(arg.const()) in _SHOWN) for arg in args.values()):
        return None
    names = {name for arg in varying for name in symbols.names_in(_tree(arg))}
    if len(names) != 1:
        return None
    (name,) = names
    known: dict[str, Any] = {"math": math, "function": fn}
    texts, shown = [], []
    for key, arg in args.items():
        if isinstance(arg, SymVal):
            text, seen = symbols.readable(_tree(arg)), symbols.readable(_tree(arg), {name: "{0}"})
        else:
            text, seen = f"given_{key}", repr(arg.const()).replace("{", "{{").replace("}", "}}")
            known[text] = arg.const()
        if key in kinds:
            known[f"kind_{key}"] = kinds[key]
            text, seen = f"kind_{key}({text})", f"{kinds[key].__name__}({seen})"
        before = f"{key}=" if isinstance(key, str) else ""
        texts.append(before + text)
        shown.append(before + seen)
    function: Callable[[Any], Any] = eval(f"lambda {name}: function({', '.join(texts)})", known)
    _C.mark_ours(function.__code__)
    shapes = tx.graph.shapes
    try:
        found = function(shapes.symbols[name].hint)
    except (ArithmeticError, ValueError, TypeError, Warning):  # NumPy warns, and a filter may make that an error
        return None  # the numbers themselves say what is wrong
    return found, CallSource(shapes.source_of(name), function, f"{_name(fn)}({', '.join(shown)})")


def _tree(number: SymVal) -> symbols.Tree:
    return symbols.tree_of(number.number.node.expr)


def _name(fn: Any) -> str:
    """Of a function, a method or one of NumPy's, for each another one."""
    owner = getattr(fn, "__objclass__", None)
    return f"{owner.__name__ if owner else getattr(fn, '__module__', None) or type(fn).__module__}.{fn.__name__}"


def _computes(fn: Any) -> bool:
    """Whether it is a function of `math`, `round`, or a method of numbers: C code that only computes."""
    if isinstance(fn, types.MethodDescriptorType):
        return fn.__objclass__ in (int, float)
    return fn is round or (isinstance(fn, types.BuiltinFunctionType) and fn.__self__ is math)
