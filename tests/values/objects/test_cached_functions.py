"""Functions put behind `functools.lru_cache` by the traced program: results, counts, what is kept over a break."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from cases import same

import dynajit
from dynajit.capture.misses import MANY_OBJECTS
from dynajit.testing import assert_same


def recursive(x: torch.Tensor) -> Any:
    @functools.cache
    def fib(k: int) -> int:
        return k if k < 2 else fib(k - 1) + fib(k - 2)

    return x * fib(9), fib.cache_info(), fib.__name__, fib.__wrapped__ is fib, fib.cache_parameters()


def of_tensors(x: torch.Tensor) -> Any:
    @functools.lru_cache(maxsize=2)
    def norm(value: torch.Tensor, p: int = 2) -> torch.Tensor:
        return value.norm(p)

    first = norm(x)
    again, other, new, evicted = norm(x), norm(x, p=1), norm(x + 1), norm(x)
    return first, again is first, other, new, evicted is first, str(norm.cache_info())


def keyed_as_in_c(x: torch.Tensor) -> Any:
    @functools.lru_cache(maxsize=None, typed=True)
    def typed(k: float, by: int = 1) -> torch.Tensor:
        return x * k

    @functools.cache
    def untyped(k: float, by: int = 1) -> torch.Tensor:
        return x * k

    for each in (typed, untyped):
        for k in (1, 1.0, True, 1):
            each(k)
            each(k=k)
            each(k, by=1)
    return typed.cache_info(), untyped.cache_info(), untyped(2), type(typed).__name__


def no_room(x: torch.Tensor) -> Any:
    @functools.lru_cache(maxsize=0)
    def scaled(k: int) -> torch.Tensor:
        return x * k

    return scaled(2), scaled(2), scaled.cache_info()


def cleared(x: torch.Tensor) -> Any:
    @functools.cache
    def scaled(k: int) -> torch.Tensor:
        return x * k

    scaled(1)
    scaled.cache_clear()
    return scaled(1), scaled.cache_info()


@pytest.mark.parametrize("program", [recursive, of_tensors, keyed_as_in_c, no_room, cleared])
def test_cached_functions_made_inside_are_traced(program: Any) -> None:
    assert_same(program, torch.arange(4.0), graphs=1, breaks=0)


def kept_over_a_break(x: torch.Tensor) -> Any:
    calls = []

    @functools.lru_cache(maxsize=2)
    def scaled(k: int, *, by: int = 1) -> torch.Tensor:
        if k == 0:
            raise ValueError(by)
        calls.append(k)
        return x * k * by

    first = scaled(2)
    scaled(3)
    scaled(3, by=2)
    scaled(2)
    scaled(2)
    try:
        scaled(0, by=7)
    except ValueError as error:
        print(error)
    again = scaled(2)
    return first, again, again is first, scaled(3, by=2), scaled.cache_info(), calls, scaled.__name__, str(scaled(2))


def test_what_a_cache_holds_is_kept_over_a_break() -> None:
    assert_same(kept_over_a_break, torch.arange(4.0), repeat=MANY_OBJECTS + 3)


def kept_empty(x: torch.Tensor) -> Any:
    @functools.cache
    def scaled(k: int) -> torch.Tensor:
        return x * k

    print("break")
    return scaled(2) + scaled(2), scaled.cache_info()


def no_cache_over_a_break(x: torch.Tensor) -> Any:
    @functools.lru_cache(maxsize=0)
    def scaled(k: int) -> torch.Tensor:
        return x * k

    y = scaled(2)
    print("break")
    return y + scaled(3), scaled.cache_info()


@pytest.mark.parametrize("program", [kept_empty, no_cache_over_a_break])
def test_counts_go_on_after_a_break(program: Any) -> None:
    assert_same(program, torch.arange(4.0), repeat=MANY_OBJECTS + 3)


def test_a_cached_function_that_is_returned_is_functools_own() -> None:
    def program(x: torch.Tensor) -> Any:
        @functools.cache
        def scaled(k: int) -> torch.Tensor:
            return x * k

        scaled(2)
        scaled(2)
        return scaled

    def called(x: torch.Tensor) -> Any:
        scaled = dynamic(x)
        return type(scaled), scaled.cache_info(), scaled(2), scaled(3), scaled.cache_info()

    dynamic: Any = program
    expected = called(torch.arange(4.0))
    dynamic = dynajit.compile(program, backend="eager")
    for _ in range(3):
        found = called(torch.arange(4.0))
        assert found[:2] == expected[:2]
        assert found[4] == expected[4]
        torch.testing.assert_close(found[2:4], expected[2:4])


def test_the_hits_of_a_cache() -> None:
    def program() -> Any:
        @functools.lru_cache
        def cached(number: int) -> int:
            return number + 1

        found = cached(1) + cached(1) + cached(2)
        return found, tuple(cached.cache_info())

    assert same(program) == (7, (1, 2, 128, 2))
