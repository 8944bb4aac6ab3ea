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


_LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(6, 4),
    "columns": lambda: torch.randn(4, 6).t(),
    "turned": lambda: torch.randn(3, 5, 4).transpose(1, 2),
    "channels last": lambda: torch.randn(3, 4, 2, 5).to(memory_format=torch.channels_last),
    "images turned": lambda: torch.randn(3, 4, 2, 5).transpose(2, 3),
    "batch last": lambda: torch.randn(4, 2, 5, 3).permute(3, 0, 1, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", _LAYOUTS)
def test_results_have_the_strides_of_eagers(layout: str, training: bool, dtype: torch.dtype) -> None:
    def program(x: Tensor, mean: Tensor, var: Tensor) -> object:
        y = F.batch_norm(x, mean, var, var + 1, mean - 1, training)
        return y, y.stride(), torch.relu(y)

    x = _LAYOUTS[layout]().to(dtype)
    for backend in ("eager", "codegen"):
        arguments = x, torch.zeros(4, dtype=dtype), torch.ones(4, dtype=dtype)
        assert_same(program, *arguments, backend=backend, rtol=2e-2, atol=2e-2, graphs=1, breaks=0)
