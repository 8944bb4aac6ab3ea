"""`collections.deque` while tracing.

In: items and a maximal length, or a real deque with its source. Out: `DequeVal`. Methods are entries of
`DEQUE_METHODS`, registered in `library/methods.py`.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.guards.source import AttrSource, CallSource, Source, length_source
from dynajit.values.containers.iterators import check_length, iterator_at
from dynajit.values.containers.lengths import LONG, check_growth, is_as_long, leave_long
from dynajit.values.containers.sequence import Lazy, LiveIterator, SequenceVal, is_count, real_method
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
        tx.journal.wrote(self)
        tx.journal.set_attr(self, "changes", self.changes + 1)
        tx.journal.replace_all(self.items, kept)

    def grow(self, tx: Tracer, item: Value, left: bool = False) -> None:
        """One more item; a deque with a limit or from outside takes the long way."""
        if self.limit is not None or self.source is not None:
            self.replace(tx, [item, *self.values(tx)] if left else [*self.values(tx), item], left)
            return
        tx.journal.changed.append(self)
        tx.journal.set_attr(self, "changes", self.changes + 1)
        self.items.insert(0 if left else len(self.items), item)
        tx.journal.record(lambda: self.items.pop(0 if left else -1) and None)

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


class OutsideDeque(DequeVal):
    """A real deque; the guard on its length is recorded when its items are first asked for. Until then items are added
    at either end, or at one end of a deque with a limit, which drops items at the other."""

    def __init__(self, tx: Tracer, real: collections.deque[Any], source: Source) -> None:
        self._tx = tx
        self._real = real
        self._items: list[Any] | None = None  # None while nothing depends on the length
        self._added: dict[bool, list[Value]] = {False: [], True: []}  # until then: at the right, at the left
        self._taken = (0, 0)  # how many real items were taken until then, at the right, at the left
        self.limit = real.maxlen
        self.source: Source = source
        self.changes = 0

    @property
    def items(self) -> list[Any]:  # type: ignore[override]
        if self._items is None:
            count = len(self._real)
            check_length(count)
            if self.limit is None or self.limit > SMALL_LIMIT:
                check_growth(self._tx, self.source, collections.deque.__len__)
            self._tx.guard(length_source(self.source, collections.deque.__len__), "EQUALS", count)
            found = [Lazy(item, self._place(index)) for index, item in enumerate(self._real)]
            right, left = self._added[False], self._added[True]
            items = [*left[::-1], *found[self._taken[1] : count - self._taken[0]], *right]
            if self.limit is not None:
                items = items[: self.limit] if left else items[max(len(items) - self.limit, 0) :]
            self._tx.journal.set_attr(self, "_items", items)
        return self._items  # type: ignore[return-value]

    def _place(self, index: int) -> Source:
        return CallSource(self.source, operator.itemgetter(index), f"{{}}[{index}]")

    def unread(self) -> int:
        return len(self._real) - sum(self._taken) if self._items is None else super().unread()

    @property
    def first_items(self) -> list[Any]:
        if self._items is not None:
            return self._items[:2]
        return [Lazy(item, None) for item in itertools.islice(self._real, self._taken[1], self._taken[1] + 2)]

    def length(self, tx: Tracer) -> Value:
        if self._items is not None:
            return super().length(tx)
        more = len(self._added[False]) + len(self._added[True]) - sum(self._taken)
        if self.limit is not None:
            needed = self.limit - more
            if self._is_as_long(needed):
                return ConstVal(self.limit)
        count = tx.wrap(len(self._real), length_source(self.source, collections.deque.__len__))
        return count.operate(tx, operator.add, [count, ConstVal(more)]) if more else count

    def _is_as_long(self, count: int) -> bool:
        """Whether the real deque has so many items, guarded."""
        return is_as_long(self._tx, self._real, count, self.source, collections.deque.__len__)

    def take(self, tx: Tracer, left: bool) -> Value | None:
        """`popleft()` or `pop()` of one without a limit; None if it can't be done without the length."""
        if self._items is not None or self.limit is not None or self._added[left]:
            return None
        if not self._is_as_long(sum(self._taken) + 1):
            return None
        right_end, left_end = self._taken
        index = left_end if left else -1 - right_end
        tx.journal.touch(self)
        tx.journal.set_attr(self, "changes", self.changes + 1)
        tx.journal.set_attr(self, "_taken", (right_end + (not left), left_end + left))
        return tx.wrap(self._real[index], self._place(index))

    def truth(self, tx: Tracer) -> bool:
        return self.length(tx).truth(tx)

    def getitem(self, tx: Tracer, key: Value) -> Value:
        if self._items is None and type(key) is ConstVal and type(key.value) is int and not self._added[True]:
            index, added, taken = key.value, self._added[False], sum(self._taken)
            if -len(added) <= index < 0 and (self.limit is None or -index <= self.limit):
                return added[index]
            needed = index + 1 if index >= 0 else -index
            stays = not added or (index >= 0 and self.limit is None)
            if stays and (self._is_as_long(taken + needed) if taken else needed <= len(self._real)):
                index += self._taken[1] if index >= 0 else -self._taken[0]
                return tx.wrap(self._real[index], self._place(index))
        return super().getitem(tx, key)

    def grow(self, tx: Tracer, item: Value, left: bool = False) -> None:
        if self._items is not None or (self.limit is not None and self._added[not left]):
            super().grow(tx, item, left)
            return
        tx.journal.touch(self)
        tx.journal.set_attr(self, "changes", self.changes + 1)
        added = self._added[left]
        added.append(item)
        tx.journal.record(added.pop)

    def fill_children(self) -> Sequence[Value]:
        return [*self._added[False], *self._added[True]] if self._items is None else super().fill_children()

    def emit_effect(self, out: Any) -> None:
        if self._items is not None:
            super().emit_effect(out)
            return
        for left, extend_real in ((False, collections.deque.extend), (True, collections.deque.extendleft)):
            if self._taken[left]:
                out.run(_take, self.source, left, self._taken[left])
            if self._added[left]:
                out.run(extend_real, self.source, self._added[left])


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
