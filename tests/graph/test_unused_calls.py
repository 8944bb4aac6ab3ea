"""Calls that nothing needs, and that torch's kernels refuse though fake tensors pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same


def _unused(x: torch.Tensor) -> torch.Tensor:
    torch.bucketize(x, x.view(2, 2))
    return x + 1


def _graph_without_results(x: torch.Tensor) -> int:
    torch.as_strided_scatter(x, x.view(2, 2), (2, 2), (200, 200))
    return 1


def _method(x: torch.Tensor) -> torch.Tensor:
    x.conj().as_strided_scatter(x[:2], (2,), (200,))
    return x + 1


def _drawing(x: torch.Tensor) -> torch.Tensor:
    torch.nn.functional.fractional_max_pool2d(x.view(1, 2, 2), 1, output_size=1, _random_samples=torch.zeros(0, 1, 2))
    return x + torch.rand(4)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("function", [_unused, _graph_without_results, _method, _drawing])
def test_it_raises_as_in_eager(function: Callable[[torch.Tensor], Any], backend: str) -> None:
    x, compiled = torch.arange(4.0), dynajit.compile(function, backend=backend)
    with pytest.raises(RuntimeError) as eager:
        function(x)
    for _ in range(2):
        with pytest.raises(RuntimeError) as ours:
            compiled(x)
        assert str(ours.value) == str(eager.value)


def test_the_program_catches_it() -> None:
    def told(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        x.add_(1)
        try:
            torch.bucketize(x, x.view(2, 2))
        except RuntimeError as error:
            return x * 2, str(error)
        return x, ""

    assert_same(told, torch.arange(4.0), graphs=2, breaks=1)


def test_what_is_accepted_is_dropped() -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        torch.bucketize(x, x)
        torch.linalg.cholesky_ex(x.view(2, 2))
        torch.zeros(1 << 21)
        torch.gather(x, 0, x.long())
        torch.rand_like(x)
        return x + 1

    assert_same(dropped, torch.arange(4.0), graphs=1, breaks=0)
