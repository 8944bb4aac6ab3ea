"""Lowerings of ops that read where a tensor of indices says: gather, index, index_select, embedding, nll_loss.

In and out: see `registry.py`. An index is checked by the kernel (`inside`, or `wrapped` where it may count from the
end); where one is outside, the graph runs operator by operator, which raises eager's error. One more op: a function
that says where in the tensor read the element at the new axes is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.loopir.build import apply, convert, like, number, select
from dynajit.loopir.builder import Builder, check_dtype
from dynajit.loopir.fetched import Place, fetched, fetched_through
from dynajit.loopir.index import Index
from dynajit.loopir.nodes import Scalar, View, position
from dynajit.loopir.registry import NotLowered, lowering
from dynajit.op_facts import compute_dtype

aten = torch.ops.aten
Axes = tuple[Index, ...]


def place(build: Builder, index: View, axes: Sequence[Index], size: Any, check: str) -> Scalar:
    """The element of `index` at the axes as a place in a dimension of that size."""
    if index.dtype not in (torch.int64, torch.int32):
        raise NotLowered
    return apply(check, convert(build.element(index, axes), torch.int64), number(size, torch.int64))


def _along(build: Builder, x: View, dim: int, index: View, whole: bool) -> View:
    """`x` at the places of `index` along `dim`; one place for a `whole` slice, or one for each element."""
    if not x.shape or not index.shape:
        raise NotLowered
    dim %= len(x.shape)

    def body(axes: Axes) -> Scalar:
        at: list[Place] = list(axes)
        at[dim] = place(build, index, (axes[dim],) if whole else axes, x.shape[dim], "inside")
        return fetched(x, at)

    return build.result(body)


@lowering(aten.gather.default)
def _gather(build: Builder, x: View, dim: int, index: View, sparse_grad: bool = False) -> View:
    check_dtype(x.dtype)
    return _along(build, x, dim, index, whole=False)


@lowering(aten.index_select.default)
def _index_select(build: Builder, x: View, dim: int, index: View) -> View:
    return _along(build, x, dim, index, whole=True)


@lowering(aten.embedding.default)
def _embedding(
    build: Builder, weight: View, index: View, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> View:
    def body(axes: Axes) -> Scalar:
        return fetched(weight, [place(build, index, axes[:-1], weight.shape[0], "inside"), axes[-1]])

    return build.result(body)


def indexed(build: Builder, x: View, indices: Sequence[View | None]) -> tuple[int, Callable[[Axes], list[Place]]]:
    """Of `x[indices]`: the dimension of the result where those of the indices begin, and the place in `x` of an element
    of the result."""
    used = [dim for dim, index in enumerate(indices) if index is not None]
    if not used or any(index is not None and index.dtype not in (torch.int64, torch.int32) for index in indices):
        raise NotLowered  # masks: how many places there are depends on values
    rank = max(len(index.shape) for index in indices if index is not None)
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0

    def at(axes: Axes) -> list[Place]:
        left = iter((*axes[:first], *axes[first + rank :]))
        where: list[Place] = []
        for dim, size in enumerate(x.shape):
            index = indices[dim] if dim < len(indices) else None
            own = axes[first : first + rank]
            where.append(next(left) if index is None else place(build, index, own, size, "wrapped"))
        return where

    return first, at


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(build: Builder, x: View, indices: Sequence[View | None]) -> View:
    _, at = indexed(build, x, indices)
    return build.result(lambda axes: fetched(x, at(axes)))


# ---- negative log likelihood: x[n, target[n], ...] weighted; reduction 0 none, 1 mean, 2 sum


def _class_of(build: Builder, x: View, target: View, axes: Sequence[Index], ignore_index: int) -> tuple[Scalar, Scalar]:
    """The target at the axes, checked, and whether it counts; where it doesn't, the first class stands in."""
    if target.dtype is not torch.int64:
        raise NotLowered
    dim = 1 if len(x.shape) > 1 else 0
    label = build.element(target, axes)
    counts = apply("ne", label, number(ignore_index, torch.int64))
    label = select(counts, label, number(0, torch.int64))
    return apply("inside", label, number(x.shape[dim], torch.int64)), counts


def _weight_of(weight: View | None, label: Scalar, counts: Scalar, dtype: torch.dtype) -> Scalar:
    one = number(1, dtype) if weight is None else convert(fetched(weight, [label]), dtype)
    return select(counts, one, number(0, dtype))


def _picked(x: View, label: Scalar, axes: Axes) -> Scalar:
    """x[n, label, ...] for axes (n, ...)."""
    return fetched_through(x, [label] if len(x.shape) == 1 else [axes[0], label, *axes[1:]])


@lowering(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll_loss(
    build: Builder, x: View, target: View, weight: View | None, reduction: int, ignore_index: int
) -> tuple[View, View]:
    dtype = compute_dtype(check_dtype(x.dtype))
    out, total_out = build.out
    one_row = len(x.shape) == 1

    def weights(axes: Axes) -> Scalar:
        label, counts = _class_of(build, x, target, () if one_row else axes, ignore_index)
        return _weight_of(weight, label, counts, dtype)

    def losses(axes: Axes) -> Scalar:
        label, counts = _class_of(build, x, target, () if one_row else axes, ignore_index)
        loss = apply("neg", convert(_picked(x, label, () if one_row else axes), dtype))
        if weight is not None:
            loss = apply("mul", loss, _weight_of(weight, label, counts, dtype))
        return select(counts, loss, number(0, dtype))

    shape = () if one_row else tuple(target.shape)
    each = build.pointwise(shape, losses)
    if reduction == 0:
        zero = build.pointwise((), lambda axes: number(0, total_out.dtype))
        return build.as_result(each, out), build.as_result(zero, total_out)
    total = build.reduce("sum", build.pointwise(shape, weights), list(range(len(shape))), False, dtype)
    loss = build.reduce("sum", each, list(range(len(shape))), False, dtype)
    if reduction == 1:
        loss = build.map(lambda a, b: apply("div", a, b), loss, total, dtype=dtype)
    return build.as_result(loss, out), build.as_result(total, total_out)


@lowering(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def _nll_loss_backward(
    build: Builder,
    grad: View,
    x: View,
    target: View,
    weight: View | None,
    reduction: int,
    ignore_index: int,
    total_weight: View,
) -> View:
    dtype = compute_dtype(check_dtype(x.dtype))
    one_row = len(x.shape) == 1

    def body(axes: Axes) -> Scalar:
        place_of_target = () if one_row else (axes[0], *axes[2:])
        label, counts = _class_of(build, x, target, place_of_target, ignore_index)
        each = convert(build.element(grad, place_of_target if grad.shape else ()), dtype)
        if reduction == 1:
            each = apply("div", each, convert(build.element(total_weight, ()), dtype))
        each = apply("neg", each)
        if weight is not None:
            each = apply("mul", each, _weight_of(weight, label, counts, dtype))
        # narrow numbers: as many of them go into a vector as of floats
        narrow = torch.int32 if x.shape[0 if one_row else 1] < 1 << 31 else torch.int64
        own = convert(position(axes[0 if one_row else 1]), narrow)
        here = apply("and", counts, apply("eq", convert(label, narrow), own))
        return select(here, each, like(0, each))

    return build.result(body)
