"""Pieces of a loop in each of which it is known what a place near the border is: the longest piece is without tests.

In:  expressions in the innermost loop, and its axis. Out: `cuts`, where the loop is worth cutting; `simplified`, what
     an expression is within one piece.
Only conditions of the axis alone are looked at: guards of padding and concatenation, places kept inside of a tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from dynajit.loopir import nodes
from dynajit.loopir.index import Axis, Index, constant
from dynajit.loopir.nodes import Const, Op, Position, Scalar, scalars_in
from dynajit.schedule.loops import decided

# A loop is not cut in more pieces than this, unless they are long on average, nor if it is shorter; but in three, if
# the longest is most of it.
MAX_SHORT_PIECES = 4
MIN_SIZE = 16
# All of them are no more than this in any case.
MAX_PIECES = 16
# How deep what depends on the piece is nested in what else does.
MAX_DEPTH = 2
_TURNING = ("abs", "maximum", "minimum", "ge", "lt")
_SUMS = {"add": 1, "sub": -1}


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
    points: set[int] = set()
    if type(size) is int and size >= MIN_SIZE:
        within = list(dict.fromkeys(node for value in values for node in scalars_in(value)))
        points = _points(within, axis)
        for _ in range(MAX_DEPTH):
            # what is asked of a place that is another one in each piece, as in reflections at both ends
            pieces = _between(axis, points) if points else []
            more = {point for piece in pieces for point in _points_inside(within, piece)} - points
            points |= more
            if not more or len(points) > MAX_PIECES:
                break
        if len(points) >= min(MAX_PIECES, max(MAX_SHORT_PIECES, size // MIN_SIZE)):
            points = _ends_of_longest(axis, points)
    return _between(axis, points)


def _ends_of_longest(axis: Axis, points: set[int]) -> set[int]:
    """Where the longest piece begins and ends, if it is most of the loop: what is before and after it has its tests."""
    longest = max(_between(axis, points), key=lambda piece: piece.high - piece.low)
    ends = {longest.low, longest.high} - {0, axis.size}
    return ends if 2 * (longest.high - longest.low) > axis.size else set()


def outer_cuts(values: Iterable[Scalar], axes: Sequence[Axis], last: Axis) -> tuple[Axis | None, list[Piece]]:
    """One of the axes outside of the innermost loop and its pieces, where guards ask in which we are: a loop for
    each is without them. None where there is nothing to gain."""
    if type(last.size) is int and last.size < MIN_SIZE:
        return None, []
    conditions = _conditions(values)
    best: tuple[Axis | None, list[Piece]] = (None, [])
    for axis in axes:
        points = _points(conditions, axis) if type(axis.size) is int else set()
        if len(best[1]) <= len(points) < MAX_PIECES and points:
            best = axis, _between(axis, points)
    return best


def _conditions(values: Iterable[Scalar]) -> list[Scalar]:
    """What the guards in the expressions ask."""
    found: dict[Scalar, None] = {}
    for value in values:
        for node in scalars_in(value):
            if isinstance(node, Op) and node.name == "guard":
                found.update(dict.fromkeys(scalars_in(node.arguments[0])))
    return list(found)


def _points(nodes_: Iterable[Scalar], axis: Axis) -> set[int]:
    """From where on one of the expressions is another one."""
    points = set()
    for node in nodes_:
        for index, bound in _turning_points(node, axis) if isinstance(node, Op) else ():
            factor = index.terms[0][1]
            away = bound - index.constant
            # factor * i >= away from here on, or no longer
            point = -(-away // factor) if factor > 0 else away // factor + 1
            if 0 < point < axis.size:
                points.add(point)
    return points


def _points_inside(nodes_: Iterable[Scalar], piece: Piece) -> set[int]:
    """From where on, inside of the piece, expressions are others whose arguments are simpler there."""
    nested = [
        node for node in nodes_ if isinstance(node, Op) and node.name in _TURNING and isinstance(node.arguments[0], Op)
    ]
    inside = [
        nodes.op(node.name, tuple(simplified(argument, piece) for argument in node.arguments), node.dtype)
        for node in nested
    ]
    return {point for point in _points(inside, piece.axis) if piece.low < point < piece.high}


def _between(axis: Axis, points: set[int]) -> list[Piece]:
    return [Piece(axis, low, high) for low, high in itertools.pairwise([0, *sorted(points), axis.size])]


def holds(condition: Scalar, piece: Piece) -> bool | None:
    """Whether the condition of a guard holds in the whole piece, nowhere in it (False), or somewhere (None)."""
    return decided(condition, lambda at: piece.range(at.index) if isinstance(at, Position) else (None, None))


def simplified(node: Scalar, piece: Piece) -> Scalar:
    """The expression in this piece, if it is a simpler one there; else itself."""
    if not isinstance(node, Op):
        return node
    if node.name == "guard":
        known = holds(node.arguments[0], piece)
        return node if known is None else node.arguments[1 if known else 2]
    if node.dtype is not torch.int64 or node.name not in ("abs", "maximum", "minimum", *_SUMS):
        return node
    arguments = tuple(simplified(argument, piece) for argument in node.arguments)
    if node.name in _SUMS:
        return _sum(node, arguments)
    if arguments != node.arguments:
        node = nodes.op(node.name, arguments, node.dtype)
        assert isinstance(node, Op)
    place = arguments[0]
    if not isinstance(place, Position):
        return node
    low, high = piece.range(place.index)
    if node.name == "abs":
        return place if low >= 0 else nodes.position(place.index * -1) if high <= 0 else node
    if node.name in ("maximum", "minimum") and isinstance(node.arguments[1], Const):
        bound = node.arguments[1]
        above, below = (place, bound) if node.name == "maximum" else (bound, place)
        return above if low >= bound.value else below if high <= bound.value else node
    return node


def _sum(node: Op, arguments: tuple[Scalar, ...]) -> Scalar:
    """The sum or difference of places and numbers is a place."""
    parts = [
        argument.index if isinstance(argument, Position) else constant(int(argument.value))
        for argument in arguments
        if isinstance(argument, (Position, Const))
    ]
    if len(parts) < len(arguments):
        return node if arguments == node.arguments else nodes.op(node.name, arguments, node.dtype)
    return nodes.position(parts[0] + parts[1] * _SUMS[node.name])
