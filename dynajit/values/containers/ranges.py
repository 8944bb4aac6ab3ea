"""Ranges that nothing depends on yet.

In: the numbers that a range is made of, of which some come from outside. Out: `UnreadRange`; reading its value guards
these. A loop that runs as a whole, because its body breaks the graph, takes a range of any length; so that this is
found out before a symbolic length is specialised, an iterator's first item asks no more than whether there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynajit.values.containers.iterators import ConstIterator, IteratorVal, iterator_at
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal, UnreadConst
from dynajit.values.scalars.symbolic import SymVal, decide
from dynajit.values.scalars.unread import UnreadCall


class UnreadRange(UnreadCall):
    """A range whose numbers were not looked at."""

    def __init__(self, tx: Tracer, parts: Sequence[Value]) -> None:
        super().__init__(tx, range, parts, range)

    def starts_at(self, tx: Tracer) -> int | None:
        """The first item, guarded to be there; None if that can't be asked alone."""
        start, stop = (ConstVal(0), *self._parts)[-2:]
        if self.is_read or type(start) is not ConstVal or not isinstance(stop, SymVal):
            return None
        first: int = start.value
        return first if decide(tx.graph, bool, stop.number > first) else None

    def iterate(self, tx: Tracer) -> Value:
        return UnreadRangeIterator(self)


class UnreadRangeIterator(IteratorVal):
    """Over such a range."""

    kind = type(iter(range(0)))

    def __init__(self, iterated: UnreadRange) -> None:
        self.iterated = iterated
        self.begun = False
        #: once more than the first item was asked for
        self.known: ConstIterator | None = None

    def next(self, tx: Tracer) -> Value:
        if self.known is None and not self.begun:
            first = self.iterated.starts_at(tx)
            if first is not None:
                tx.journal.set_attr(self, "begun", True)
                return ConstVal(first)
        if self.known is None:
            known = ConstIterator(self.iterated.value)
            known.index = int(self.begun)
            tx.journal.set_attr(self, "known", known)
        assert self.known is not None
        return self.known.next(tx)

    def children(self) -> Sequence[Value]:
        return (self.iterated,) if self.known is None else self.known.children()

    def rebuild(self, out: Any) -> None:
        if self.known is not None:
            self.known.rebuild(out)
        else:
            out.call_on(iterator_at, self.iterated, int(self.begun))


def make_range(tx: Tracer, parts: Sequence[Value]) -> Value:
    """`range(*parts)`."""
    plain = all(part.py_type() is int for part in parts) and 1 <= len(parts) <= 2
    if plain and any(isinstance(part, UnreadConst) or part.varies for part in parts):
        return UnreadRange(tx, parts)
    return tx.fold(range, parts)
