"""What autograd knows of results that are detached inputs or views of them, and writes through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit


def detached(z: torch.Tensor) -> Any:
    return z.detach()


def row(z: torch.Tensor) -> Any:
    x = z.detach()
    return x[0], x


def both_ways(z: torch.Tensor) -> Any:
    return z.detach().view(-1), z.view(-1).detach(), z.view(-1)


@pytest.mark.parametrize("function", [detached, row, both_ways])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_without_gradients(function: Callable[..., Any], requires_grad: bool) -> None:
    outcomes = []
    for call in (function, dynajit.compile(function, backend="codegen")):
        z = torch.ones(3, requires_grad=requires_grad)
        with torch.no_grad():
            results = call(z)
        results = results if isinstance(results, tuple) else (results,)
        seen: list[Any] = [(r._is_view(), r._base is z, r.requires_grad, r.tolist()) for r in results]
        results[0].add_(1)
        outcomes.append([*seen, z.tolist(), z._version])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_an_inference_tensor_is_written_through_detach(backend: str) -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.detach().add_(1)
        return x * 2

    with torch.inference_mode():
        x = torch.ones(3)
    with torch.no_grad():
        result = dynajit.compile(writes, backend=backend)(x)
    assert result.tolist() == [4, 4, 4]
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_out_that_changes_its_size(backend: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        view = (x * 5)[..., :1]
        torch.add(y, 1, out=view)
        return view + 1

    with pytest.warns(UserWarning, match="resized"):
        result = dynajit.compile(function, backend=backend)(torch.ones(3, 3), torch.ones(()))
    assert result.shape == () and result.item() == 3
