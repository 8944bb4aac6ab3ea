"""Lowerings of ops whose result is put together from pieces: concatenation, padding, scattered slices, triangles.

In and out: see `registry.py`. Where in the result an element lies decides which piece it comes from: `Builder.element`
of each piece under a `guard`, which evaluates nothing but the piece it chooses, so that a piece is never read outside
of its bounds. One more op: a function that says for each piece where it lies and how it is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dynajit.loopir import nodes
from dynajit.loopir.build import apply, convert, number, select
from dynajit.loopir.builder import Builder, Number, check_dtype, dense_stride
from dynajit.loopir.index import Index, contiguous_strides, floordiv, mod, unravel
from dynajit.loopir.lower_view import diagonal
from dynajit.loopir.nodes import Scalar, View, position
from dynajit.loopir.registry import NotLowered, lowering
from dynajit.loopir.size import begin_of_slice, index_from_start

aten = torch.ops.aten
Axes = tuple[Index, ...]

# More pieces than this make a kernel longer than it is worth.
MAX_PIECES = 16


def below(index: Index, bound: int) -> Scalar | None:
    """`index < bound`; None where that is always so."""
    if index.high < bound:
        return None
    return apply("lt", position(index), nodes.const(bound, torch.int64))


def from_(index: Index, bound: int) -> Scalar | None:
    """`index >= bound`; None where that is always so."""
    if index.low >= bound:
        return None
    return apply("ge", position(index), nodes.const(bound, torch.int64))


def guard(conditions: Sequence[Scalar | None], then: Scalar, otherwise: Scalar) -> Scalar:
    """`then` where all conditions hold (None always does), else `otherwise`; the other one is not evaluated."""
    held = [condition for condition in conditions if condition is not None]
    if not held or then is otherwise:
        return then
    return nodes.op("guard", (all_of(held), then, otherwise), then.dtype)


def all_of(conditions: Sequence[Scalar]) -> Scalar:
    """Do all hold? There is at least one."""
    whole = conditions[0]
    for condition in conditions[1:]:
        whole = apply("and", whole, condition)
    return whole


def _moved(axes: Axes, dim: int, index: Index) -> Axes:
    return (*axes[:dim], index, *axes[dim + 1 :])


def _joined(build: Builder, pieces: Sequence[View], dim: int) -> View:
    """The pieces one after the other along `dim`."""
    if not 1 <= len(pieces) <= MAX_PIECES:
        raise NotLowered
    dtype = check_dtype(build.out.dtype)

    def body(axes: Axes) -> Scalar:
        starts = [0]
        for piece in pieces:
            starts.append(starts[-1] + piece.shape[dim])
        result: Scalar | None = None
        for piece, start, end in reversed(list(zip(pieces, starts, starts[1:], strict=False))):
            element = convert(build.element(piece, _moved(axes, dim, axes[dim] + -start)), dtype)
            result = element if result is None else guard([below(axes[dim], end)], element, result)
        assert result is not None
        return result

    return build.result(body)


@lowering(aten.cat.default)
def _cat(build: Builder, tensors: Sequence[View], dim: int = 0) -> View:
    rank = len(build.out.shape)
    if any(len(tensor.shape) != rank for tensor in tensors):
        raise NotLowered  # tensors without elements of any rank are left out in eager
    return _joined(build, tensors, dim % rank)


@lowering(aten.stack.default)
def _stack(build: Builder, tensors: Sequence[View], dim: int = 0) -> View:
    at = dim % len(build.out.shape)
    shape = tuple(build.out.shape)
    one = (*shape[:at], 1, *shape[at + 1 :])
    return _joined(build, [build.view(x, one, lambda axes: [*axes[:at], *axes[at + 1 :]]) for x in tensors], at)


def _placed(build: Builder, piece: View, dim: int, start: int, step: int, around: View | None = None) -> View:
    """`piece` at every `step`th place from `start` on along `dim`; elsewhere `around`, or zeros."""
    count, dtype = piece.shape[dim], check_dtype(build.out.dtype)

    def body(axes: Axes) -> Scalar:
        offset = axes[dim] + -start
        conditions = [from_(offset, 0), below(offset, (count - 1) * step + 1)]
        if step > 1:
            zero = nodes.const(0, torch.int64)
            conditions.append(apply("eq", position(mod(offset + step * build.out.shape[dim], step)), zero))
        element = convert(build.element(piece, _moved(axes, dim, floordiv(offset, step))), dtype)
        return guard(conditions, element, number(0, dtype) if around is None else build.element(around, axes))

    return build.result(body)


@lowering(aten.slice_backward.default)
def _slice_backward(
    build: Builder, grad: View, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> View:
    dim %= len(build.out.shape)
    begin = begin_of_slice(start, end, step, build.out.shape[dim], grad.shape[dim])
    return _placed(build, grad, dim, begin, step)


@lowering(aten.slice_scatter.default)
def _slice_scatter(
    build: Builder,
    x: View,
    source: View,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> View:
    dim %= len(x.shape)
    return _placed(build, source, dim, begin_of_slice(start, end, step, x.shape[dim], source.shape[dim]), step, x)


def _one(build: Builder, x: View, dim: int) -> View:
    """`x` with a dimension of size 1 at `dim`."""
    return build.view(x, (*x.shape[:dim], 1, *x.shape[dim:]), lambda axes: [*axes[:dim], *axes[dim + 1 :]])


@lowering(aten.select_backward.default)
def _select_backward(build: Builder, grad: View, input_sizes: Sequence[int], dim: int, index: int) -> View:
    dim %= len(build.out.shape)
    return _placed(build, _one(build, grad, dim), dim, index_from_start(index, build.out.shape[dim]), 1)


@lowering(aten.select_scatter.default)
def _select_scatter(build: Builder, x: View, source: View, dim: int, index: int) -> View:
    dim %= len(x.shape)
    return _placed(build, _one(build, source, dim), dim, index_from_start(index, x.shape[dim]), 1, x)


@lowering(aten.constant_pad_nd.default)
def _constant_pad(build: Builder, x: View, pad: Sequence[int], value: Number = 0) -> View:
    dtype = check_dtype(build.out.dtype)
    if not dtype.is_floating_point and (isinstance(value, float) or type(value) is bool) and dtype is not torch.bool:
        raise NotLowered
    rank = len(x.shape)
    before = [0] * rank
    for place in range(len(pad) // 2):
        before[rank - 1 - place] = pad[2 * place]

    def body(axes: Axes) -> Scalar:
        inside = [axis + -start for axis, start in zip(axes, before, strict=True)]
        conditions: list[Scalar | None] = []
        for index, size in zip(inside, x.shape, strict=True):
            conditions += [from_(index, 0), below(index, size)]
        return guard(conditions, build.element(x, inside), number(value, dtype))

    return build.result(body)


# ---- the same elements at other places


@lowering(aten.roll.default)
def _roll(build: Builder, x: View, shifts: Any, dims: Any = ()) -> View:
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [dims] if isinstance(dims, int) else list(dims)
    flat = build.reshape(x, (math.prod(build.out.shape),)) if not along else x
    along = along or [0]
    if len(moves) != len(along):
        raise NotLowered
    for move, dim in zip(moves, along, strict=True):
        flat = _rolled(build, flat, dim % len(flat.shape), move)
    result = build.reshape(flat, tuple(build.out.shape))
    return build.result(lambda axes: build.element(result, axes))


def _rolled(build: Builder, x: View, dim: int, move: int) -> View:
    """Two pieces that change places."""
    size = x.shape[dim]
    if not isinstance(size, int):
        raise NotLowered  # how far round a size that is not known the elements go
    move %= size

    def body(axes: Axes) -> Scalar:
        front = build.element(x, _moved(axes, dim, axes[dim] + (size - move)))
        return guard([below(axes[dim], move)], front, build.element(x, _moved(axes, dim, axes[dim] + -move)))

    return build.pointwise(x.shape, body)


@lowering(aten.repeat.default)
def _repeat(build: Builder, x: View, repeats: Sequence[int]) -> View:
    new = len(repeats) - len(x.shape)

    def where(axes: Axes) -> list[Index]:
        return [mod(axis, size) for axis, size in zip(axes[new:], x.shape, strict=True)]

    repeated = build.view(x, tuple(build.out.shape), where)
    return build.result(lambda axes: build.element(repeated, axes))


@lowering(aten.tril.default, aten.triu.default)
def _triangle(build: Builder, x: View, diagonal: int = 0) -> View:
    upper = build.origin.op.startswith("aten.triu")
    zero = number(0, check_dtype(x.dtype))

    def body(axes: Axes) -> Scalar:
        distance = axes[-1] + axes[-2] * -1 + -diagonal
        keep = from_(distance, 0) if upper else below(distance, 1)
        element = build.element(x, axes)
        return element if keep is None else nodes.op("where", (keep, element, zero), element.dtype)

    return build.result(body)


@lowering(aten.diag_embed.default)
def _diag_embed(build: Builder, x: View, offset: int = 0, dim1: int = -2, dim2: int = -1) -> View:
    if offset:
        raise NotLowered("elements beside the diagonal would have to be asked for one by one")
    rank, dtype = len(build.out.shape), check_dtype(x.dtype)
    first, second = dim1 % rank, dim2 % rank

    def body(axes: Axes) -> Scalar:
        here = apply("eq", position(axes[second] + axes[first] * -1), nodes.const(0, torch.int64))
        others = [axis for dim, axis in enumerate(axes) if dim not in (first, second)]
        return select(here, build.element(x, (*others, axes[first])), number(0, dtype))

    return build.result(body)


@lowering(aten.eye.default, aten.eye.m)
def _eye(build: Builder, *sizes: int, **kwargs: Any) -> View:
    dtype = check_dtype(build.out.dtype)

    def body(axes: Axes) -> Scalar:
        here = apply("eq", position(axes[0]), position(axes[1]))
        return select(here, number(1, dtype), number(0, dtype))

    return build.result(body)


@lowering(aten.diagonal_copy.default)
def _diagonal_copy(build: Builder, x: View, *args: int, **kwargs: int) -> View:
    seen = diagonal(build, x, *args, **kwargs)
    return build.result(lambda axes: build.element(seen, axes), moved=True)


@lowering(aten.rot90.default)
def _rot90(build: Builder, x: View, k: int = 1, dims: Sequence[int] = (0, 1)) -> View:
    first, second = (dim % len(x.shape) for dim in dims)

    def body(axes: Axes) -> Scalar:
        place = list(axes)
        if k % 2:
            place[first], place[second] = axes[second], axes[first]
        for dim in {1: [second], 2: [first, second], 3: [first]}.get(k % 4, []):
            place[dim] = place[dim] * -1 + (x.shape[dim] - 1)
        return build.element(x, place)

    return build.result(body, moved=True)


@lowering(aten.pixel_shuffle.default)
def _pixel_shuffle(build: Builder, x: View, factor: int) -> View:
    def body(axes: Axes) -> Scalar:
        *outside, channel, row, column = axes
        inner = mod(row, factor) * factor + mod(column, factor)
        place = (channel * (factor * factor) + inner, floordiv(row, factor), floordiv(column, factor))
        return build.element(x, (*outside, *place))

    return build.result(body, moved=True)


@lowering(aten.pixel_unshuffle.default)
def _pixel_unshuffle(build: Builder, x: View, factor: int) -> View:
    if dense_stride(build.out) != contiguous_strides(build.out.shape):
        raise NotLowered("rows of pixels that lie apart are copied faster by eager")

    def body(axes: Axes) -> Scalar:
        *outside, slot, row, column = axes
        channel, i, j = unravel(slot, (x.shape[-3], factor, factor))
        return build.element(x, (*outside, channel, row * factor + i, column * factor + j))

    return build.result(body, moved=True)


@lowering(aten.channel_shuffle.default)
def _channel_shuffle(build: Builder, x: View, groups: int) -> View:
    def body(axes: Axes) -> Scalar:
        each = floordiv(axes[1], groups)
        return build.element(x, (axes[0], mod(axes[1], groups) * (x.shape[1] // groups) + each, *axes[2:]))

    return build.result(body, moved=True)
