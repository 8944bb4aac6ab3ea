"""NumPy's scalars that vary: numbers of the graph, as Python's are.

In: a scalar from outside that was another one in an earlier capture. Out: `VaryingScalar`. torch takes its number as a
symbol; so do `int`, `float` and indices. What NumPy computes of 64-bit scalars is computed of the numbers, as long as
no integer can overflow, and is a scalar again; everything else needs the scalar itself, and holds for it alone.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from dynajit.graph.seen import NO_SIZE
from dynajit.guards.source import CallSource, Source
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.number_calls import called_on_number, model_of
from dynajit.values.scalars.symbolic import COMPARISONS, SymVal, decide, from_symbolic, operate
from dynajit.values.tensors import arrays
from dynajit.values.tensors.arrays import SCALARS, ArrayVal, same_scalar

_NO_OVERFLOW = 1 << 62
_UNCHANGED_BY_NUMBER = frozenset({"dtype", "itemsize", "nbytes", "ndim", "shape", "size"})
_CONVERSIONS = frozenset({int, float, operator.index, math.floor, math.ceil, math.trunc, math.sqrt})
# what refuses a scalar whose class has no such method
_ASKED_BY: dict[Any, str] = {operator.index: "__index__", math.trunc: "__trunc__"}
_TEXTS = frozenset({format, str, repr})
_ARITHMETIC = frozenset({operator.add, operator.sub, operator.mul, operator.neg, operator.pos})
# what NumPy rounds, or divides by zero, in ways of its own
_LEFT_TO_NUMPY = frozenset({operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.abs, abs, round})
_WIDE: tuple[type, ...] = (numpy.int64, numpy.float64)


def raising_for_warnings() -> numpy.errstate:
    """Where NumPy would warn of a division by zero, an overflow or an invalid value, it raises FloatingPointError."""
    raising: dict[str, Any] = {kind: "raise" for kind, how in numpy.geterr().items() if how != "ignore"}
    return numpy.errstate(**raising)


@functools.cache
def _without_warning(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, which raises where NumPy warns: a number that guards and generated code compute would warn twice."""

    @functools.wraps(fn)
    def computed(*args: Any, **kwargs: Any) -> Any:
        with raising_for_warnings():
            return fn(*args, **kwargs)

    return computed


class VaryingScalar(ArrayVal):
    """A scalar of class `kind`. `bound`: no integer is larger, by magnitude."""

    symbolic = True
    owner = None
    child_names = ("number",)

    def __init__(self, kind: type, number: SymVal, bound: int, source: Source | None = None) -> None:
        self.kind = kind
        self.number = number
        self.bound = bound
        self.source = source

    @property
    def array(self) -> Any:  # type: ignore[override]
        return self.kind(self.number.const())

    @property
    def is_scalar(self) -> bool:
        return True

    def py_type(self) -> type:
        return self.kind

    def describe(self) -> str:
        return f"a NumPy scalar of class {self.kind.__name__} that varies"

    def const(self) -> Any:
        return self.array

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        return self.number.to_graph(tx)

    def truth(self, tx: Tracer) -> bool:
        return self.number.truth(tx)

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in _UNCHANGED_BY_NUMBER:
            return tx.from_real(getattr(self.kind(1), name))
        return super().getattr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if name == "item" and not args and not kwargs:
            return self.number
        return super().call_method(tx, name, args, kwargs)

    def rebuild(self, out: Any) -> None:
        out.call_on(self.kind, self.number)


def wrap_scalar(tx: Tracer, obj: Any, source: Source) -> Value:
    """The model of a scalar from outside: guarded by its value, or a number of the graph if that was seen to vary."""
    varying = None if tx.static_numbers else _varying(tx, obj, source, tx.seen.number)
    if varying is not None:
        return varying
    tx.guard(source, "PREDICATE", functools.partial(same_scalar, obj), f"is {obj!r}")
    return ArrayVal(obj, source=source)


def _varying(tx: Tracer, obj: Any, source: Source, seen: Callable[[Source, Any], bool]) -> Value | None:
    """The scalar as one that varies; None if no symbol can be such a number, or it was not `seen` to vary."""
    whole = isinstance(obj, numpy.integer)
    if not whole and not isinstance(obj, numpy.floating):
        return None
    plain = obj.item()
    inside = CallSource(source, int if whole else float, "int({})" if whole else "float({})")
    # a symbol that turns out to be zero has lost its sign
    fits = abs(plain) < NO_SIZE if whole else math.isfinite(plain) and plain != 0
    # of whatever class it was before, and whether or not a symbol could be that
    changed = [seen(place, plain) for place in (source, inside)]
    if not fits or not any(changed):
        return None
    tx.guard(source, "TYPE", type(obj))
    number = from_symbolic(tx, tx.graph.add_number(inside, plain), inside)
    assert isinstance(number, SymVal)
    if whole:
        for fits in (number.number < NO_SIZE, number.number > -NO_SIZE):
            decide(tx.graph, bool, fits)
    return VaryingScalar(type(obj), number, NO_SIZE, source)


def run(tx: Tracer, fn: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """Run a function of NumPy's; on numbers that all follow from one that varies the result varies, too."""
    found = call_on_number(tx, fn, args, kwargs)
    return found if found is not None else arrays.compute(tx, fn, args, kwargs)


def call_on_number(tx: Tracer, fn: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """What `fn`, which only computes, gives as a scalar for numbers and scalars that all follow from one that varies:
    `np.exp(-step / 20)`. None if the numbers at hand are needed."""
    given: dict[Any, Value] = {**dict(enumerate(args)), **kwargs}
    kinds = {key: value.py_type() for key, value in given.items() if value.py_type() in SCALARS}
    numbers = {key: _plain(value) if key in kinds else value for key, value in given.items()}
    called = called_on_number(tx, _without_warning(fn), numbers, kinds)
    if called is None or type(called[0]) not in SCALARS:
        return None
    return _varying(tx, *called, lambda *_: True) or tx.wrap(*called)


def _plain(scalar: Value) -> Value:
    return scalar.number if isinstance(scalar, VaryingScalar) else ConstVal(scalar.const().item())


def compute(tx: Tracer, fn: Any, args: Sequence[Value]) -> Value | None:
    """`fn` on numbers of which some are scalars that vary; None where only the scalars themselves will do."""
    if fn in _CONVERSIONS and len(args) == 1:
        assert isinstance(args[0], VaryingScalar)
        return tx.fold(fn, [args[0].number]) if hasattr(args[0].kind, _ASKED_BY.get(fn, "__class__")) else None
    if fn in _TEXTS or (fn is operator.mod and args[0].py_type() is str):
        return _text(tx, fn, args)
    if fn not in _ARITHMETIC | COMPARISONS | _LEFT_TO_NUMPY:
        return None
    parts = [*filter(None, map(_number_of, args))]
    if fn in _LEFT_TO_NUMPY or len(parts) < len(args):
        return call_on_number(tx, fn, args, {})
    numbers = [number for number, _ in parts]
    if fn in COMPARISONS:
        found = operate(tx, fn, numbers)
        return None if found is None else tx.from_real(numpy.bool_(found.truth(tx)))
    return _computed(tx, fn, numbers, [bound for _, bound in parts])


def _text(tx: Tracer, fn: Any, args: Sequence[Value]) -> Value | None:
    kinds = {at: value.py_type() for at, value in enumerate(args) if type(value) is VaryingScalar}
    given = {at: _plain(value) if at in kinds else value for at, value in enumerate(args)}
    called = called_on_number(tx, fn, given, kinds)
    return model_of(tx, *called) if called is not None else None


def _computed(tx: Tracer, fn: Any, numbers: Sequence[Value], bounds: Sequence[int]) -> Value | None:
    kind = float if any(number.py_type() is float for number in numbers) else int
    bound = math.prod(bounds) if fn is operator.mul else sum(bounds)
    if bound >= _NO_OVERFLOW and kind is int:
        return None
    found = operate(tx, fn, numbers)
    wide = numpy.float64 if kind is float else numpy.int64
    if isinstance(found, SymVal):
        return VaryingScalar(wide, found, bound) if found.py_type() is kind else None
    return tx.from_real(wide(found.const())) if isinstance(found, ConstVal) else None


def _number_of(value: Value) -> tuple[Value, int] | None:
    """The number of an operand, and the bound of its magnitude; None if NumPy might compute in fewer bits."""
    if isinstance(value, VaryingScalar):
        return (value.number, value.bound) if value.kind in _WIDE else None
    if isinstance(value, ArrayVal):
        return (ConstVal(value.array.item()), _bound(value.array.item())) if value.py_type() in _WIDE else None
    if type(value) is ConstVal and value.py_type() in (int, float):
        return value, _bound(value.const())
    return None


def _bound(number: float) -> int:
    return abs(number) if isinstance(number, int) else NO_SIZE
