"""Pieces of a stack or concatenation of many are computed where they lie within it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X, W = torch.linspace(-3, 3, 6 * 40 * 24).sin().view(6, 40, 24), torch.linspace(-1, 1, 24 * 24).cos().view(24, 24) / 9


def averages(x: Tensor) -> list[Tensor]:
    found = [x[:, 0]]
    for at in range(1, x.shape[1]):
        found.append(found[-1] * 0.75 + x[:, at] * 0.25)
    return found


def recurrent(x: Tensor, w: Tensor) -> Tensor:
    state, states = x[:, 0], []
    for each in x.transpose(0, 1)[:20]:
        state = torch.relu(each + state @ w)
        states.append(state)
    return torch.stack(states)


PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "second dimension": lambda x: torch.stack(averages(x), 1),
    "first": lambda x: torch.stack(averages(x)),
    "last": lambda x: torch.stack(averages(x), -1),
    "end to end": lambda x: torch.cat(averages(x), 1) * 2,
    "views": lambda x: torch.cat([each[None] for each in averages(x)], 1),
    "turned": lambda x: torch.stack([each.t() for each in averages(x)], 2),
    "sums": lambda x: torch.stack([x[:, at].sum(0) for at in range(20)]),
    "read by products": lambda x: recurrent(x, W.to(x.dtype)),
    "returned too": lambda x: (torch.stack(averages(x)), averages(x)[7]),
    "in two": lambda x: (torch.stack(averages(x)), torch.cat(averages(x))),
    "twice in one": lambda x: torch.stack([*averages(x)[1:], *averages(x)[1:]]),
    "parts": lambda x: torch.cat([each[:, :20] for each in averages(x)], 1),
    "most from elsewhere": lambda x: torch.stack([*x.unbind(1), *averages(x)[1:9]]),
    "read after": lambda x: (torch.stack(averages(x)), averages(x)[9].view(-1)[::3] @ averages(x)[11].view(-1)[::3]),
    "narrow rows": lambda x: torch.cat([each[:, :5].exp() for each in x.unbind(1)], 1),
    "channels last": lambda x: torch.cat(
        [(x.view(6, 24, 5, 8).contiguous(memory_format=torch.channels_last) * each).relu() for each in range(18)], 1
    ),
    "an index that may be outside": lambda x: torch.stack([x[each.long().sum() % 3] for each in averages(x)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    assert_same(PROGRAMS[name], X)


@pytest.mark.parametrize("name", ["second dimension", "views", "sums", "narrow rows"])
def test_other_dtypes(name: str) -> None:
    for dtype in (torch.bfloat16, torch.float64):
        assert_same(PROGRAMS[name], X.to(dtype))


@pytest.mark.parametrize("name", ["first", "second dimension", "end to end", "read by products"])
def test_gradients(name: str) -> None:
    def gradient(x: Tensor) -> Tensor:
        made = PROGRAMS[name](x)
        assert isinstance(made, Tensor)
        return torch.autograd.grad(made.sin().sum(), x)[0]

    x = X.double().requires_grad_()
    torch.testing.assert_close(dynajit.compile(gradient)(x), gradient(x))


def most_in_use(fn: Callable[[Tensor], object], x: Tensor) -> int:
    with torch.profiler.profile(profile_memory=True) as profile:
        result = fn(x)
    del result
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


@pytest.mark.parametrize("name", ["second dimension", "first", "views", "channels last"])
def test_they_are_not_in_memory_besides(name: str) -> None:
    compiled = dynajit.compile(PROGRAMS[name])
    made = compiled(X)
    assert isinstance(made, Tensor)
    assert most_in_use(compiled, X) < 1.1 * made.nbytes
