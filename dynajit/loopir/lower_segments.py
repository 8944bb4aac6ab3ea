"""Sums by index on GPUs: the index is sorted once, and each place adds up its own part.

That is how sums are computed that eager adds up in order, and those of slices of bfloat16 and float16: their atomic
additions are slow, and round each time.

In:  the arguments of `index_put(x, indices, values, accumulate=True)`, as the gradient of `x[indices]` is.
Out: `segment_sums`: `x` plus, for each place, a sum over its segment of the sorted index. Operations that share an
     index share its order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dynajit.loopir.build import apply, convert, number, select
from dynajit.loopir.builder import Builder, broadcast, check_dtype, dense_stride
from dynajit.loopir.fetched import Place, fetched_through
from dynajit.loopir.index import Index, constant, contiguous_strides, linearise, unravel
from dynajit.loopir.lower_index import place
from dynajit.loopir.nodes import Scalar, View
from dynajit.loopir.registry import NotLowered
from dynajit.op_facts import LOW_PRECISION, compute_dtype

aten = torch.ops.aten
Axes = tuple[Index, ...]

# Where there are so many times more places than numbers in the index, most segments are empty.
MOSTLY_EMPTY = 4


def segment_sums(
    build: Builder, x: View, indices: Sequence[View | None], values: View, first: int, within: str = "wrapped"
) -> View:
    """`x` with the values added where the indices say. The dimensions that tensors of indices share begin at `first` of
    the values. `within`: what indices may be, as for `lower_index.place`."""
    dtype = check_dtype(build.out.dtype)
    given = {dim: index for dim, index in enumerate(indices) if index is not None}
    shared = broadcast(*(index.shape for index in given.values()))
    places = [x.shape[dim] for dim in given]
    if build.takes_first or not all(type(size) is int for size in (*x.shape, *shared)):
        raise NotLowered
    count = math.prod(shared)
    if count < 2 or math.prod(places) > MOSTLY_EMPTY * count or (build.eager_rounding and dtype in LOW_PRECISION):
        raise NotLowered
    kind = compute_dtype(dtype)
    order, starts = _order(build, given, shared, places, within)

    def bounds(axes: Axes) -> tuple[Scalar, Scalar]:
        at = linearise([axes[dim] for dim in given], contiguous_strides(places))
        low, high = (convert(build.element(starts, (at + more,)), torch.int64) for more in (0, 1))
        return low, high

    def body(axes: Axes, along: Index) -> Scalar:
        own: list[Place] = [axis for dim, axis in enumerate(axes) if dim not in given]
        own[first:first] = _unravelled(build.element(order, (along,)), shared)
        own = own[len(own) - len(values.shape) :]
        where = [constant(0) if size == 1 else at for at, size in zip(own, values.shape, strict=True)]
        return convert(fetched_through(values, where), kind)

    total = build.sum_between(x.shape, bounds, count, body, kind)

    def added(axes: Axes) -> Scalar:
        old = build.element(x, axes)
        low, high = bounds(axes)
        new = convert(apply("add", convert(old, kind), build.element(total, axes)), dtype)
        return select(apply("lt", low, high), new, old)  # what is not added to keeps its bits

    return build.pointwise(x.shape, added, dense_stride(build.out))


def _order(
    build: Builder, given: dict[int, View], shared: Sequence[int], places: Sequence[int], within: str
) -> tuple[View, View]:
    """The numbers of the index's elements in the order of the places that they name, and where in it each place's own
    begin; there is one more place after the last."""
    names = tuple((value.root, value.position, value.shape) for value in given.values())
    key = (names, tuple(shared), tuple(places), within)
    found = build.sorted.get(key)
    if found is None:
        length, total = math.prod(shared), math.prod(places)
        if max(length, total) >= 1 << 31:
            raise NotLowered
        where = lambda axes: _place(build, given, unravel(axes[0], shared), places, total, within)  # noqa: E731
        named = build.pointwise((length,), where)
        results = (((length,), named.dtype), ((length,), torch.int64))
        ranked, order = build.call(aten.sort.stable, (named,), {"stable": True}, *results)
        csr = aten._convert_indices_from_coo_to_csr.default
        (starts,) = build.call(csr, (ranked, total), {"out_int32": True}, ((total + 1,), torch.int32))
        found = build.sorted[key] = order, starts
    return found  # type: ignore[no-any-return]


def _place(
    build: Builder, given: dict[int, View], axes: Axes, places: Sequence[int], total: int, within: str
) -> Scalar:
    """The number of the place that the indices at the axes name, in as few bits as do: sorting goes by bits."""
    at = number(0, torch.int64)
    for value, size, step in zip(given.values(), places, contiguous_strides(places), strict=True):
        one = place(build, value, axes, size, within)
        at = apply("add", at, apply("mul", one, number(step, torch.int64)))
    return convert(at, torch.int16 if total < 1 << 15 else torch.int32)


def _unravelled(at: Scalar, shape: Sequence[int]) -> list[Scalar]:
    """Where in a tensor of that shape its element number `at` is."""
    found: list[Scalar] = []
    for size, step in zip(shape, contiguous_strides(shape), strict=True):
        one: Any = at if step == 1 else apply("intdiv", at, number(step, torch.int64))
        found.append(one if not found else apply("intmod", one, number(size, torch.int64)))
    return found
