"""Torch-function modes, entered inside of what is compiled and outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import dynajit
from dynajit.testing import compare

BACKENDS = ["eager", "codegen"]


class Noting(TorchFunctionMode):
    """Notes names, and takes sin for cos."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return (torch.cos if func is torch.sin else func)(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.exp else result


def work(x: torch.Tensor) -> Any:
    y = torch.sin(x) + x.shape[0]
    return torch.exp(y), torch.ones(2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_entered_inside(backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        seen: list[str] = []
        with Noting(seen), Doubling():
            inside = work(x)
        return inside, work(x), seen

    compiled = dynajit.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        compare(compiled(torch.ones(3)), f(torch.ones(3)), exact=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_entered_outside(backend: str) -> None:
    compiled = dynajit.compile(lambda x: work(x), backend=backend)
    noted: list[list[str]] = [[], []]
    for number in range(3):
        results = []
        for seen, run in zip(noted, (compiled, work), strict=True):
            with Noting(seen):
                inside = run(torch.full((3,), float(number)))
            results.append((inside, run(torch.ones(3))))
        compare(results[0], results[1], exact=False)
    for seen in noted:
        while "full" in seen:
            seen.remove("full")
    assert noted[0] == noted[1]


def test_a_mode_outside_does_not_see_why_it_is_compiled_again() -> None:
    """The guards that failed are asked again in Python, of the arguments."""
    compiled = dynajit.compile(work, backend="eager")
    for x in (
        torch.ones(3),
        torch.ones(4),
        torch.ones(2, 2),
        torch.ones(5).double(),
        torch.ones(3, requires_grad=True),
    ):
        noted: list[list[str]] = [[], []]
        for seen, run in zip(noted, (compiled, work), strict=True):
            with Noting(seen):
                run(x)
        assert noted[0] == noted[1]


def test_two_objects_of_one_class_share_a_graph() -> None:
    compiled = dynajit.compile(lambda x: torch.sin(x), backend="eager")
    x = torch.ones(2)
    for _ in range(12):
        seen: list[str] = []
        with Noting(seen):
            found = compiled(x)
        assert seen == ["sin"] and torch.equal(found, torch.cos(x))


def test_a_break_under_a_mode_keeps_it_active() -> None:
    def f(x: torch.Tensor, seen: list[str]) -> Any:
        with Noting(seen):
            y = torch.sin(x)
            dynajit.graph_break()
            z = torch.sin(y)
        return z, torch.sin(z)

    noted: list[list[str]] = [[], []]
    compare(dynajit.compile(f, backend="eager")(torch.ones(2), noted[0]), f(torch.ones(2), noted[1]))
    assert noted[0] == noted[1]


def test_an_exception_leaves_the_mode() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            with Doubling():
                y = torch.exp(x)
                raise ValueError(y.dim())
        except ValueError as error:
            return y, error.args, torch.exp(x)

    compare(dynajit.compile(f, backend="eager", fullgraph=True)(torch.ones(2)), f(torch.ones(2)))
    assert torch._C._len_torch_function_stack() == 0


def test_a_default_device_under_a_mode() -> None:
    def f(x: torch.Tensor) -> Any:
        with torch.device("meta"):
            return work(x.to("meta"))[1].device

    seen: list[str] = []
    compiled = dynajit.compile(f, backend="eager")
    with Noting(seen):
        assert compiled(torch.ones(3)) == torch.device("meta")
    assert "ones" in seen


@pytest.mark.parametrize("ask", [torch.Tensor.tolist, lambda x: x.device, lambda x: x.is_sparse], ids=["0", "1", "2"])
def test_a_mode_sees_the_question_itself(ask: Any) -> None:
    """Not what a class that stands for the tensor while tracing asks in turn."""
    compiled = dynajit.compile(lambda x: ask(x), backend="eager")
    results = []
    for run in (compiled, ask, compiled):
        seen: list[str] = []
        with Noting(seen):
            results.append((run(torch.arange(3)), seen))
    compare(results[0], results[1])
    compare(results[2], results[1])


class Straight(torch.autograd.Function):
    """Has a backward that its forward does not have."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_of_autograds_keeps_its_backward(backend: str) -> None:
    def program(a: torch.Tensor, seen: list[str]) -> Any:
        with Noting(seen):
            return Straight.apply(a * 2)

    sides = []
    for fn in (dynajit.compile(program, backend=backend), program):
        a, seen = torch.arange(3.0, requires_grad=True), []
        result = fn(a, seen)
        result.sum().backward()
        sides.append((result.detach(), a.grad, seen))
    compare(*sides)
