"""Pieces of a loop in each of which it is known what a place near the border is: the longest piece is without tests.

In:  expressions in the innermost loop, and its axis. Out: `cuts`, where the loop is worth cutting; `simplified`, what
     an expression is within one piece.
Only conditions of the axis alone are looked at: guards of padding and concatenation, places kept inside of a tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dynajit.loopir import nodes
from dynajit.loopir.index import Axis, Index
from dynajit.loopir.nodes import Const, Op, Position, Scalar
from dynajit.schedule.fuse import scalars_in

# A loop is not cut in more pieces than this, nor if it is shorter.
MAX_PIECES = 4
MIN_SIZE = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """The axis from `low` up to, without, `high`."""

    axis: Axis
    low: int
    high: int

    def range(self, index: Index) -> tuple[int, int]:
        """Least and greatest of an index in the piece."""
        low = high = index.constant
        for atom, factor in index.terms:
            ends = (self.low, self.high - 1) if atom is self.axis else (atom.low, atom.high)
            low += factor * ends[factor < 0]
            high += factor * ends[factor > 0]
        return low, high


def _turning_points(node: Op, axis: Axis) -> Iterable[tuple[Index, int]]:
    """Indices, and the bound from which on the expression is another one."""
    place = node.arguments[0]
    if not isinstance(place, Position):
        return
    index = place.index
    if len(index.terms) != 1 or index.terms[0][0] is not axis:
        return
    if node.name == "abs":
        yield index, 0
    elif node.name in ("maximum", "minimum", "ge", "lt") and isinstance(node.arguments[1], Const):
        yield index, int(node.arguments[1].value) + (node.name == "minimum")


def cuts(values: Iterable[Scalar], axis: Axis) -> list[Piece]:
    """The pieces to cut the loop in; one if it is not worth it."""
    size = axis.size
    points = set()
    if type(size) is int and size >= MIN_SIZE:
        for value in values:
            for node in scalars_in(value):
                found = _turning_points(node, axis) if isinstance(node, Op) else ()
                for index, bound in found:
                    factor = index.terms[0][1]
                    away = bound - index.constant
                    # factor * i >= away from here on, or no longer
                    point = -(-away // factor) if factor > 0 else away // factor + 1
                    if 0 < point < size:
                        points.add(point)
    if len(points) >= MAX_PIECES:
        points = set()
    ends = [0, *sorted(points), size]
    return [Piece(axis, low, high) for low, high in itertools.pairwise(ends)]


def holds(condition: Scalar, piece: Piece) -> bool | None:
    """Whether the condition of a guard holds in the whole piece, nowhere in it (False), or somewhere (None)."""
    if isinstance(condition, Const):
        return bool(condition.value)
    if not isinstance(condition, Op):
        return None
    if condition.name == "and":
        parts = [holds(argument, piece) for argument in condition.arguments]
        return False if False in parts else None if None in parts else True
    if condition.name not in ("ge", "lt"):
        return None
    place, bound = condition.arguments
    if not isinstance(place, Position) or not isinstance(bound, Const):
        return None
    low, high = piece.range(place.index)
    if low >= bound.value:
        return condition.name == "ge"
    return condition.name == "lt" if high < bound.value else None


def simplified(node: Scalar, piece: Piece) -> Scalar:
    """The expression in this piece, if it is a simpler one there; else itself."""
    if not isinstance(node, Op):
        return node
    if node.name == "guard":
        known = holds(node.arguments[0], piece)
        return node if known is None else node.arguments[1 if known else 2]
    place = node.arguments[0] if node.arguments else None
    if node.dtype is not torch.int64 or not isinstance(place, Position):
        return node
    low, high = piece.range(place.index)
    if node.name == "abs":
        return place if low >= 0 else nodes.position(place.index * -1) if high <= 0 else node
    if node.name in ("maximum", "minimum") and isinstance(node.arguments[1], Const):
        bound = node.arguments[1]
        above, below = (place, bound) if node.name == "maximum" else (bound, place)
        return above if low >= bound.value else below if high <= bound.value else node
    return node
