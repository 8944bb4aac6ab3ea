"""Backward passes from some results of a graph whose inputs have histories of their own: what is behind the others'
inputs is not used up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit

BACKENDS = ["eager", "aot_eager", "codegen"]


def apart(a: torch.Tensor, b: torch.Tensor) -> Any:
    return (a * a).sin(), (b * b).cos()


def crossed(a: torch.Tensor, b: torch.Tensor) -> Any:
    both = (a * b).sin()
    return a.exp() * 2, both * both, b * 3


def chained(a: torch.Tensor, b: torch.Tensor) -> Any:
    first = a.sin()
    return first, (first * b).sin()


def outcome(call: Callable[..., Any], orders: tuple[tuple[int, ...], ...], retain: bool) -> list[Any]:
    leaves = [torch.linspace(0.1, 1.0, 3).requires_grad_() for _ in range(2)]
    inputs = [leaf.sin() * leaf for leaf in leaves]
    results = call(*inputs)
    seen: list[Any] = []
    for numbers in orders:
        chosen = [results[number].sum() for number in numbers if number < len(results)]
        if not chosen:
            continue
        try:
            torch.autograd.backward(chosen, retain_graph=retain)
        except RuntimeError as error:
            seen.append(str(error)[:40])
        seen.append([None if leaf.grad is None else [round(x, 4) for x in leaf.grad.tolist()] for leaf in leaves])
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [apart, crossed, chained])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "orders", [((0,), (1,)), ((1,), (0,)), ((0, 1),), ((0, 1, 2),), ((2,), (1,), (0,)), ((0, 1), (0,)), ((1,), (1,))]
)
@pytest.mark.parametrize("retain", [False, True])
def test_passes(function: Callable[..., Any], orders: Any, backend: str, retain: bool, dynamic: bool) -> None:
    compiled = dynajit.compile(function, backend=backend, dynamic=dynamic)
    assert outcome(compiled, orders, retain) == outcome(function, orders, retain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_inside_of_the_program(backend: str) -> None:
    weight = torch.ones(1, requires_grad=True)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x.sum() + y
        loss = torch.nn.functional.silu(total.detach() * weight).mean()
        loss.backward()
        return total

    x, leaf = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    dynajit.compile(function, backend=backend)(x, leaf * leaf).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 3, 3]
    assert leaf.grad is not None and leaf.grad.tolist() == [2, 2, 2] and weight.grad is not None


class Marker:
    """What an input's node of autograd holds for as long as it lives."""


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("function", [apart, chained])
def test_nothing_keeps_the_nodes_alive(function: Callable[..., Any], backend: str) -> None:
    compiled = dynajit.compile(function, backend=backend)
    inputs = [torch.ones(3, requires_grad=True) * 2 for _ in range(2)]
    marker = Marker()
    for each in inputs:
        each.grad_fn.metadata["marker"] = marker  # type: ignore[union-attr]
    known = weakref.ref(marker)
    results = compiled(*inputs)
    gc.collect()
    gc.disable()
    try:
        del marker, inputs, each
        assert known() is not None
        del results
        assert known() is None
    finally:
        gc.enable()
