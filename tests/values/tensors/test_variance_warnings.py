"""Variances of too few elements warn in a compiled call as in eager mode: of the program's line, each time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

PROGRAMS: dict[str, tuple[Callable[..., Any], torch.Size]] = {
    "whole": (lambda x: x.var(), torch.Size([1])),
    "of rows": (lambda x: torch.std(x, 0) * 2, torch.Size([1, 3])),
    "with mean": (lambda x: torch.var_mean(x, 1)[1], torch.Size([3, 1])),
    "correction": (lambda x: x.std(dim=1, correction=5), torch.Size([2, 4])),
    "unused": (lambda x: (x.var((0, 1)), x * 2)[1], torch.Size([1, 1, 3])),
    "no elements": (lambda x: x.std(1, False), torch.Size([3, 0])),
    "no elements at all": (lambda x: (torch.var_mean(x), x.var((0, 1), keepdim=True)), torch.Size([0, 3])),
    "of enough": (lambda x: (x.std(0, False), x.var(1), torch.std_mean(x, None, True)), torch.Size([1, 3])),
}


def _warned(function: Callable[..., Any], *args: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function(*args)
    return [(str(each.message), each.category, each.filename, each.lineno) for each in found]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_variances_warn(name: str, dynamic: bool) -> None:
    function, size = PROGRAMS[name]
    x = torch.rand(size)
    compiled = dynajit.compile(function, dynamic=dynamic, fullgraph=True)
    for _ in range(2):
        assert _warned(compiled, x) == _warned(function, x)


@pytest.mark.filterwarnings("error")
def test_a_filter_makes_an_exception_of_it() -> None:
    def caught(x: torch.Tensor) -> Any:
        try:
            return x.std(0)
        except UserWarning as warning:
            return str(warning)

    assert_same(caught, torch.ones(1, 3))
    assert_same(lambda x: x.std(0), torch.ones(1, 3))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("correction", [0, 1, 3, 4.5])
def test_variances_with_sizes_that_vary_have_no_negative_freedom(correction: float, backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return (
            x.var(1, correction=correction),
            torch.std_mean(x, 0, correction=correction),
            x.std(correction=correction),
        )

    more = [(torch.rand(*size),) for size in ((3, 4), (5, 3), (2, 7), (9, 6))]
    assert_same(program, torch.rand(3, 2), then=more, backend=backend, dynamic=True)
