"""Lowerings of ATen views: no element is computed, only the way to it.

In and out: see `registry.py`. One more view: a function that says where the element at the new axes is in the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynajit.loopir.builder import Builder, position_at
from dynajit.loopir.index import Index, constant
from dynajit.loopir.nodes import View, axes_for
from dynajit.loopir.registry import NotLowered, lowering
from dynajit.loopir.size import begin_of_slice, index_from_start

aten = torch.ops.aten


@lowering(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default)
def _view(build: Builder, x: View, size: Sequence[int], stride: Any = None) -> View:
    return build.reshape(x, tuple(build.out.shape))


@lowering(aten.alias.default, aten.detach.default)
def _alias(build: Builder, x: View) -> View:
    return x


@lowering(aten.permute.default)
def _permute(build: Builder, x: View, dims: Sequence[int]) -> View:
    return permuted(build, x, dims)


def permuted(build: Builder, x: View, dims: Sequence[int]) -> View:
    """New dimension i is the old dimension dims[i]."""
    rank = len(x.shape)
    order = [dim % rank for dim in dims]
    inverse = [order.index(dim) for dim in range(rank)]
    return build.view(x, [x.shape[dim] for dim in order], lambda axes: [axes[i] for i in inverse])


@lowering(aten.transpose.int)
def _transpose(build: Builder, x: View, first: int, second: int) -> View:
    rank = len(x.shape)
    if not rank:
        return x
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return permuted(build, x, order)


@lowering(aten.t.default)
def _t(build: Builder, x: View) -> View:
    return permuted(build, x, (1, 0)) if len(x.shape) == 2 else x


@lowering(aten.unsqueeze.default)
def _unsqueeze(build: Builder, x: View, dim: int) -> View:
    at = dim % (len(x.shape) + 1)
    return build.view(x, build.out.shape, lambda axes: [*axes[:at], *axes[at + 1 :]])


@lowering(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(build: Builder, x: View, dims: Any = None) -> View:
    rank = len(x.shape)
    chosen = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {dim % rank for dim in chosen if x.shape[dim] == 1} if rank else set()

    def where(axes: tuple[Index, ...]) -> list[Index]:
        left = iter(axes)
        return [constant(0) if dim in gone else next(left) for dim in range(rank)]

    return build.view(x, [size for dim, size in enumerate(x.shape) if dim not in gone], where)


@lowering(aten.expand.default)
def _expand(build: Builder, x: View, size: Sequence[int], implicit: bool = False) -> View:
    shape = tuple(build.out.shape)
    return View(x.root, position_at(x, axes_for(shape)), shape)


@lowering(aten.slice.Tensor)
def _slice(
    build: Builder, x: View, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> View:
    dim %= len(x.shape)
    size = x.shape[dim]
    _check_told(x, dim, build.out.shape[dim])
    begin = begin_of_slice(start, end, step, size, build.out.shape[dim])
    return build.view(
        x, build.out.shape, lambda axes: [a * step + begin if i == dim else a for i, a in enumerate(axes)]
    )


def _check_told(x: View, dim: int, *sizes: int) -> None:
    """Where a place along a dimension of one element lies in memory is not kept: a view of one or none would have no
    stride there, and be copied."""
    if x.shape[dim] == 1 and any(type(size) is not int for size in sizes):
        raise NotLowered("a part of one element that may have none")


@lowering(aten.select.int)
def _select(build: Builder, x: View, dim: int, index: int) -> View:
    dim %= len(x.shape)
    at = constant(index_from_start(index, x.shape[dim]))
    return build.view(x, build.out.shape, lambda axes: [*axes[:dim], at, *axes[dim:]])


def _pieces(build: Builder, x: View, sizes: Sequence[int], dim: int) -> tuple[View, ...]:
    _check_told(x, dim, *sizes)
    pieces = []
    begin = 0
    for size in sizes:
        shape = [size if i == dim else old for i, old in enumerate(x.shape)]
        axes = list(axes_for(shape))
        axes[dim] += begin
        pieces.append(View(x.root, position_at(x, axes), tuple(shape)))
        begin += size
    return tuple(pieces)


@lowering(aten.split.Tensor, aten.split_with_sizes.default)
def _split(build: Builder, x: View, sizes: Any, dim: int = 0) -> tuple[View, ...]:
    dim %= len(x.shape)
    return _pieces(build, x, [fake.shape[dim] for fake in build.out], dim)


@lowering(aten.unbind.int)
def _unbind(build: Builder, x: View, dim: int = 0) -> tuple[View, ...]:
    dim %= len(x.shape)
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    axes = axes_for(shape)
    return tuple(
        View(x.root, position_at(x, (*axes[:dim], constant(i), *axes[dim:])), shape) for i in range(x.shape[dim])
    )


@lowering(aten.flip.default)
def _flip(build: Builder, x: View, dims: Sequence[int]) -> View:
    if not x.shape:
        raise NotLowered
    turned = {dim % len(x.shape) for dim in dims}
    flipped = build.view(
        x,
        x.shape,
        lambda axes: [a * -1 + (x.shape[i] - 1) if i in turned else a for i, a in enumerate(axes)],
    )
    # flip copies: the result is a tensor of its own.
    return build.result(lambda axes: build.element(flipped, axes))


@lowering(aten.unfold.default)
def _unfold(build: Builder, x: View, dimension: int, size: int, step: int) -> View:
    if not x.shape:
        return build.view(x, build.out.shape, lambda axes: [])
    dim = dimension % len(x.shape)
    _check_told(x, dim, size)
    return build.view(
        x, build.out.shape, lambda axes: [a * step + axes[-1] if i == dim else a for i, a in enumerate(axes[:-1])]
    )


def diagonal(build: Builder, x: View, offset: int = 0, dim1: int = 0, dim2: int = 1) -> View:
    """The diagonal of two dimensions, as the last."""
    first, second = dim1 % len(x.shape), dim2 % len(x.shape)

    def where(axes: tuple[Index, ...]) -> list[Index]:
        places = {first: axes[-1] + max(-offset, 0), second: axes[-1] + max(offset, 0)}
        others = iter(axes)
        return [places[dim] if dim in places else next(others) for dim in range(len(x.shape))]

    return build.view(x, build.out.shape, where)


lowering(aten.diagonal.default)(diagonal)
