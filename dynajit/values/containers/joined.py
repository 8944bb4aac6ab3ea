"""A real list, tuple or deque of any length with items put before and after: `history + (x,)`, `[*losses, x]`.

In: a real list or tuple that an earlier capture saw with another length, as those have that a program adds to. Out:
`OutsideTuple` and `JoinedList`, of which nothing depends on the length until their items are asked for. Generated code
joins them to the real one. `OutsideItems` is what they share with real lists (`lazy_list.py`) and deques (`deque.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from dynajit.guards.source import CallSource, ItemSource, Source, length_source
from dynajit.values.containers.iterators import check_length
from dynajit.values.containers.lengths import check_growth, is_as_long, length_varies, outside_length
from dynajit.values.containers.sequence import Lazy, ListVal, SequenceVal, TupleVal, other_than_empty, put
from dynajit.values.core.value import NotReal, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.number_calls import MAX_COMPUTED


def outside_tuple(tx: Tracer, real: tuple[Any, ...], source: Source) -> Value | None:
    """The model of a tuple that an earlier capture saw with another length; None: it saw none."""
    if not grows(tx, real, source):
        return None
    made = OutsideTuple(tx, real, tuple, source)
    made.source = source
    return made


def grows(tx: Tracer, real: list[Any] | tuple[Any, ...], source: Source) -> bool:
    """Whether an earlier capture saw the list or tuple with another length."""
    return length_varies(tx, len(real), length_source(source, type(real).__len__))


class OutsideItems(SequenceVal):
    """A real list, tuple or deque with items put before and after, the guard on whose length is recorded when something
    depends on it. Until then items are read, and taken, from its ends.

    base: the class whose methods read the real one: those of a subclass must not run. of: the source of the real one.
    """

    limit: int | None = None  # of a deque
    raw = False  # whether the real one is of a subclass

    def __init__(
        self, tx: Tracer, real: Any, base: Any, of: Source, before: Sequence[Value] = (), after: Sequence[Value] = ()
    ) -> None:
        self._tx = tx
        self._real = real
        self._base = base
        self._of = of
        self._before, self._after = list(before), list(after)
        self._taken = (0, 0)  # how many items of the real one were taken, from its start and its end
        self._items: list[Any] | None = None  # None while nothing depends on the length

    @property
    def items(self) -> list[Any]:  # type: ignore[override]
        if self._items is None:
            check_length(self._count)
            self._rely(self._count)
            start, end = self._taken
            items = [*self._before, *self._found()[start : self._count - end], *self._after]
            if self.limit is not None:  # what is too much goes from the other end than the one that grew
                items = items[: self.limit] if self._before else items[max(len(items) - self.limit, 0) :]
            self._tx.journal.set_attr(self, "_items", items)
        return self._items  # type: ignore[return-value]

    @property
    def _count(self) -> int:
        """How many items the real one has."""
        return self._base.__len__(self._real)  # type: ignore[no-any-return]

    def _rely(self, count: int) -> None:
        """Depend on the length from here on."""
        check_growth(self._tx, self._of, self._base.__len__)
        self._tx.guard(self._of, "LEN", count)

    def _found(self) -> list[Any]:
        """All items of the real one."""
        return [Lazy(item, self._place(index)) for index, item in enumerate(self._base.__iter__(self._real))]

    def _place(self, index: int) -> Source:
        return ItemSource(self._of, index, self.raw)

    def unread(self) -> int:
        return self._count - sum(self._taken) if self._items is None else super().unread()

    @property
    def first_items(self) -> list[Any]:
        """Of the real one first."""
        if self._items is not None:
            return self._items[:2]
        start, end = self._taken
        rest = itertools.islice(self._base.__iter__(self._real), start, min(start + 2, self._count - end))
        return [*(Lazy(item, None) for item in rest), *self._before, *self._after][:2]

    def truth(self, tx: Tracer) -> bool:
        if self._items is not None:
            return bool(self._items)
        if self._before or self._after:
            return self.limit != 0
        if any(self._taken):
            return self._has_more(1)
        filled = self._count > 0
        tx.guard(CallSource(self._of, is_filled if self.raw else bool, "bool({})"), "EQUALS", filled)
        return filled

    def length(self, tx: Tracer) -> Value:
        if self._items is not None:
            return super().length(tx)
        more = len(self._before) + len(self._after) - sum(self._taken)
        if self.limit is not None and self._has_more(self.limit - more):
            return ConstVal(self.limit)
        return outside_length(tx, self._count, self._of, self._base.__len__, more)

    def _has_more(self, count: int) -> bool:
        """Whether so many items of the real one are left, guarded."""
        return is_as_long(self._tx, self._real, sum(self._taken) + count, self._of, self._base.__len__)

    def getitem(self, tx: Tracer, key: Value) -> Value:
        found = None
        if self._items is None and type(key) is ConstVal and type(key.value) is int:
            found = self._near_end(tx, key.value)
        return super().getitem(tx, key) if found is None else found

    def _near_end(self, tx: Tracer, index: int) -> Value | None:
        """The item, if it is known where it is without the length."""
        known, other = (self._before, self._after) if index >= 0 else (self._after, self._before)
        if self.limit is not None and (other or not -self.limit <= index < self.limit):
            return None  # what is added at one end drops items at the other
        place = index if index >= 0 else -1 - index
        if place < len(known):
            return known[index]
        place -= len(known)
        if not (self._has_more(place + 1) if any(self._taken) else place < self._count):
            return None
        return self._wrap_at(tx, place + self._taken[0] if index >= 0 else -1 - place - self._taken[1])

    def _wrap_at(self, tx: Tracer, index: int) -> Value:
        return tx.wrap(self._base.__getitem__(self._real, index), self._place(index))

    def _take(self, tx: Tracer, at_start: bool) -> Value:
        """Take an item of the real one, which is known to have one left."""
        start, end = self._taken
        self._change(tx)
        tx.journal.set_attr(self, "_taken", (start + at_start, end + (not at_start)))
        return self._wrap_at(tx, start if at_start else -1 - end)

    def _add(self, tx: Tracer, item: Value, at_start: bool = False) -> None:
        self._change(tx)
        put(tx, self._before if at_start else self._after, item, at_start)

    def children(self) -> Sequence[Value]:
        return [*self._before, *self._after] if self._items is None else super().children()


def is_filled(real: list[Any]) -> bool:
    """Whether there is an item."""
    return list.__len__(real) > 0


class GrowingList(OutsideItems, ListVal):
    """A list that is appended to."""

    def append(self, tx: Tracer, item: Value) -> None:
        (self._add if self._items is None else super().append)(tx, item)

    def extend(self, tx: Tracer, items: Sequence[Value]) -> None:
        if self._items is not None:
            super().extend(tx, items)
            return
        for item in items:
            self._add(tx, item)


class _Joined(OutsideItems):
    """What is made of the real one, and of the items put before and after."""

    source: Source | None = None

    def real(self) -> Any:
        if self._items is None:
            raise NotReal("a sequence not looked at yet")
        return super().real()

    def growing(self) -> tuple[Sequence[Any], Source, Sequence[Value]] | None:
        """The real one, its source and what is after its items, for what is computed of all of them."""
        if self._items is not None or self._before or self._count > MAX_COMPUTED:
            return None
        return self._real, self._of, self._after

    def binary(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        if self._items is None and symbol == "+" and right.py_type() is self.kind:
            same = other_than_empty(tx, self, right)
            if same is not None:
                return same
            after = [*self._after, *tx.unpack(right)]
            made = JoinedList(tx, self._real, self._base, self._of, self._before, after)
            return made if self.kind is list else made.as_tuple(tx)
        return super().binary(tx, symbol, right)

    def spread(self, tx: Tracer, before: Any) -> Value | None:
        if self._items is not None:
            return None
        first = [*before.values(tx), *self._before]
        return JoinedList(tx, self._real, self._base, self._of, first, self._after)

    def rebuild(self, out: Any) -> None:
        if self._items is not None:
            super().rebuild(out)
            return
        of, join = self._of, _join_tuple if self.kind is tuple else _join_list
        out.ensure_source(of)

        def push() -> None:
            out.push_tuple(self._before)
            out.load(of)
            out.push_tuple(self._after)

        out.call_const(join, push, 3)


class OutsideTuple(_Joined, TupleVal):
    """A tuple: the real one itself, or one that is made of a real list or tuple."""

    kind = tuple

    def is_const(self) -> bool:
        return self._items is not None and super().is_const()

    @property
    def symbolic(self) -> bool:  # type: ignore[override]
        return self._items is not None and super().symbolic

    def is_same(self, tx: Tracer, other: Value) -> bool | None:
        return None if self._items is None and self.truth(tx) else super().is_same(tx, other)


class JoinedList(_Joined, GrowingList):
    """A list made of the real list or tuple."""

    def as_tuple(self, tx: Tracer) -> Value:
        if self._items is not None:
            return super().as_tuple(tx)
        return OutsideTuple(tx, self._real, self._base, self._of, self._before, self._after)


def _join_list(before: Sequence[Any], real: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """In generated code."""
    return [*before, *real, *after]


def _join_tuple(before: Sequence[Any], real: Sequence[Any], after: Sequence[Any]) -> tuple[Any, ...]:
    return (*before, *real, *after)
