"""How a GPU's libraries are called: with layouts that their fast kernels take.

In:  the lowering at hand (`Caller`), a call's arguments in memory.
Out: `REWRITES`, a table operator -> function `(calls, *args) -> Value | None`; None leaves the call as it is. What a
function makes around the call (copies in another layout, slices) are tensors like any other: they are fused with what
computes or reads them.
One more: a function below, behind `@rewrite`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from dynajit.loopir.builder import Builder, affine
from dynajit.loopir.index import Index, contiguous_strides
from dynajit.loopir.lower_pieces import below, guard
from dynajit.loopir.nodes import Shape, View, const
from dynajit.op_facts import LOW_PRECISION

aten = torch.ops.aten

# Elements of two bytes that fast kernels of cuBLAS read and write at a time: rows start at multiples of so many.
ALIGNED = 8
# Products with a shorter side, and patches of images with less of anything, are not worth copies.
SHORT, FEW = 512, 128
# Rows of a product from which on its result is written with longer rows than were asked for, and a convolution of
# single pixels is one.
MANY_ROWS = 1024
# Fewer channels than this fill no tile.
NARROW = 32
REWRITES: dict[Any, Callable[..., Any]] = {}


class Caller(Protocol):
    """What a rewrite works with."""

    build: Builder
    padded: list[tuple[View, View]]

    def call(self, target: Any, args: Any, shape: Shape, stride: Shape, dtype: torch.dtype) -> View:
        """Call the operator: the result as a tensor in memory."""

    def program_keeps(self) -> bool:
        """Does the graph keep something for a backward graph?"""


def rewrite(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function for these operators."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        REWRITES.update(dict.fromkeys(targets, function))
        return function

    return register


# ---- products of matrices whose rows do not start at multiples of 16 bytes


@rewrite(aten.mm.default)
def _mm(calls: Caller, a: View, b: View) -> View | None:
    return _product(calls, None, a, b)


@rewrite(aten.addmm.default)
def _addmm(calls: Caller, bias: View, a: View, b: View) -> View | None:
    return _product(calls, bias, a, b)


def _product(calls: Caller, bias: View | None, a: View, b: View) -> View | None:
    """bias + a @ b for a bias of one row."""
    if a.dtype not in LOW_PRECISION or (bias is not None and bias.shape != (b.shape[1],)):
        return None
    (rows, length), columns = a.shape, b.shape[1]
    if min(rows, columns, length) < SHORT:
        return None
    known = _copy_of_turned(calls, a)
    if length % ALIGNED:
        a, b = _padded(calls, a, 1), _padded(calls, b, 0)
    elif known is not None:
        a = known
    wide = _padded(calls, b, 1) if columns % ALIGNED and rows >= MANY_ROWS else b
    if wide is b and known is None and length % ALIGNED == 0:
        return None
    out_columns = wide.shape[1]
    if bias is None:
        result = calls.call(aten.mm.default, (a, wide), (rows, out_columns), (out_columns, 1), a.dtype)
    else:
        row = bias if wide is b else _padded(calls, bias, 0)
        result = calls.call(aten.addmm.default, (row, a, wide), (rows, out_columns), (out_columns, 1), a.dtype)
    if out_columns == columns:
        return result
    return calls.build.view(result, (rows, columns), lambda axes: axes)


def _up(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _copy_of_turned(calls: Caller, a: View) -> View | None:
    """A transposed tensor of which there is a padded copy, as the transposed of that copy."""
    for original, copy in calls.padded:
        if original.root is a.root and original.shape == a.shape[::-1]:
            turned = calls.build.view(original, a.shape, lambda axes: (axes[1], axes[0]))
            if turned.position == a.position:
                return calls.build.view(copy, a.shape, lambda axes: (axes[1], axes[0]))
    return None


def _padded(calls: Caller, x: View, dim: int) -> View:
    """`x` with zeros after it along `dim`, so that its length there is a multiple."""
    shape = list(x.shape)
    size = shape[dim]
    shape[dim] = _up(size)
    layout = affine(x)
    turned = layout is not None and len(shape) == 2 and layout[0][0] == 1 and layout[0][1] != 1
    stride = (1, shape[0]) if turned else contiguous_strides(shape)
    zero = const(0, x.dtype)

    def body(axes: tuple[Index, ...]) -> Any:
        inside = below(axes[dim], size)
        return guard([inside], calls.build.element(x, axes), zero)

    made = calls.build.pointwise(tuple(shape), body, stride)
    if dim == 1:
        calls.padded.append((x, calls.build.view(made, x.shape, lambda axes: axes)))
    return made


# ---- convolutions that are products


@rewrite(aten.convolution.default)
def _convolution(
    calls: Caller,
    x: View,
    weight: View,
    bias: View | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    shape: Shape = (),
) -> View | None:
    if transposed or groups != 1 or len(x.shape) != 4:
        return None
    if tuple(stride) == tuple(weight.shape[2:]) and not any(padding) and all(step == 1 for step in dilation):
        found = _patches(calls, x, weight, bias, shape)
        if found is not None:
            return found
    return _by_pixel(calls, x, weight, bias, stride, padding, shape)


def _by_pixel(
    calls: Caller,
    x: View,
    weight: View,
    bias: View | None,
    stride: Sequence[int],
    padding: Sequence[int],
    shape: Shape,
) -> View | None:
    """A convolution of single pixels whose channels lie side by side, as the product of a matrix that it is."""
    layout = affine(x)
    if weight.shape[2:] != (1, 1) or any(padding) or any(step != 1 for step in stride) or calls.program_keeps():
        return None
    if x.dtype not in LOW_PRECISION or layout is None or layout[0] != _channels_last(x.shape):
        return None
    batch, channels_out, height, width = shape
    channels, pixels = weight.shape[1], batch * height * width
    if channels % ALIGNED or channels_out % ALIGNED or min(channels, channels_out) < NARROW or pixels < MANY_ROWS:
        return None
    pixel = calls.build.view(x, (batch, height, width, channels), lambda axes: (axes[0], axes[3], axes[1], axes[2]))
    return _by_row(calls, calls.build.reshape(pixel, (pixels, channels)), weight, bias, shape)


def _patches(calls: Caller, x: View, weight: View, bias: View | None, shape: Shape) -> View | None:
    """Windows that lie side by side, as where images are cut in patches: the product of a matrix of patches with the
    weight, in place of a general convolution and of copies into its layout."""
    batch, channels_out, height, width = shape
    _, channels, high, wide = weight.shape
    length = channels * high * wide
    if x.dtype not in LOW_PRECISION or high * wide == 1 or calls.program_keeps():
        return None
    if length % ALIGNED or channels_out % ALIGNED or min(batch * height * width, length, channels_out) < FEW:
        return None

    def patch(axes: tuple[Index, ...]) -> Any:
        n, row, column, channel, down, across = axes
        return calls.build.element(x, (n, channel, row * high + down, column * wide + across))

    cut = calls.build.pointwise((batch, height, width, channels, high, wide), patch)
    rows = calls.build.reshape(cut, (batch * height * width, length))
    return _by_row(calls, rows, weight, bias, shape)


def _by_row(calls: Caller, rows: View, weight: View, bias: View | None, shape: Shape) -> View:
    """Images of that shape whose pixels are, one after the other, the rows times the weight."""
    batch, channels, height, width = shape
    length = rows.shape[1]
    turned = calls.build.reshape(weight, (channels, length))
    columns = calls.build.view(turned, (length, channels), lambda axes: (axes[1], axes[0]))
    target, given = (aten.mm.default, (rows, columns)) if bias is None else (aten.addmm.default, (bias, rows, columns))
    sizes = (rows.shape[0], channels)
    product = calls.call(target, given, sizes, contiguous_strides(sizes), rows.dtype)
    last = calls.build.reshape(product, (batch, height, width, channels))
    return calls.build.view(last, shape, lambda axes: (axes[0], axes[2], axes[3], axes[1]))


def _channels_last(shape: Sequence[int]) -> Shape:
    _, channels, height, width = shape
    return (channels * height * width, 1, channels * width, channels)
