"""Batch norm in training, pooling, padding, places of extremes, dropout: against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import check, trace
from reference_interpreter import interpret
from well_formed import verify

import dynajit
from dynajit.codegen.c import segments
from dynajit.loopir import index
from dynajit.loopir.lower_graph import lower
from dynajit.loopir.lower_pieces import below, from_

aten = torch.ops.aten
nan, inf = float("nan"), float("inf")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def interpreted(function: Any, *args: Any) -> None:
    """Compare the reference interpreter with eager."""
    program = lower(trace(function, *args), "test")
    verify(program)
    expected = function(*args)
    found = interpret(program, dict(zip(program.inputs, args, strict=True)))
    for a, e in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a.expand(e.shape), e, equal_nan=True, check_stride=False, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(4, 5, 7, 9), (6, 5), (3, 5, 11)], ids=str)
def test_batch_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, grad = torch.randn(shape).to(dtype) * 3 + 2, torch.randn(shape).to(dtype)
    weight, bias, mean, var = (torch.rand(5, dtype=dtype) + 0.5 for _ in range(4))
    arguments = (x, weight, bias, mean, var)

    def forward(x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        return aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-5)

    check(forward, *arguments, kernels=1, externs=0, **CLOSE)
    interpreted(forward, *arguments)
    saved = forward(*arguments)[1:3]
    for training in (True, False):

        def backward(g: Any, x: Any, w: Any, m: Any, v: Any, s: Any, r: Any, training: bool = training) -> Any:
            return aten.native_batch_norm_backward(g, x, w, m, v, s, r, training, 1e-5, [True, True, True])

        check(backward, grad, x, weight, mean, var, *saved, externs=0, **CLOSE)


def test_batch_norm_keeps_layout() -> None:
    x = torch.randn(2, 5, 6, 7).to(memory_format=torch.channels_last)
    bn = torch.nn.BatchNorm2d(5)
    check(lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training=False), x, *(torch.rand(5) for _ in range(4)))
    again = torch.nn.BatchNorm2d(5)
    result, expected = dynajit.compile(again)(x), bn(x)
    torch.testing.assert_close(result, expected, **CLOSE)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(again.running_var, bn.running_var)


POOLS = [
    (2, 2, 0, 1, False),
    (3, 2, 1, 1, False),
    (3, 1, 1, 1, False),
    (3, 2, 0, 1, True),
    (2, 2, 1, 1, True),
    (2, 1, 0, 2, False),
    (5, 1, 2, 1, False),
    ((3, 2), (2, 1), (1, 0), 1, False),
]
# of which extremes and places are kernels of their own
LARGE = [(7, 1, 3, 1, False), ((1, 33), 1, (0, 16), 1, False)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pool", POOLS + LARGE, ids=str)
def test_max_pool(pool: Any, dtype: torch.dtype) -> None:
    kernel, stride, padding, dilation, ceil = pool
    x = torch.randn(2, 3, 37, 35).to(dtype)
    x.view(-1)[::37] = nan
    x[0, 0] = -inf
    x[1, 2] = x[1, 2].round()

    def function(x: Any) -> Any:
        return F.max_pool2d(x, kernel, stride, padding, dilation, ceil, return_indices=True)

    check(function, x, kernels=2 if pool in LARGE else 1, externs=0)
    check(function, x[0], externs=0)
    check(function, x.to(memory_format=torch.channels_last), externs=0)
    interpreted(function, x)


def test_of_many_pieces_the_longest_is_without_tests() -> None:
    """A window of 33 places has as many borders of its own; in a short row none of the pieces is most of it."""
    for size, expected in ((300, [(0, 16), (16, 284), (284, 300)]), (40, [(0, 40)])):
        place = index.axis("i", size)
        tests = [from_(place + (step - 16), 0) for step in range(33)] + [
            below(place + (step - 16), size) for step in range(33)
        ]
        (axis,) = index.axes_of(place)
        pieces = segments.cuts([test for test in tests if test is not None], axis)
        assert [(piece.low, piece.high) for piece in pieces] == expected


@pytest.mark.parametrize(
    "pool", [(2, 2, 0), (3, 2, 1), ((3, 2), (2, 1), (1, 0)), (7, 1, 3), ((1, 17), 1, (0, 8))], ids=str
)
def test_avg_pool(pool: Any) -> None:
    x = torch.randn(2, 3, 25, 37)
    check(lambda x: F.avg_pool2d(x, *pool), x)
    interpreted(lambda x: F.avg_pool2d(x, *pool), x)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_pad(mode: str) -> None:
    for shape, pad in (((2, 3, 5, 36), (2, 1, 3, 0)), ((2, 3, 25), (2, 1)), ((3, 25), (-1, 1))):
        x = torch.randn(shape)
        check(lambda x, pad=pad: F.pad(x, pad, mode=mode) + 1, x, externs=0)
        interpreted(lambda x, pad=pad: F.pad(x, pad, mode=mode) + 1, x)


def test_upsample() -> None:
    check(lambda x: F.interpolate(x, scale_factor=2) + 1, torch.randn(2, 3, 5, 6), externs=0)
    check(lambda x: F.interpolate(x, scale_factor=3) + 1, torch.randn(2, 3, 5), externs=0)
    check(lambda x: F.interpolate(x, size=(7, 8)), torch.randn(2, 3, 5, 6))


def test_softmax_of_what_is_left_out() -> None:
    x = torch.randn(3, 4, 6)
    x[0, 1], x[1, 1, 2] = -inf, nan
    check(lambda x: aten._safe_softmax(x, -1), x, kernels=1, externs=0)


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    x = torch.randn(shape) * 3
    x = (x.round() / 2 if dtype.is_floating_point else x).to(dtype)
    if dtype.is_floating_point and x.numel() > 10:
        x.view(-1)[7], x.view(-1)[3], x.view(-1)[9] = nan, -inf, inf
    return x


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*(((5, 9), dtype) for dtype in DTYPES), *((shape, torch.float32) for shape in ((1, 1), (1, 7), (17, 30, 3)))],
    ids=str,
)
def test_places_of_extremes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = sample(dtype, *shape)
    for dim in range(len(shape)):
        check(lambda x, dim=dim: (*x.max(dim), *x.min(dim, True)), x, externs=0)
        if dtype is not torch.bool:
            check(lambda x, dim=dim: (x.argmax(dim, True), x.argmin(dim)), x, externs=0)
            interpreted(lambda x, dim=dim: x.argmax(dim), x)
    if dtype is not torch.bool:
        check(lambda x: (x.argmax(), x.argmin()), x)


def test_places_where_nothing_is_greater() -> None:
    check(lambda x: x.max(1), torch.full((3, 5), -inf), externs=0)
    check(lambda x: x.max(1), torch.full((3, 5), torch.iinfo(torch.int64).min), externs=0)
    check(lambda x: x.max(0), torch.tensor(3.0), externs=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_draws_and_rounds_as_in_eager(p: float, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, p) * 2 + x

    outcomes = []
    start = torch.randn(7, 33).to(dtype)
    for wrap in (lambda f: f, dynajit.compile):
        x = start.clone().requires_grad_()
        torch.manual_seed(3)
        result = wrap(function)(x)
        result.sum().backward()
        outcomes.append((result, x.grad, torch.rand(3)))
    for mine, theirs in zip(outcomes[1], outcomes[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_running_sums() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2).cumsum(1) * 2, (x * 2).cumsum(0), x.t().cumsum(0), y.cumsum(1), z.cumsum(1), z.cumprod(0)

    low = torch.randint(-4, 5, (5, 20, 13)).bfloat16()  # whole numbers: sums are exact
    check(function, torch.randn(3, 37), low, torch.randint(-2, 3, (9, 21), dtype=torch.int32), externs=0, **CLOSE)
    interpreted(lambda x: (x * 2).cumsum(0), torch.randn(3, 37))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 1, 1), (2, 1, 0), (3, 3, 0)])
def test_gradient_of_average_pooling(kernel: int, stride: int, padding: int, channels_last: bool) -> None:
    x = torch.randn(2, 3, 12, 13)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    out = torch.nn.functional.avg_pool2d(x, kernel, stride, padding)
    backward = torch.ops.aten.avg_pool2d_backward

    def f(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return backward(g, x, [kernel, kernel], [stride, stride], [padding, padding], False, True, None)

    check(f, torch.randn_like(out), x, kernels=1, externs=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", [(12, 13), (9, 8)], ids=str)
@pytest.mark.parametrize(
    ("kernel", "dilation", "padding", "stride"),
    [
        *((3, 1, 1, 1), (2, 1, 0, 2), (4, 1, 0, 4), (4, 1, 1, 2), (3, 1, 1, 2), (2, 1, 0, 3), (3, 2, 0, 1)),
        *(((3, 2), 1, (1, 0), (1, 2)), ((1, 4), (1, 2), 0, 1), (5, 1, 2, (5, 1))),
    ],
)
def test_windows_added_up(
    kernel: Any, dilation: Any, padding: Any, stride: Any, sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.fold(x, sizes, kernel, dilation, padding, stride)

    given = F.unfold(torch.randn(2, 3, *sizes, dtype=dtype), kernel, dilation, padding, stride)
    given[0, :, 0] = -0.0
    check(f, given, kernels=1, externs=0, rtol=0, atol=0)
    interpreted(f, given)


def test_windows_added_up_by_the_operator() -> None:
    """In low precision eager rounds every sum; it has no kernel for integers."""
    x = torch.randn(2, 27, 48)
    for fold in (lambda x: F.fold(x, (6, 8), 3, padding=1), dynajit.compile(lambda x: F.fold(x, (6, 8), 3, padding=1))):
        with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
            fold(x.long())
    check(lambda x: F.fold(x.bfloat16(), (6, 8), 3, padding=1), x, externs=1)
    check(lambda x: F.fold(x, (10, 12), 3, dilation=2, padding=1, stride=2), torch.randn(2, 27, 20), externs=1)
    check(lambda x: F.fold(x, (12, 13), 9), torch.randn(2, 81, 20), externs=1)


@pytest.mark.parametrize("channels_last", [False, True])
def test_adaptive_pooling_and_enlarging_and_their_gradients(channels_last: bool) -> None:
    def made(*shape: int) -> torch.Tensor:
        x = torch.randn(*shape)
        return x.to(memory_format=torch.channels_last) if channels_last else x

    aten = torch.ops.aten
    x = made(2, 3, 12, 8)
    check(lambda x: aten._adaptive_avg_pool2d(x, [4, 4]), x, kernels=1, externs=0)
    check(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), made(2, 3, 4, 4), x, kernels=1, externs=0)
    check(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), made(2, 3, 1, 1), x, kernels=1, externs=0)
    check(lambda g: aten.upsample_nearest2d_backward(g, [12, 8], [2, 3, 6, 2], None, None), x, kernels=1, externs=0)
    check(lambda g: aten.upsample_nearest2d_backward(g, [12, 8], [2, 3, 6, 2], 2.0, 4.0), x, kernels=1, externs=0)
    check(lambda x: aten._adaptive_avg_pool2d(x, [5, 4]), x, kernels=0, externs=1)


def test_gradient_of_enlarging_in_one_and_three_dimensions() -> None:
    aten = torch.ops.aten
    check(lambda g: aten.upsample_nearest1d_backward(g, [12], [2, 3, 6], 2.0), torch.randn(2, 3, 12), kernels=1)
    check(
        lambda g: aten.upsample_nearest3d_backward(g, [4, 6, 2], [2, 3, 2, 2, 2]), torch.randn(2, 3, 4, 6, 2), kernels=1
    )


WINDOWS = [(3, 1, 1, 1), (2, 1, 0, 1), (3, 2, 0, 1), (4, 1, 0, 4), (5, 1, 2, 1), ((3, 4), 1, (1, 2), 1), (3, 1, 1, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_elements_of_windows_side_by_side(window: tuple[Any, ...], dtype: torch.dtype) -> None:
    kernel, dilation, padding, stride = window
    x = torch.randn(2, 3, 9, 12).to(dtype)
    for given in (x, x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
        for function in (
            lambda x: F.unfold(x, kernel, dilation, padding, stride),
            lambda x: F.unfold(x, kernel, dilation, padding, stride).double().softmax(1),
            lambda x: F.unfold(x, kernel, dilation, padding, stride).unflatten(1, (3, -1)).amax(2),
        ):
            check(function, given, **CLOSE)
    interpreted(lambda x: F.unfold(x, kernel, dilation, padding, stride), x)


def test_windows_that_are_summed_are_read_where_they_are() -> None:
    x, w = torch.randn(2, 8, 9, 12), torch.randn(2, 1, 9, 9, 12)
    check(lambda x, w: (F.unfold(x, 3, padding=1).view(2, 8, 9, 9, 12) * w).sum(2), x, w, kernels=1, externs=0, **CLOSE)


def test_windows_of_integers_are_refused_as_in_eager() -> None:
    with pytest.raises(RuntimeError) as expected:
        F.unfold(torch.ones(1, 1, 4, 4, dtype=torch.long), 2)
    with pytest.raises(RuntimeError) as found:
        dynajit.compile(lambda x: F.unfold(x, 2) * 2)(torch.ones(1, 1, 4, 4, dtype=torch.long))
    assert str(found.value) == str(expected.value)
