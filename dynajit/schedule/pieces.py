"""Which tensors are computed in their place within a larger one.

In:  a computed tensor and the only one that reads it, which may be put together from pieces, as by concatenation or
padding, of which the first is one. Out: `placed_once`: whether there is a loop for that piece, so that computing it
there costs no more than elsewhere; `pieces_around`: of how many pieces it is one, where all points compute them all.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynajit.loopir.index import Axis, Index, linearise
from dynajit.loopir.nodes import Const, Op, Pointwise, Position, Read, Scalar, Scan, Tensor, scalars_in

# A loop that is cut for each piece has none that is shorter, and no more pieces.
SHORTEST_LOOP = 16
MAX_PIECES = 4


Reads = tuple[tuple[Tensor, tuple[Index, ...] | None], ...]


def pieces_around(item: Tensor, reader: Tensor) -> int:
    """Of how many pieces that lie along one axis of `reader` is `item` one, each element of it in one place? Otherwise
    none."""
    nodes, read = _piece(item, reader)
    return 0 if read is None else 1 + sum(isinstance(node, Op) and node.name == "guard" for node in nodes)


def placed_once(item: Tensor, reader: Tensor, read: Reads) -> bool:
    """Does `reader` need each element of `item` in one place at most, which is in a piece of it that has a loop of its
    own? `read`: what `item` reads. Elements that lie side by side are made of such that do: a kernel that turns what
    it reads has no loops for pieces."""
    along = _innermost(reader)
    if along is None or any(type(size) is not int for size in (*item.shape, *reader.shape)):
        return False
    nodes, own = _piece(item, reader)
    if along.size < SHORTEST_LOOP or own is None:
        return False
    at = zip(map(_only_axis, item.axes), map(_only_axis, own.position), strict=True)
    inside = next((axis for axis, outside in at if outside is along), None)
    others = [(node.tensor, node.position) for node in nodes if isinstance(node, Read) and node.tensor is not item]
    steps = [step(tensor, position, along) for tensor, position in others]
    steps += [step(tensor, at, inside) for tensor, at in read if at is not None and 4 * tensor.numel >= item.numel]
    return max(steps, default=0) <= 1


def _piece(item: Tensor, reader: Tensor) -> tuple[list[Scalar], Read | None]:
    """What an element of `reader` is made of, and its only read of `item` if that is in one of a few pieces."""
    if not isinstance(reader, Pointwise) or isinstance(reader, Scan):
        return [], None
    nodes = list(scalars_in(reader.body))
    own = [node for node in nodes if isinstance(node, Read) and node.tensor is item]
    return nodes, own[0] if len(own) == 1 and _in_one_piece(own[0], nodes, reader) else None


def _in_one_piece(read: Read, nodes: Sequence[Scalar], reader: Tensor) -> bool:
    """Is each element that is read there read once, in one of a few pieces along one axis?"""
    guards = [node for node in nodes if isinstance(node, Op) and node.name == "guard"]
    asked = {axis for guard in guards for axis in _asked(guard.arguments[0])}
    if len(guards) >= MAX_PIECES or len(asked) != 1 or None in asked:
        return False
    # along an axis of pieces that are one long each, as of a stack, there is one place for it
    ones = {axis for axis in asked if axis is not None and axis.size == len(guards) + 1}
    return {_only_axis(own) for own in reader.axes if own.terms} <= {*map(_only_axis, read.position), *ones}


def _only_axis(index: Index) -> Axis | None:
    """The axis that the index runs along, one by one."""
    if len(index.terms) == 1 and index.terms[0][1] == 1 and isinstance(index.terms[0][0], Axis):
        return index.terms[0][0]
    return None


def _innermost(tensor: Tensor) -> Axis | None:
    """The axis along which neighbours in memory lie."""
    found = [axis for axis, step in zip(map(_only_axis, tensor.axes), tensor.stride, strict=True) if axis and step == 1]
    return found[-1] if found else None


def _asked(condition: Scalar) -> set[Axis | None]:
    """The axes of which the condition asks; None: something else."""
    return {
        _only_axis(node.index) if isinstance(node, Position) else None
        for node in scalars_in(condition)
        if not isinstance(node, (Const, Op)) or (isinstance(node, Op) and node.name not in ("lt", "ge", "and"))
    }


def step(tensor: Tensor, position: tuple[Index, ...], along: Axis | None) -> int:
    """How far apart in memory what is read of `tensor` for neighbours along the axis lies."""
    place = linearise(position, tensor.stride)
    return max((abs(factor) if atom is along else 0 for atom, factor in place.terms), default=0)
