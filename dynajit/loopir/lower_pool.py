"""Lowerings of pooling and of enlarging: each element from a window of places, or from the nearest place.

In and out: see `registry.py`. Windows are written out, place after place. Where a window leaves the tensor, the nearest
place is read again, which changes no greatest value. One more op: a function that says which places an element is made
of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dynajit.loopir import lower_pool_gpu, lower_scatter
from dynajit.loopir.build import added, apply, convert, number, select
from dynajit.loopir.builder import Builder, check_dtype
from dynajit.loopir.fetched import fetched
from dynajit.loopir.index import Index, constant, contiguous_strides, floordiv, linearise, unravel
from dynajit.loopir.lower_pieces import below, from_, guard
from dynajit.loopir.nodes import Scalar, View, position
from dynajit.loopir.registry import NotLowered, lowering
from dynajit.loopir.windows import MAX_PLACES, Axes, Windows
from dynajit.op_facts import compute_dtype

aten = torch.ops.aten
# Neighbours in a window that lies apart from the others, from which reading it in place pays.
SHORTEST_RUN = 4


def _inside(index: Index, size: int) -> Scalar:
    """The place of a dimension that is nearest to `index`."""
    place = position(index)
    below_first, above_last = not index.low >= 0, not index.high < size
    if above_last:
        place = apply("minimum", place, number(size - 1, torch.int64))
    return apply("maximum", place, number(0, torch.int64)) if below_first else place


@lowering(aten.max_pool2d_with_indices.default)
def _max_pool(
    build: Builder, x: View, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[View, View]:
    windows = Windows(build, x.shape, kernel, stride, padding, dilation)
    if build.program.device.type != "cpu":
        return lower_pool_gpu.max_pool(build, x, windows)
    dtype = compute_dtype(check_dtype(x.dtype))
    if not dtype.is_floating_point:
        raise NotLowered
    rows, columns = windows.size

    def greatest(axes: Axes) -> tuple[Scalar, Scalar]:
        """The greatest value, and the number of its place in the window."""
        best: Scalar | None = None
        slot: Scalar = number(0, torch.int32)
        for n, (row, column) in enumerate(windows.places(axes)):
            value = convert(fetched(x, [*axes[:-2], _inside(row, rows), _inside(column, columns)]), dtype)
            if best is None:
                best = value
                continue
            greater, nan = apply("gt", value, best), apply("ne", value, value)
            slot = select(apply("or", greater, nan), number(n, torch.int32), slot)
            # one after the other: the first is one instruction, not a jump that no processor foresees, and the second
            # a jump hardly ever taken, where vectors can't be filled
            best = select(nan, value, select(greater, value, best))
        assert best is not None
        return best, slot

    def place(axes: Axes) -> Scalar:
        slot = greatest(axes)[1]
        width = number(windows.kernel[1], torch.int32)
        found = []
        for dim, number_of in ((0, apply("intdiv", slot, width)), (1, apply("intmod", slot, width))):
            step = apply("mul", convert(number_of, torch.int64), number(windows.dilation[dim], torch.int64))
            at = apply("add", position(windows.at(axes, dim, 0)), step)
            at = apply("minimum", at, number(windows.size[dim] - 1, torch.int64))
            found.append(apply("maximum", at, number(0, torch.int64)))
        return apply("add", apply("mul", found[0], number(columns, torch.int64)), found[1])

    values, indices = build.out
    result = build.pointwise(
        tuple(values.shape), lambda axes: convert(greatest(axes)[0], values.dtype), tuple(values.stride())
    )
    return result, build.pointwise(tuple(indices.shape), place, tuple(indices.stride()))


@lowering(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(
    build: Builder,
    grad: View,
    x: View,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
    indices: View,
) -> View:
    if build.program.device.type != "cpu":
        return lower_pool_gpu.max_pool_backward(
            build, grad, x, Windows(build, x.shape, kernel, stride, padding, dilation), indices
        )
    return lower_scatter.max_pool_backward(build, grad, indices)


def _or_zero(build: Builder, x: View, place: Axes, dtype: torch.dtype) -> Scalar:
    """The element of `x` there, zero where the row or the column is outside."""
    inside = [
        test(at, bound)
        for at, size in zip(place[-2:], x.shape[-2:], strict=True)
        for test, bound in ((from_, 0), (below, size))
    ]
    return guard(inside, convert(build.element(x, place), dtype), number(0, dtype))


@lowering(aten.im2col.default)
def _im2col(build: Builder, x: View, kernel: Any, dilation: Any, padding: Any, stride: Any) -> View:
    """The elements of each window, side by side: what reads them reads the image, where neighbouring windows have
    neighbouring elements, or none in common."""
    windows = Windows(build, x.shape, kernel, stride, padding, dilation)
    if len(x.shape) != 4 or build.program.device.type != "cpu" or not check_dtype(x.dtype).is_floating_point:
        raise NotLowered
    apart = windows.stride == windows.kernel and windows.padding == (0, 0) and windows.kernel[1] >= SHORTEST_RUN
    if windows.stride != (1, 1) and not apart:
        raise NotLowered
    counts = windows.counts()

    def body(axes: Axes) -> Scalar:
        channel, *steps = unravel(axes[1], (x.shape[1], *windows.kernel))
        starts = unravel(axes[2], counts)
        place = [
            start * stride + step * spread + -pad
            for start, stride, step, spread, pad in zip(
                starts, windows.stride, steps, windows.dilation, windows.padding, strict=True
            )
        ]
        return _or_zero(build, x, (axes[0], channel, *place), x.dtype)

    return build.result(body, moved=True)


@lowering(aten.col2im.default)
def _col2im(
    build: Builder, x: View, output_size: Sequence[int], kernel: Any, dilation: Any, padding: Any, stride: Any
) -> View:
    """What windows hold, added up where they lie: from the first of their places to the last, as eager mode does."""
    windows = Windows(build, tuple(build.out.shape), kernel, stride, padding, dilation)
    dtype = check_dtype(x.dtype)
    if len(x.shape) != 3 or build.program.device.type != "cpu" or dtype not in (torch.float32, torch.float64):
        raise NotLowered  # of low precision eager rounds every sum, and it takes no integers
    counts = windows.counts()
    dims = list(zip(windows.kernel, windows.dilation, windows.stride, windows.padding, counts, strict=True))

    def windows_of(axis: Index, dim: int) -> Iterator[tuple[Index, Index, list[Scalar | None]]]:
        """The windows that have the row or column, at which of their places, and if that is so."""
        size, spread, step, pad, count = dims[dim]
        if spread != 1 and step != 1:
            raise NotLowered
        for n in range(-(-size // step)):
            window = floordiv(axis + pad, step) + -n * spread
            place = constant(n) if step == 1 else axis + window * -step + pad
            yield window, place, [from_(window, 0), below(window, count), below(place, size)]

    def body(axes: Axes) -> Scalar:
        terms = [number(0, dtype)]
        for (top, i, rows), (left, j, columns) in itertools.product(windows_of(axes[2], 0), windows_of(axes[3], 1)):
            place = linearise([axes[1], i, j], contiguous_strides([build.out.shape[1], *windows.kernel]))
            element = build.element(x, (axes[0], place, linearise([top, left], contiguous_strides(counts))))
            terms.append(guard([*rows, *columns], convert(element, dtype), number(0, dtype)))
        return added(terms)

    return build.result(body)


@lowering(aten.avg_pool2d.default)
def _avg_pool(
    build: Builder,
    x: View,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> View:
    windows = Windows(build, x.shape, kernel, stride, padding)
    dtype = compute_dtype(check_dtype(x.dtype))
    if not dtype.is_floating_point or (windows.padding != (0, 0) and not count_include_pad):
        raise NotLowered
    for dim in (0, 1):  # windows that stand over, which count fewer places
        last = (build.out.shape[dim - 2] - 1) * windows.stride[dim] + windows.kernel[dim] - windows.padding[dim]
        if last > windows.size[dim] + windows.padding[dim]:
            raise NotLowered
    count = windows.kernel[0] * windows.kernel[1] if divisor is None else divisor

    def body(axes: Axes) -> Scalar:
        total = added(_or_zero(build, x, (*axes[:-2], *place), dtype) for place in windows.places(axes))
        return apply("div", total, number(count, dtype))

    return build.result(body)


@lowering(aten.avg_pool2d_backward.default)
def _avg_pool_backward(
    build: Builder,
    grad: View,
    x: View,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> View:
    windows = Windows(build, x.shape, kernel, stride, padding)
    if ceil or (windows.padding != (0, 0) and not count_include_pad):
        raise NotLowered  # windows that count fewer places
    disjoint = windows.stride == windows.kernel and windows.padding == (0, 0)
    if not disjoint and windows.stride != (1, 1):
        raise NotLowered  # which of the windows there are is a question of remainders: the operator is faster
    dtype = compute_dtype(check_dtype(grad.dtype))
    count = windows.kernel[0] * windows.kernel[1] if divisor is None else divisor

    def window(axis: Index, dim: int, step: int) -> Index:
        """The window of which the place is the `step`-th, or the only one that may have it."""
        return floordiv(axis, windows.stride[dim]) if disjoint else axis + (windows.padding[dim] - step)

    def body(axes: Axes) -> Scalar:
        steps = [(0, 0)] if disjoint else itertools.product(*map(range, windows.kernel))
        places = ((*axes[:-2], window(axes[-2], 0, i), window(axes[-1], 1, j)) for i, j in steps)
        return apply("div", added(_or_zero(build, grad, place, dtype) for place in places), number(count, dtype))

    return build.result(body)


def _even_windows(large: Sequence[Any], small: Sequence[Any]) -> list[int]:
    """How often each of the last sizes goes into the other."""
    ratios = []
    for whole, part in zip(large, small, strict=True):
        if not isinstance(whole, int) or not isinstance(part, int) or not part or whole % part:
            raise NotLowered
        ratios.append(whole // part)
    return ratios


@lowering(aten._adaptive_avg_pool2d.default)
def _adaptive_avg_pool(build: Builder, x: View, output_size: Sequence[int]) -> View:
    ratios = _even_windows(x.shape[-2:], build.out.shape[-2:])
    dtype = compute_dtype(check_dtype(x.dtype))
    if not dtype.is_floating_point or ratios[0] * ratios[1] > MAX_PLACES[build.program.device.type]:
        raise NotLowered

    def body(axes: Axes) -> Scalar:
        total = _window_sum(build, x, axes, 2, ratios, dtype)
        return apply("div", total, number(ratios[0] * ratios[1], dtype))

    return build.result(body)


@lowering(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool_backward(build: Builder, grad: View, x: View) -> View:
    ratios = _even_windows(x.shape[-2:], grad.shape[-2:])
    dtype = compute_dtype(check_dtype(grad.dtype))

    def body(axes: Axes) -> Scalar:
        where = [floordiv(axis, ratio) for axis, ratio in zip(axes[-2:], ratios, strict=True)]
        element = convert(build.element(grad, (*axes[:-2], *where)), dtype)
        return apply("div", element, number(ratios[0] * ratios[1], dtype))

    return build.result(body)


def _window_sum(build: Builder, x: View, axes: Axes, spatial: int, ratios: Sequence[int], dtype: torch.dtype) -> Scalar:
    """The sum of the window of so many places of `x` that stands for one place."""
    outside = len(axes) - spatial
    places = (
        [axis * ratio + step for axis, ratio, step in zip(axes[outside:], ratios, steps, strict=True)]
        for steps in itertools.product(*map(range, ratios))
    )
    return added(convert(build.element(x, (*axes[:outside], *place)), dtype) for place in places)


def _enlarged(new: Sequence[Any], old: Sequence[Any], scales: Sequence[float | None]) -> list[int]:
    """How many places of the larger sizes stand for one."""
    ratios = _even_windows(new, old)
    if any(scale not in (None, ratio) for scale, ratio in zip(scales, ratios, strict=False)):
        raise NotLowered
    return ratios


@lowering(aten.upsample_nearest2d.default, aten.upsample_nearest1d.default, aten.upsample_nearest3d.default)
def _upsample_nearest(build: Builder, x: View, output_size: Sequence[int], *scales: float | None) -> View:
    outside = len(x.shape) - len(output_size)
    ratios = _enlarged(output_size, x.shape[outside:], scales)

    def body(axes: Axes) -> Scalar:
        where = [floordiv(axis, ratio) for axis, ratio in zip(axes[outside:], ratios, strict=True)]
        return build.element(x, (*axes[:outside], *where))

    return build.result(body)


@lowering(
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
)
def _upsample_nearest_backward(
    build: Builder, grad: View, output_size: Sequence[int], input_size: Sequence[int], *scales: float | None
) -> View:
    spatial = len(output_size)
    ratios = _enlarged(output_size, input_size[-spatial:], scales)
    dtype = compute_dtype(check_dtype(grad.dtype))
    if not dtype.is_floating_point or math.prod(ratios) > MAX_PLACES[build.program.device.type]:
        raise NotLowered
    return build.result(lambda axes: _window_sum(build, grad, axes, spatial, ratios, dtype))


def _mirrored(index: Index, size: int) -> Scalar:
    """The place that `index`, up to size - 1 outside, is mirrored to at the first and at the last place."""
    last = number(size - 1, torch.int64)
    place = position(index)
    if not index.high < size:
        # size - 1 - |size - 1 - place|
        place = apply("sub", last, apply("abs", position(index * -1 + (size - 1))))
    return place if index.low >= 0 else apply("abs", place)


def _register_pad(name: str, nearest: Any) -> None:
    @lowering(*(getattr(aten, f"{name}_pad{rank}d").default for rank in (1, 2, 3)))
    def lower(build: Builder, x: View, padding: Sequence[int]) -> View:
        if x.dtype is torch.bool:
            raise NotLowered("of some paddings eager has no kernel for bool")
        spatial = len(padding) // 2
        first = len(x.shape) - spatial

        def body(axes: Axes) -> Scalar:
            at: list[Index | Scalar] = list(axes[:first])
            for n, axis in enumerate(axes[first:]):
                size = x.shape[first + n]
                if not isinstance(size, int):
                    raise NotLowered
                moved = axis + -padding[2 * (spatial - 1 - n)]
                at.append(moved if size == 1 else nearest(moved, size))
            if all(isinstance(size, int) and size == 1 for size in x.shape[first:]):
                at[first:] = [constant(0)] * spatial
            return fetched(x, at)

        return build.result(body)


_register_pad("reflection", _mirrored)
_register_pad("replication", _inside)
