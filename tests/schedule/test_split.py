"""Kernels that are too long to be compiled as one are cut; pieces that are equal are one kernel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dynajit
from dynajit.codegen.generate import generate
from dynajit.codegen.plan import KernelStep, ViewStep
from dynajit.loopir.lower_graph import lower
from dynajit.schedule.fuse import Group, fuse
from dynajit.schedule.split import EXPRESSION, LIMIT, cut_points
from dynajit.testing import assert_same

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "codegen"))
from triton_harness import check, plan_of

torch.manual_seed(0)
STEPS = 96


def recurrence(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(x[:, 0])
    for step in range(x.shape[1]):
        gate = torch.sigmoid(x[:, step] + u * h)
        h = h + gate * (torch.tanh(x[:, step] * gate) - h)
    return h


def one_use_each(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(x[:, 0])
    for step in range(x.shape[1]):
        h = torch.tanh(x[:, step] + u * h)
    return h


def rows(x: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of rows, values of rows and of points, one after the other."""
    h, scale = x[:, 0] * u, u[None] + 1
    for _ in range(STEPS // 2):
        size = (h * h).mean(-1, keepdim=True)
        scale = torch.exp(-size) * (scale[..., :1] + 0.5)
        h = torch.tanh(h * scale + u)
    return h, scale


def over_its_input(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for step in range(STEPS):
        y = torch.tanh(0.5 * y * u + x) - 0.01 * step
    x.copy_(y)
    return x.mean()


X, U = torch.randn(8, STEPS, 64), torch.randn(64)
PROGRAMS = (recurrence, one_use_each, rows, over_its_input)


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_eagers(program: Any) -> None:
    with torch.no_grad():
        assert_same(program, X.clone(), U, graphs=1, backend="codegen", rtol=1e-4, atol=1e-4)


def _plan(program: Any) -> Any:
    with torch.no_grad():
        gm = make_fx(lambda x, u: (program(x, u),), tracing_mode="fake")(X, U)
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    return generate(gm, fakes, "test")


@pytest.mark.parametrize("program", [recurrence, one_use_each])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_equal_pieces_are_one_kernel(program: Any, device: str) -> None:
    """The first piece, one for the pieces between, and the last."""
    plan = _plan(program) if device == "cpu" else plan_of(program, X, U)
    launches = [step for step in plan.steps if isinstance(step, KernelStep)]
    assert len(plan.kernels) <= 3 and len(launches) >= len(plan.kernels)
    assert any(isinstance(step, ViewStep) for step in plan.steps)


def best_paths(x: Any, u: Any) -> Any:
    """A step is a kernel, as it reduces over what the one before made."""
    score = x[:, 0]
    for at in range(1, 12):
        score = (score.unsqueeze(2) + u.unsqueeze(1) * u).amax(1) + x[:, at] - x[:, at - 1].mean()
    return score


def best_paths_in_place(x: Any, u: Any) -> Any:
    """The steps read the part of a tensor before the one that they write."""
    x = x + 1
    for at in range(1, 12):
        x[:, at] = (x[:, at - 1].unsqueeze(2) + u.unsqueeze(1) * u).amax(1) + x[:, at]
    return x


@pytest.mark.parametrize("program", [best_paths, best_paths_in_place])
def test_steps_that_are_kernels_are_eagers(program: Any) -> None:
    with torch.no_grad():
        assert_same(program, X.clone(), U, graphs=1, backend="codegen", rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_steps_that_are_kernels_are_equal(device: str) -> None:
    """Each reads another part of one tensor."""
    plan = _plan(best_paths) if device == "cpu" else plan_of(best_paths, X, U)
    assert len(plan.kernels) <= 6


def test_steps_for_a_gpu_give_what_eager_gives() -> None:
    check(best_paths, X[:, :12].contiguous(), U)


def test_pieces_for_a_gpu_give_what_eager_gives() -> None:
    check(recurrence, X[:, :40].contiguous(), U)


@pytest.mark.parametrize("program", PROGRAMS[:3])
def test_no_kernel_and_no_expression_is_longer(program: Any) -> None:
    with torch.no_grad():
        gm = make_fx(lambda x, u: program(x, u) if program is rows else (program(x, u),), tracing_mode="fake")(X, U)
    units = fuse(lower(gm, "test")).units
    groups = [unit for unit in units if isinstance(unit, Group)]
    assert len(groups) >= 3
    most = 1.2 * LIMIT / 8  # of the shortest members
    assert all(len(group.members) <= most for group in groups)


def test_a_cut_is_where_the_fewest_bytes_cross() -> None:
    """Steps of four members; all but the last of a step are read within it."""
    with torch.no_grad():
        gm = make_fx(lambda x, u: (recurrence(x, u),), tracing_mode="fake")(X, U)
    groups = [unit for unit in fuse(lower(gm, "test")).units if isinstance(unit, Group)]
    assert all(len(group.stored) == 1 for group in groups)


def test_what_is_short_is_not_cut() -> None:
    members = [torch.nn.Identity()] * 4
    assert cut_points(members, [LIMIT // 4] * 4, [()] * 4) == [0, 4]  # type: ignore[arg-type]
    assert EXPRESSION < LIMIT


def test_a_chain_of_a_thousand_operations_is_compiled() -> None:
    """Expressions are no deeper than Python's stack."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        for number in range(1000):
            x = torch.maximum(x * 0.999, x - number)
        return x

    with torch.no_grad():
        compiled = dynajit.compile(chain, fullgraph=True)
        torch.testing.assert_close(compiled(U), chain(U))
