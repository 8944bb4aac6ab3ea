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
from dynajit.loopir.index import Index
from dynajit.loopir.lower_pieces import below, guard
from dynajit.loopir.nodes import Pointwise, Shape, Tensor, Value, const

aten = torch.ops.aten

# Elements of two bytes that fast kernels of cuBLAS read and write at a time: rows start at multiples of so many.
ALIGNED = 8
REWRITES: dict[Any, Callable[..., Any]] = {}


class Caller(Protocol):
    """What a rewrite works with."""

    build: Builder
    padded: dict[Tensor, Value]

    def call(self, target: Any, args: Any, shape: Shape, stride: Shape, dtype: torch.dtype) -> Value:
        """Call the operator: the result as a tensor in memory."""

    def in_place_of(self, old: Value, new: Value) -> None:
        """From here on `new`, which has the same elements, is read in place of `old`."""

    def convolutions(self) -> int:
        """How many there are in a graph that keeps nothing for a backward graph, else 0."""


def rewrite(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function for these operators."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        REWRITES.update(dict.fromkeys(targets, function))
        return function

    return register


# ---- products of matrices whose rows do not start at multiples of 16 bytes


@rewrite(aten.mm.default)
def _mm(calls: Caller, a: Value, b: Value) -> Value | None:
    if a.dtype not in (torch.bfloat16, torch.float16):
        return None
    (rows, length), columns = a.shape, b.shape[1]
    if min(rows, columns, length) < 512:
        return None
    known = _copy_of_turned(calls, a)
    if length % ALIGNED:
        a, b = _padded(calls, a, 1), _padded(calls, b, 0)
    elif known is not None:
        a = known
    wide = _padded(calls, b, 1) if columns % ALIGNED and rows >= 1024 else b
    if wide is b and known is None and length % ALIGNED == 0:
        return None
    out_columns = wide.shape[1]
    result = calls.call(aten.mm.default, (a, wide), (rows, out_columns), (out_columns, 1), a.dtype)
    if out_columns == columns:
        return result
    return calls.build.view(result, (rows, columns), lambda axes: axes)


def _up(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _copy_of_turned(calls: Caller, a: Value) -> Value | None:
    """A transposed tensor of which there is a padded copy, as the transposed of that copy."""
    found = calls.padded.get(a.root)
    if found is None or found.shape != (a.shape[1], a.shape[0]) or a.position != (a.root.axes[0], a.root.axes[1])[::-1]:
        return None
    return calls.build.view(found, a.shape, lambda axes: (axes[1], axes[0]))


def _padded(calls: Caller, x: Value, dim: int) -> Value:
    """`x` with zeros behind it along `dim`, so that its length there is a multiple."""
    shape = list(x.shape)
    size = shape[dim]
    shape[dim] = _up(size)
    layout = affine(x)
    turned = layout is not None and layout[0][0] == 1 and layout[0][1] != 1
    stride = (1, shape[0]) if turned else (shape[1], 1)
    zero = const(0, x.dtype)

    def body(axes: tuple[Index, ...]) -> Any:
        inside = below(axes[dim], size)
        return guard([inside], calls.build.element(x, axes), zero)

    made = calls.build.pointwise(tuple(shape), body, stride)
    if x.whole and dim == 1:
        calls.padded[x.root] = calls.build.view(made, x.shape, lambda axes: axes)
    return made


# ---- convolutions read channels last


@rewrite(aten.convolution.default)
def _convolution(
    calls: Caller,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    shape: Shape = (),
) -> Value | None:
    if transposed or groups != 1 or len(x.shape) != 4 or calls.convolutions() < 2:
        return None
    if min(weight.shape[:2]) < 16 or not _tensor_cores(x.dtype):
        return None
    layout = affine(x)
    last = _channels_last(x.shape)
    if layout is None or layout[0] == last:
        return None
    copy = calls.build.pointwise(x.shape, lambda axes: calls.build.element(x, axes), last)
    if isinstance(x.root, Pointwise) and x.whole:
        calls.in_place_of(x, copy)
    args = (copy, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return calls.call(aten.convolution.default, args, shape, _channels_last(shape), x.dtype)


def _tensor_cores(dtype: torch.dtype) -> bool:
    if dtype is torch.float32:
        return torch.backends.cudnn.allow_tf32
    return dtype in (torch.float16, torch.bfloat16)


def _channels_last(shape: Sequence[int]) -> Shape:
    _, channels, height, width = shape
    return (channels * height * width, 1, channels * width, channels)
