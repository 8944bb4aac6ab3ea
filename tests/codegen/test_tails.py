"""Short rows that are no multiple of a vector: lanes of the last vector are left out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dynajit
from tests.codegen.helpers import check, plan_of

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": lambda x, w: x.softmax(-1),
    "log-softmax": lambda x, w: x.log_softmax(-1) * w,
    "gelu": lambda x, w: F.gelu(x * w) + x[:, :1],
    "sum": lambda x, w: (x * w).sum(-1),
    "greatest": lambda x, w: (x * w).amax(-1),
    "norm": lambda x, w: F.layer_norm(x, x.shape[-1:], w, w),
    "by columns": lambda x, w: (x.view(4, 6, -1) * w).logsumexp(1),
    "by columns, stored": lambda x, w: x.view(4, 6, -1).softmax(1),
    "chosen": lambda x, w: torch.where(x > 0, x.tanh(), w) + torch.sigmoid(w),
    "a library's function": lambda x, w: torch.sin(x * 30) * w,
    "integers": lambda x, w: (x.exp() * w).to(torch.int64),
    "indices": lambda x, w: x.exp()[:, torch.arange(x.shape[1] - 1, -1, -1)] * w,
    "turned": lambda x, w: (x.exp() * w).t().contiguous() + 1,
}
COUNTS = (5, 7, 10, 15, 17, 20, 24, 30, 49, 60, 100, 111, 113)


def given(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(count)
    return torch.randn(24, count), torch.rand(count) + 0.5


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_value(name: str, count: int) -> None:
    check(FUNCTIONS[name], *given(count), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["softmax", "greatest", "sum", "by columns", "chosen"])
def test_special_values_in_the_last_lanes(name: str, special: float) -> None:
    x, w = given(30)
    x[3, 29], x[5, 16], x[7] = special, special, special
    check(FUNCTIONS[name], x, w, rtol=1e-5, atol=1e-5)


def test_nothing_is_written_behind_a_row() -> None:
    """A row's results end where the next row's begin, also in the memory of an input."""

    def write(x: Tensor, w: Tensor) -> Tensor:
        return x.copy_(torch.sigmoid(x * w))

    x, w = given(30)
    results = []
    for function in (write, dynajit.compile(write)):
        whole = torch.full((25, 30), 7.0)
        whole[:24] = x
        function(whole[:24], w)
        results.append(whole)
    torch.testing.assert_close(*results)
    assert bool((results[1][24] == 7).all())


def padded(name: str, count: int) -> bool:
    return (
        "PADDED(" in plan_of(FUNCTIONS[name], *given(count)).source.rpartition("#define PADDED")[2].partition("\n")[2]
    )


def test_which_loops() -> None:
    assert all(padded(name, 30) for name in ("softmax", "gelu", "greatest", "by columns, stored"))
    assert not any(padded(name, 32) for name in FUNCTIONS)
    # a sum is of several lanes, and what is left over of one
    assert not any(padded(name, 30) for name in ("a library's function", "integers", "indices", "sum"))
