"""Generators that are let go of where their `finally` or `with` has still to run: it runs there, in the graph."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dynajit.testing import assert_same

Log = list[str]


def counted(x: torch.Tensor, log: Log, name: str = "closed") -> Iterator[torch.Tensor]:
    try:
        for k in itertools.count(1):
            yield x * k
    finally:
        log.append(name)


def left_by_break(x: torch.Tensor, log: Log) -> Any:
    total = x
    for k, y in enumerate(counted(x, log)):
        total = total + y
        if k == 2:
            break
    log.append("after")
    return total


def left_by_return(x: torch.Tensor, log: Log) -> Any:
    def first() -> torch.Tensor:
        for y in counted(x, log):
            return y
        raise AssertionError

    y = first()
    log.append("after")
    return y


def never_bound(x: torch.Tensor, log: Log) -> Any:
    first = next(counted(x, log))
    log.append("after")
    some = list(itertools.islice(counted(x, log), 2))
    log.append("after both")
    return first, some


def rebound_or_deleted(x: torch.Tensor, log: Log) -> Any:
    rows = counted(x, log, "rebound")
    a = next(rows)
    rows = counted(x, log, "deleted")
    log.append("between")
    b = next(rows)
    del rows
    log.append("after")
    rows = counted(x, log, "at the end")
    return a + b + next(rows)


def held_by_another(x: torch.Tensor, log: Log) -> Any:
    def outer() -> Iterator[torch.Tensor]:
        try:
            yield from counted(x, log, "inner")
        finally:
            log.append("outer")

    for y in outer():
        x = x + y
        break
    log.append("after")
    return x


def inside_of_a_context_manager(x: torch.Tensor, log: Log) -> Any:
    @contextlib.contextmanager
    def scale() -> Iterator[int]:
        log.append("in")
        try:
            yield 2
        finally:
            log.append("out")

    def rows() -> Iterator[torch.Tensor]:
        with scale() as by:
            while True:
                yield x * by

    for y in rows():
        x = x + y
        break
    log.append("after")
    return x


def without_gradients(x: torch.Tensor, log: Log) -> Any:
    def rows() -> Iterator[torch.Tensor]:
        with torch.no_grad():
            while True:
                yield x * 2

    for y in rows():
        first = y
        break
    return first, x * 3, torch.is_grad_enabled()


def still_held(x: torch.Tensor, log: Log) -> Any:
    """By a dictionary, by an iterator over it, by an exception's traceback."""
    kept = {"rows": counted(x, log)}
    for y in kept["rows"]:
        x = x + y
        break
    log.append("in the dictionary")
    pairs = zip(kept.pop("rows"), range(3), strict=False)
    log.append("in the iterator")
    z, _ = next(pairs)
    doubled = itertools.chain(pairs, [])
    del pairs
    log.append("in the iterator over it")
    return x + z + next(doubled)[0]


def of_a_caught_exception(x: torch.Tensor, log: Log) -> Any:
    def fails() -> None:
        rows = counted(x, log)
        next(rows)
        raise KeyError("key")

    try:
        fails()
    except KeyError as error:
        kept: Any = error
        log.append("handled")
    log.append(type(kept).__name__)
    kept = None
    log.append("after")
    return x + 1


PROGRAMS = [left_by_break, left_by_return, never_bound, rebound_or_deleted, held_by_another]
PROGRAMS += [inside_of_a_context_manager, without_gradients, still_held]


@pytest.mark.parametrize("program", PROGRAMS)
def test_closed_where_it_is_let_go_of(program: Any) -> None:
    assert_same(program, torch.arange(4.0), [], graphs=1, breaks=0)


def raises_at_its_end(x: torch.Tensor, log: Log) -> Any:
    def rows() -> Iterator[torch.Tensor]:
        try:
            yield x + 1
        finally:
            log.append("closed")
            {}["only reported"]

    for y in rows():
        x = x + y
        break
    log.append("after")
    return x


def prints_at_its_end(x: torch.Tensor, log: Log) -> Any:
    def rows() -> Iterator[torch.Tensor]:
        try:
            yield x + 1
        finally:
            print("closed")

    for y in rows():
        x = x + y
        break
    print("after")
    return x


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("program", [of_a_caught_exception, raises_at_its_end, prints_at_its_end])
def test_what_the_trace_cannot_close_is_closed_by_python(program: Any) -> None:
    assert_same(program, torch.arange(4.0), [])
