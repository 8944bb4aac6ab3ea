"""`collections.deque` while tracing.

In: items and a maximal length, or a real deque with its source. Out: `DequeVal`. Methods are entries of
`DEQUE_METHODS`, registered in `library/methods.py`.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.guards.source import AttrSource, CallSource, Source, length_source
from dynajit.values.containers.iterators import iterator_at
from dynajit.values.containers.joined import OutsideItems
from dynajit.values.containers.lengths import LONG, check_growth, leave_long
from dynajit.values.containers.sequence import LiveIterator, SequenceVal, is_count, put, real_method
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal

# a limit that a deque reaches before it has been compiled too often
SMALL_LIMIT = 5


class DequeVal(SequenceVal):
    """A deque; `limit` is its maxlen."""

    kind = collections.deque

    def __init__(self, items: Sequence[Any], limit: int | None = None, source: Source | None = None) -> None:
        self.items = list(items) if limit is None else list(items)[max(len(items) - limit, 0) :]
        self.limit = limit
        self.source = source
        self.changes = 0  # an iterator notices

    @staticmethod
    def outside(tx: Tracer, obj: collections.deque[Any], source: Source) -> DequeVal:
        """The model of an existing deque."""
        tx.guard(source, "TYPE", collections.deque)
        maxlen = AttrSource(source, "maxlen")
        tx.guard(maxlen, *(("ID", None) if obj.maxlen is None else ("EQUALS", obj.maxlen)))
        return OutsideDeque(tx, obj, source)

    def replace(self, tx: Tracer, items: Sequence[Value], left: bool = False) -> None:
        """New contents; what is too much goes from the other end than the one that grew."""
        leave_long(tx, self, LONG)
        kept = list(items)
        if self.limit is not None and len(kept) > self.limit:
            kept = kept[: self.limit] if left else kept[len(kept) - self.limit :]
        if self.source is not None:
            self.values(tx)
        self._change(tx)
        tx.journal.replace_all(self.items, kept)

    def _change(self, tx: Tracer) -> None:
        tx.journal.wrote(self)
        tx.journal.set_attr(self, "changes", self.changes + 1)

    def grow(self, tx: Tracer, item: Value, left: bool = False) -> None:
        """One more item; a deque with a limit or from outside takes the long way."""
        if self.limit is not None or self.source is not None:
            self.replace(tx, [item, *self.values(tx)] if left else [*self.values(tx), item], left)
            return
        self._change(tx)
        put(tx, self.items, item, left)

    def take(self, tx: Tracer, left: bool) -> Value | None:
        return None

    def alike(self, items: list[Value], other: SequenceVal | None) -> Value:
        return DequeVal(items, self.limit)

    def ibinary(self, tx: Tracer, symbol: str, right: Value) -> bool:
        if symbol == "+":
            self.call_method(tx, "extend", [right], {})
            return True
        if symbol == "*" and is_count(right):
            self.replace(tx, self.values(tx) * self.repeats(right))
            return True
        return False

    def real(self) -> Any:
        return collections.deque(super().real(), self.limit)

    def stood_for(self, items: list[Any]) -> Any:
        return collections.deque(items, self.limit)

    def iterate(self, tx: Tracer) -> Value:
        return DequeIterator(self)

    def iterate_backwards(self, tx: Tracer) -> Value:
        return DequeIterator(self, backwards=True)

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "maxlen":
            return ConstVal(self.limit)
        return tx.class_attribute(self, collections.deque, name)

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        leave_long(tx, self, LONG)
        index, items, before = self._index(tx, key, "index"), self.values(tx), self.changes
        self.replace(tx, [*items[:index], value, *items[index + 1 :]])
        self.changes = before  # another item at its place is no change to iterators

    def contains(self, tx: Tracer, item: Value) -> bool:
        return DEQUE_METHODS["__contains__"](tx, self, item).truth(tx)

    def delitem(self, tx: Tracer, key: Value) -> None:
        leave_long(tx, self, LONG)
        index, items = self._index(tx, key, "index"), self.values(tx)
        self.replace(tx, [*items[:index], *items[index + 1 :]])

    def _slice(self, tx: Tracer, items: list[Value]) -> Value:
        raise tx.raised(TypeError, "sequence index must be integer, not 'slice'")

    def rebuild(self, out: Any) -> None:
        """Made empty and filled afterwards, since it may contain itself."""
        out.call_on(collections.deque, (), self.limit)
        out.later(self, self._refill)

    def children(self) -> Sequence[Value]:
        return ()

    def fill_children(self) -> Sequence[Value]:
        return [item for item in self.items if isinstance(item, Value)]

    def effect_children(self) -> Sequence[Value]:
        return self.fill_children()

    def _refill(self, out: Any) -> None:
        out.run(collections.deque.extend, self, self.items)

    def emit_effect(self, out: Any) -> None:
        """Bring the real deque up to date."""
        # other items at their places are no change to the program's iterators
        out.run(replace_items if self.changes else exchange_items, self.source, self.items)


class OutsideDeque(OutsideItems, DequeVal):
    """A real deque. Items are added at either end, or at one end of a deque with a limit, which drops items at the
    other."""

    def __init__(self, tx: Tracer, real: collections.deque[Any], source: Source) -> None:
        super().__init__(tx, real, collections.deque, source)
        self.limit = real.maxlen
        self.source: Source = source
        self.changes = 0

    def _rely(self, count: int) -> None:
        if self.limit is None or self.limit > SMALL_LIMIT:
            check_growth(self._tx, self.source, collections.deque.__len__)
        self._tx.guard(length_source(self.source, collections.deque.__len__), "EQUALS", count)

    def _place(self, index: int) -> Source:
        return CallSource(self.source, operator.itemgetter(index), f"{{}}[{index}]")

    def take(self, tx: Tracer, left: bool) -> Value | None:
        """`popleft()` or `pop()` of one without a limit; None if it can't be done without the length."""
        if self._items is not None or self.limit is not None or (self._before if left else self._after):
            return None
        return self._take(tx, left) if self._has_more(1) else None

    def grow(self, tx: Tracer, item: Value, left: bool = False) -> None:
        drops = self.limit is not None and (self._after if left else self._before)
        (super().grow if self._items is not None or drops else self._add)(tx, item, left)

    def children(self) -> Sequence[Value]:
        return ()

    def fill_children(self) -> Sequence[Value]:
        return super().children() if self._items is None else DequeVal.fill_children(self)

    def emit_effect(self, out: Any) -> None:
        if self._items is not None:
            super().emit_effect(out)
            return
        for left, extend_real, added in (
            (False, collections.deque.extend, self._after),
            (True, collections.deque.extendleft, self._before[::-1]),
        ):
            if self._taken[not left]:
                out.run(_take, self.source, left, self._taken[not left])
            if added:
                out.run(extend_real, self.source, added)


def _take(real: collections.deque[Any], left: bool, count: int) -> None:
    """In generated code."""
    for _ in range(count):
        real.popleft() if left else real.pop()


def exchange_items(deque: collections.deque[Any], items: list[Any]) -> None:
    """Give a deque other items, as many as it has; in generated code."""
    for index, item in enumerate(items):
        deque[index] = item


def replace_items(real: collections.deque[Any], items: list[Any]) -> None:
    """Give `real` exactly these items; in generated code."""
    real.clear()
    real.extend(items)


class DequeIterator(LiveIterator):
    """Over a deque, forwards or backwards; one that changes meanwhile raises."""

    def __init__(self, sequence: DequeVal, backwards: bool = False) -> None:
        super().__init__(sequence)
        self.make: Callable[[Any], Any] = reversed if backwards else iter
        self.kind = type(self.make(collections.deque()))
        self.changes = sequence.changes
        self.made_over = len(sequence.items)

    def item(self, tx: Tracer, index: int) -> Value:
        return super().item(tx, index if self.make is iter else self.count(tx) - 1 - index)

    def next(self, tx: Tracer) -> Value:
        if self.changes != self.container.changes:
            raise tx.raised(RuntimeError, "deque mutated during iteration")
        return super().next(tx)

    def rebuild(self, out: Any) -> None:
        out.bring_up_to_date(self.container)  # an iterator made before the change would notice it
        if self.changes != self.container.changes:
            out.call_on(_stale_iterator, self.make, self.container, self.index, self.made_over)
        else:
            out.call_on(iterator_at, self.container, self.index, self.make)


def _stale_iterator(make: Callable[[Any], Any], deque: collections.deque[Any], index: int, length: int) -> Any:
    """An iterator over what the deque was, so many items, before it changed; in generated code."""
    now = list(deque)
    deque.clear()
    deque.extend((None,) * length)
    iterator = iterator_at(deque, index, make)
    deque.append(None)
    deque.clear()
    deque.extend(now)
    return iterator


def _grow(left: bool, many: bool, tx: Tracer, self: DequeVal, given: Value, /) -> None:
    """A method that adds an item, or those of an iterable, at one end."""
    for item in tx.unpack(given) if many else [given]:
        self.grow(tx, item, left)


def _pop(left: bool, whole: Callable[..., Value], tx: Tracer, self: DequeVal, /, *args: Value) -> Value:
    found = None if args else self.take(tx, left)
    return whole(tx, self, *args) if found is None else found


DEQUE_METHODS: dict[str, Callable[..., Any]] = {
    **{
        f"{name}{'left' * left}": functools.partial(_grow, left, name == "extend")
        for name in ("append", "extend")
        for left in (False, True)
    },
    **{name: real_method(name) for name in ("copy", "__copy__")},
    **{name: real_method(name, changes=True) for name in ("clear", "insert", "reverse", "rotate")},
    **{
        name: functools.partial(_pop, left, real_method(name, changes=True))
        for name, left in (("pop", False), ("popleft", True))
    },
    **{name: real_method(name, compares=True) for name in ("count", "index", "__contains__")},
    "remove": real_method("remove", changes=True, compares=True),
}
