"""`collections.deque` made while tracing.

In: items and a maximal length. Out: `DequeVal`. Methods are entries of `DEQUE_METHODS`, registered in
`builtins/methods.py`. A deque from outside has no model: guards can't reach its items.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.values.base import Tracer, Value
from dynajit.values.constant import ConstVal, constant_of
from dynajit.values.sequence import LIST_METHODS, SequenceVal


class DequeVal(SequenceVal):
    """A deque; `limit` is its maxlen."""

    kind = collections.deque

    def __init__(self, items: Sequence[Value], limit: int | None = None) -> None:
        self.items = list(items) if limit is None else list(items)[max(len(items) - limit, 0) :]
        self.limit = limit

    def replace(self, tx: Tracer, items: Sequence[Value], left: bool = False) -> None:
        """New contents; what is too much goes from the other end than the one that grew."""
        kept = list(items)
        if self.limit is not None and len(kept) > self.limit:
            kept = kept[: self.limit] if left else kept[len(kept) - self.limit :]
        tx.journal.replace_all(self.items, kept)

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "maxlen":
            return ConstVal(self.limit)
        return tx.class_attribute(self, collections.deque, name)

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        index = self._index(tx, key, "index")
        self.replace(tx, [*self.items[:index], value, *self.items[index + 1 :]])

    def delitem(self, tx: Tracer, key: Value) -> None:
        index = self._index(tx, key, "index")
        self.replace(tx, [*self.items[:index], *self.items[index + 1 :]])

    def _slice(self, tx: Tracer, items: list[Value]) -> Value:
        raise tx.raised(TypeError, "sequence index must be integer, not 'slice'")

    def rebuild(self, out: Any) -> None:
        """Made empty and filled afterwards, since it may contain itself."""
        out.call_const(collections.deque, lambda: (out.const(()), out.const(self.limit)), 2)
        out.later(self, self._refill)

    def children(self) -> Sequence[Value]:
        return ()

    def fill_children(self) -> Sequence[Value]:
        return self.items

    def _refill(self, out: Any) -> None:
        def push() -> None:
            out.push(self)
            self.push_items(out)
            out.emit.build_list(len(self.items))

        out.call_const(collections.deque.extend, push, 2)
        out.emit.pop_top()


def append(tx: Tracer, self: DequeVal, item: Value) -> Value:
    self.replace(tx, [*self.items, item])
    return ConstVal(None)


def appendleft(tx: Tracer, self: DequeVal, item: Value) -> Value:
    self.replace(tx, [item, *self.items], left=True)
    return ConstVal(None)


def extend(tx: Tracer, self: DequeVal, items: Value) -> Value:
    self.replace(tx, [*self.items, *tx.unpack(items)])
    return ConstVal(None)


def extendleft(tx: Tracer, self: DequeVal, items: Value) -> Value:
    self.replace(tx, [*tx.unpack(items)[::-1], *self.items], left=True)
    return ConstVal(None)


def pop(tx: Tracer, self: DequeVal) -> Value:
    return _take(tx, self, -1)


def popleft(tx: Tracer, self: DequeVal) -> Value:
    return _take(tx, self, 0)


def _take(tx: Tracer, self: DequeVal, index: int) -> Value:
    if not self.items:
        raise tx.raised(IndexError, "pop from an empty deque")
    items = list(self.items)
    found: Value = items.pop(index)
    self.replace(tx, items)
    return found


def clear(tx: Tracer, self: DequeVal) -> Value:
    self.replace(tx, [])
    return ConstVal(None)


def reverse(tx: Tracer, self: DequeVal) -> Value:
    self.replace(tx, self.items[::-1])
    return ConstVal(None)


def rotate(tx: Tracer, self: DequeVal, steps: Value | None = None) -> Value:
    rotated = collections.deque(self.items)
    rotated.rotate(1 if steps is None else constant_of(steps, "a number of steps"))
    self.replace(tx, list(rotated))
    return ConstVal(None)


def copy(tx: Tracer, self: DequeVal) -> Value:
    return DequeVal(self.items, self.limit)


DEQUE_METHODS: dict[str, Callable[..., Value]] = {
    method.__name__: method
    for method in (append, appendleft, extend, extendleft, pop, popleft, clear, reverse, rotate, copy)
}
DEQUE_METHODS["count"] = LIST_METHODS["count"]
