"""Programs that ask whether they are being compiled."""

from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import CompileCounter

x = torch.arange(6.0)


def run(fn: Any, *args: Any, graphs: int) -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=0, atol=0)
    assert counter.frame_count == graphs


def test_what_eager_code_computes_is_computed() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        return x * 2 if torch.compiler.is_compiling() else x * 3

    run(f, x, graphs=1)


def test_a_check_of_values_is_left_out() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() and x.max().item() > 100:
            raise ValueError("too large")
        return x.cos()

    def f(x: torch.Tensor) -> torch.Tensor:
        return checked(x.sin()) + 1

    run(f, x, graphs=1)
    dynajit.compile(f, fullgraph=True)(x)


def test_code_for_a_compiler_that_raises_is_not_run() -> None:
    def f(x: torch.Tensor, mask: Any = None) -> torch.Tensor:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(6)
        if mask.sum() > 3:
            x = x + 1
        return x * mask

    run(f, x, graphs=2)


def test_code_for_a_compiler_that_breaks_at_the_same_place_is_not_run() -> None:
    seen = []

    def f(x: torch.Tensor) -> torch.Tensor:
        x = x + 1 if torch.compiler.is_compiling() else x + 2
        dynajit.graph_break()
        seen.append(len(seen))
        return x * 2

    run(f, x, graphs=2)
    assert seen == [0, 1, 2, 3]


def test_code_for_a_compiler_that_breaks_later_is_run() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            dynajit.graph_break()
        x = x.sin()
        dynajit.graph_break()
        return x.cos()

    report = dynajit.explain(f)(x)
    assert len(report.break_reasons) == 1 and report.graph_count == 2


@pytest.mark.parametrize("kind", [ValueError, KeyError])
def test_an_exception_of_eager_code(kind: type[Exception]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            raise kind("eager")
        return x + 1

    with pytest.raises(kind, match="eager"):
        dynajit.compile(f)(x)


def test_dynajits_own_question() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, dynajit.is_compiling()

    assert dynajit.compile(f, fullgraph=True)(x)[1] is True and f(x)[1] is False
