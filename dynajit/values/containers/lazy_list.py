"""Containers from outside whose length nothing depends on yet.

In: a real list and its source. Out: `OutsideList`, a `ListVal` that records the guard on the length when its items are
first asked for. What is only appended to, as loops do with the list they fill, and taken from at its ends, as from a
stack or a queue, fits lists of every length.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from dynajit.graph.seen import is_argument
from dynajit.guards.source import CallSource, ItemSource, Source, length_source
from dynajit.report import breaks
from dynajit.values.containers.iterators import LONGEST, check_length
from dynajit.values.containers.joined import JoinedList, grows
from dynajit.values.containers.lengths import LONG, check_growth, is_as_long, outside_length
from dynajit.values.containers.sequence import Lazy, ListVal, list_method, real_method
from dynajit.values.containers.varying_keys import VaryingKey, in_range, read_at, varying_key
from dynajit.values.core.finalizers import check_dropped
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal, slice_of
from dynajit.values.scalars.number_calls import MAX_COMPUTED


def is_filled(real: list[Any]) -> bool:
    """Whether there is an item."""
    return list.__len__(real) > 0


class OutsideList(ListVal):
    """A real list, or the list part of an instance of a subclass (`raw`: its own methods must not run)."""

    def __init__(self, tx: Tracer, real: list[Any], source: Source, raw: bool = False) -> None:
        self._tx = tx
        self._real = real
        self.raw = raw
        self.source: Source = source
        self._items: list[Any] | None = None  # None while nothing depends on the length
        self._added: list[Value] = []  # appended until then
        self._stored: dict[VaryingKey, Value] = {}  # written until then, at places that vary
        self._taken = (0, 0)  # how many items of the real list were taken until then, from its start and its end

    @property
    def items(self) -> list[Any]:  # type: ignore[override]
        if self._items is None:
            count = list.__len__(self._real)
            check_length(count)
            check_growth(self._tx, self.source, list.__len__)
            self._tx.seen.number(length_source(self.source, list.__len__), count)
            self._tx.guard(self.source, "LEN", count)
            found: list[Any] = [Lazy(item, self._place(index)) for index, item in enumerate(list.__iter__(self._real))]
            start, end = self._taken
            for key, value in self._stored.items():
                found[key.value.const()] = value
            self._tx.journal.set_attr(self, "_items", [*found[start : count - end], *self._added])
        return self._items  # type: ignore[return-value]

    def unread(self) -> int:
        return list.__len__(self._real) - sum(self._taken) if self._items is None else super().unread()

    def _place(self, index: int) -> Source:
        return ItemSource(self.source, index, self.raw)

    def growing(self) -> tuple[list[Any], Source, list[Value]] | None:
        """The real list, its source and what is behind its items by now, if nothing depends on the length, and that was
        another one at an earlier capture."""
        length = length_source(self.source, list.__len__)
        if self._items is not None or self._tx.static_numbers or any(self._taken) or self._stored:
            return None
        count = list.__len__(self._real)
        if not self._tx.seen.number(length, count):
            return None
        if count > MAX_COMPUTED:
            if is_argument(self.source):
                return None
            raise GraphBreak(breaks.VARYING_VALUE, length.name())
        return self._real, self.source, self._added

    def truth(self, tx: Tracer) -> bool:
        if self._items is not None:
            return bool(self._items)
        if self._added:
            return True
        if any(self._taken):
            return self._has_more(1)
        filled = is_filled(self._real)
        tx.guard(CallSource(self.source, is_filled, "bool({})"), "EQUALS", filled)
        return filled

    def length(self, tx: Tracer) -> Value:
        if self._items is not None:
            return super().length(tx)
        more = len(self._added) - sum(self._taken)
        return outside_length(tx, list.__len__(self._real), self.source, list.__len__, more)

    def _has_more(self, count: int) -> bool:
        """Whether so many items of the real list are left, guarded."""
        return is_as_long(self._tx, self._real, sum(self._taken) + count, self.source, list.__len__)

    def take(self, tx: Tracer, at_start: bool) -> Value | None:
        """`pop(0)` or `pop()`; None if it can't be done without the length."""
        if self._items is not None or self.raw or self._stored or not (self._added or self._has_more(1)):
            return None
        if self._added and not (at_start and self._has_more(1)):
            added = list(self._added)
            item = added.pop(0 if at_start else -1)
            tx.journal.touch(self)
            tx.journal.replace_all(self._added, added)
            return item
        start, end = self._taken
        index = start if at_start else -1 - end
        tx.journal.touch(self)
        tx.journal.set_attr(self, "_taken", (start + at_start, end + (not at_start)))
        return tx.wrap(list.__getitem__(self._real, index), self._place(index))

    @property
    def first_items(self) -> list[Any]:
        """The first two, as a hint that nothing is to rely on."""
        if self._items is not None:
            return self._items[:2]
        start, end = self._taken
        rest = itertools.islice(list.__iter__(self._real), start, min(start + 2, list.__len__(self._real) - end))
        return [*(Lazy(item, None) for item in rest), *self._added][:2]

    def append(self, tx: Tracer, item: Value) -> None:
        if self._items is not None:
            super().append(tx, item)
            return
        tx.journal.touch(self)
        self._added.append(item)
        tx.journal.record(self._added.pop)

    def extend(self, tx: Tracer, items: Sequence[Value]) -> None:
        if self._items is not None:
            super().extend(tx, items)
            return
        for item in items:
            self.append(tx, item)

    def spread(self, tx: Tracer, before: Any) -> Value | None:
        whole = self._items is None and not (any(self._taken) or self._stored or self.raw)
        if not whole or not (grows(tx, self._real, self.source) or LONG <= list.__len__(self._real) <= LONGEST):
            return None
        return JoinedList(tx, self._real, self.source, before.values(tx), list(self._added))

    def binary(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        joined: Any = self.spread(tx, ListVal([])) if symbol == "+" and right.py_type() is list else None
        return super().binary(tx, symbol, right) if joined is None else joined.binary(tx, symbol, right)

    def _varying(self, tx: Tracer, key: Value) -> VaryingKey | None:
        """What stands for an index that varies, guarded to be one of an item."""
        if self._items is not None or self._added or any(self._taken) or self.raw or key.py_type() is not int:
            return None
        found = varying_key(tx, self.source, key, list)
        if found is None or not in_range(self._real, found.hint):
            return None
        tx.guard(found.contains, "EQUALS", True)
        return found

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        found = self._varying(tx, key)
        if found is None or self._stored.keys() - {found}:
            super().setitem(tx, key, value)
            return
        check_dropped(self._stored.get(found, Lazy(list.__getitem__(self._real, found.hint), None)))
        tx.journal.touch(self)
        tx.journal.set_item(self._stored, found, value)

    def getitem(self, tx: Tracer, key: Value) -> Value:
        found = self._varying(tx, key)
        if found is not None and found in self._stored:
            return self._stored[found]
        if found is not None and not self._stored:
            return read_at(tx, found, list.__getitem__(self._real, found.hint))
        if self._items is None and type(key) is ConstVal and type(key.value) is int and not self._stored:
            index, count = key.value, list.__len__(self._real)
            if -len(self._added) <= index < 0:
                return self._added[index]
            if index < 0:
                index += len(self._added)
            needed = index + 1 if index >= 0 else -index
            if self._has_more(needed) if any(self._taken) else needed <= count:
                index += self._taken[0] if index >= 0 else -self._taken[1]
                return tx.wrap(list.__getitem__(self._real, index), self._place(index))
        whole = key.py_type() is slice and slice_of(key) == slice(None)
        copied = self.spread(tx, ListVal([])) if whole else None
        return copied if copied is not None else super().getitem(tx, key)

    def children(self) -> Sequence[Value]:
        return [*self._added, *self._stored.values()] if self._items is None else super().children()

    def emit_effect(self, out: Any) -> None:
        if self._items is not None:
            super().emit_effect(out)
        elif self._stored:
            for key, value in self._stored.items():
                out.run(list.__setitem__, self.source, key.value, value)
            out.run(list.extend, self.source, self._added)
        elif any(self._taken):
            out.run(_take_and_extend, self.source, *map(ConstVal, self._taken), *self._added)
        else:
            out.run(list.extend, self.source, self._added)


def _take_and_extend(real: list[Any], start: int, end: int, *added: Any) -> None:
    """In generated code: take so many items from the start and the end, then add these."""
    list.__delitem__(real, slice(0, start))
    list.__delitem__(real, slice(list.__len__(real) - end, None))
    list.extend(real, added)


@list_method
def pop(tx: Tracer, self: ListVal, index: Value | None = None) -> Value:
    """Of a list from outside at either end without its length."""
    known = -1 if index is None else index.value if type(index) is ConstVal and type(index.value) is int else None
    found = self.take(tx, known == 0) if type(self) is OutsideList and known in (-1, 0) else None
    return found if found is not None else _pop(tx, self, *([] if index is None else [index]))


_pop = real_method("pop", changes=True)
