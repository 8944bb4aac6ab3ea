"""The list of passes: what each is called, where it runs, and that logs say which of them changed a graph."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule, symbolic_trace

import dynajit
from dynajit.aot import pipeline
from dynajit.aot.pipeline import PASSES, Pass, PassContext, run_passes
from dynajit.report import logs

PHASES = ("captured", "autograd", "traced", "joint", "partition", "forward", "backward", "inference")


def test_passes_have_names_of_their_own_and_follow_the_phases() -> None:
    assert len({each.name for each in PASSES}) == len(PASSES)
    first = [PHASES.index(each.phases[0]) for each in PASSES if len(each.phases) == 1]
    assert {phase for each in PASSES for phase in each.phases} <= set(PHASES)
    before_code = [place for place in first if place <= PHASES.index("partition")]
    assert before_code == sorted(before_code)


def _named(name: str, calls: list[str]) -> Pass:
    def run(gm: GraphModule, context: PassContext) -> GraphModule:
        calls.append(name)
        return gm

    return Pass(name, ("forward",), run, device="cpu", applies=lambda gm, context: not context.eager_rounding)


def test_passes_run_in_order_where_they_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(pipeline, "PASSES", (_named("one", calls), _named("two", calls)))
    gm = symbolic_trace(lambda x: x + 1)
    assert run_passes(gm, PassContext("forward", device="cpu")) is gm
    for context in (PassContext("forward", device="cuda"), PassContext("backward", device="cpu")):
        run_passes(gm, context)
    run_passes(gm, PassContext("forward", device="cpu", eager_rounding=True))
    assert calls == ["one", "two"]


def test_what_passes_put_around_a_graph_is_inside_out() -> None:
    context = PassContext("captured")
    context.around += [lambda compiled: lambda: [compiled(), "outer"], lambda compiled: lambda: [compiled(), "inner"]]
    assert context.wrapped(lambda: "graph")() == [["graph", "inner"], "outer"]


def test_the_log_names_the_passes_that_changed_something(capsys: pytest.CaptureFixture[str]) -> None:
    def unused(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        return torch.relu(x) * 2

    logs.set_logs("aot_graphs")
    try:
        dynajit.compile(unused)(torch.ones(3, requires_grad=True)).sum().backward()
    finally:
        logs.set_logs()
    said = [line for line in capsys.readouterr().err.splitlines() if "changed by the pass" in line]
    assert any("traced: changed by the pass unused_draws" in line for line in said)
    assert not any("channels_last" in line or "recurrent_dropout" in line for line in said)


def test_a_pass_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What AOTAutograd can't express runs as captured, silently; a fault of a pass must not look like that."""

    def fails(gm: GraphModule, context: PassContext) -> GraphModule:
        raise ValueError("no such view")

    monkeypatch.setattr(pipeline, "PASSES", (Pass("faulty", ("joint",), fails),))
    x = torch.ones(3, requires_grad=True)
    told = "(?s)failed while compiling a graph, .*: the pass faulty raised ValueError: no such"
    with pytest.warns(UserWarning, match=told):
        result = dynajit.compile(lambda x: torch.relu(x) * 2)(x)
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
