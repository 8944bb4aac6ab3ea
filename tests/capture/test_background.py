"""The option `background`: calls give the same before and after the switch, errors come out at `wait`, and nothing of
the program is run by the thread that compiles."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit import config
from dynajit.backends.codegen import codegen
from dynajit.capture import background
from dynajit.capture.session import Session
from dynajit.exc import BackendCompilerFailed, ConfigError


class Gate:
    """`codegen`, which waits until it is let go on; notes in which threads it ran."""

    works_apart = True

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began = threading.Event()
        self.threads: list[str] = []
        self.error: Exception | None = None
        self.before: Callable[[Any], object] = lambda examples: None

    def __call__(self, gm: torch.fx.GraphModule, examples: Any, **options: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        self.began.set()
        assert self.open.wait(60)
        self.before(examples)
        if self.error is not None:
            raise self.error
        return codegen(gm, examples, **options)


Gate.__module__ = "dynajit.backends.gate"  # as one of dynajit's own, it is given fake tensors


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()
    yield found
    found.open.set()
    background._failures.clear()
    dynajit.wait(60)


def compiled_by(gate: Gate, target: Any, **settings: Any) -> Any:
    return dynajit.compile(target, backend=gate, options={"background": True}, **settings)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.drop(torch.relu(self.norm(self.linear(x)))) + self.calls


def run(net: Any, original: Net, steps: int, between: Callable[[int], object] = lambda step: None) -> list[Tensor]:
    """Results, gradients, buffers and random numbers of some steps of training."""
    torch.manual_seed(0)
    found = []
    for step in range(steps):
        between(step)
        out = net(torch.randn(4, 8))
        out.sum().backward()
        found += [out.detach(), torch.rand(1), original.norm.running_mean.clone(), torch.tensor(original.calls)]
    return [*found, *(parameter.grad for parameter in original.parameters())]


def test_a_training_run_switches_in_the_middle(gate: Gate) -> None:
    torch.manual_seed(1)
    eager, net = Net(), Net()
    net.load_state_dict(eager.state_dict())

    def between(step: int) -> None:
        if step == 3:
            gate.open.set()
            dynajit.wait(60)

    compiled = compiled_by(gate, net)
    torch.testing.assert_close(run(compiled, net, 6, between), run(eager, eager, 6))
    assert set(gate.threads) == {"dynajit compile"}


def test_calls_before_and_after_the_switch(gate: Gate) -> None:
    def double(x: Tensor, log: list[str]) -> Tensor:
        log.append("called")
        return x.sin() * 2

    compiled, log, x = compiled_by(gate, double), [], torch.randn(5)
    with config.patch(recompile_limit=2):
        for _ in range(3):
            assert torch.equal(compiled(x, log), x.sin() * 2)
        gate.open.set()
        dynajit.wait(60)
        torch.testing.assert_close(compiled(x, log), x.sin() * 2)
    assert log == ["called"] * 4
    assert gate.threads == ["dynajit compile"]


def test_other_shapes_are_compiled_beside_the_program_too(gate: Gate) -> None:
    def total(x: Tensor) -> Tensor:
        return (x * 2).sum(0) + x.shape[0]

    compiled = compiled_by(gate, total)
    for size in (3, 4, 5, 6):
        x = torch.randn(size, 2)
        torch.testing.assert_close(compiled(x), total(x))
    gate.open.set()
    dynajit.wait(60)
    assert len(gate.threads) == 2
    for size in (3, 4, 7, 1):
        x = torch.randn(size, 2)
        torch.testing.assert_close(compiled(x), total(x))


def test_what_the_backend_decides_about_sizes_holds_only_there(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that relies on a size does so after the guards are built."""

    def double(x: Tensor) -> Tensor:
        return x * 2

    seen: list[bool] = []
    used: list[str] = []
    where = background._where

    def noting(holds: Any, compiled: Any, otherwise: Any) -> Any:
        def called(name: str, call: Any) -> Any:
            return lambda *inputs: used.append(name) or call(*inputs)

        return where(holds, called("compiled", compiled), called("as captured", otherwise))

    def decide(examples: Any) -> None:
        sizes = [value for value in examples if isinstance(value, torch.SymInt)]
        seen.extend(bool(size > 5) for size in sizes)

    monkeypatch.setattr(background, "_where", noting)
    gate.before = decide
    compiled = compiled_by(gate, double, dynamic=True)
    compiled(torch.randn(7))
    gate.open.set()
    dynajit.wait(60)
    assert seen == [True]
    for size in (3, 5, 6, 9):
        x = torch.randn(size)
        assert torch.equal(compiled(x), x * 2)
    assert used == ["as captured", "as captured", "compiled", "compiled"]


def test_an_error_is_warned_of_once_and_raised_at_wait(gate: Gate) -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    gate.error = ValueError("no such thing")
    compiled, x = compiled_by(gate, double), torch.randn(3)
    compiled(x)
    with pytest.warns(UserWarning, match=r"double .*could not be compiled in the background.*no such thing") as told:
        gate.open.set()
        with pytest.raises(BackendCompilerFailed, match="no such thing") as caught:
            dynajit.wait(60)
    assert len(told) == 1 and isinstance(caught.value.inner_exception, ValueError)
    assert "return x * 2" in str(caught.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(x), x * 2)
        dynajit.wait()


def test_random_numbers_drawn_meanwhile_are_not_drawn_again() -> None:
    """AOTAutograd puts the generator back to where it was before it traced."""
    started, drawn = threading.Event(), threading.Event()
    net = nn.Linear(4, 4)

    class Slow:
        works_apart = True

        def __call__(self, gm: torch.fx.GraphModule, examples: Any, **options: Any) -> Any:
            from dynajit.aot import compile_joint

            def compile_fn(graph: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Any:
                started.set()
                assert drawn.wait(60)
                return graph.forward

            return compile_joint(gm, examples, compile_fn)

    Slow.__module__ = "dynajit.backends.slow"
    compiled = dynajit.compile(net, backend=Slow(), options={"background": True})
    compiled(torch.ones(2, 4))
    assert started.wait(60)
    torch.manual_seed(0)
    first = torch.rand(3)
    drawn.set()
    dynajit.wait(60)
    second = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(6), torch.cat([first, second]))


def test_settings_changed_meanwhile_leave_the_graph_as_captured(gate: Gate) -> None:
    def halves(x: Tensor) -> Tensor:
        return x * torch.ones(3) / 2

    compiled, x = compiled_by(gate, halves), torch.randn(3)
    before = compiled(x)
    try:
        torch.set_default_dtype(torch.float64)
        gate.open.set()
        dynajit.wait(60)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(compiled(x), before) and compiled(x).dtype is torch.float32


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("cast", [True, False])
@pytest.mark.parametrize("inference", [True, False])
def test_the_thread_has_the_modes_of_the_call(gate: Gate, grad: bool, cast: bool, inference: bool) -> None:
    found: list[tuple[bool, ...]] = []

    def modes() -> tuple[bool, ...]:
        return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()

    gate.before = lambda examples: found.append(modes())
    weight = torch.randn(4, 4, requires_grad=True)
    compiled = compiled_by(gate, lambda x: x @ weight)
    x = torch.randn(4, 4)
    with torch.inference_mode(inference), torch.set_grad_enabled(grad), torch.autocast("cpu", enabled=cast):
        expected, before, now = x @ weight, compiled(x), modes()
        gate.open.set()
        dynajit.wait(60)
        after = compiled(x)
    assert found == [now]
    for given in (before, after):
        torch.testing.assert_close(given, expected)
        assert (given.dtype, given.requires_grad) == (expected.dtype, expected.requires_grad)


def test_breaks_and_dropped_functions(gate: Gate) -> None:
    def broken(x: Tensor) -> Tensor:
        y = x + 1
        print(end="")
        return y.exp()

    compiled, x = compiled_by(gate, broken), torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), broken(x))
    assert gate.began.wait(60)  # with the first of two
    del compiled
    dynajit.reset()
    gate.open.set()
    dynajit.wait(60)
    assert gate.threads == ["dynajit compile"]  # what waited is gone


def test_waiting_has_an_end(gate: Gate) -> None:
    dynajit.wait()
    compiled_by(gate, lambda x: x + 1)(torch.ones(2))
    with pytest.raises(TimeoutError, match=r"still to be compiled after 0\.01 seconds"):
        dynajit.wait(0.01)


def test_options_that_do_not_go_with_it() -> None:
    for backend in ("inductor", "cudagraphs", lambda gm, examples: gm):
        with pytest.raises(ConfigError, match="can't compile in the background"):
            dynajit.compile(torch.sin, backend=backend, options={"background": True})
    with pytest.raises(ConfigError, match="background takes True or False"):
        dynajit.compile(torch.sin, options={"background": 1})
    with pytest.raises(ConfigError, match="background and freezing exclude each other"):
        dynajit.compile(torch.sin, options={"background": True, "freezing": True})


def test_explain_reports_the_kernels() -> None:
    compiled = dynajit.compile(lambda x: x.sin() * 2, options={"background": True})
    report = dynajit.explain(compiled)(torch.randn(10))
    assert [len(code.kernels) for frame in report.frames for graph in frame.graphs for code in graph.code] == [1]


def test_sessions_of_other_choices_are_apart() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    one, other = dynajit.compile(double, options={"background": True}), dynajit.compile(double)
    assert isinstance(one.key, Session) and one.key is not other.key
