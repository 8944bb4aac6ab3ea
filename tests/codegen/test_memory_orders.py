"""Rows, and columns side by side, of tensors that lie in memory in any order: read in tiles, or once for many rows."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from helpers import check, plan_of

import dynajit

Three = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
FUNCTIONS: dict[str, Three] = {
    "sums": lambda x, y, z: ((x * y).sum(-1), (x + z).sum(-1)),
    "extremes": lambda x, y, z: ((x * y).amax(1), *x.max(1)),
    "norm": lambda x, y, z: (x - x.mean((0, 2, 3), keepdim=True)) * y.var((0, 2, 3), keepdim=True).rsqrt() + z,
    "softmax": lambda x, y, z: (x + y).softmax(1) * z,
    "of one": lambda x, y, z: (
        torch.zeros(x.shape, dtype=y.dtype).scatter(3, (z.abs() * 8).long() % x.shape[3], y[..., :1]).sum(2) + 1
    ),
    "chosen": lambda x, y, z: torch.where(z > 0, x, y.sin()).sum((0, 2)),
}
SHAPES = [(3, 16, 9, 12), (2, 70, 40, 8), (1, 8, 300, 33)]


def in_some_order(shape: tuple[int, ...], draw: random.Random) -> torch.Tensor:
    """Numbers whose sums are exact, in memory in an order drawn."""
    dims = list(range(len(shape)))
    draw.shuffle(dims)
    x = torch.randint(-8, 9, [shape[dim] for dim in dims]) / 8
    return x.permute([dims.index(dim) for dim in range(len(dims))])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_any_order_in_memory(name: str, seed: int) -> None:
    draw = random.Random(f"{name} {seed}")
    torch.manual_seed(seed)
    shape = SHAPES[seed % len(SHAPES)]
    dtype = [torch.float32, torch.float32, torch.float64, torch.float32, torch.float16, torch.bfloat16][seed]
    x, y = (in_some_order(shape, draw).to(dtype) for _ in "xy")
    close = 2e-2 if dtype.itemsize == 2 else 1e-5
    check(FUNCTIONS[name], x, y, in_some_order((*shape[:3], 1), draw), rtol=close, atol=close)


def test_what_lies_along_rows_is_read_in_tiles_beside_columns() -> None:
    last = torch.randn(4, 64, 8, 9).to(memory_format=torch.channels_last)

    def f(x: torch.Tensor, y: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return (x * y * g).sum((0, 2, 3))

    assert "turn_32(" in plan_of(f, last, last.clone(), torch.randn(4, 64, 8, 9)).source
    check(f, last, last.clone(), torch.randn(4, 64, 8, 9), rtol=1e-4, atol=1e-4)


def test_columns_are_those_that_lie_side_by_side() -> None:
    x = torch.randn(4, 32, 16, 9).permute(0, 3, 1, 2)  # (4, 9, 32, 16): neighbours along the last dimension
    plan = check(lambda x: x.transpose(2, 3).amax(1), x)
    assert "l < 16" in plan.source, plan.source


ROWS: dict[str, Callable[[torch.Tensor], object]] = {
    "greatest": lambda x: x.max(-1),
    "softmax": lambda x: x.softmax(-1),
    "log of sums": lambda x: (x - x.amax(-1, True)).exp().sum(-1).log(),
    "norm": lambda x: torch.nn.functional.normalize(x, dim=-1),
    "spread": lambda x: torch.var_mean(x, -1),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "any": lambda x: ((x > 2).any(-1), x.argmin(-1, keepdim=True)),
}


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 11, 15])
@pytest.mark.parametrize("name", ROWS)
def test_short_rows_side_by_side(name: str, length: int) -> None:
    x = torch.randn(300, length)
    x[7, 0], x[290, -1] = float("nan"), float("inf")
    for given in (x, x.double(), x.bfloat16().float()[:20].view(4, 5, length), x.t().contiguous().t()):
        check(ROWS[name], given, rtol=1e-5, atol=1e-5)


def test_short_rows_fill_vectors() -> None:
    assert "l < n" in plan_of(lambda x: x.softmax(-1), torch.randn(5000, 4)).source


@pytest.mark.parametrize("columns", [64, 67, 1031])
@pytest.mark.parametrize("length", [4, 5, 6, 7, 8, 9, 13, 16, 17, 20, 31, 33])
def test_rows_of_any_length_are_read_and_stored_in_tiles(columns: int, length: int) -> None:
    """Of a row's own memory, or of a part of a longer row: nothing beside it is written."""
    torch.manual_seed(length)
    whole = torch.randint(-8, 9, (columns, length + 3)) / 8

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        least = x.amin(-1, keepdim=True)
        return x - least, (x - least).to(torch.int32), torch.cat([x - least, y], -1), (x * 2).sum(-1)

    check(f, whole[:, :length].contiguous(), whole[:, -2:].contiguous())
    check(f, whole[:, 1 : length + 1], whole[:, -2:])
    check(f, whole.double()[:, :length], whole.double()[:, -2:])


def test_rows_of_lengths_that_vary_keep_to_their_memory() -> None:
    """A tile of rows that were longer when they were compiled: what is beside the result is the program's."""
    f = lambda x: x - x.amin(-1, keepdim=True)  # noqa: E731
    stored = dynajit.compile(lambda x, out: out.copy_(f(x)), dynamic=True)
    for columns, length in ((100, 6), (9, 1), (9, 2), (17, 3), (65, 4), (73, 1), (130, 2), (1000, 5)):
        whole = torch.full((columns * length + 64,), 7.0)
        result = torch.as_strided(whole, (columns, length), (length, 1))
        x = torch.randint(-8, 9, (columns, length)) / 8
        stored(x, result)
        assert torch.equal(result, f(x)) and bool((whole[columns * length :] == 7).all())


POOLED: dict[str, Callable[[torch.Tensor], object]] = {
    "pooled": lambda x: torch.nn.functional.max_pool2d(x, 2).relu(),
    "pooled beyond the border": lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1) * 2,
    "with places": lambda x: torch.nn.functional.max_pool2d(x, 2, return_indices=True)[1],
    "pairs": lambda x: x[..., ::3, ::3] + x[..., 1::3, 1::3] * x[..., 2::3, 2::3],
}


@pytest.mark.parametrize("shape", [(2, 8, 24, 24), (2, 10, 48, 9), (1, 3, 12, 12)])
@pytest.mark.parametrize("name", POOLED)
def test_what_lies_apart_along_what_is_stored(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    x[0, 0, 0, :5] = torch.tensor([float("nan"), 0.0, -0.0, float("inf"), float("nan")])
    x[0, 1, 2:4, :4] = -0.0
    x[0, 1, 3, 1] = 0.0

    def to_channels_last(x: torch.Tensor) -> object:
        return POOLED[name](x).clone(memory_format=torch.channels_last)  # type: ignore[attr-defined]

    def to_channels_first(x: torch.Tensor) -> object:
        return POOLED[name](x).contiguous()  # type: ignore[attr-defined]

    last = x.to(memory_format=torch.channels_last)
    for function, given in ((to_channels_last, x), (to_channels_first, last), (to_channels_last, last)):
        check(function, given)


def test_loops_go_along_what_is_read_where_that_lies_apart_along_what_is_stored() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_pool2d(x, 2).clone(memory_format=torch.channels_last)

    source = plan_of(f, torch.randn(4, 16, 20, 20)).source
    innermost = source[source.rindex("#pragma omp simd") :]
    assert "2 * i3" in innermost and "++i3" in innermost, source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16])
@pytest.mark.parametrize("columns, length", [(3, 5), (16, 6), (20, 32), (40, 33), (1100, 7)])
def test_rows_that_all_points_are_compared_with(columns: int, length: int, dtype: torch.dtype) -> None:
    """What is turned is the same for each point: a tile of it is made once, if one holds it all."""
    x, y = (torch.randint(-8, 9, (rows, length)).to(dtype) for rows in (70, columns))

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        apart = x[:, None] - y * 2
        return (apart * apart).sum(2), apart.abs().amax(2)

    check(f, x, y)
    if dtype is torch.float32 and (columns, length) == (16, 6):
        source = plan_of(f, x, y).source
        assert source.index(" turn_32((") < source.index("for (int64_t i0 = 0; i0 < 70")
    check(lambda x, y: (x[None, :, None] * y).sum((0, 3)), x, y)
