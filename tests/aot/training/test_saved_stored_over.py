"""What backward computes is stored over what forward saved where nobody else holds that, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from memory_in_use import most_in_use
from torch import Tensor

import dynajit
from dynajit.codegen import generate

N = 1 << 16


def saved(x: Tensor) -> Tensor:
    """Backward reads the difference, of which forward keeps nothing else that is as large."""
    return torch.log((x - x.detach().flip(0)).pow(2).sum(-1) + 1).sum()


def given(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_no_memory_but_what_was_saved() -> None:
    x = given(8, N // 8)
    compiled = dynajit.compile(saved)
    compiled(x).backward()
    x.grad = None
    loss = compiled(x)
    assert most_in_use(loss.backward) < N
    ours, x.grad = x.grad, None
    saved(x).backward()
    torch.testing.assert_close(ours, x.grad)


def test_a_graph_that_is_kept() -> None:
    x = given(8, N // 8)
    loss = dynajit.compile(saved)(x)
    passes = [torch.autograd.grad(loss, x, retain_graph=keep)[0].clone() for keep in (True, True, False)]
    (expected,) = torch.autograd.grad(saved(x), x)
    for each in passes:
        torch.testing.assert_close(each, expected)


def holders() -> list[Any]:
    """Programs whose backward may store a gradient over a tensor, and somebody who holds its memory."""

    def result(compiled: Callable[..., Tensor]) -> Tensor:
        made = compiled(given(N))
        made.sum().backward()
        return made

    def view_of_result(compiled: Callable[..., Tensor]) -> Tensor:
        made = compiled(given(N)).view(2, -1).detach()
        return made

    def gradient(compiled: Callable[..., Tensor]) -> Tensor:
        kept = torch.arange(1.0, N + 1)
        compiled(given(N)).backward(kept)
        return kept

    def gradient_in_a_hook(compiled: Callable[..., Tensor]) -> Tensor:
        kept: list[Tensor] = []
        made = compiled(given(N))
        made.register_hook(kept.append)
        (made * torch.arange(1.0, N + 1)).sum().backward()
        return kept[0]

    def array(compiled: Callable[..., Tensor]) -> Tensor:
        values = np.arange(1, N + 1, dtype=np.float32)
        made = compiled(given(N), torch.from_numpy(values))
        made.sum().backward()
        return torch.from_numpy(values)

    def storage(compiled: Callable[..., Tensor]) -> Tensor:
        other = torch.arange(1.0, N + 1)
        kept = other.untyped_storage()
        made = compiled(given(N), other)
        del other
        made.sum().backward()
        return torch.empty(0).set_(kept, 0, (N,), (1,))

    def part(compiled: Callable[..., Tensor]) -> Tensor:
        whole = torch.arange(1.0, 2 * N + 1)
        compiled(given(N), whole[:N]).sum().backward()
        return whole

    return [result, view_of_result, gradient, gradient_in_a_hook, array, storage, part]


@pytest.mark.parametrize("program", holders(), ids=lambda each: each.__name__)
def test_who_holds_it_sees_no_change(program: Callable[..., Tensor]) -> None:
    def fn(x: Tensor, other: Tensor | None = None) -> Tensor:
        return x.exp() if other is None else (x * other).sin()

    torch.manual_seed(0)
    expected = program(fn)
    compiled = dynajit.compile(fn)
    for _ in range(2):
        torch.manual_seed(0)
        torch.testing.assert_close(program(compiled), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((1, 40_000), 1), ((40, 700), 1), ((700, 33), 0)])
def test_memory_changes_no_bit(
    shape: tuple[int, int], dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        one = (x - y).pow(2).sum(dim)
        two = F.gelu(x * y.exp()).softmax(dim)
        three = (x.t().contiguous() + y.t()).log_softmax(1 - dim).sigmoid()
        four = (x.tanh() * two.var(dim, keepdim=True)).relu()
        return (one + 1).log().sum() + (two * four).sum() + three.square().mean() + (x.cos() * four).cumsum(dim).sum()

    def gradients() -> list[Tensor]:
        torch.manual_seed(0)
        args = [torch.randn(shape).to(dtype).requires_grad_() for _ in range(2)]
        return list(torch.autograd.grad(dynajit.compile(fn)(*args), args))

    ours = gradients()
    dynajit.reset()
    monkeypatch.setattr(generate, "donors", lambda *given: {})
    for one, other in zip(ours, gradients(), strict=True):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))
