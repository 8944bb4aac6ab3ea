"""How far an iterator is read: what stops early, or where something raises, leaves the rest to the next one who asks.

In: what reads an iterable (`READS`), and the items that it gives (`ITEMS`), by an iterator of each kind (`MAKERS`).
Out: a failure where the result, what a container holds by then, the exception, or how many items were asked for
isn't eager's. One more reader: a line in `READS`.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases import outside, same

import dynajit

STOP = object()


class Feed:
    """An iterator that counts what it was asked for, and raises where `STOP` stands."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.asked = items, 0

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        self.asked += 1
        if self.asked > len(self.items):
            raise StopIteration
        if self.items[self.asked - 1] is STOP:
            raise LookupError("in between")
        return self.items[self.asked - 1]


class ByIndex:
    """Iterated by `__getitem__`."""

    def __init__(self, items: list[Any]) -> None:
        self.feed, self.items = Feed(items), items

    def __getitem__(self, index: int) -> Any:
        try:
            return next(self.feed)
        except StopIteration:
            raise IndexError from None


def yielding(feed: Feed) -> Iterator[Any]:
    yield from feed


MAKERS: dict[str, Callable[[list[Any]], tuple[Any, Feed]]] = {
    "an iterator of its own": lambda items: ((feed := Feed(items)), feed),
    "a generator": lambda items: (yielding(feed := Feed(items)), feed),
    "by index": lambda items: ((sequence := ByIndex(items)), sequence.feed),
}
ITEMS = {
    "numbers": [4, 1, 2, 1, 3],
    "few": [2],
    "stops": [1, 2, STOP, 3],
    "a list among them": [1, [2], 3],
    "pairs": [(1, 2), (3, 4), STOP],
    "a long one": [(1, 2), (3, 4, 5), (6, 7)],
    "texts and a number": ["a", "b", 3, "c"],
}


def unpack(box: list[Any], it: Any) -> None:
    first, second = it
    box += [first, second]


def star(box: list[Any], it: Any) -> None:
    first, *rest = it
    box += [first, rest]


def added(box: list[Any], it: Any) -> None:
    box += it


def into(made: Callable[[], Any], name: str) -> Callable[[list[Any], Any], None]:
    """A method that fills a container, which is seen though it raises."""

    def read(box: list[Any], it: Any) -> None:
        container = made()
        box.append(container)
        getattr(container, name)(it)

    return read


def given(fn: Callable[[Any], Any]) -> Callable[[list[Any], Any], None]:
    return lambda box, it: box.append(fn(it))


READS: dict[str, Callable[[list[Any], Any], None]] = {
    "unpack": unpack,
    "star": star,
    "+=": added,
    "in": given(lambda it: 1 in it),
    "not in": given(lambda it: 2 not in it),
    "operator.contains": given(lambda it: operator.contains(it, 1)),
    "indexOf": given(lambda it: operator.indexOf(it, 1)),
    "countOf": given(lambda it: operator.countOf(it, 1)),
    "list.extend": into(list, "extend"),
    "deque.extend": into(lambda: collections.deque(maxlen=2), "extend"),
    "deque +=": into(collections.deque, "__iadd__"),
    "dict.update": into(dict, "update"),
    "Counter.update": into(collections.Counter, "update"),
    "set.update": into(lambda: {7}, "update"),
    "set.difference_update": into(lambda: {1, 2}, "difference_update"),
    "set.intersection_update": into(lambda: {1, 2}, "intersection_update"),
    "set.symmetric_difference_update": into(lambda: {1, 2}, "symmetric_difference_update"),
    "isdisjoint": given(lambda it: {1, 9}.isdisjoint(it)),
    "issuperset": given(lambda it: {1, 4}.issuperset(it)),
    "issubset": given(lambda it: {1, 4}.issubset(it)),
    "intersection": given(lambda it: sorted({1, 2}.intersection(it))),
    "two intersections": given(lambda it: sorted({1, 2, 3}.intersection([1, 2], it))),
    "union": given(lambda it: len({1, 2}.union(it))),
    "keys isdisjoint": given(lambda it: {1: 0, 9: 0}.keys().isdisjoint(it)),
    "keys &": given(lambda it: sorted({1: 0, 9: 0}.keys() & it)),
    "items -": given(lambda it: sorted({1: 2, 9: 0}.items() - it)),
    "sum": given(sum),
    "max": given(max),
    "min by key": given(lambda it: min(it, key=lambda item: -item)),
    "sorted": given(sorted),
    "tuple": given(tuple),
    "any": given(lambda it: any(item == 1 for item in it)),
    "all": given(all),
    "join": given("".join),
    "reduce": given(lambda it: functools.reduce(operator.add, it)),
    "zip": given(lambda it: list(zip("ab", it, strict=False))),
    "zip after": given(lambda it: list(zip(it, "ab", strict=False))),
    "islice": given(lambda it: list(itertools.islice(it, 2))),
    "takewhile": given(lambda it: list(itertools.takewhile(lambda item: item != 2, it))),
    "next": given(lambda it: next(iter(it))),
}


def outcome(read: Callable[[list[Any], Any], None], make: Callable[[list[Any]], Any], items: list[Any]) -> Any:
    box: list[Any] = []
    iterable, feed = make(items)
    try:
        read(box, iterable)
        error = None
    except (LookupError, TypeError, ValueError) as raised:
        error = type(raised).__name__, str(raised)
    return box, error, feed.asked


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("reader", READS)
def test_it_is_read_as_far_as_eager_reads_it(reader: str, maker: str) -> None:
    read, make = READS[reader], MAKERS[maker]

    def program(x: torch.Tensor, items: list[Any]) -> Any:
        return x + 1, outcome(read, make, items)

    for items in ITEMS.values():
        expected = program(torch.zeros(1), items)
        found = dynajit.compile(program, backend="eager")(torch.zeros(1), items)
        assert found == expected, items


def test_reversed_ranges_are_iterators_over_ranges() -> None:
    def program(count: int) -> Any:
        iterator: Any = reversed(range(count))
        kind = type(iterator).__name__
        iterator.__setstate__(1)
        outside()
        return kind, list(iterator)

    assert same(program, 4) == ("range_iterator", [2, 1, 0])


def test_reversed_reads_items_when_they_are_asked_for() -> None:
    class Squares:
        def __init__(self) -> None:
            self.read: list[int] = []

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            self.read.append(index)
            return index * index

    def program(last: int) -> Any:
        squares = Squares()
        for square in reversed(squares):
            if square == last:
                break
        return squares.read

    assert same(program, 9) == [4, 3]
