"""Ops that put a tensor together from pieces fuse, and read no piece outside of its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import check, trace
from reference_interpreter import interpret
from well_formed import verify

from dynajit.loopir.lower_graph import lower

X = torch.randn(4, 6, 10)
Y = torch.randn(4, 6, 3)

CASES: dict[str, Callable[..., Any]] = {
    "cat": lambda x, y: torch.cat([x * 2, y + 1, x], 2) * 3,
    "cat of rows": lambda x, y: torch.cat([x * 2, x + 1], 0),
    "half turned": lambda x, y: torch.cat([-x[..., 5:], x[..., :5]], -1) * x + x,
    "cat of bfloat16": lambda x, y: torch.cat([x.bfloat16(), y.bfloat16()], 2) * 2,
    "cat of bool": lambda x, y: torch.cat([x > 0, y > 0], 2),
    "cat promotes": lambda x, y: torch.cat([x.to(torch.int32), y], 2),
    "cat, then one piece of it": lambda x, y: torch.cat([x, y], 2)[:, :, 11] * 2,
    "cat of reshaped": lambda x, y: torch.cat([x.reshape(10, 24).t(), y.reshape(24, 3)], 1).reshape(4, -1).amax(1),
    "cat, view, softmax": lambda x, y: torch.cat([x, y], 2).view(-1)[5:77].softmax(0),
    "stack": lambda x, y: torch.stack([x, x * 2], 1),
    "stack, then select": lambda x, y: torch.stack([x, x * 2], -1)[..., 1],
    "stack of cats": lambda x, y: torch.stack([torch.cat([x, y], 2), torch.cat([y, x], 2)], 0).sum(-1),
    "pad": lambda x, y: F.pad(x * 2, (1, 2, 3, 0)) + 1,
    "pad cuts": lambda x, y: F.pad(x * 2, (-1, 2), value=3.0),
    "pad all": lambda x, y: F.pad(x, (1, 1, 1, 1, 2, 0), value=float("-inf")).exp(),
    "roll": lambda x, y: torch.roll(x * 2, 3, 2),
    "roll two": lambda x, y: torch.roll(x, (1, -2), (0, 1)),
    "roll all": lambda x, y: torch.roll(x, 5),
    "repeat": lambda x, y: (x * 2).repeat(2, 1, 3),
    "repeat adds dimensions": lambda x, y: x.repeat(2, 1, 1, 1),
    "tril": lambda x, y: (x * 2).tril(1),
    "triu": lambda x, y: (x + 1).triu(-2),
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y * 2, 2, 1, 10, 3),
    "select_scatter": lambda x, y: torch.select_scatter(x * 3, y[:, :, 0] * 2, 2, -1),
    "slice_backward": lambda x, y: torch.ops.aten.slice_backward(y, [4, 6, 9], 2, 0, 9, 3) + 1,
    "select_backward": lambda x, y: torch.ops.aten.select_backward(y, [4, 6, 5, 3], 2, 1) * 2,
}


@pytest.mark.parametrize("name", CASES)
def test_fused_and_as_in_eager(name: str) -> None:
    check(CASES[name], X, Y, externs=0)


@pytest.mark.parametrize("name", CASES)
def test_reference_interpreter(name: str) -> None:
    program = lower(trace(CASES[name], X, Y), "test")
    verify(program)
    (actual,) = interpret(program, dict(zip(program.inputs, (X, Y), strict=True)))
    torch.testing.assert_close(actual, CASES[name](X, Y))


def test_half_turned_is_one_kernel() -> None:
    check(CASES["half turned"], X, Y, kernels=1, externs=0)


def test_gradients_of_slices_fuse() -> None:
    """Each slice's gradient is a padded tensor; their sum is one kernel."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first = torch.ops.aten.slice_backward(a, [4, 6, 9], 2, 0, 9, 3)
        return first + torch.ops.aten.slice_backward(b, [4, 6, 9], 2, 6, 9, 1)

    check(f, Y, Y * 2, kernels=1, externs=0)


@pytest.mark.parametrize("count", [3, 9, 16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_many_pieces_have_loops_of_their_own(count: int, channels_last: bool) -> None:
    pieces = [torch.randn(2, n + 1, 5, 7) for n in range(count)]
    if channels_last:
        pieces = [piece.to(memory_format=torch.channels_last) for piece in pieces]
    plan = check(lambda *pieces: torch.relu(torch.cat(pieces, 1)) + 1, *pieces, kernels=1, externs=0)
    if not channels_last:
        assert plan.source.count("#pragma omp simd") == count


def test_pieces_under_a_reduction() -> None:
    pieces = [torch.randn(4, n, 40) for n in (3, 5, 2)]
    check(lambda *pieces: torch.cat(pieces, 1).sin().sum(-1), *pieces, externs=0)
    check(lambda *pieces: torch.cat(pieces, 1).amax((1, 2)), *pieces, externs=0)
    check(lambda *pieces: torch.cat(pieces, 1).softmax(1), *pieces, externs=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("pads", [(3, 2), (1, 0), (0, 15), (7, 9, 2, 1), (15, 15, 3, 3), (-1, 4)])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_reflections_at_both_ends_have_loops_of_their_own(mode: str, pads: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.arange(3 * 6 * 17).view(3, 6, 17).to(dtype)
    if dtype is torch.int64 and mode == "replicate":
        x = x.float()  # eager's has no integers
    check(lambda x: F.pad(x, pads, mode=mode) * 2, x)
    if mode == "reflect":
        plan = check(lambda x: F.pad(x, (3, 2), mode=mode), x)
        loops = plan.source.rpartition("k0_")[2]
        assert loops.count("for (int64_t i2") == 3 and "? -" not in loops, plan.source  # no place is asked for its sign
