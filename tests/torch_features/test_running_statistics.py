"""Running statistics, which batch norms write without autograd counting it: a graph may have no other effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynajit.testing import assert_same

_Program = Callable[[Tensor, Tensor, Tensor], object]


def _module(x: Tensor, mean: Tensor, var: Tensor) -> None:
    norm = nn.BatchNorm1d(2)
    norm.running_mean, norm.running_var = mean, var
    norm(x)


def _with_a_count(x: Tensor, mean: Tensor, var: Tensor) -> None:
    count = torch.tensor(0)
    for _ in range(5):
        count.add_(1)
        F.batch_norm(x, mean, var, training=True, momentum=1.0 / float(count))


_PROGRAMS: dict[str, _Program] = {
    "batch_norm": lambda x, mean, var: F.batch_norm(x, mean, var, training=True),
    "torch.batch_norm": lambda x, mean, var: torch.batch_norm(x, None, None, mean, var, True, 0.5, 1e-5, False),
    "instance_norm": lambda x, mean, var: F.instance_norm(x, mean, var),
    "module": _module,
    "momentum of a count": _with_a_count,
    "outside of a branch": lambda x, mean, var: torch.cond(
        x.sum() > 0, lambda x: F.batch_norm(x, mean, var, training=True), lambda x: x.clone(), (x,)
    ),
    "operands of a branch": lambda x, mean, var: torch.cond(
        x.sum() > 0, lambda x, m, v: F.batch_norm(x, m, v, training=True), lambda x, m, v: x.clone(), (x, mean, var)
    ),
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_they_are_written_though_nobody_uses_the_result(name: str, backend: str) -> None:
    def program(x: Tensor, mean: Tensor, var: Tensor) -> None:
        _PROGRAMS[name](x, mean, var)

    x = torch.linspace(0, 1, 24).reshape(4, 2, 3)
    assert_same(program, x, torch.zeros(2), torch.ones(2), backend=backend)


def _average(norm: nn.BatchNorm1d, batches: list[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    norm.reset_running_stats()
    norm.momentum = None
    for batch in batches:
        norm(batch)
    return norm.running_mean, norm.running_var


def test_their_cumulative_average() -> None:
    batches = [*torch.linspace(0, 1, 60).sin().reshape(6, 5, 2)]
    assert_same(_average, nn.BatchNorm1d(2), batches)
