"""Training graphs of the common kind run without torch's wrapper: gradients, hooks, errors and lifetimes as eager's."""

from __future__ import annotations

import copy
import gc
import logging
import sys
import threading
import warnings
import weakref
from typing import Any

import pytest
import torch
import torch._functorch._aot_autograd.graph_compile as graph_compile
from torch import Tensor, nn
from torch.nn import functional as F

import dynajit

NAME = "DynajitBackward"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Any:
        y = self.down(F.gelu(self.up(self.norm(x))))
        return x + y, y.detach(), y.argmax(-1), None


def both(backend: str, module: nn.Module | None = None) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    module = Net() if module is None else module
    return dynajit.compile(copy.deepcopy(module), backend=backend), module


def grads(module: nn.Module, x: Tensor, use: Any) -> list[Any]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    use(module(x))
    return [x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients(backend: str, dynamic: bool) -> None:
    compiled, module = both(backend)
    for size in (3, 4, 6) if dynamic else (3, 3):
        x = torch.randn(size, 8)
        for use in (
            lambda out: out[0].sum().backward(),
            lambda out: out[0].t().backward(torch.ones(8, out[0].shape[0])),  # strides of another kind
            lambda out: out[0][:, ::2].pow(2).sum().backward(),
            lambda out: (out[0].sum() * 2 + out[0].mean()).backward(retain_graph=True),
        ):
            for got, expected in zip(grads(compiled, x, use), grads(module, x, use), strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    outputs = compiled(torch.randn(3, 8))
    assert outputs[0].grad_fn.name() == NAME
    assert [isinstance(value, Tensor) and value.requires_grad for value in outputs] == [True, False, False, False]
    assert outputs[0].is_leaf is False and not outputs[0]._is_view()


def test_backward_twice_and_retained() -> None:
    compiled, module = both("codegen")
    x = torch.randn(3, 8)
    for net in (compiled, module):
        y = net(x)[0].sum()
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            y.backward()
    for got, expected in zip(compiled.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_a_weight_written_before_backward() -> None:
    compiled, module = both("codegen")
    for net in (compiled, module):
        y = net(torch.randn(3, 8))[0].sum()
        with torch.no_grad():
            net.down.weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_outputs_may_be_written_in_place() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y.view(-1), (y + 1).t()

    compiled = dynajit.compile(fn)
    found = []
    for run in (compiled, fn):
        x = torch.ones(2, 3, requires_grad=True)
        for out in run(x):
            out.add_(1)
            out.mul_(3)
            out.sum().backward(retain_graph=True)
        found.append(x.grad)
    assert torch.equal(*found)


def test_hooks_and_partial_gradients() -> None:
    compiled, module = both("codegen")
    seen: list[list[float]] = []
    for net in (compiled, module):
        values: list[float] = []
        x = torch.linspace(0, 1, 24).view(3, 8).requires_grad_()
        out = net(x)[0]
        out.register_hook(lambda grad, values=values: values.append(float(grad.sum())))
        net.up.weight.register_hook(lambda grad, values=values: values.append(float(grad.abs().sum())))
        (only,) = torch.autograd.grad(out.sum(), net.up.bias, retain_graph=True)
        values.append(float(only.sum()))
        out.sum().backward(inputs=[net.up.weight])
        assert net.down.weight.grad is None and net.up.weight.grad is not None
        seen.append(values)
    torch.testing.assert_close(torch.tensor(seen[0]), torch.tensor(seen[1]), rtol=1e-4, atol=1e-4)


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    compiled, _ = both("codegen")
    packed: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = compiled(torch.randn(3, 8, requires_grad=True))[0]
    assert packed
    out.sum().backward()


def test_an_input_without_use_gets_no_gradient() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 + y.detach()

    compiled = dynajit.compile(fn)
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    compiled(x, y).sum().backward()
    assert x.grad is not None and y.grad is None
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(compiled(x, y).sum(), y)


def test_differentiating_twice() -> None:
    compiled, module = both("codegen")
    found = []
    for net in (compiled, module):
        x = torch.linspace(-1, 1, 24).view(3, 8).requires_grad_()
        (grad,) = torch.autograd.grad(net(x)[0].pow(2).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()
        found.append([x.grad, *(parameter.grad for parameter in net.parameters())])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_draws_are_differentiated_twice() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5)

    found = []
    for call in (f, dynajit.compile(f)):
        torch.manual_seed(0)
        x = torch.ones(3, requires_grad=True)
        out = call(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        grad.sum().backward()
        found.append([out, grad, x.grad, torch.rand(2)])
    torch.testing.assert_close(found[1], found[0])


def test_a_backward_that_raises() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        from dynajit.aot import compile_joint

        def compile_part(graph: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Any:
            def fail(*args: Any) -> Any:
                raise KeyError("in backward")

            return fail if phase == "backward" else graph.forward

        return compile_joint(gm, inputs, compile_part)

    compiled = dynajit.compile(lambda x: x.sin() * 2, backend=backend)
    out = compiled(torch.ones(3, requires_grad=True))
    with pytest.raises(KeyError, match="in backward"):
        out.sum().backward()


def test_nothing_is_kept_alive() -> None:
    compiled, _ = both("codegen")
    x = torch.randn(3, 8, requires_grad=True)
    tensor = weakref.ref(x)
    out = compiled(x)[0]
    out.sum().backward(retain_graph=True)
    del out, x
    gc.collect()
    assert tensor() is None


def test_writes_through_a_view_of_what_is_saved() -> None:
    """The result is a view of what backward has saved: a write to it has to be noticed, as eager notices it."""

    def fn(x: Tensor) -> Tensor:
        return x.exp().view(-1)

    for run in (fn, dynajit.compile(fn), dynajit.compile(fn, backend="aot_eager")):
        x = torch.ones(2, 3, requires_grad=True)
        y = run(x)
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_hooks_of_the_node_and_anomaly_mode() -> None:
    compiled, _ = both("codegen")
    seen = []
    with torch.autograd.set_detect_anomaly(True, check_nan=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = compiled(torch.randn(3, 8, requires_grad=True))[0]
        out.grad_fn.register_prehook(lambda grads: seen.append(("before", len(grads))))
        out.grad_fn.register_hook(lambda inputs, outputs: seen.append(("after", len(outputs))))
        out.sum().backward()
        assert seen == [("before", 1), ("after", 1)]
        root = torch.full((3,), -1.0, requires_grad=True)
        with pytest.raises(RuntimeError, match="nan"):
            dynajit.compile(lambda x: x.sqrt() * 2)(root).sum().backward()
    assert out.grad_fn.next_functions


def test_gradients_of_one_of_two_outputs() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x.sin() + y

    found = []
    for run in (fn, dynajit.compile(fn)):
        x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        first, second = run(x, y)
        found.append(
            [
                *torch.autograd.grad(second.sum(), (x, y), retain_graph=True),
                *torch.autograd.grad(first, (x,), torch.ones(3)),
            ]
        )
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


def test_forward_mode_is_refused_or_right() -> None:
    from torch.autograd import forward_ad

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sin()

    x, w = torch.rand(3), torch.rand(3, requires_grad=True)
    tangents = []
    for run in (fn, dynajit.compile(fn)):
        with forward_ad.dual_level():
            result = run(forward_ad.make_dual(x, torch.ones(3)), w)
            tangents.append(forward_ad.unpack_dual(result).tangent)
    torch.testing.assert_close(*tangents)


def test_hooks_on_saved_tensors_change_what_is_used() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.exp() * x

    found = []
    for run in (fn, dynajit.compile(fn, backend="aot_eager")):
        x = torch.ones(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone().numpy(), torch.from_numpy):
            out = run(x)
        out.sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_backward_from_another_thread() -> None:
    compiled, module = both("codegen")
    x = torch.randn(3, 8)
    for net in (compiled, module):
        out = net(x)[0].sum()
        thread = threading.Thread(target=out.backward)
        thread.start()
        thread.join()
    for got, expected in zip(compiled.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_mutated_inputs_and_views_keep_torchs_wrapper() -> None:
    def fn(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state.add_(1)
        y = x * state
        return y, y[0]

    found = []
    for run in (fn, dynajit.compile(fn)):
        x, state = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
        y, row = run(x, state)
        assert row._is_view() and y.grad_fn is not None
        (y.sum() + row.sum()).backward()
        found.append((x.grad, state))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_buffers_that_the_graph_writes(backend: str) -> None:
    """Batch norm's running statistics are written by the graph itself, and need no wrapper of torch's."""
    compiled, module = both(backend, nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    for _ in range(3):
        x = torch.randn(2, 3, 6, 6)
        out = compiled(x)
        assert out.grad_fn.name() == NAME
        for net, result in ((compiled, out), (module, module(x))):
            net.zero_grad()
            result.pow(2).sum().backward()
    for got, expected in zip(compiled.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-4)
    for got, expected in zip(compiled.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_differentiated_again_or_not_after_a_write() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.tanh(x @ w).pow(2), (x @ w).argmax(), x.sum()

    compiled = dynajit.compile(fn, backend="codegen")
    for write in (False, True):
        found = []
        for run in (fn, compiled):
            torch.manual_seed(0)
            x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
            y, _, total = run(x, w)
            if write:
                with torch.no_grad():
                    x.mul_(2)
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    torch.autograd.grad(y.sum() + total, [w], create_graph=True)
                continue
            (slope,) = torch.autograd.grad(y.sum() + 2 * total, [x], create_graph=True)
            assert slope.grad_fn is not None
            slope.pow(2).sum().backward()
            found.append((slope.detach(), x.grad, w.grad))
        for got, expected in zip(*found, strict=True) if found else ():
            torch.testing.assert_close(got, expected)


def test_no_hook_and_no_python_in_a_call() -> None:
    compiled, _ = both("codegen")
    x = torch.randn(3, 8)
    compiled(x)[0].sum().backward()
    names: list[str] = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        compiled(x)
    finally:
        sys.setprofile(None)
    assert len(names) == 1  # the replacement code


def test_backward_again_where_only_sizes_are_kept() -> None:
    """Eager's nodes that keep no tensors run as often as they are asked to."""
    compiled = dynajit.compile(lambda x: (x + 1).sum(0), backend="codegen", dynamic=True, fullgraph=True)
    for size in (4, 3):
        x = torch.ones(size, 2, requires_grad=True)
        result = compiled(x)
        for _ in range(2):
            (gradient,) = torch.autograd.grad(result.sum(), x)
            assert torch.equal(gradient, torch.ones(size, 2))


def test_torch_shows_graphs_where_its_log_is_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    printed = torch.fx.GraphModule.print_readable

    def counted(*args: Any, **kwargs: Any) -> str:
        texts.append(printed(*args, **kwargs))
        return texts[-1]

    monkeypatch.setattr(torch.fx.GraphModule, "print_readable", counted)
    trace_log = torch._logging._internal.trace_log
    monkeypatch.setattr(trace_log, "handlers", [])  # torch's own leaves at the first thing that it is to write
    log = graph_compile.aot_joint_log
    shown = []
    for level in (logging.WARNING, logging.INFO):
        dynajit.reset()  # the second is of the same code
        caplog.clear()
        texts.clear()
        monkeypatch.setattr(log, "handlers", [caplog.handler])
        with caplog.at_level(level, logger=log.name):
            x = torch.ones(3, requires_grad=True)
            dynajit.compile(lambda x: x.sin(), backend="aot_eager")(x).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, torch.ones(3).cos())
        shown.append((any("Joint graph" in text for text in caplog.messages), bool(texts)))
    assert shown == [(False, False), (True, True)]
