"""Real models end to end: eager's results in inference, eager's loss and gradients in training, in one graph."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dynajit
from dynajit.capture.capture import NOTHING
from dynajit.report import records

pytest.importorskip("transformers", reason="the models are transformers'")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from models import PROGRAMS, tensors_in

NETWORKS = [name for name in PROGRAMS if "layers" in name or "ResNet" in name or "MLP" in name]
BACKENDS = ("eager", "codegen")


def captured(run: Any) -> tuple[Any, list[records.CompileRecord]]:
    """The result of a call, and what was captured during it."""
    found: list[records.CompileRecord] = []
    with records.listen(found.append):
        result = run()
    return result, found


def assert_one_graph(found: list[records.CompileRecord]) -> None:
    assert [brk.reason for record in found for brk in record.breaks] == []
    # a library's audit hook may run, and be looked at, in the middle
    assert [record.skipped for record in found if record.skipped != NOTHING] == [None]
    assert sum(len(record.graphs) for record in found) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "SGD training step"])
def test_inference(name: str, backend: str) -> None:
    case = PROGRAMS[name].build()
    compiled = dynajit.compile(case.fn, backend=backend)
    with torch.no_grad():
        expected = tensors_in(case.call_with(case.fn))
        result, found = captured(lambda: case.call_with(compiled))
        assert_one_graph(found)
        torch.testing.assert_close(tensors_in(result), expected, rtol=1e-4, atol=1e-5)
        again, found = captured(lambda: case.call_with(compiled))
        assert found == []
        torch.testing.assert_close(tensors_in(again), expected, rtol=1e-4, atol=1e-5)


def close(ours: torch.Tensor, theirs: torch.Tensor, name: str) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5, msg=lambda text: f"{name}: {text}")


def loss_of(output: Any) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    return loss if loss is not None else tensors_in(output)[0].float().pow(2).mean()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_training(name: str, backend: str) -> None:
    case = PROGRAMS[name].build()
    model = case.fn
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    ours = copy.deepcopy(model)
    compiled = dynajit.compile(ours, backend=backend)
    kwargs = dict(case.kwargs)
    if "input_ids" in kwargs:
        kwargs["labels"] = kwargs["input_ids"].clone()
    expected = loss_of(model(*case.args, **kwargs))
    loss, found = captured(lambda: loss_of(compiled(*case.args, **kwargs)))
    assert_one_graph(found)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    expected.backward()
    loss.backward()
    for (key, mine), theirs in zip(ours.named_parameters(), model.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), key
        if mine.grad is not None:
            close(mine.grad, theirs.grad, key)
    for (key, mine), theirs in zip(ours.named_buffers(), model.buffers(), strict=True):
        close(mine, theirs, key)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sgd_step(backend: str) -> None:
    """A whole training step breaks at `backward()` alone."""
    ours, theirs = (PROGRAMS["SGD training step"].build() for _ in range(2))
    compiled = dynajit.compile(ours.fn, backend=backend)
    for step in range(3):
        loss, found = captured(lambda: ours.call_with(compiled))
        torch.testing.assert_close(loss, theirs.call_with(theirs.fn), rtol=1e-4, atol=1e-5)
        assert {brk.kind for record in found for brk in record.breaks} <= {"backward"}, step
        torch.testing.assert_close(ours.state(), theirs.state(), rtol=1e-4, atol=1e-5)
    assert found == []


def test_after_torch_compile() -> None:
    """torch.compile patches modules and optimizers when it is first used; that must not break graphs here."""
    linear = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    torch.compile(optimizer.zero_grad, backend="eager")()

    class Slices(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[:2]:
                x = layer(x)
            return x

    module, x = Slices(), torch.randn(2, 4)
    result, found = captured(lambda: dynajit.compile(module, backend="eager")(x))
    assert_one_graph(found)
    torch.testing.assert_close(result, module(x))

    def step() -> None:
        optimizer.zero_grad()
        optimizer.step()

    _, found = captured(dynajit.compile(step, backend="eager"))
    assert [brk.reason for record in found for brk in record.breaks] == []
