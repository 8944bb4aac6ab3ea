"""Lists and tuples that are a real one of any length with items put before and after: `history + (x,)`, `[*losses, x]`.

In: a real list or tuple that an earlier capture saw with another length, as those have that a program adds to. Out:
`OutsideTuple` and `JoinedList`, of which nothing depends on the length until their items are asked for. Generated code
joins them to the real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynajit.guards.source import CallSource, ItemSource, Source, length_source
from dynajit.values.containers.lengths import check_growth, length_varies, outside_length
from dynajit.values.containers.sequence import Lazy, ListVal, SequenceVal, TupleVal, other_than_empty
from dynajit.values.core.value import NotReal, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.number_calls import MAX_COMPUTED


def outside_tuple(tx: Tracer, real: tuple[Any, ...], source: Source) -> Value | None:
    """The model of a tuple that an earlier capture saw with another length; None: it saw none."""
    if not grows(tx, real, source):
        return None
    made = OutsideTuple(tx, real, source, (), ())
    made.source = source
    return made


def grows(tx: Tracer, real: list[Any] | tuple[Any, ...], source: Source) -> bool:
    """Whether an earlier capture saw the list or tuple with another length."""
    return length_varies(tx, len(real), length_source(source, type(real).__len__))


class _Joined(SequenceVal):
    """`before`, the items of the real one, and `after`."""

    def __init__(
        self,
        tx: Tracer,
        real: list[Any] | tuple[Any, ...],
        of: Source,
        before: Sequence[Value],
        after: Sequence[Value],
    ) -> None:
        self._tx = tx
        self._real = real
        self._of = of
        self._before, self._after = before, after
        self._items: list[Any] | None = None  # None while nothing depends on the length
        self.source = None

    @property
    def items(self) -> list[Any]:  # type: ignore[override]
        if self._items is None:
            check_growth(self._tx, self._of, type(self._real).__len__)
            self._tx.guard(self._of, "LEN", len(self._real))
            found = [Lazy(item, ItemSource(self._of, index)) for index, item in enumerate(self._real)]
            self._tx.journal.set_attr(self, "_items", [*self._before, *found, *self._after])
        return self._items  # type: ignore[return-value]

    def unread(self) -> int:
        return len(self._real) if self._items is None else super().unread()

    @property
    def first_items(self) -> list[Any]:
        return [*self._before, *(Lazy(item, None) for item in self._real[:2]), *self._after][:2]

    def real(self) -> Any:
        if self._items is None:
            raise NotReal("a sequence not looked at yet")
        return super().real()

    def growing(self) -> tuple[Sequence[Any], Source, Sequence[Value]] | None:
        """The real one, its source and what is after its items, for what is computed of all of them."""
        if self._items is not None or self._before or len(self._real) > MAX_COMPUTED:
            return None
        return self._real, self._of, self._after

    def truth(self, tx: Tracer) -> bool:
        if self._items is not None or self._before or self._after:
            return self._items is None or super().truth(tx)
        tx.guard(CallSource(self._of, bool, "bool({})"), "EQUALS", bool(self._real))
        return bool(self._real)

    def length(self, tx: Tracer) -> Value:
        if self._items is not None:
            return super().length(tx)
        more = len(self._before) + len(self._after)
        return outside_length(tx, len(self._real), self._of, type(self._real).__len__, more)

    def getitem(self, tx: Tracer, key: Value) -> Value:
        if self._items is None and type(key) is ConstVal and type(key.value) is int:
            index, count = key.value, len(self._real)
            known, place = (self._before, index) if index >= 0 else (self._after, -1 - index)
            if place < len(known):
                return known[index]
            place -= len(known)
            if place < count:
                at = place if index >= 0 else -1 - place
                return tx.wrap(self._real[at], ItemSource(self._of, at))
        return super().getitem(tx, key)

    def binary(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        if self._items is None and symbol == "+" and right.py_type() is self.kind:
            same = other_than_empty(tx, self, right)
            if same is not None:
                return same
            made = JoinedList(tx, self._real, self._of, self._before, [*self._after, *tx.unpack(right)])
            return made if self.kind is list else made.as_tuple(tx)
        return super().binary(tx, symbol, right)

    def spread(self, tx: Tracer, before: Any) -> Value | None:
        if self._items is not None:
            return None
        return JoinedList(tx, self._real, self._of, [*before.values(tx), *self._before], self._after)

    def children(self) -> Sequence[Value]:
        return [*self._before, *self._after] if self._items is None else super().children()

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


class JoinedList(_Joined, ListVal):
    """A list made of the real list or tuple."""

    def append(self, tx: Tracer, item: Value) -> None:
        self.extend(tx, [item])

    def extend(self, tx: Tracer, items: Sequence[Value]) -> None:
        if self._items is not None:
            super().extend(tx, items)
            return
        tx.journal.changed.append(self)
        tx.journal.set_attr(self, "_after", [*self._after, *items])

    def as_tuple(self, tx: Tracer) -> Value:
        if self._items is not None:
            return super().as_tuple(tx)
        return OutsideTuple(tx, self._real, self._of, self._before, self._after)


def _join_list(before: Sequence[Any], real: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """In generated code."""
    return [*before, *real, *after]


def _join_tuple(before: Sequence[Any], real: Sequence[Any], after: Sequence[Any]) -> tuple[Any, ...]:
    return (*before, *real, *after)
