"""Operations that raise in eager and not on fake tensors: the line runs for real, with the effects before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same


def factor_of_another_kind(x: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    try:
        x.mul_(0.9)
    except RuntimeError as error:
        seen.append(len(str(error)))


def own_element(x: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    x.add_(x.view(-1)[0])


def own_transposed(x: torch.Tensor, seen: list[int]) -> None:
    try:
        x.t().add_(x)
    except RuntimeError:
        seen.append(2)


def shifted(x: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    x[1:].mul_(x[:-1])


def expanded(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    y = x[:1].clone().expand(3, 3)
    seen.append(1)
    return y.add_(1)


def expanded_like(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    return x[:1].clone().expand(x.shape[0]).add_(1)


def not_for_bool(x: torch.Tensor, seen: list[int]) -> Any:
    seen.append(1)
    (x > 0).abs()
    return x


def minus_bool(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    y = x + torch.rand(())
    seen.append(1)
    return True - y


def mask_of_another_shape(x: torch.Tensor, seen: list[int]) -> None:
    try:
        seen.append(1)
        x[x[:, :1] > 0] = 0.5
    except IndexError as error:
        seen.append(len(str(error)))
    x.add_(1)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize(
    "fn",
    [
        factor_of_another_kind,
        own_element,
        own_transposed,
        shifted,
        expanded,
        not_for_bool,
        minus_bool,
        mask_of_another_shape,
    ],
)
def test_like_eager(fn: Any, dtype: torch.dtype, backend: str) -> None:
    assert_same(fn, torch.arange(9).reshape(3, 3).to(dtype), [0], backend=backend)


def same_elements(x: torch.Tensor) -> torch.Tensor:
    return x.add_(x).mul_(x[:]).div_(2)


def test_what_is_allowed_stays_in_the_graph() -> None:
    assert_same(same_elements, torch.ones(3, 3), graphs=1, breaks=0)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", [own_element, shifted, expanded_like])
def test_like_eager_with_dynamic_sizes(fn: Any, backend: str) -> None:
    compiled = dynajit.compile(fn, backend=backend, dynamic=True)
    for size in (4, 3, 5):
        with pytest.raises(RuntimeError) as wanted:
            fn(torch.ones(size), [0])
        with pytest.raises(RuntimeError) as got:
            compiled(torch.ones(size), [0])
        assert str(got.value) == str(wanted.value)
