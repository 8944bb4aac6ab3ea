"""What is large and made of little is computed by each kernel that reads it, not kept in memory between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from memory_in_use import most_in_use
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

A, B = torch.linspace(-2, 2, 300), torch.linspace(0, 1, 250)
ROWS, MORE = torch.linspace(-1, 1, 90 * 16).sin().view(90, 16), torch.linspace(0, 3, 80 * 16).cos().view(80, 16)
IMAGE = torch.linspace(0, 50, 2 * 3 * 40 * 40).sin().view(2, 3, 40, 40)

AT = torch.arange(4000) * 7 % 90


def soft_histogram(x: Tensor, centers: Tensor) -> Tensor:
    weight = F.relu(1 - (x[:, None] - centers).abs() * 31)
    return weight.sum(0) / weight.sum()


def both_ways(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    far = (x[:, None] - y).abs()
    return far.logsumexp(0), far.amin(1)


def normed_pairs(x: Tensor, y: Tensor) -> Tensor:
    pairs = F.relu(x[:, None] + y)
    return ((pairs - pairs.mean((0, 1))) * pairs.var((0, 1)).rsqrt()).amax(1)


def windows(x: Tensor) -> tuple[Tensor, Tensor]:
    seen = F.unfold(x, 3, padding=1).unflatten(1, (3, 9))
    return seen.amax(2) - seen.amin(2), seen.std(2)


def moved(x: Tensor) -> tuple[Tensor, ...]:
    there = torch.roll(x, (2, -3), (2, 3))
    return (there - x).amax(3), (there * x).sum((2, 3)), (there + x).logsumexp(1)


def as_it_lies(x: Tensor) -> tuple[Tensor, ...]:
    bent = F.relu(x * 3 + 1) - x
    return bent.amax(3), bent.sum((0, 1)), (bent - bent.amin(2, keepdim=True)).amax(2)


def rows_at(x: Tensor) -> tuple[Tensor, ...]:
    rows = x[AT] * 2
    return rows.amax(1), rows.sum(0), torch.zeros(7, 16, dtype=x.dtype).index_add(0, AT % 7, rows)


def weighted_by_distance(x: Tensor) -> Tensor:
    total, weights = torch.zeros_like(x), torch.zeros_like(x)
    for down in range(-2, 3):
        for right in range(-2, 3):
            there, back = torch.roll(x, (down, right), (2, 3)), torch.roll(x, (-down, -right), (2, 3))
            weight = torch.exp(-((there - back) ** 2) * 2)
            total, weights = total + weight * there, weights + weight
    return (total / weights).amax((2, 3))


def running(x: Tensor) -> Tensor:
    value, total, most = torch.ones_like(x[0]), torch.zeros_like(x[0]), torch.ones_like(x[0])
    for each in x.repeat(2, 1):
        value = value * torch.exp(each - 0.02)
        total, most = total + value, torch.maximum(most, value)
    return torch.stack([F.relu(total / 48 - 1).mean(), (most - value).mean()])


LITTLE: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "soft histogram": (soft_histogram, (A, B)),
    "pairs, reduced both ways": (both_ways, (A, B)),
    "pairs of rows, normed": (normed_pairs, (ROWS, MORE)),
    "windows": (windows, (IMAGE,)),
    "as many, elsewhere": (moved, (IMAGE.repeat(1, 1, 2, 2),)),
    "as many, computed": (as_it_lies, (IMAGE.repeat(1, 1, 2, 2),)),
    "rows at places": (rows_at, (ROWS,)),
    "more than one kernel, moved": (weighted_by_distance, (IMAGE.repeat(1, 1, 2, 2),)),
    "more than one kernel": (running, (torch.linspace(-1, 1, 24 * 20000).sin().view(24, 20000) / 9,)),
}


@pytest.mark.parametrize("name", LITTLE)
def test_it_is_not_in_memory(name: str) -> None:
    fn, args = LITTLE[name]
    compiled = dynajit.compile(fn)
    torch.testing.assert_close(compiled(*args), fn(*args), rtol=2e-5, atol=2e-5)
    assert 3 * most_in_use(compiled, *args) < most_in_use(fn, *args)


@pytest.mark.parametrize("name", LITTLE)
def test_gradients(name: str) -> None:
    fn, args = LITTLE[name]

    def gradients(*args: Tensor) -> tuple[Tensor, ...]:
        results = fn(*args)
        total = sum(each.sin().sum() for each in (results if isinstance(results, tuple) else (results,)))  # type: ignore[attr-defined]
        return torch.autograd.grad(total, args)

    leaves = [each.clone().double().requires_grad_() for each in args]
    torch.testing.assert_close(dynajit.compile(gradients)(*leaves), gradients(*leaves))


def test_what_it_is_made_of_is_written_afterwards() -> None:
    def fn(x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        z = x * 2
        pairs = (z[:, None] - y).abs()
        rows = pairs.sum(1)
        z = z.index_add(0, at, y[:3])
        x.add_(1)
        return rows, z, pairs.amax(0)

    assert_same(fn, A.clone(), B, torch.tensor([0, 5, 0]))


@pytest.mark.parametrize(
    "read", [lambda p: p[:, :7].sum(0), lambda p: p.flip(0).cumsum(1), lambda p: p[A.long().abs()]]
)
def test_other_readers(read: Callable[[Tensor], Tensor]) -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        pairs = (x[:, None] * y).clamp(min=0.25)
        return pairs.sum(1), read(pairs), pairs.amin(0)

    assert_same(fn, A, B)


def test_a_product_of_what_is_in_memory_anyway() -> None:
    """The steps of a stencil read the states, and their products elsewhere: these need no memory of their own."""

    def fn(height: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(4):
            flux = height * speed
            change = torch.roll(flux, -1, 1) - torch.roll(flux, 1, 1) + torch.roll(flux, 1, 0) - torch.roll(flux, -1, 0)
            slope = torch.roll(height, -1, 1) - torch.roll(height, 1, 0)
            height, speed = height - 0.01 * change, speed - 0.1 * slope
        return height, speed

    args = (torch.linspace(0, 9, 128 * 160).sin().view(128, 160), torch.linspace(0, 7, 128 * 160).cos().view(128, 160))
    compiled = dynajit.compile(fn)
    torch.testing.assert_close(compiled(*args), fn(*args))
    assert most_in_use(compiled, *args) == 4 * args[0].nbytes
