"""Sizes that vary, given to operations and lines that take one number alone: a graph static, a graph for the second
size, and one that ends there, whatever sizes come then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dynajit
from dynajit.report import records
from dynajit.testing import compare

SIZES = (5, 7, 8, 10, 12, 9, 11, 13)

SETTLING: dict[str, Callable[[Tensor], Any]] = {
    "gradient": lambda x: torch.gradient(x, dim=0)[0] + 1,
    "cov of weights": lambda x: torch.cov(x.mT, aweights=x.abs().sum(1) + 1) + 1,
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[None], (None, 2)) + 1,
    "area": lambda x: F.interpolate(x.mT[None], scale_factor=1.7, mode="area") + 1,
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(x.shape[0], 4, 4)) + 1,
    "split": lambda x: x.split(4)[0] * 2,
    "twice": lambda x: (torch.gradient(x * 2, dim=0)[0], torch.gradient(x, dim=0)[0] + 1),
    "a size that is a number": lambda x: F.adaptive_max_pool2d(x[None], (x.shape[0] // 2, 2)) + 1,
    "inside of a function": lambda x: _along(x, x.shape[0]) * 2,
}


def _along(x: Tensor, size: int) -> Tensor:
    return torch.gradient(x, dim=0)[0] / size


def captures(fn: Callable[..., Any], backend: str, sizes: tuple[int, ...]) -> list[int]:
    """At which calls something is compiled; each is compared with eager."""
    dynajit.reset()
    compiled, compiled_at = dynajit.compile(fn, backend=backend), []
    for number, size in enumerate(sizes, 1):
        x = torch.linspace(-1, 1, size * 4).reshape(size, 4).cos()
        seen: list[records.CompileRecord] = []
        with records.listen(seen.append):
            found = compiled(x)
        compare(found, fn(x), exact=backend == "eager")
        compiled_at += [number] if seen else []
    return compiled_at


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", SETTLING)
def test_an_operation_that_takes_one_size(name: str, backend: str) -> None:
    """What comes after the operation has a graph of its own then, which meets its second size one call later."""
    assert captures(SETTLING[name], backend, SIZES)[-1] <= (5 if name == "twice" else 4)


def test_two_sizes_in_turn_are_variants_with_whole_graphs() -> None:
    assert captures(SETTLING["gradient"], "eager", (5, 7, 5, 7, 5, 7)) == [1, 2]


def test_a_line_that_compares_sizes_ends_no_graph() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 7 else x.reshape(-1, 2) + x.shape[0]

    assert set(captures(f, "eager", (5, 7, 8, 7, 10, 12))) <= {1, 2, 3}


def test_a_loop_over_a_size() -> None:
    """What is unrolled is hopeless with the third number; the loop's body, and what comes after it, are then parts."""
    found = captures(lambda x: torch.stack([x[i] * i for i in range(x.shape[0])]), "eager", (*SIZES, 14, 15))
    assert set(found) <= {1, 2, 3, 4, 5}
