"""What training programs use around their models: autograd.Function, checkpointing, hooks, optimizers' updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dynajit
from dynajit.testing import assert_same

SCALE = 2.0
SEEN: list[int] = []


class ScaledExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, power: int) -> torch.Tensor:
        result = torch.exp(x) * SCALE**power
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (result,) = ctx.saved_tensors
        return grads[0] * result * 3, None


class Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(x.dim())
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 2


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * y, x + y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return grads[0] * y, grads[0] * x


def gradient(fn: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    result = fn(x)
    result.sum().backward()
    assert x.grad is not None
    return result, x.grad


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_autograd_function_is_in_the_graph_with_its_own_backward(backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        product, total = TwoResults.apply(ScaledExp.apply(x + 1, 1), x)
        return product + total

    x = torch.randn(3, requires_grad=True)
    assert_same(f, x, graphs=1, breaks=0, backend=backend)
    compiled = dynajit.compile(f, backend=backend)
    for ours, theirs in zip(gradient(compiled, x.detach()), gradient(f, x.detach()), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_globals_of_an_autograd_function_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return ScaledExp.apply(x, 1)

    compiled = dynajit.compile(f, backend="codegen")
    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(compiled(x), f(x))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    torch.testing.assert_close(compiled(x), f(x))


def test_effects_of_an_autograd_function_happen_at_each_call() -> None:
    compiled = dynajit.compile(lambda x: Recorded.apply(x) + 1, backend="eager")
    SEEN.clear()
    x = torch.randn(3, requires_grad=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x * 2 + 1)
    assert SEEN == [1, 1, 1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_function_is_traced(reentrant: bool) -> None:
    layer = nn.Linear(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: layer(y).relu(), x, use_reentrant=reentrant) + 1  # type: ignore[no-any-return]

    x = torch.randn(3, 4, requires_grad=True)
    assert_same(f, x, graphs=1, breaks=0)
    for ours, theirs in zip(
        gradient(dynajit.compile(f, backend="eager"), x.detach()), gradient(f, x.detach()), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_frames_under_an_eager_checkpoint_save_what_the_second_run_saves() -> None:
    layer = nn.Linear(4, 4)

    def block(x: torch.Tensor) -> torch.Tensor:
        return layer(x).relu()

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False, context_fn=lambda: _contexts()) + 1  # type: ignore[no-any-return]

    def _contexts() -> tuple[Any, Any]:
        return torch.enable_grad(), torch.enable_grad()

    x = torch.randn(3, 4)
    for ours, theirs in zip(gradient(dynajit.compile(f, backend="codegen"), x), gradient(f, x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_hooks_on_saved_tensors_do_not_see_tracing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * 2).relu()

    def saved(fn: Any) -> list[torch.Size]:
        seen: list[torch.Size] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            seen.append(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            fn(torch.ones(3, requires_grad=True))
        return seen

    assert saved(dynajit.compile(f, backend="eager")) == saved(f)


def test_functions_inside_of_a_transform() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda t: t.sin().sum())(x) + 1

    x = torch.randn(3)
    torch.testing.assert_close(dynajit.compile(f, backend="eager")(x), f(x))


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_a_training_step_breaks_at_backward_only(make: Any) -> None:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)
            self.optimizer = make(self.net.parameters(), lr=0.01)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.net(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            return loss.detach()

    torch.manual_seed(0)
    ours, theirs = Step(), Step()
    theirs.net.load_state_dict(ours.net.state_dict())
    x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
    compiled = dynajit.compile(ours, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(x, y), theirs(x, y))
    torch.testing.assert_close(ours.net.weight, theirs.net.weight, rtol=1e-4, atol=1e-6)
    report = dynajit.explain(Step())(x, y)
    assert {reason.kind for reason in report.break_reasons} == {"backward"}
