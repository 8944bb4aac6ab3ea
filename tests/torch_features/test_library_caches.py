"""What tensor libraries keep between calls: results behind lru_cache, functions scripted where torch.jit traces."""

from __future__ import annotations

import functools
import keyword
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

CALLS: list[str] = []


@functools.lru_cache(maxsize=64)
def recipe(pattern: str) -> tuple[list[str], dict[str, int]]:
    names = [name for name in pattern.split() if name.isidentifier() and not keyword.iskeyword(name)]
    return names, {name: place for place, name in enumerate(names)}


@functools.lru_cache(maxsize=64)
def sizes(shape: tuple[int, ...]) -> list[int]:
    return [size * 2 for size in shape]


@functools.lru_cache(maxsize=64)
def noted(name: str) -> list[str]:
    CALLS.append(name)
    return [name]


def by_recipe(x: torch.Tensor) -> Any:
    names, places = recipe("b c if h")
    again, _ = recipe("b c if h")
    return x * len(names) + places["h"], names is again


def by_sizes(x: torch.Tensor) -> Any:
    return x.sum() + sum(sizes(tuple(x.shape)))


@pytest.mark.parametrize(("program", "breaks"), [(by_recipe, 0), (by_sizes, 1)])
def test_mutable_results_behind_a_cache(program: Any, breaks: int) -> None:
    """What adds the numbers of a tuple of sizes up takes each size as it is: from the third on that ends the graph."""
    recipe.cache_clear()
    sizes.cache_clear()
    calls = [(torch.randn(n, 3),) for n in (3, 4, 5)]
    assert_same(program, torch.randn(2, 3), then=calls, breaks=breaks)


def test_the_cached_object_itself_is_returned() -> None:
    recipe.cache_clear()
    compiled = dynajit.compile(lambda x: (x + 1, recipe("a b")[0]), backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1] is recipe("a b")[0]


def test_effects_of_the_first_call_happen_once() -> None:
    noted.cache_clear()
    CALLS.clear()
    compiled = dynajit.compile(lambda x: (x + 1, noted("a")), backend="eager")
    first, second = compiled(torch.ones(2)), compiled(torch.ones(2))
    assert first[1] == ["a"]
    assert first[1] is second[1]
    assert CALLS == ["a"]


@torch.jit._script_if_tracing  # type: ignore[untyped-decorator]
def boxes(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_functions_scripted_where_jit_traces_are_traced() -> None:
    assert_same(lambda x: boxes(x) + 1, torch.ones(3), breaks=0, graphs=1)


def constant_of_library(name: str) -> int:
    CALLS.append(name)
    return len(name)


constant_of_library._dynamo_marked_constant = True  # type: ignore[attr-defined]


def test_functions_that_promise_a_constant_are_computed_while_tracing() -> None:
    CALLS.clear()
    compiled = dynajit.compile(lambda x: x + constant_of_library("abc"), backend="eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.zeros(2)), torch.full((2,), 3.0))
    assert CALLS == ["abc"]
