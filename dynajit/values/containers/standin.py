"""Stand-ins: CPython's own C code does what it does to objects, on Python objects that stand for models.

In: a function or method written in C, and models. Out: what it gives, with the comparisons that it makes, in its order;
what it raises, in this release's words, is the program's exception. A container's method runs on a copy of its items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynajit.values.containers.identity import identical
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal, integer_of, is_none

# what C code raises itself, whatever it works on
_OWN_ERRORS = (TypeError, ValueError, LookupError, OverflowError, RuntimeError)


class StandIn:
    """Stands for a value where C code compares objects, asks for their text, or takes an index."""

    __slots__ = ("compared", "tx", "value")
    __hash__ = object.__hash__

    def __init__(self, tx: Tracer, value: Value, compared: Callable[[], None] | None = None) -> None:
        self.tx = tx
        self.value = value
        self.compared = compared  # called after each comparison, which may have changed anything

    def __eq__(self, other: Any) -> bool:
        found = identical(self.tx, self.value, other.value) or self.tx.equal(self.value, other.value)
        if self.compared is not None:
            self.compared()
        return found

    def __lt__(self, other: StandIn) -> bool:
        return self.tx.holds(self.value, "<", other.value)

    def __gt__(self, other: StandIn) -> bool:
        return self.tx.holds(self.value, ">", other.value)

    def __index__(self) -> int:
        return integer_of(self.tx, self.value, "an index", most=None)

    def __repr__(self) -> str:
        return str(self.tx.call(self.tx.from_real(repr), [self.value], {}).const())


def keyed(tx: Tracer, key: Value | None) -> Callable[[StandIn], StandIn] | None:
    """What C code takes for the argument `key`: a function of a stand-in."""
    if key is None or is_none(key):
        return None
    return lambda part: StandIn(tx, tx.call(key, [part.value], {}))


def value_of(found: Any) -> Value:
    """The model of what C code gave: a stand-in's value, a model that it moved, or a constant that it made."""
    if isinstance(found, StandIn):
        return found.value
    return found if isinstance(found, Value) else ConstVal(found)


def call_real(tx: Tracer, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call C code on stand-ins; what it raises itself the program raises."""
    try:
        return function(*args, **kwargs)
    except _OWN_ERRORS as error:
        inner = error.__traceback__.tb_next  # type: ignore[union-attr]
        if isinstance(error, RecursionError) or (inner is not None and inner.tb_frame.f_globals is globals()):
            raise  # by what a stand-in's method calls
        raise tx.raised(type(error), *map(value_of, error.args)) from None
