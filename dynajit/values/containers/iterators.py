"""Iterators over containers: the models of `iter(x)`, `enumerate`, `zip` and their like.

In: items or other iterators. Out: values with `next(tx)`, which raises `Exhausted` at the end. Every step is undoable.
To add an iterator, subclass `IteratorVal`.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dynajit.guards.source import CallSource, Source
from dynajit.report import breaks
from dynajit.values.containers.identity import identical
from dynajit.values.core.value import Exhausted, GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal

# Items of one list or tuple that tracing follows one by one.
LONGEST = 100_000


def check_length(count: int) -> None:
    """What is longer is handled by the real instruction."""
    if count > LONGEST:
        raise GraphBreak(breaks.TOO_LONG, f"a container of more than {LONGEST} items")


def iterator_at(container: Any, index: int, make: Callable[[Any], Any] = iter) -> Any:
    """What `make` gives for the container, having given `index` items; in generated code."""
    iterator = make(container)
    if hasattr(iterator, "__setstate__"):  # of a sequence, which may be shorter by now
        iterator.__setstate__(index)
    else:
        for _ in range(index):
            next(iterator)
    return iterator


def ended_iterator(empty: Any, make: Callable[[Any], Any] = iter) -> Any:
    """What `make` gives for an empty container, having come to its end: it holds nothing."""
    iterator = make(empty)
    next(iterator, None)
    return iterator


class IteratorVal(Value):
    """Base of iterators: iterating gives the iterator itself."""

    kind: type = object
    read_by_items = True

    def iterate(self, tx: Tracer) -> Value:
        return self

    def contains(self, tx: Tracer, item: Value) -> bool:
        return has_item(tx, self, item)

    def getattr(self, tx: Tracer, name: str) -> Value:
        return tx.class_attribute(self, self.kind, name)


def taken(tx: Tracer, iterator: Value) -> Iterator[Value]:
    """The remaining items of an iterator, a user's own or not; each is read when it is asked for, so that what is not
    asked for stays in the iterator."""
    for count in itertools.count(1):
        try:
            item = iterator.next(tx)
        except Exhausted:
            return
        check_length(count)
        yield item


def drain(tx: Tracer, iterator: Value) -> list[Value]:
    """All remaining items of an iterator."""
    return [*taken(tx, iterator)]


def has_item(tx: Tracer, iterable: Value, item: Value) -> bool:
    """Whether it gives an item that is this one, or equal; read as far as that."""
    return any(identical(tx, member, item) or tx.equal(member, item) for member in taken(tx, iterable.iterate(tx)))


class PositionIterator(IteratorVal):
    """Over what has items at positions; what grows while it is iterated is seen to grow, until the end was reached."""

    #: the model that it is over, until it ended
    container: Any = None
    index = 0
    ended = False

    def item(self, tx: Tracer, index: int) -> Value:
        raise NotImplementedError

    def count(self, tx: Tracer) -> int:
        raise NotImplementedError

    def check(self, tx: Tracer) -> None:
        """Raise what CPython does where the container was changed meanwhile."""

    def next(self, tx: Tracer) -> Value:
        if self.ended:
            raise Exhausted()
        self.check(tx)
        if self.index >= self.count(tx):
            tx.journal.set_attr(self, "ended", True)
            raise Exhausted()
        found = self.item(tx, self.index)
        tx.journal.set_attr(self, "index", self.index + 1)
        return found

    def children(self) -> Sequence[Value]:
        return () if self.ended or self.container is None else (self.container,)

    def unread(self) -> int:
        return sum(container.unread() for container in PositionIterator.children(self))


class SequenceIterator(PositionIterator):
    """Over a list of values."""

    def __init__(self, items: Sequence[Value], kind: type) -> None:
        self.items = items
        self.kind = kind

    def item(self, tx: Tracer, index: int) -> Value:
        return self.items[index]

    def count(self, tx: Tracer) -> int:
        return len(self.items)

    def children(self) -> Sequence[Value]:
        return self.items[self.index :]

    def rebuild(self, out: Any) -> None:
        rest = self.items[self.index :]
        out.call_const(iter, lambda: out.push_tuple(rest), 1)


class ConstIterator(PositionIterator):
    """Over a string, bytes or range; each item is made when it is asked for, as ranges may be long."""

    def __init__(self, value: Any) -> None:
        self.kind = type(iter(value))
        self.value = value
        self.total = _length(value)

    def item(self, tx: Tracer, index: int) -> Value:
        return ConstVal(self.value[index])

    def count(self, tx: Tracer) -> int:
        return self.total

    def rebuild(self, out: Any) -> None:
        if self.ended:
            out.call_on(ended_iterator, self.value[:0])
        else:
            out.call_on(iterator_at, self.value, self.index)


def _length(value: Any) -> int:
    if not isinstance(value, range):
        return len(value)
    span = value.stop - value.start
    return max(0, (span + value.step - (1 if value.step > 0 else -1)) // value.step)


class OutsideCount(IteratorVal):
    """A real `itertools.count` of integers; it is advanced once the graph has run."""

    kind = itertools.count

    def __init__(self, source: Source, following: Value, step: Value) -> None:
        self.source = source
        self.following, self.step = following, step
        self.taken = 0

    @staticmethod
    def outside(tx: Tracer, real: itertools.count[int], source: Source) -> OutsideCount | None:
        """The model; None where what it counts are no plain integers."""
        if _count_state(real) is None:
            return None
        tx.guard(source, "TYPE", itertools.count)
        names = ("the next number of {}", "the step of {}")
        parts = [
            tx.wrap(read(real), CallSource(source, read, name)) for read, name in zip(_COUNTED, names, strict=True)
        ]
        return OutsideCount(source, *parts)

    def next(self, tx: Tracer) -> Value:
        found = self.following
        check_length(self.taken)
        tx.journal.touch(self)
        tx.journal.set_attr(self, "following", found.operate(tx, operator.add, [found, self.step]))
        tx.journal.set_attr(self, "taken", self.taken + 1)
        return found

    def emit_effect(self, out: Any) -> None:
        out.run(_advance, self.source, self.taken)


def _count_state(real: itertools.count[Any]) -> list[int] | None:
    held = [each for each in gc.get_referents(real) if each is not itertools.count]  # its class, from Python 3.12 on
    if any(type(each) is not int for each in held):
        return None  # its text might run the program's code
    return [int(part) for part in repr(real)[len("count(") : -1].split(",")]


def _counted(index: int, real: Any) -> int | None:
    state = _count_state(real)
    return None if state is None else [*state, 1][index]


_COUNTED = (functools.partial(_counted, 0), functools.partial(_counted, 1))


def _advance(real: itertools.count[int], times: int) -> None:
    for _ in range(times):
        next(real)


class EnumerateIterator(IteratorVal):
    kind = enumerate
    child_names = ("inner",)

    def __init__(self, inner: IteratorVal, start: int) -> None:
        self.inner = inner
        self.index = start

    def next(self, tx: Tracer) -> Value:
        item = self.inner.next(tx)
        index = self.index
        tx.journal.set_attr(self, "index", index + 1)
        return tx.new_tuple([ConstVal(index), item])

    def rebuild(self, out: Any) -> None:
        out.call_on(enumerate, self.inner, self.index)


class ZipIterator(IteratorVal):
    kind = zip

    def __init__(self, inner: Sequence[IteratorVal], strict: bool) -> None:
        self.inner = list(inner)
        self.strict = strict

    def next(self, tx: Tracer) -> Value:
        if not self.inner:
            raise Exhausted()
        items: list[Value] = []
        for position, part in enumerate(self.inner):
            try:
                items.append(part.next(tx))
            except Exhausted:
                if self.strict:
                    self._check_all_ended(tx, position)
                raise Exhausted() from None
        return tx.new_tuple(items)

    def _check_all_ended(self, tx: Tracer, position: int) -> None:
        plural = " " if position == 1 else "s 1-"
        if position > 0:
            raise tx.raised(ValueError, f"zip() argument {position + 1} is shorter than argument{plural}{position}")
        for later in range(1, len(self.inner)):
            try:
                self.inner[later].next(tx)
            except Exhausted:
                continue
            plural = " " if later == 1 else "s 1-"
            raise tx.raised(ValueError, f"zip() argument {later + 1} is longer than argument{plural}{later}")

    def children(self) -> Sequence[Value]:
        return self.inner

    def rebuild(self, out: Any) -> None:
        strict = {"strict": True} if self.strict else {}
        out.call_on(zip, *self.inner, *strict.values(), names=tuple(strict))
