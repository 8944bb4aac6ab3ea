"""Lowerings of matrix products that libraries do badly. On GPUs: those with a vector, which only read a matrix, and
small ones, whose launches through a library cost more than their arithmetic. On CPUs: batches of those with a vector,
and products of two vectors.

In and out: see `registry.py`. Such a product is a sum like any other: what is done to its result is fused into its
kernel, and two that read the same vector are one kernel. Sums are carried in float32 or wider and rounded once.
To change what counts as small: the constants.
"""

from __future__ import annotations

from typing import Any

import torch

from dynajit.loopir.build import apply, convert, like
from dynajit.loopir.builder import Builder, Number, check_dtype, dense_stride
from dynajit.loopir.nodes import View
from dynajit.loopir.registry import NotLowered, lowering
from dynajit.loopir.size import hint_of
from dynajit.op_facts import compute_dtype

aten = torch.ops.aten

# Multiplications up to which the caches serve what is read again and again.
SMALL = 1 << 21
# One program sums a whole row of so many products.
MAX_LENGTH = 16_384


def _product(build: Builder, a: View, b: View) -> View:
    """The sums of the products over the last dimension of `a` and the last but one of `b`, in the compute dtype."""
    if not a.dtype.is_floating_point or a.dtype is not b.dtype:
        raise NotLowered
    *batch, rows, length = a.shape
    columns = b.shape[-1]
    if build.program.device.type == "cpu":
        pays = _pays_on_cpu(a.dtype, bool(batch), rows, length, columns)
    else:
        total = rows * columns * length
        for size in batch:
            total *= size
        # What varies may be large at another call.
        pays = hint_of(length) <= MAX_LENGTH and (total <= SMALL or 1 in (rows, columns))
    if not pays:
        raise NotLowered
    dtype = compute_dtype(check_dtype(a.dtype))
    rank = len(batch)

    def body(axes: tuple[object, ...]) -> object:
        outer, (row, column, along) = axes[:rank], axes[rank:]
        left = build.element(a, (*outer, row, along))  # type: ignore[arg-type]
        right = build.element(b, (*outer, along, column))  # type: ignore[arg-type]
        return apply("mul", convert(left, dtype), convert(right, dtype))

    products = build.pointwise((*batch, rows, columns, length), body)  # type: ignore[arg-type]
    return build.reduce("sum", products, [rank + 2], False, dtype)


def _pays_on_cpu(dtype: torch.dtype, batch: bool, rows: Any, length: Any, columns: Any) -> bool:
    """Products of two vectors are one multiplication for each element. For a batch of products with vectors libraries
    take 2 to 20 times as long as a loop does, which only reads the matrices."""
    if dtype.itemsize < 4:
        return False
    # columns are added up row by row: fast where the compiler knows how many there are
    return length == 1 or (batch and (columns == 1 or (rows == 1 and isinstance(columns, int))))


def _plus(build: Builder, bias: View, sums: View, beta: Number, alpha: Number) -> View:
    """beta * bias + alpha * sums, rounded once."""

    def body(axes: tuple[object, ...]) -> object:
        scaled = build.element(sums, axes)  # type: ignore[arg-type]
        if alpha != 1:
            scaled = apply("mul", scaled, like(alpha, scaled))
        if beta == 0:  # whatever the bias holds, NaN too
            return scaled
        added = convert(build.element(bias, axes), sums.dtype)  # type: ignore[arg-type]
        if beta != 1:
            added = apply("mul", added, like(beta, added))
        return apply("add", scaled, added)

    dtype = check_dtype(build.out.dtype)
    return build.pointwise(build.out.shape, lambda axes: convert(body(axes), dtype), dense_stride(build.out))  # type: ignore[arg-type]


@lowering(aten.mm.default, aten.bmm.default)
def _mm(build: Builder, a: View, b: View) -> View:
    return build.as_result(_product(build, a, b))


@lowering(aten.addmm.default, aten.baddbmm.default)
def _addmm(build: Builder, bias: View, a: View, b: View, *, beta: Number = 1, alpha: Number = 1) -> View:
    return _plus(build, bias, _product(build, a, b), beta, alpha)


@lowering(aten.mv.default)
def _mv(build: Builder, a: View, x: View) -> View:
    column = build.reshape(x, (*x.shape, 1))
    return build.as_result(build.reshape(_product(build, a, column), a.shape[:1]))
