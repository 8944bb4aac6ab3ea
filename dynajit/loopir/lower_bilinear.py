"""Lowerings of bilinear interpolation: each element from the four places around it.

In and out: see `registry.py`. The order of operations is that of eager's kernels for CPUs, of which there are two: one
computes rows of two and a column of those, the other takes four products. What is read is computed at these places
where that is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dynajit.loopir.build import apply, convert, like, number
from dynajit.loopir.builder import Builder
from dynajit.loopir.fetched import Place, fetched, fetched_through
from dynajit.loopir.index import Index
from dynajit.loopir.nodes import Op, Pointwise, Read, Scalar, Tensor, View, position, scalars_in
from dynajit.loopir.ops import OPS
from dynajit.loopir.registry import NotLowered, lowering

aten = torch.ops.aten
# Eager takes four products where height and width of the result are no more than this together, and of so many channels
# on one thread.
MAX_FOR_PRODUCTS, ON_ONE_THREAD = 128, 3
# That kernel adds up from the last to the first by vectors of channels, from the first to the last for what is left:
# below the one number of channels nothing but a rest, at multiples of the other none, whatever the processor.
ONLY_REST, NO_REST = 4, 8
# What may be done for an element that is read, which is done at four places then.
CHEAP = 3


@dataclass(frozen=True, slots=True)
class _Side:
    """The two places along a dimension, and their weights."""

    places: tuple[Scalar, Scalar]
    weights: tuple[Scalar, Scalar]


def _side(axis: Index, size: int, new: int, scale: float | None, corners: bool, dtype: torch.dtype) -> _Side:
    at = convert(position(axis), dtype)
    zero, one = like(0, at), like(1, at)
    if corners:
        step = _quotient(size - 1, new - 1, dtype) if new > 1 else 0.0
        source = apply("mul", like(step, at), at)
    else:
        step = _quotient(1.0, scale, dtype) if scale else _quotient(size, new, dtype)
        half = like(0.5, at)
        source = apply("maximum", apply("fma", like(step, at), apply("add", at, half), like(-0.5, at)), zero)
    last = number(size - 1, torch.int64)
    low = apply("minimum", convert(source, torch.int64), last)
    high = apply("minimum", apply("add", low, number(1, torch.int64)), last)
    if size == new:
        return _Side((low, low), (one, zero))
    far = apply("minimum", apply("maximum", apply("sub", source, convert(low, dtype)), zero), one)
    return _Side((low, high), (apply("sub", one, far), far))


def _quotient(one: float, other: float, dtype: torch.dtype) -> float:
    """The quotient as the dtype has it."""
    found: float = torch.tensor(one, dtype=dtype).div(torch.tensor(other, dtype=dtype)).item()
    return found


def _is_cheap(tensor: Tensor) -> bool:
    """Is an element of it computed of elements in memory by no more than a few operations?"""
    cost, waiting = 0, [tensor]
    while waiting and cost <= CHEAP:
        each = waiting.pop()
        for node in scalars_in(each.body) if isinstance(each, Pointwise) else ():
            if isinstance(node, Op):
                cost += OPS[node.name].cost
            elif isinstance(node, Read):
                waiting.append(node.tensor)
    return cost <= CHEAP


@lowering(aten.upsample_bilinear2d.default)
def _upsample_bilinear(
    build: Builder, x: View, output_size: object, corners: bool, of_height: float | None = None, *more: float | None
) -> View:
    dtype, sizes = torch.float32, (*x.shape, *build.out.shape)
    if build.program.device.type != "cpu" or x.dtype is not dtype or not all(isinstance(size, int) for size in sizes):
        raise NotLowered
    channels, height, width = x.shape[1:]
    alone = channels == ON_ONE_THREAD and torch.get_num_threads() == 1
    by_products = alone or sum(build.out.shape[2:]) <= MAX_FOR_PRODUCTS
    rest_first = channels < ONLY_REST
    if not build.out.is_contiguous() or height * width == 1 or (by_products and not rest_first and channels % NO_REST):
        raise NotLowered
    scales = (of_height, more[0] if more else None)
    read = fetched_through if _is_cheap(x.root) else fetched

    def body(axes: tuple[Index, ...]) -> Scalar:
        rows, columns = (
            _side(axes[dim], x.shape[dim], build.out.shape[dim], scales[dim - 2], corners, dtype) for dim in (2, 3)
        )

        def element(row: Place, column: Place) -> Scalar:
            return read(x, [axes[0], axes[1], row, column])

        def along(row: Place) -> Scalar:
            left, right = (element(row, column) for column in columns.places)
            return apply("fma", left, columns.weights[0], apply("mul", right, columns.weights[1]))

        if not by_products:
            upper, lower = map(along, rows.places)
            return apply("fma", upper, rows.weights[0], apply("mul", lower, rows.weights[1]))
        weights = [apply("mul", one, other) for one in rows.weights for other in columns.weights]
        elements = [element(row, column) for row in rows.places for column in columns.places]
        order = (1, 0, 2, 3) if rest_first else (2, 3, 1, 0)
        total = apply("mul", elements[order[0]], weights[order[0]])
        for at in order[1:]:
            total = apply("fma", elements[at], weights[at], total)
        return total

    return build.result(body)
