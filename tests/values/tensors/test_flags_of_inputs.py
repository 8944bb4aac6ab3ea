"""`requires_grad` of inputs, set inside: gradients, counts of writes and torch's errors are eager's, in random programs
and in the freezing of training steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.outcomes import compare
from dynajit.report import logs

LINES = """
w.requires_grad_(False)
w.requires_grad_(True)
w.requires_grad = False
w.requires_grad = True
h = h @ w
h = h + w
h = h + w[0]
h = h * w.detach()
h = h * v[0]
h = h.sin()
h = h * w.requires_grad + w.is_leaf
h.mul_(2)
w.mul_(0.5)
w.mul_(x)
v.mul_(0.5)
u = w.detach(); h = h * u
u.add_(1)
h = h + w.view(-1)[:4]
kept = [w, w[1]]
with torch.no_grad(): w.mul_(0.5)
with torch.no_grad(): h = h + w * 2
""".strip().split("\n")


def random_program(seed: int) -> Callable[..., Any]:
    choice = random.Random(seed)
    lines = [choice.choice(LINES[:4]), *choice.choices(LINES, k=choice.randint(3, 8))]
    choice.shuffle(lines)
    body = ["h, u, kept = x * 1, x.detach().clone(), []", *lines, "return h, kept"]
    scope: dict[str, Any] = {"torch": torch}
    exec("def program(x, w, v):\n" + "".join(f"    {line}\n" for line in body), scope)
    return scope["program"]


def seen_of(fn: Callable[..., Any], settings: tuple[bool, bool, bool]) -> list[Any]:
    """What two calls and backward leave. Of an error its first words, since versions name a graph's own tensors; of
    writes whether there were any, since a generated graph writes once."""
    of_x, of_w, is_view = settings
    seen: list[Any] = []
    for _ in range(2):
        x = torch.linspace(-1.0, 1.0, 16).view(4, 4).requires_grad_(of_x)
        w = torch.linspace(0.0, 2.0, 16).view(4, 4).requires_grad_(of_w)
        v = w.view(-1)[:4] if is_view else torch.ones(4)
        try:
            h, kept = fn(x, w, v)
            seen += [h, h.requires_grad, [(each is w, each.requires_grad, each.is_leaf) for each in kept]]
            if h.requires_grad:
                h.sum().backward()
                seen += [x.grad, w.grad if w.is_leaf else None]
        except RuntimeError as error:
            seen.append(str(error)[:40])
        seen += [w.detach(), w.requires_grad, w.is_leaf, w._version > 0]
    return seen


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int, backend: str) -> None:
    program = random_program(seed)
    choice = random.Random(seed)
    settings = (choice.random() < 0.5, choice.random() < 0.6, choice.random() < 0.3)
    expected = seen_of(program, settings)
    compare(seen_of(dynajit.compile(program, backend=backend), settings), expected, exact=False)


def frozen_behind_a_write(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        w.mul_(0.5)
    w.requires_grad_(False)
    y = x @ w
    w.requires_grad_(True)
    return y


def data_behind_a_write(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        w.mul_(0.5)
    return x @ w.data + w


@pytest.mark.parametrize("program", [frozen_behind_a_write, data_behind_a_write])
def test_what_was_written_before_is_compiled(program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(logs, "emit", lambda name, message, *rest: told.append(message))
    compiled = dynajit.compile(lambda x, w, v: (program(x, w), []))
    expected = seen_of(lambda x, w, v: (program(x, w), []), (True, True, False))
    compare(seen_of(compiled, (True, True, False)), expected, exact=False)
    assert not [message for message in told if "runs as captured" in message]


def test_adversary_frozen_for_the_generators_step() -> None:
    def run(compiler: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        steps = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (generator, critic)]

        def step(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
            made = generator(z)
            critic.requires_grad_(True)
            steps[1].zero_grad()
            first = critic(made.detach()).mean() - critic(x).mean()
            first.backward()
            steps[1].step()
            critic.requires_grad_(False)
            steps[0].zero_grad()
            second = -critic(made).mean()
            second.backward()
            steps[0].step()
            return first.detach(), second.detach()

        fn = compiler(step)
        losses = [fn(torch.linspace(-1, 1, 32).view(4, 8), torch.ones(4, 4)) for _ in range(3)]
        return [losses, *((p.detach(), p.grad, p.requires_grad) for m in (generator, critic) for p in m.parameters())]

    compare(run(dynajit.compile), run(lambda fn: fn), exact=False)
