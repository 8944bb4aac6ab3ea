"""Interpolation is differentiated by its own backward operators, as in eager mode: with its bits, in its memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dynajit

IMAGE = torch.linspace(0, 40, 2 * 8 * 13 * 11).sin().view(2, 8, 13, 11)
ROWS, VOLUME = IMAGE.view(2, 8, 143), IMAGE.view(2, 8, 13, 11)[:, :, :4].reshape(2, 8, 4, 11, 1).expand(2, 8, 4, 11, 3)
CASES = [
    *((mode, IMAGE) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")),
    *((mode, ROWS) for mode in ("nearest", "nearest-exact", "linear")),
    *((mode, VOLUME) for mode in ("nearest", "nearest-exact", "trilinear")),
]


def gradient(mode: str, scale: float) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        loss = F.interpolate(x.sin(), scale_factor=scale, mode=mode).pow(2).sum()
        return torch.autograd.grad(loss, x)

    return fn


@pytest.mark.parametrize("scale", [2, 1.4, 0.5])
@pytest.mark.parametrize(("mode", "x"), CASES, ids=lambda value: value if isinstance(value, str) else str(value.dim()))
def test_bits(mode: str, x: Tensor, scale: float) -> None:
    x = x.clone().requires_grad_()
    fn = gradient(mode, scale)
    torch.testing.assert_close(dynajit.compile(fn)(x), fn(x), rtol=1e-6, atol=1e-6)


def test_sizes_that_vary() -> None:
    for mode in ("nearest", "bilinear", "bicubic"):
        fn = gradient(mode, 2)
        compiled = dynajit.compile(fn, dynamic=True)
        for size in (9, 7, 12):
            x = IMAGE[..., :size, :size].clone().requires_grad_()
            torch.testing.assert_close(compiled(x), fn(x))


def test_twice() -> None:
    def fn(x: Tensor) -> Tensor:
        return F.interpolate(x.sin(), scale_factor=2, mode="bilinear").pow(3).sum()

    def curvature(fn: Callable[[Tensor], Tensor]) -> Tensor:
        x = IMAGE.double().requires_grad_()
        (first,) = torch.autograd.grad(fn(x), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x)[0]

    torch.testing.assert_close(curvature(dynajit.compile(fn)), curvature(fn))


def test_torch_is_left_as_it_was() -> None:
    operators = [torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_bicubic2d.default]
    before = [(each.py_kernels, each._dispatch_cache) for each in operators]
    for mode in ("nearest", "bilinear"):
        dynajit.compile(gradient(mode, 2))(IMAGE.clone().requires_grad_())
        for each, (kernels, cache) in zip(operators, before, strict=True):
            assert each.py_kernels is kernels
            assert each._dispatch_cache is cache


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_memory(mode: str) -> None:
    def most_in_use(fn: Callable[[Tensor], object]) -> int:
        with torch.profiler.profile(profile_memory=True) as profile:
            result = fn(x)
        del result
        events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))

    x = IMAGE.repeat(4, 4, 1, 1).requires_grad_()
    fn = gradient(mode, 2)
    compiled = dynajit.compile(fn)
    compiled(x)
    assert most_in_use(compiled) < 0.75 * most_in_use(fn)
