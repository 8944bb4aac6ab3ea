"""Graphs whose sizes vary, for targets whose kernels have all sizes in their text: the CPU stands for such a target."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dynajit
from dynajit.aot import by_size
from dynajit.backends import codegen as backend
from dynajit.codegen.generate import CannotGenerate
from dynajit.runtime.plan_sizes import small


@pytest.fixture(autouse=True)
def static_target(monkeypatch: pytest.MonkeyPatch) -> None:
    dynajit.reset()
    compiled = backend._compiled

    def known_sizes_only(settings: Any, gm: Any, inputs: Any, *rest: Any) -> Any:
        if by_size.varies(inputs):
            raise CannotGenerate("sizes")
        return compiled(settings, gm, inputs, *rest)

    monkeypatch.setattr(backend, "_compiled", known_sizes_only)
    monkeypatch.setattr(backend, "_may_have_sizes_in_text", lambda device: True)
    monkeypatch.setattr(backend, "_told", set())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs of known sizes."""
    found: list[Any] = []
    original = by_size.static_graph

    def static_graph(gm: Any, inputs: Any) -> Any:
        found.append(original(gm, inputs))
        return found[-1]

    monkeypatch.setattr(by_size, "static_graph", static_graph)
    return found


def normalised(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = torch.softmax(x @ w, -1) * x.shape[0]
    return y, y.view(-1)[: x.shape[0] // 2], x.shape[0] + 1, torch.arange(x.shape[0]) * 2


def test_each_size_once(made: list[Any]) -> None:
    compiled = dynajit.compile(normalised, dynamic=True, fullgraph=True)
    w = torch.randn(8, 8)
    for rows in (3, 5, 3, 9, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x, w), normalised(x, w))
    assert len(made) == 3
    sizes = [node.meta["val"] for gm, _ in made for node in gm.graph.nodes if "val" in node.meta]
    assert not any(by_size.varies([value]) for value in sizes)


def test_bounded(made: list[Any]) -> None:
    compiled = dynajit.compile(lambda x: (x * 2).sum(0), dynamic=True, fullgraph=True)
    with pytest.warns(UserWarning, match="combinations of sizes"):
        for rows in range(2, 5 + by_size.MAX_GRAPHS):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), (x * 2).sum(0))
    assert len(made) == by_size.MAX_GRAPHS


def test_sizes_above_the_bound_run_what_takes_any_size() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * x.shape[0],)

    gm = make_fx(function, tracing_mode="symbolic")(torch.randn(9, 4))
    calls: list[str] = []

    def for_one(one: torch.fx.GraphModule, fakes: list[Any]) -> Any:
        calls.append("one")
        return one.forward

    def for_others() -> Any:
        calls.append("others")
        return gm.forward

    given = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    by = by_size.BySize(gm, given, for_one, calls.append, for_others)
    for rows in range(2, 6 + by_size.MAX_GRAPHS):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(by(x), function(x))
    assert calls == ["one"] * by_size.MAX_GRAPHS + ["others"]


def test_training(made: list[Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
    compiled = dynajit.compile(model, dynamic=True)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 8)
        gradients = []
        for call in (model, compiled):
            model.zero_grad()
            call(x).square().mean().backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        torch.testing.assert_close(*gradients)
    assert made


def test_written_inputs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x[1:] + 1

    compiled = dynajit.compile(function, dynamic=True, fullgraph=True)
    for rows in (3, 6):
        mine, theirs = torch.ones(rows, 4), torch.ones(rows, 4)
        torch.testing.assert_close(compiled(mine), function(theirs))
        torch.testing.assert_close(mine, theirs)


def test_sizes_that_values_decide() -> None:
    compiled = dynajit.compile(lambda x: (x * 2)[x > 0] + 1, dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (3, 6):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), (x * 2)[x > 0] + 1)


def test_where_sizes_can_not_be_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for each size take over: for all calls, or for those whose numbers have more than 32 bits."""

    def known(*inputs: Any) -> str:
        return "known"

    def compiled(*inputs: int) -> str:
        small(1000, inputs)
        return "any"

    gm = torch.fx.GraphModule({}, torch.fx.Graph())
    settings = backend._settings(None, {})
    monkeypatch.setattr(by_size, "BySize", lambda *_: known)
    monkeypatch.setattr(backend, "_compiled", lambda *_: compiled)
    call = backend._for_many_sizes(settings, gm, [], "inference", torch.device("cuda"))
    assert [call(n) for n in (1, 999, 1000, 2)] == ["any", "any", "known", "any"]

    def refused(*_: Any) -> Any:
        raise CannotGenerate("sizes")

    monkeypatch.setattr(backend, "_compiled", refused)
    assert backend._for_many_sizes(settings, gm, [], "inference", torch.device("cuda")) is known
