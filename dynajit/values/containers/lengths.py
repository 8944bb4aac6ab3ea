"""Lengths of containers from outside, which vary once they have been seen to.

In: a real container's length and its source. Out: the length's model, or a graph break where it is to be relied on.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable
from typing import Any

from dynajit.guards.source import CallSource, Source, length_source
from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal, UnreadConst

# From so many items on a copy is made by the container's own, and relies on no single one.
LONG = 32
# From so many on an operation that would read all of them ends the graph: what guards of 128 take, 1 to 2 microseconds,
# is what a break costs. What would fill a dictionary or a deque anew with all of them does from `LONG` on.
LONG_TO_READ = 128


def outside_length(tx: Tracer, count: int, of: Source, count_of: Callable[[Any], int], more: int) -> Value:
    """The length of a container of which nothing else is known, and so many `more`; `count_of`: `list.__len__` or the
    like."""
    source = length_source(of, count_of)
    by_source = length_varies(tx, count, source) or count_of is collections.deque.__len__  # LEN guards none of these
    found = tx.wrap(count, source) if by_source else UnreadLength(tx, count, of, source)
    return found.operate(tx, operator.add, [found, ConstVal(more)]) if more else found


def is_as_long(tx: Tracer, real: Any, count: int, of: Source, count_of: Callable[[Any], int]) -> bool:
    """Whether a real container has so many items or more, guarded."""
    found = _is_as_long(count_of, count, real)
    source = CallSource(of, functools.partial(_is_as_long, count_of, count), f"len({{}}) >= {count}")
    tx.guard(source, "EQUALS", found)
    return found


def _is_as_long(count_of: Callable[[Any], int], count: int, real: Any) -> bool:
    return count_of(real) >= count


def length_varies(tx: Tracer, count: int, length: Source) -> bool:
    """Whether an earlier capture saw another length there."""
    return not tx.static_numbers and tx.seen.number(length, count)


def leave_long(tx: Tracer, container: Value, least: int = LONG_TO_READ) -> None:
    """To be called where the trace is going to read all of a container: a graph break if that are many items of a real
    one, since a guard of each costs more than the real operation. Where a break would be an error, they are read."""
    count = container.unread()
    if count >= least and not (tx.graph.shapes.fullgraph or tx.runs_elsewhere or tx.static_numbers):
        raise GraphBreak(breaks.LONG_CONTAINER, f"{container.describe()}, of {count} items")


def check_growth(tx: Tracer, of: Source, count_of: Callable[[Any], int]) -> None:
    """To be called where the trace is going to rely on the length: a graph break if it grows from call to call."""
    source = length_source(of, count_of)
    if source in tx.seen.varying:
        raise GraphBreak(breaks.VARYING_VALUE, source.name())


class UnreadLength(UnreadConst):
    """A length, until something depends on it."""

    def __init__(self, tx: Tracer, count: int, of: Source, source: Source) -> None:
        super().__init__(tx, count, source)
        self._of = of

    def rely(self) -> None:
        self._tx.guard(self._of, "LEN", self._raw)
