"""Python's `random` and the clock: what they give is symbolic in the graph.

In: functions of the module `random` (methods of its hidden object), methods of the program's own `random.Random`
objects, functions of `time`. Out: calls before the graph's, and of clocks, after it. A function is a row of `_RULES`.
"""

from __future__ import annotations

import functools
import math
import random
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.report import breaks
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.registry import builtin, constructor
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.replayed import is_original, seeded
from dynajit.values.effects.table import (
    Arguments,
    Rule,
    RunTimeObject,
    State,
    When,
    apply,
    follow,
    model_of,
    no_arguments,
    refuse,
    register,
)
from dynajit.values.objects.objects import ObjVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal

_METHODS: Any = random.Random
_DRAWS: Any = _METHODS.random  # what the methods written in Python call
MAX_BITS = 62  # as much as a graph's number has room for


def _generator(value: Value, name: str) -> Value:
    """The object to draw from, which is none of a subclass."""
    if isinstance(value, RunTimeObject) or (isinstance(value, ObjVal) and value.cls is random.Random):
        return value
    refuse(f"{name} of {value.describe()}")


def _known(args: Sequence[Value], kwargs: dict[str, Value], name: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments themselves. Lists are taken as the tuples that they are at the call."""
    values = [*args, *kwargs.values()]
    if not all(value.is_const() for value in values):
        refuse(f"{name} of what is not known while tracing")
    found = [value.const() for value in values]
    if any(isinstance(each, float) and not math.isfinite(each) for each in found):
        refuse(f"{name} of numbers that are not finite")
    return found[: len(args)], dict(zip(kwargs, found[len(args) :], strict=True))


def _tried(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the method gives for an object that nobody else has."""
    with ending_graph(breaks.RAISES, function.__qualname__, Exception):
        return function(random.Random(0), *args, **kwargs)


def _of_number(rule: Rule, tx: Tracer, self: Value, *args: Value, **kwargs: Value) -> Arguments:
    """The arguments of a method that gives a number: known ones, which are tried, or bounds that vary."""
    owner = _generator(self, rule.name)
    if _METHODS.random is not _DRAWS:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{rule.name} while Random.random is replaced")
    if rule.function in (_METHODS.randint, _METHODS.randrange) and any(isinstance(arg, SymVal) for arg in args):
        _check_bounds(tx, rule, args, kwargs)
        return [owner, *args], {}
    found, named = _known(args, kwargs, rule.name)
    tried = _tried(rule.function, found, named)
    if type(tried) is not rule.gives or (rule.function is _METHODS.getrandbits and found[0] > MAX_BITS):
        refuse(f"{rule.name}, which gives no number of a known type")
    return [owner, *map(ConstVal, found)], {key: ConstVal(value) for key, value in named.items()}


def _check_bounds(tx: Tracer, rule: Rule, args: Sequence[Value], kwargs: dict[str, Value]) -> None:
    """Bounds that vary must leave something to draw from; that is guarded."""
    if kwargs or len(args) > 2 or not all(isinstance(arg, (SymVal, ConstVal)) for arg in args):
        refuse(f"{rule.name} of such arguments")
    if any(arg.py_type() is not int for arg in args):
        refuse(f"{rule.name} of what is no int")
    low, high = (ConstVal(0), args[0]) if len(args) == 1 else args
    below = "<=" if rule.function is _METHODS.randint else "<"
    if not tx.holds(low, below, high):
        raise GraphBreak(breaks.RAISES, f"{rule.name} with nothing to choose from")


def _of_seed(rule: Rule, tx: Tracer, self: Value, *args: Value) -> Arguments:
    owner = _generator(self, rule.name)
    found, _ = _known(args, {}, rule.name)
    if not found or found[0] is None:
        refuse("random.seed by the clock")
    _tried(rule.function, found, {})
    return [owner, *args], {}


def _of_own_state(rule: Rule, tx: Tracer, self: Value, *args: Value) -> Arguments:
    if len(args) != 1 or not isinstance(args[0], RunTimeObject):
        refuse("random.setstate to a state that the function did not get itself")
    return [_generator(self, rule.name), *args], {}


def _of_object(rule: Rule, tx: Tracer, self: Value) -> Arguments:
    return [_generator(self, rule.name)], {}


def _state(args: Sequence[Value]) -> State:
    return State(_METHODS.getstate, _METHODS.setstate, args[0])


def _in_order(tx: Tracer, rule: Rule, args: Sequence[Value]) -> When:
    """The clock is read between the operations that the program reads it between."""
    if not tx.graph.op_count:
        return When.BEFORE
    follow(tx, f"{rule.name} between operations", lambda target: True)
    return When.AFTER


def _row(gives: type | None, name: str, arguments: Callable[..., Arguments]) -> Rule:
    return Rule(f"random.{name}", getattr(_METHODS, name), arguments, gives, _state)


_FLOATS = """
random uniform triangular gauss normalvariate lognormvariate expovariate vonmisesvariate gammavariate betavariate
paretovariate weibullvariate
"""
_NUMBERS = [
    *(_row(float, name, _of_number) for name in _FLOATS.split()),
    *(_row(int, name, _of_number) for name in ("randint", "randrange", "getrandbits")),
]
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
_RULES = [
    *_NUMBERS,
    _row(None, "seed", _of_seed),
    _row(None, "setstate", _of_own_state),
    _row(tuple, "getstate", _of_object),
    *(Rule(f"time.{name}", getattr(time, name), no_arguments, float, when=_in_order) for name in _CLOCKS),
    *(Rule(f"time.{name}_ns", getattr(time, f"{name}_ns"), no_arguments, int, when=_in_order) for name in _CLOCKS),
]
register(_RULES)


def _of_module(rule: Rule, owner: Any, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    return model_of(rule)(tx, tx.from_real(owner), *args, **kwargs)


for _rule in _NUMBERS:
    _shared = getattr(random, _rule.function.__name__)
    if isinstance(_shared, types.BuiltinFunctionType):  # a method of the module's own object, written in C
        builtin(_shared)(functools.partial(_of_module, _rule, _shared.__self__))


@builtin(_METHODS.choice)
def choice(tx: Tracer, self: Value, seq: Value) -> Value:
    """Gives a number as all of those are that it chooses from."""
    known, _ = _known([TupleVal(seq.values(tx)) if isinstance(seq, ListVal) else seq], {}, "random.choice")
    rule = _row(_kind_of(known[0]), "choice", _of_number)
    return model_of(rule)(tx, self, ConstVal(known[0]))


def _kind_of(items: Any) -> type | None:
    """The type that all there is to choose from has, if it is a kind of number."""
    if isinstance(items, range):
        return int
    kinds = set(map(type, items)) if isinstance(items, tuple) else set()
    if kinds == {float}:
        return float
    return int if kinds == {int} and all(abs(item) < 1 << MAX_BITS for item in items) else None


@constructor(random.Random)
def generator(tx: Tracer, x: Value | None = None) -> Value:
    found, _ = _known([x] if x is not None else [], {}, "random.Random")
    if not found or not isinstance(found[0], (int, float, str, bytes)):
        refuse("random.Random seeded by the clock")
    if is_original():
        return seeded(found[0])
    return apply(tx, Rule("random.Random", random.Random, no_arguments, random.Random), [ConstVal(found[0])])
