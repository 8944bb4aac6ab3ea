"""What forward saved for backward dies while backward runs, where the graph is not kept; and is there where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from memory_in_use import most_in_use
from torch import Tensor
from torch.nn import functional as F

import dynajit
from dynajit import _C
from dynajit.codegen.plan import Buffer, BufferRef, ExternStep, FreeStep, Plan, ViewStep
from dynajit.runtime import native

CPU = torch.device("cpu")
seen: list[int] = []
watched: list[Any] = []


def storage_users(x: Tensor) -> int:
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata)


def note(y: Tensor) -> Tensor:
    """Notes how many tensors are on the memory that is watched, by one that is not of it."""
    seen.append(watched[0]())
    return y + 1


def plan(frees: bool) -> Plan:
    """y = x + 1; x dies or not; z = note(y)."""
    buffers = {name: Buffer(name, (4,), (1,), torch.float32, CPU) for name in "xyz"}
    steps: list[Any] = [ExternStep(torch.ops.aten.add.Scalar, (BufferRef("x"), 1), {}, ("y",))]
    steps += [FreeStep(("x",))] if frees else []
    steps += [ExternStep(note, (BufferRef("y"),), {}, ("z",))]
    return Plan("test", "", (), buffers, ("x",), {}, tuple(steps), (BufferRef("z"),))


@pytest.mark.parametrize("frees", [False, True])
def test_an_input_dies_in_the_middle(frees: bool) -> None:
    call = native.build(plan(frees), {})
    seen.clear()
    kept = torch.ones(4).untyped_storage()
    watched[:] = [lambda: torch._C._storage_Use_Count(kept._cdata)]
    alone = watched[0]()
    arguments: list[Any] = [torch.empty(0).set_(kept, 0, (4,), (1,))]
    (z,) = _C.call_giving(call, arguments)
    assert arguments == [] and torch.equal(z, torch.full((4,), 3.0))
    assert seen == [alone if frees else alone + 1]
    x = torch.empty(0).set_(kept, 0, (4,), (1,))  # somebody holds this one
    (z,) = _C.call_giving(call, [x])
    assert torch.equal(z, torch.full((4,), 3.0)) and torch.equal(x, torch.ones(4))


def test_views_of_a_dead_input() -> None:
    buffers = {name: Buffer(name, (4,), (1,), torch.float32, CPU) for name in "xz"}
    buffers["v"] = Buffer("v", (2,), (2,), torch.float32, CPU)
    steps = (
        ViewStep("v", "x", 1),
        FreeStep(("x",)),
        ExternStep(torch.ops.aten.add.Scalar, (BufferRef("v"), 1), {}, ("z",)),
        FreeStep(("v",)),
    )
    buffers["z"] = Buffer("z", (2,), (1,), torch.float32, CPU)
    made = Plan("test", "", (), buffers, ("x",), {}, steps, (BufferRef("z"),))
    (z,) = _C.call_giving(native.build(made, {}), [torch.arange(4.0)])
    assert z.tolist() == [2.0, 4.0]


def test_giving_to_other_callables() -> None:
    class Callable:
        def method(self, x: Any, y: Any) -> tuple[Any, ...]:
            return x, y, None, 3

    arguments = [torch.ones(2), "text"]
    x = arguments[0]
    found = _C.call_giving(Callable().method, arguments)
    assert found[0] is x and found[1:] == ("text", None, 3) and not arguments
    with pytest.raises(ZeroDivisionError):
        _C.call_giving(lambda x: x / 0, [1])
    with pytest.raises(TypeError, match="takes 1 inputs, not 2"):
        _C.call_giving(native.build(plan(True), {}), [torch.ones(4), torch.ones(4)])


def chain(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        x = torch.tanh(x @ weight)
    return x.sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_peak_of_training_is_eagers(dynamic: bool) -> None:
    """Backward of a chain frees what it has used: forward's end is the peak, not all that and gradients."""
    torch.manual_seed(0)
    weights = [torch.randn(64, 64).mul_(0.1).requires_grad_() for _ in range(6)]
    compiled = dynajit.compile(chain, dynamic=dynamic)
    x = torch.randn(512, 64)
    peaks, grads = [], []
    for fn in (chain, compiled):
        fn(x, weights).backward()
        for weight in weights:
            weight.grad = None
        peaks.append(most_in_use(lambda fn=fn: fn(x, weights).backward()))
        grads.append([weight.grad for weight in weights])
        for weight in weights:
            weight.grad = None
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)
    assert peaks[1] <= 1.02 * peaks[0]


def test_a_kept_graph_runs_again() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
    x = torch.randn(4, 8)
    found = []
    for fn in (chain, dynajit.compile(chain)):
        loss = fn(x, weights)
        first = torch.autograd.grad(loss, weights, retain_graph=True)
        second = torch.autograd.grad(loss, weights, create_graph=True)
        third = torch.autograd.grad(sum(grad.pow(2).sum() for grad in second), weights, retain_graph=True)
        fourth = torch.autograd.grad(loss, weights)
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(loss, weights)
        found.append([*first, *second, *third, *fourth])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def _viewed_and_written(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(3, 4)
    made[1] = x
    return made * 2


def _drawn_over(x: torch.Tensor) -> torch.Tensor:
    return x.double().uniform_(0, 1)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize(("f", "fails"), [(_viewed_and_written, True), (_drawn_over, False)])
def test_a_pass_fails_again_where_eagers_does(f: Callable[..., torch.Tensor], fails: bool, backend: str) -> None:
    """The write of a view can't be gone through twice, though it keeps no tensor; a draw over a tensor can."""
    for fn in (f, dynajit.compile(f, backend=backend)):
        x = torch.ones(4, requires_grad=True)
        result = fn(x).sum()
        result.backward()
        with pytest.raises(RuntimeError, match="a second time") if fails else contextlib.nullcontext():
            result.backward()


def test_an_index_refused_when_inputs_are_gone() -> None:
    """Backward reads by an index that is out of range, behind the last use of what forward saved."""

    class Picks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
            ctx.save_for_backward(x, index)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, index = ctx.saved_tensors
            return (grad * x.exp()).gather(0, index), None

    def fn(x: Tensor, index: Tensor) -> Tensor:
        return Picks.apply(x.sin(), index).cos().sum()

    x = torch.randn(4, requires_grad=True)
    messages = []
    for call in (fn, dynajit.compile(fn)):
        (good,) = torch.autograd.grad(call(x, torch.tensor([1, 0, 3, 2])), x)
        assert good.shape == x.shape
        with pytest.raises(RuntimeError) as caught:
            torch.autograd.grad(call(x, torch.tensor([1, 0, 9, 2])), x)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_saved_tensor_hooks_see_the_same() -> None:
    weights = [torch.randn(4, 4, requires_grad=True)]
    counts = []
    for fn in (chain, dynajit.compile(chain)):
        unpacked: list[int] = []

        def unpack(x: Tensor, unpacked: list[int] = unpacked) -> Tensor:
            unpacked.append(1)
            return x

        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), unpack):
            loss = fn(torch.ones(2, 4), weights)
        counts.append(torch.autograd.grad(loss, weights)[0])
        assert unpacked
    torch.testing.assert_close(counts[1], counts[0])


@pytest.mark.parametrize("p, training", [(0.0, True), (0.4, False), (0.4, True)])
def test_dropout_that_drops_nothing(p: float, training: bool) -> None:
    """It draws nothing, so the graph is of the common kind, whose saved tensors die early."""

    def fn(x: Tensor) -> Tensor:
        y = F.dropout(x.sin(), p, training)
        return F.dropout(y, p=p, training=training).exp() + F.alpha_dropout(y, 0.5, training=False)

    x = torch.randn(5, 6, requires_grad=True)
    found = []
    for call in (fn, dynajit.compile(fn)):
        torch.manual_seed(1)
        y = call(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        found.append([y, grad, torch.rand(2)])
    torch.testing.assert_close(found[1], found[0])
    assert y.grad_fn is not None and y.grad_fn.name() == "DynajitBackward"
