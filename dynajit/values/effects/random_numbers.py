"""Models of Python's `random` and of the clock: the calls are made when the compiled function runs, and what they give
is symbolic in the graph.

In: functions of the module `random` (methods of its hidden object), methods of the program's own `random.Random`
objects, functions of `time`. A function is added in `_NUMBERS`, `_STATEMENTS` or `_CLOCKS`.
"""

from __future__ import annotations

import math
import random
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.report import breaks
from dynajit.values import operators
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.builtins.registry import builtin, constructor
from dynajit.values.constant import ConstVal
from dynajit.values.effects.table import RunTimeObject, State, call, follow, number, refuse
from dynajit.values.objects import ObjVal
from dynajit.values.seeded import ORIGINAL, SeededVal
from dynajit.values.sequence import ListVal, TupleVal
from dynajit.values.symbolic import SymVal

_CLOCKS: dict[Callable[[], Any], type] = {
    **dict.fromkeys((time.time, time.perf_counter, time.monotonic, time.process_time, time.thread_time), float),
    **dict.fromkeys(
        (time.time_ns, time.perf_counter_ns, time.monotonic_ns, time.process_time_ns, time.thread_time_ns), int
    ),
}
_METHODS = random.Random
# methods that give a number
_NUMBERS: dict[str, type | None] = {
    **dict.fromkeys(("random", "uniform", "triangular", "gauss", "normalvariate", "lognormvariate"), float),
    **dict.fromkeys(("expovariate", "vonmisesvariate", "gammavariate", "betavariate", "paretovariate"), float),
    "weibullvariate": float,
    "randint": int,
    "randrange": int,
    "getrandbits": int,
    "choice": None,  # as what is chosen from
}
_STATEMENTS = ("seed", "setstate")
_DRAWS: Any = _METHODS.random  # what the methods written in Python call
_MOST_BITS = 62  # as much as a graph's number has room for


def _clock(function: Callable[[], Any], kind: type) -> None:
    name = f"time.{function.__name__}"

    @builtin(function)
    def model(tx: Tracer) -> Value:
        late = tx.graph.op_count > 0
        if late:
            follow(tx, f"{name} between operations", lambda target: True)
        return number(tx, kind, call(tx, name, function, [], late=late))


for _function, _kind in _CLOCKS.items():
    _clock(_function, _kind)


def _generator(tx: Tracer, value: Value, name: str) -> Value:
    """The object to draw from, which is none of a subclass."""
    if isinstance(value, RunTimeObject) or (isinstance(value, ObjVal) and value.cls is random.Random):
        return value
    refuse(f"random.{name} of {value.describe()}")


def _state(owner: Value) -> State:
    return State(_METHODS.getstate, _METHODS.setstate, owner)


def _known(args: Sequence[Value], kwargs: dict[str, Value], name: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments themselves. Lists are taken as the tuples that they are at the call."""
    values = [*args, *kwargs.values()]
    if not all(value.is_const() for value in values):
        refuse(f"random.{name} of what is not known while tracing")
    found = [value.const() for value in values]
    if any(isinstance(each, float) and not math.isfinite(each) for each in found):
        refuse(f"random.{name} of numbers that are not finite")
    return found[: len(args)], dict(zip(kwargs, found[len(args) :], strict=True))


def _tried(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the method gives for an object that nobody else has."""
    try:
        return function(random.Random(0), *args, **kwargs)
    except Exception as error:  # whatever it is, the call itself raises it
        raise GraphBreak(breaks.RAISES, f"{type(error).__name__}: {error}") from None


def _number(name: str, kind: type | None) -> None:
    function: Any = getattr(_METHODS, name)

    @builtin(function)
    def model(tx: Tracer, self: Value, *args: Value, **kwargs: Value) -> Value:
        owner = _generator(tx, self, name)
        if _METHODS.random is not _DRAWS:
            raise GraphBreak(breaks.SKIPPED_CALL, f"random.{name} while Random.random is replaced")
        if kind is int and name != "getrandbits" and any(isinstance(arg, SymVal) for arg in args):
            _check_bounds(tx, name, args, kwargs)
            return number(tx, int, call(tx, f"random.{name}", function, [owner, *args], state=_state(owner)))
        if name == "choice":
            args = tuple(TupleVal(arg.values(tx)) if isinstance(arg, ListVal) else arg for arg in args)
        found, named = _known(args, kwargs, name)
        tried = _tried(function, found, named)
        gives = kind or _kind_of(found, named)
        if gives is None or type(tried) is not gives or (name == "getrandbits" and found[0] > _MOST_BITS):
            refuse(f"random.{name}, which gives no number of a known type")
        source = call(
            tx,
            f"random.{name}",
            function,
            [owner, *map(ConstVal, found)],
            {key: ConstVal(value) for key, value in named.items()},
            state=_state(owner),
        )
        return number(tx, gives, source)

    shared = getattr(random, name)
    if isinstance(shared, types.BuiltinFunctionType):  # a method of the module's own object, written in C

        @builtin(shared)
        def of_module(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
            return model(tx, tx.from_real(shared.__self__), *args, **kwargs)


for _name, _kind_or_none in _NUMBERS.items():
    _number(_name, _kind_or_none)


def _check_bounds(tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> None:
    """Bounds that vary must leave something to draw from; that is guarded."""
    if kwargs or len(args) > 2 or not all(isinstance(arg, (SymVal, ConstVal)) for arg in args):
        refuse(f"random.{name} of such arguments")
    if any(arg.py_type() is not int for arg in args):
        refuse(f"random.{name} of what is no int")
    low, high = (ConstVal(0), args[0]) if len(args) == 1 else args
    if not operators.compare(tx, "<=" if name == "randint" else "<", low, high).truth(tx):
        raise GraphBreak(breaks.RAISES, f"random.{name} with nothing to choose from")


def _kind_of(args: Sequence[Any], kwargs: dict[str, Any]) -> type | None:
    """The type that all there is to choose from has, if it is a kind of number."""
    (items,) = (*args, *kwargs.values())
    if isinstance(items, range):
        return int
    kinds = set(map(type, items)) if isinstance(items, tuple) else set()
    if kinds == {float}:
        return float
    return int if kinds == {int} and all(abs(item) < 1 << _MOST_BITS for item in items) else None


def _statement(name: str) -> None:
    function: Any = getattr(_METHODS, name)

    @builtin(function)
    def model(tx: Tracer, self: Value, *args: Value) -> Value:
        owner = _generator(tx, self, name)
        if name == "seed":
            found, _ = _known(args, {}, name)
            if not found or found[0] is None:
                refuse("random.seed by the clock")
            _tried(function, found, {})
        elif len(args) != 1 or not isinstance(args[0], RunTimeObject):
            refuse("random.setstate to a state that the function did not get itself")
        call(tx, f"random.{name}", function, [owner, *args], state=_state(owner))
        return ConstVal(None)


for _name in _STATEMENTS:
    _statement(_name)


@builtin(_METHODS.getstate)
def getstate(tx: Tracer, self: Value) -> Value:
    owner = _generator(tx, self, "getstate")
    return RunTimeObject(tuple, call(tx, "random.getstate", _METHODS.getstate, [owner], state=_state(owner)))


@constructor(random.Random)
def generator(tx: Tracer, x: Value | None = None) -> Value:
    found, _ = _known([x] if x is not None else [], {}, "Random")
    if not found or not isinstance(found[0], (int, float, str, bytes)):
        refuse("random.Random seeded by the clock")
    if all(getattr(_METHODS, name) is original for name, original in ORIGINAL.items()):
        return SeededVal(found[0])
    return RunTimeObject(random.Random, call(tx, "random.Random", random.Random, [ConstVal(found[0])]))
