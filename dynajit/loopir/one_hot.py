"""Sums along rows that have one element at most which is not zero, as the gradient of a loss by class has.

In:  a computed tensor and the dimension it is summed along.
Out: the expression of that one element, if the tensor is known to be `place == own place ? value : 0`, with a place
     that is inside of the row and a value that is the same for the whole row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dynajit.loopir.build import apply, like, select
from dynajit.loopir.index import Index, axes_of
from dynajit.loopir.nodes import Const, Op, Pointwise, Position, Scalar, View, axis_of, indices_of, scalars_in


def only_element(x: View, dim: int) -> Scalar | None:
    """The sum of `x` along `dim`, at the axes of `x`; None where it has to be added up."""
    tensor = x.root
    if not x.whole or not isinstance(tensor, Pointwise) or not tensor.dtype.is_floating_point:
        return None
    body, own = tensor.body, tensor.axes[dim]
    if not isinstance(body, Op) or body.name != "where":
        return None
    condition, value, other = body.arguments
    if not isinstance(other, Const) or other.value != 0 or _moves(value, own):
        return None
    rest: Scalar | None = None
    found = False
    for part in _conjuncts(condition):
        if not found and _is_place(part, own, x.shape[dim]):
            found = True
        elif _moves(part, own):
            return None
        else:
            rest = part if rest is None else apply("and", rest, part)
    if not found:
        return None
    # 0 + value: a sum is never -0.0
    total = apply("add", value, like(0, value))
    return total if rest is None else select(rest, total, like(0, value))


def _conjuncts(condition: Scalar) -> Iterator[Scalar]:
    if isinstance(condition, Op) and condition.name == "and":
        for argument in condition.arguments:
            yield from _conjuncts(argument)
    else:
        yield condition


def _is_place(condition: Scalar, own: Index, size: int) -> bool:
    """Is it `place == own`, for a place that is inside of so many and the same for the row?"""
    if not isinstance(condition, Op) or condition.name != "eq" or type(size) is not int or size >= 1 << 31:
        return False
    sides = [_as_integer(argument) for argument in condition.arguments]
    for place, other in (sides, sides[::-1]):
        if isinstance(other, Position) and other.index is own and isinstance(place, Op) and not _moves(place, own):
            checked = place.name in ("inside", "wrapped") and isinstance(place.arguments[1], Const)
            if checked and place.arguments[1].value == size:  # type: ignore[attr-defined]
                return True
    return False


def _as_integer(node: Scalar) -> Scalar:
    """Without conversions to int32, which change no place in less than 2^31."""
    while isinstance(node, Op) and node.name == "convert" and node.dtype in (torch.int32, torch.int64):
        node = node.arguments[0]
    return node


def _moves(scalar: Scalar, own: Index) -> bool:
    """Does the expression depend on that axis?"""
    axis = axis_of(own)
    return any(axis in axes_of(index) for node in scalars_in(scalar) for index in indices_of(node))
