"""Which views and copies keep the order of a tensor's elements.

In:  a node of an ATen graph, and steps back from it through views and copies.
Out: `LayoutTracker`: after each step, whether the elements are in the same row-major order as at the start.
     Permutations may follow one another if they undo each other. One more operator: a case in `LayoutTracker.back`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from dynajit.graph.meta import value_of

aten = torch.ops.aten

VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
COPIES = (aten.clone.default, aten.alias.default, aten.detach.default)


def shape_of(node: Node) -> tuple[Any, ...]:
    """The sizes of the tensor that the node gives."""
    return tuple(node.meta["val"].shape)


class LayoutTracker:
    """`places[i]` is the dimension of the tensor at hand that is dimension i of the last one in whose order the
    elements are; None: one of size 1 that it does not have."""

    def __init__(self, node: Node) -> None:
        self.places: list[int | None] = list(range(len(shape_of(node))))

    def identity(self) -> bool:
        """Whether the dimensions are the same, one by one."""
        return self.places == list(range(len(self.places)))

    def settled(self, node: Node) -> bool:
        """Whether the elements of the node, which is at hand, are in the same order."""
        sizes = shape_of(node)
        kept = [place for place in self.places if place is not None and not _is_one(sizes[place])]
        return kept == [place for place, size in enumerate(sizes) if not _is_one(size)]

    def back(self, node: Node) -> Node | None:
        """What this view or copy was made of, which is at hand from now on. None: it is neither."""
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or not isinstance(value_of(source), torch.Tensor):
            return None
        rank = len(shape_of(source))
        if node.target in COPIES:
            return source
        if node.target is aten.expand.default:
            return source if [*map(str, shape_of(source))] == [*map(str, shape_of(node))] else None
        if node.target in VIEWS:
            if not self.settled(node):
                return None
            self.places = list(range(rank))
            return source
        moved = _dims(node, rank)
        if moved is None:
            return None
        self.places = [None if place is None else moved[place] for place in self.places]
        return source


def _dims(node: Node, rank: int) -> list[int | None] | None:
    """For each dimension of the result the dimension of the input that it is."""
    dims: list[int | None] = list(range(rank))
    args: Any = node.args
    if node.target is aten.permute.default:
        return [dim % rank for dim in args[1]]
    if node.target is aten.transpose.int and rank:
        first, second = args[1] % rank, args[2] % rank
        dims[first], dims[second] = dims[second], dims[first]
        return dims
    if node.target is aten.t.default:
        return dims[::-1]
    if node.target is aten.unsqueeze.default:
        dims.insert(args[1] % (rank + 1), None)
        return dims
    if node.target in (aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default):
        gone = range(rank) if len(args) == 1 else [args[1]] if isinstance(args[1], int) else args[1]
        ones = {dim % rank for dim in gone if _is_one(shape_of(node.args[0])[dim])}  # type: ignore[arg-type]
        return [dim for dim in dims if dim not in ones]
    return None


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
