"""Small constants of the CPU's that a graph wants on a device are there when it is called ("meta" stands for a GPU)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.aot.passes import constants

aten = torch.ops.aten


def graph_of(function: Callable[..., Any], *inputs: tuple[int, ...]) -> torch.fx.GraphModule:
    """Its ATen graph, for tensors of these sizes on the device."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return make_fx(lambda *args: list(function(*args)))(*[torch.empty(size, device="meta") for size in inputs])


def called(gm: torch.fx.GraphModule) -> list[str]:
    return [node.target.__name__ for node in gm.graph.nodes if node.op == "call_function"]


def put(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *inputs: tuple[int, ...]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The graph behind the pass, and what it holds."""
    gm = graph_of(function, *inputs)
    held: list[torch.Tensor] = []
    hold = constants._held
    monkeypatch.setattr(constants, "_held", lambda gm, value, *rest: held.append(value) or hold(gm, value, *rest))
    with FakeTensorMode():  # as the backend's caller may have one
        constants.put_on_device(gm)
    gm.graph.lint()
    return gm, held


def test_numbers_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.tensor(7).to(x.device), torch.full((2, 3), 0.5).to(x.device, torch.half)

    gm, held = put(monkeypatch, function, (3,))
    assert called(gm) == ["full.default", "full.default"] and not held
    seven, halves = gm.graph.find_nodes(op="call_function", target=aten.full.default)
    assert seven.args == ([], 7) and seven.kwargs == {"dtype": torch.int64, "device": torch.device("meta")}
    assert halves.args == ([2, 3], 0.5) and halves.kwargs["dtype"] is torch.float16


def test_what_has_several_values_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> Any:
        frequencies = 1.0 / (10000.0 ** (torch.arange(0, 8, 2, dtype=torch.float) / 8))
        return x * frequencies[None, :].expand(2, -1).to(x.device), torch.tensor([-0.0, -0.0]).to(x.device)

    gm, held = put(monkeypatch, function, (2, 4))
    assert called(gm) == ["clone.default", "mul.Tensor", "clone.default"]
    want = (1.0 / (10000.0 ** (torch.arange(0, 8, 2) / 8))).expand(2, -1)
    frequencies, zeros = held
    assert torch.equal(frequencies, want) and torch.equal(zeros.signbit(), torch.tensor([True, True]))


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    gm, held = put(monkeypatch, lambda x: (x[:, torch.tensor([0, 2, 1])], x[torch.tensor([1, 0])]), (2, 3))
    assert called(gm) == ["index.Tensor", "index.Tensor"]
    assert [value.tolist() for value in held] == [[0, 2, 1], [1, 0]]


def test_what_is_no_constant_or_is_large_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.rand(3).to(x.device), torch.empty(2).to(x.device), (torch.arange(2000).float() + 1).to(x.device)

    gm = graph_of(function, (3,))
    before = called(gm)
    constants.put_on_device(gm)
    assert called(gm) == before
