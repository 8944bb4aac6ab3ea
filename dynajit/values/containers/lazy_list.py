"""Containers from outside whose length nothing depends on yet.

In: a real list and its source. Out: `OutsideList`, a `ListVal` that records the guard on the length when its items are
first asked for. What is only appended to, as loops do with the list they fill, and taken from at its ends, as from a
stack or a queue, fits lists of every length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynajit.graph.seen import is_argument
from dynajit.guards.source import Source, length_source
from dynajit.report import breaks
from dynajit.values.containers.iterators import LONGEST
from dynajit.values.containers.joined import GrowingList, JoinedList, grows
from dynajit.values.containers.lengths import LONG
from dynajit.values.containers.sequence import Lazy, ListVal, list_method, real_method
from dynajit.values.containers.varying_keys import VaryingKey, in_range, read_at, varying_key
from dynajit.values.core.finalizers import check_dropped
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal, slice_of
from dynajit.values.scalars.number_calls import MAX_COMPUTED


class OutsideList(GrowingList):
    """A real list, or the list part of an instance of a subclass (`raw`: its own methods must not run)."""

    def __init__(self, tx: Tracer, real: list[Any], source: Source, raw: bool = False) -> None:
        super().__init__(tx, real, list, source)
        self.raw = raw
        self.source: Source = source
        self._stored: dict[VaryingKey, Value] = {}  # written at places that vary, until something depends on the length

    def _rely(self, count: int) -> None:
        super()._rely(count)
        self._tx.seen.number(length_source(self.source, list.__len__), count)

    def _found(self) -> list[Any]:
        found = super()._found()
        for key, value in self._stored.items():
            found[key.value.const()] = value
        return found

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
        return self._real, self.source, self._after

    def take(self, tx: Tracer, at_start: bool) -> Value | None:
        """`pop(0)` or `pop()`; None if it can't be done without the length."""
        if self._items is not None or self.raw or self._stored or not (self._after or self._has_more(1)):
            return None
        if not self._after or (at_start and self._has_more(1)):
            taken = self._take(tx, at_start)
            check_dropped(taken)
            return taken
        added = list(self._after)
        item = added.pop(0 if at_start else -1)
        self._change(tx)
        tx.journal.replace_all(self._after, added)
        return item

    def spread(self, tx: Tracer, before: Any) -> Value | None:
        whole = self._items is None and not (any(self._taken) or self._stored or self.raw)
        if not whole or not (grows(tx, self._real, self.source) or LONG <= list.__len__(self._real) <= LONGEST):
            return None
        return JoinedList(tx, self._real, list, self.source, before.values(tx), self._after)

    def binary(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        joined: Any = self.spread(tx, ListVal([])) if symbol == "+" and right.py_type() is list else None
        return super().binary(tx, symbol, right) if joined is None else joined.binary(tx, symbol, right)

    def _varying(self, tx: Tracer, key: Value) -> VaryingKey | None:
        """What stands for an index that varies, guarded to be one of an item."""
        if self._items is not None or self._after or any(self._taken) or self.raw or key.py_type() is not int:
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
        whole = key.py_type() is slice and slice_of(key) == slice(None)
        copied = self.spread(tx, ListVal([])) if whole else None
        return copied if copied is not None else super().getitem(tx, key)

    def _near_end(self, tx: Tracer, index: int) -> Value | None:
        return None if self._stored else super()._near_end(tx, index)

    def children(self) -> Sequence[Value]:
        return [*self._after, *self._stored.values()] if self._items is None else super().children()

    def emit_effect(self, out: Any) -> None:
        if self._items is not None:
            super().emit_effect(out)
        elif any(self._taken):
            out.run(_take_and_extend, self.source, *map(ConstVal, self._taken), *self._after)
        else:
            for key, value in self._stored.items():
                out.run(list.__setitem__, self.source, key.value, value)
            out.run(list.extend, self.source, self._after)


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
