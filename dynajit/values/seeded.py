"""`random.Random` objects that the traced program made itself, of a seed known while tracing.

In: the object. Out: `SeededVal`. What it draws is the same at each call of the program, so it is drawn while tracing;
generated code makes an object of the state behind that. What is drawn of a container depends on its length alone: an
index is drawn, and the container's model gives the item.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.bytecode.landing import Landing
from dynajit.report import breaks
from dynajit.values.base import GraphBreak, NotReal, Tracer, Value
from dynajit.values.constant import ConstVal
from dynajit.values.sequence import ListVal, TupleVal

_NUMBERS = frozenset(
    {"random", "uniform", "triangular", "gauss", "normalvariate", "lognormvariate", "expovariate", "vonmisesvariate"}
    | {"gammavariate", "betavariate", "paretovariate", "weibullvariate", "randint", "randrange", "getrandbits"}
    | {"randbytes", "binomialvariate", "seed", "getstate", "setstate"}
)
#: methods whose first argument is drawn from
_DRAWN_FROM = frozenset({"choice", "choices", "sample", "shuffle"})
METHODS = frozenset(name for name in _NUMBERS | _DRAWN_FROM if hasattr(random.Random, name))
ORIGINAL: dict[str, Any] = {name: getattr(random.Random, name) for name in METHODS}


def remade(state: tuple[Any, ...]) -> random.Random:
    """An object in this state."""
    made = random.Random(0)
    made.setstate(state)
    return made


class SeededVal(Value):
    """One such object."""

    def __init__(self, seed: int | float | str | bytes) -> None:
        self._object = random.Random(seed)

    def py_type(self) -> type:
        return random.Random

    def describe(self) -> str:
        return "a random.Random made in the function"

    def truth(self, tx: Tracer) -> bool:
        return True

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in METHODS:
            return SeededMethod(self, name)
        if not hasattr(self._object, name):
            raise tx.raised(AttributeError, f"'Random' object has no attribute '{name}'")
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name} of {self.describe()}")

    def run(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """Call a method."""
        if any(getattr(random.Random, each) is not ORIGINAL[each] for each in METHODS):
            raise GraphBreak(breaks.SKIPPED_CALL, f"random.{name} while methods of random.Random are replaced")
        before = self._object.getstate()
        drawn, items = name in _DRAWN_FROM, ConstVal(None)
        if drawn:
            if not args:
                raise GraphBreak(breaks.UNKNOWN_CALL, f"Random.{name} with arguments by name alone")
            items, args = args[0], args[1:]  # type: ignore[assignment]
        try:
            given = [arg.real() for arg in args]
            named = {key: value.real() for key, value in kwargs.items()}
        except NotReal as missing:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"Random.{name} on {missing}") from None
        if any(not isinstance(each, (int, float, str, bytes, tuple, list, type(None))) for each in given):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"Random.{name} with {args[0].describe()}")
        if name == "seed" and (not given or given[0] is None):
            raise GraphBreak(breaks.SKIPPED_CALL, "random.seed by the clock")
        try:
            if drawn:
                found = self._draw(tx, name, items, given, named)
            else:
                found = tx.from_real(getattr(self._object, name)(*given, **named))
        except GraphBreak:
            self._object = remade(before)
            raise
        except Exception as error:
            self._object = remade(before)
            raise GraphBreak(breaks.RAISES, f"{type(error).__name__}: {error}") from None

        def take_back() -> None:
            self._object = remade(before)

        tx.journal.changes += 1
        tx.journal.record(take_back)
        return found

    def _draw(self, tx: Tracer, name: str, items: Value, given: list[Any], named: dict[str, Any]) -> Value:
        count, item = _picked_from(tx, name, items)
        draw = getattr(self._object, name)
        if name == "shuffle":
            if not isinstance(items, ListVal):
                raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"Random.shuffle of {items.describe()}")
            order = list(range(count))
            draw(order, *given, **named)
            items.replace(tx, [item(index) for index in order])
            return ConstVal(None)
        if name == "choice":
            return item(draw(range(count)))
        return ListVal([item(index) for index in draw(range(count), *given, **named)])

    def rebuild(self, out: Any) -> None:
        state = self._object.getstate()
        out.call_const(remade, lambda: out.const(state), 1)


def _picked_from(tx: Tracer, name: str, items: Value) -> tuple[int, Callable[[int], Value]]:
    """How many there are to draw from, and the item of a number."""
    if isinstance(items, (ListVal, TupleVal)):
        values = items.values(tx)
        return len(values), values.__getitem__
    if items.is_const() and items.py_type() in (str, bytes, range):
        real = items.const()
        return len(real), lambda index: tx.from_real(real[index])
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"Random.{name} of {items.describe()}")


class SeededMethod(Value):
    """A method of such an object."""

    def __init__(self, owner: SeededVal, name: str) -> None:
        self.owner = owner
        self.name = name

    def py_type(self) -> type:
        return types.MethodType if isinstance(ORIGINAL[self.name], types.FunctionType) else types.BuiltinMethodType

    def describe(self) -> str:
        return f"{self.name} of {self.owner.describe()}"

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Landing | None = None) -> Value:
        return self.owner.run(tx, self.name, args, kwargs)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Any) -> None:
        out.push(self.owner)
        out.emit.load_attr(self.name)
