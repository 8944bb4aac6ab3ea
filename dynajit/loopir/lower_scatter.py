"""Lowerings of ops that write where a tensor of indices says: scatter, index_add, index_put, gradients of reading so.

In and out: see `registry.py`. The result is a copy of the op's first argument (or zeros, or the argument where it may
be written over) that a `Scatter` changes, in the order in which eager does; indices are checked as in `lower_index.py`.
Sums of bfloat16 and float16 are left to the operator, which rounds in its own way; on GPUs those of whole slices are
`lower_segments.py`'s. One more op: a function that says where each element goes.

On GPUs sums are atomic additions, in any order, as in eager; an operator that adds up in order there stays one, save
for integers, and so does every one of them where torch is told to be deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dynajit.loopir.build import apply, convert, number, select
from dynajit.loopir.builder import Builder, broadcast, check_dtype, dense_stride
from dynajit.loopir.index import Index, constant, contiguous_strides
from dynajit.loopir.lower_index import indexed, place
from dynajit.loopir.lower_segments import segment_sums
from dynajit.loopir.nodes import Const, Pointwise, Scalar, View, position
from dynajit.loopir.registry import NotLowered, lowering
from dynajit.op_facts import LOW_PRECISION

aten = torch.ops.aten
Axes = tuple[Index, ...]
Body = Callable[[Axes], Scalar]
Number = bool | int | float
_KINDS = {"sum": "sum", "add": "sum", "prod": "prod", "multiply": "prod", "amax": "max", "amin": "min"}


# What GPUs add atomically.
_ATOMIC = (torch.float32, torch.float64, torch.int32, torch.int64)


def _check(build: Builder, kind: str, ordered: bool = False) -> torch.dtype:
    """`ordered`: eager adds up in the same order each time, on GPUs too."""
    dtype = check_dtype(build.out.dtype)
    if kind != "set" and (dtype in LOW_PRECISION or dtype is torch.bool):
        raise NotLowered
    if build.program.device.type != "cpu":
        if torch.are_deterministic_algorithms_enabled() or kind not in ("set", "sum"):
            raise NotLowered
        if kind == "sum" and (dtype not in _ATOMIC or (ordered and dtype.is_floating_point)):
            raise NotLowered
    return dtype


def _changed(
    build: Builder,
    kind: str,
    x: View | None,
    domain: Sequence[int],
    at: Callable[[Axes], Sequence[Index | Scalar]],
    body: Body,
) -> View:
    """The op's result: `x` (None: zeros) with `body` at the places `at` for each point of the domain."""
    dtype = _check(build, kind)
    shape = tuple(build.out.shape)
    start: Body = (lambda axes: number(0, dtype)) if x is None else (lambda axes: build.element(x, axes))
    stride = dense_stride(build.out)
    if x is not None and build.takes_first and x.whole and x.root.stride == stride and x.root.dtype is dtype:
        base = x
    else:
        base = build.pointwise(shape, lambda axes: convert(start(axes), dtype), stride)

    def places(axes: Axes) -> list[Scalar]:
        return [position(where) if isinstance(where, Index) else where for where in at(axes)]

    return build.scatter(kind, base, domain, places, lambda axes: convert(body(axes), dtype))


def _along(
    build: Builder, kind: str, x: View | None, dim: int, index: View, source: View | Number, whole: bool = False
) -> View:
    """`source` at the places of `index` along `dim`. `index` has an element for each one of it, or is one-dimensional
    (`whole`) and says where whole slices go."""
    shape = tuple(build.out.shape)
    dtype = _check(build, kind)
    if not shape or not index.shape or (isinstance(source, View) and len(source.shape) != len(shape)):
        raise NotLowered
    dim %= len(shape)
    domain = (*shape[:dim], index.shape[0], *shape[dim + 1 :]) if whole else index.shape

    def at(axes: Axes) -> list[Index | Scalar]:
        where: list[Index | Scalar] = list(axes)
        where[dim] = place(build, index, (axes[dim],) if whole else axes, shape[dim], "inside")
        return where

    def body(axes: Axes) -> Scalar:
        return build.element(source, axes) if isinstance(source, View) else number(source, dtype)

    if not whole and kind in ("set", "sum") and _one_of_each_row(x, shape, dim, index):
        return _chosen(build, kind, x, dim, index, body)
    return _changed(build, kind, x, domain, at, body)


def _one_of_each_row(x: View | None, shape: Sequence[int], dim: int, index: View) -> bool:
    """Whether one element of each row along `dim` is written, over a number that is the same everywhere."""
    filled = x is None or (isinstance(x.root, Pointwise) and isinstance(x.root.body, Const))
    return filled and tuple(index.shape) == (*shape[:dim], 1, *shape[dim + 1 :])


def _chosen(build: Builder, kind: str, x: View | None, dim: int, index: View, body: Body) -> View:
    """The result as a choice by element, which what reads it computes for itself: nothing has to be filled first."""
    dtype = build.out.dtype
    size = build.out.shape[dim]
    # narrow numbers: as many of them go into a vector as of floats
    narrow = torch.int32 if type(size) is int and size < 1 << 31 else torch.int64

    def chosen(axes: Axes) -> Scalar:
        row = (*axes[:dim], constant(0), *axes[dim + 1 :])
        at = convert(place(build, index, row, size, "inside"), narrow)
        old = number(0, dtype) if x is None else convert(build.element(x, axes), dtype)
        new = convert(body(row), dtype)
        written = new if kind == "set" else apply("add", old, new)
        return select(apply("eq", at, convert(position(axes[dim]), narrow)), written, old)

    return build.result(chosen)


@lowering(aten.scatter_add.default)
def _scatter_add(build: Builder, x: View, dim: int, index: View, source: View) -> View:
    return _along(build, "sum", x, dim, index, source)


@lowering(aten.scatter.src, aten.scatter.value)
def _scatter(build: Builder, x: View, dim: int, index: View, source: View | Number) -> View:
    return _along(build, "set", x, dim, index, source)


@lowering(aten.scatter_reduce.two)
def _scatter_reduce(
    build: Builder, x: View, dim: int, index: View, source: View, reduce: str, *, include_self: bool = True
) -> View:
    if not include_self or reduce not in _KINDS:
        raise NotLowered
    return _along(build, _KINDS[reduce], x, dim, index, source)


@lowering(aten.index_add.default)
def _index_add(build: Builder, x: View, dim: int, index: View, source: View, *, alpha: Number = 1) -> View:
    if alpha != 1:
        dtype = _check(build, "sum")
        source = build.map(lambda a: apply("mul", a, number(alpha, dtype)), source, dtype=dtype)
    if build.program.device.type != "cpu" and build.out.dtype in LOW_PRECISION and x.shape:
        dim %= len(x.shape)
        return segment_sums(build, x, [*[None] * dim, index], source, dim, "inside")
    return _along(build, "sum", x, dim, index, source, whole=True)


@lowering(aten.index_copy.default)
def _index_copy(build: Builder, x: View, dim: int, index: View, source: View) -> View:
    return _along(build, "set", x, dim, index, source, whole=True)


@lowering(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(build: Builder, x: View, indices: Sequence[View | None], values: View, accumulate: bool = False) -> View:
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) == 1 and given[0][1].dtype is torch.bool:
        return _masked_put(build, x, *given[0], values, accumulate)
    first, at = indexed(build, x, indices)
    shared = broadcast(*(index.shape for index in indices if index is not None))
    rest = [size for dim, size in enumerate(x.shape) if dim >= len(indices) or indices[dim] is None]
    domain = (*rest[:first], *shared, *rest[first:])
    if accumulate and build.program.device.type != "cpu" and x.dtype.is_floating_point:
        return segment_sums(build, x, indices, values, first)
    if accumulate:
        _check(build, "sum", ordered=True)
    return _changed(build, "sum" if accumulate else "set", x, domain, at, lambda axes: build.element(values, axes))


def _masked_put(build: Builder, x: View, first: int, mask: View, values: View, accumulate: bool) -> View:
    """The mask stands for the dimensions from `first` on: a choice by element where all of its places get the same."""
    last = first + len(mask.shape)
    place_of_count = len(values.shape) - (len(x.shape) - last) - 1
    if not mask.shape or (place_of_count >= 0 and values.shape[place_of_count] != 1):
        raise NotLowered
    if accumulate:
        _check(build, "sum")
    dtype = check_dtype(build.out.dtype)

    def chosen(axes: Axes) -> Scalar:
        old = build.element(x, axes)
        new = build.element(values, (*axes[: first + 1], *axes[last:]))
        new = apply("add", old, new) if accumulate else new
        return convert(select(build.element(mask, axes[first:last]), new, old), dtype)

    return build.result(chosen)


@lowering(aten.embedding_dense_backward.default)
def _embedding_backward(
    build: Builder, grad: View, index: View, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> View:
    if scale_grad_by_freq:
        raise NotLowered
    dtype = _check(build, "sum", ordered=True)

    def at(axes: Axes) -> list[Index | Scalar]:
        return [place(build, index, axes[:-1], num_weights, "inside"), axes[-1]]

    def body(axes: Axes) -> Scalar:
        value = build.element(grad, axes)
        if padding_idx < 0:
            return value
        label = convert(build.element(index, axes[:-1]), torch.int64)
        return select(apply("ne", label, number(padding_idx, torch.int64)), value, number(0, dtype))

    return _changed(build, "sum", None, grad.shape, at, body)


def max_pool_backward(build: Builder, grad: View, indices: View) -> View:
    """The gradient of max pooling, from the number of each window's greatest place in its plane.

    The places of a plane are one dimension of the result; they lie in memory in the order of their numbers."""
    dtype = _check(build, "sum")
    shape = tuple(build.out.shape)
    outside, size = shape[:-2], shape[-2] * shape[-1]
    flat = (*outside, size)
    last = dense_stride(build.out) == contiguous_strides(shape)
    # where channels come last the points are visited in that order too
    order = list(range(len(grad.shape))) if last else [0, *range(2, len(grad.shape)), 1]
    turned = [grad.shape[dim] for dim in order]

    def own(axes: Axes) -> Axes:
        return tuple(axes[order.index(dim)] for dim in range(len(order)))

    def at(axes: Axes) -> list[Index | Scalar]:
        where = own(axes)
        return [*where[:-2], place(build, indices, where, size, "inside")]

    out = torch.empty_strided(flat, _plane_strides(build), dtype=dtype, device="meta")
    base = build.pointwise(flat, lambda axes: number(0, dtype), dense_stride(out))
    found = build.scatter(
        "sum",
        base,
        turned,
        lambda axes: [position(where) if isinstance(where, Index) else where for where in at(axes)],
        lambda axes: build.element(grad, own(axes)),
    )
    width = shape[-1]
    return build.view(found, shape, lambda axes: [*axes[:-2], axes[-2] * width + axes[-1]])


def _plane_strides(build: Builder) -> tuple[int, ...]:
    """The strides of the result with the places of a plane as one dimension."""
    stride = dense_stride(build.out)
    if not all(isinstance(size, int) for size in (*build.out.shape, *stride)):
        raise NotLowered
    if stride[-2] != stride[-1] * build.out.shape[-1]:
        raise NotLowered
    return (*stride[:-2], stride[-1])
