"""Deques: searched, changed and iterated."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import outside, same

import dynajit


def test_deques_that_change_while_they_are_searched() -> None:
    class Clearing:
        def __init__(self, other: collections.deque[Any]) -> None:
            self.other = other

        def __eq__(self, other: object) -> Any:
            self.other.clear()
            return NotImplemented

        __hash__ = None  # type: ignore[assignment]

    def program(search: Callable[[Any], Any]) -> Any:
        items: collections.deque[Any] = collections.deque()
        items.extend([Clearing(items), 2])
        try:
            return search(items)
        except (RuntimeError, IndexError) as error:
            return repr(error)

    searches: list[Callable[[Any], Any]] = [
        lambda d: 3 in d,
        lambda d: d.count(3),
        lambda d: d.index(3),
        lambda d: d.remove(3),
    ]
    for search in searches:
        assert "mutated" in same(program, search)


def test_deques_times_a_number_and_items_set_while_iterating() -> None:
    def program(count: int) -> Any:
        short: collections.deque[Any] = collections.deque("ab", 3)
        twice = short * count
        alias = short
        short *= count
        for index, _ in enumerate(short):
            short[index] = index
        outside()
        return list(twice), twice.maxlen, short is alias, list(short)

    for count in (-1, 0, 2):
        same(program, count)


def test_a_deque_that_is_changed_before_it_is_iterated() -> None:
    def program(items: collections.deque[int]) -> Any:
        items.append(7)
        iterator = iter(items)
        outside()
        return list(iterator)

    for _ in range(2):
        assert same(lambda: program(collections.deque([1]))) == [1, 7]
    expected, compiled = collections.deque([1]), collections.deque([1])
    assert dynajit.compile(program, backend="eager")(compiled) == program(expected)
    assert compiled == expected


def test_items_of_a_deque_set_under_an_iterator_from_outside() -> None:
    def program(queue: Any, iterator: Any) -> int:
        for index, item in enumerate(queue):
            queue[index] = item + 1
        return object.__sizeof__(collections.deque()) + next(iterator, 0) * 0

    for run in (program, dynajit.compile(program, backend="eager")):
        queue = collections.deque([1, 2, 3])
        iterator = iter(queue)
        assert run(queue, iterator) == object.__sizeof__(collections.deque())
        assert list(iterator) == [3, 4] and list(queue) == [2, 3, 4]


def test_iterators_over_deques_that_changed_before_a_break() -> None:
    def program(items: list[int]) -> Any:
        queue = collections.deque(items)
        iterator = iter(queue)
        if items:
            queue.pop()
        else:
            queue.append(1)
        outside()
        try:
            return next(iterator)
        except RuntimeError as error:
            return str(error), list(queue)

    for items in ([], [1], [1, 2, 3]):
        same(program, items)


@pytest.mark.parametrize("advanced", [0, 2, 4])
@pytest.mark.parametrize("changed", [False, True])
def test_a_reversed_deque_leaves_its_function(advanced: int, changed: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        items = collections.deque([1, x, 3, 4])
        iterator = reversed(items)
        seen = [next(iterator) for _ in range(advanced)]
        if changed:
            items.append(5)
        return iterator, items, seen

    def used(fn: Any) -> Any:
        iterator, items, seen = fn(torch.ones(()))
        found: list[Any] = [type(iterator), iterator.__length_hint__(), *seen]
        try:
            found.append(next(iterator, None))
            items.pop()
            found.append(next(iterator, None))
        except RuntimeError as error:
            found.append(str(error))
        return found

    ours, eager = used(dynajit.compile(f, backend="eager")), used(f)
    assert ours == eager
