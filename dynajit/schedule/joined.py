"""Pieces of what a call puts together, computed where they lie within it.

In:  the schedule of a program for a CPU. Out: `place_pieces`: the stacks and concatenations of more pieces than one
kernel takes, as of the steps of a loop, and where in the memory of their result the pieces lie that kernels compute:
these are stored there, with its strides, and never on their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass

import torch

from dynajit.loopir.nodes import Pointwise, Reduction, StoredTensor, Tensor, View, axes_for
from dynajit.schedule.fuse import ALONE, Call, Group, Schedule, read_by_call
from dynajit.schedule.in_place import shared
from dynajit.schedule.pieces import SHORTEST_LOOP

aten = torch.ops.aten


@dataclass(slots=True)
class Joined:
    """A call whose result's memory the pieces are written to. `places`: for each argument its strides in that memory
    and where its first element lies; `computed`: those of them that kernels store there."""

    call: Call
    memory: StoredTensor
    pieces: list[View]
    places: list[tuple[tuple[int, ...], int]]
    computed: dict[Tensor, int]  # -> the number of the piece

    def copied(self) -> Iterator[int]:
        """The numbers of the pieces that come from elsewhere."""
        return (number for number in range(len(self.pieces)) if number not in self.computed.values())


def place_pieces(schedule: Schedule, kept: Set[Tensor]) -> list[Joined]:
    """The calls that are not made, as most of their pieces are computed in their place: these tensors have the strides
    of the result from now on. `kept`: tensors in memory of their own."""
    made_by = {tensor: unit for unit in schedule.units if isinstance(unit, Group) for tensor in unit.stored}
    taken = {*kept, *schedule.stored_in, *schedule.stored_in.values(), *shared(schedule.units)}
    found: list[Joined] = []
    for call in schedule.units:
        joined = _joined(call) if isinstance(call, Call) else None
        if joined is None:
            continue
        strides: dict[Tensor, tuple[int, ...]] = {}
        for number, (piece, (stride, _)) in enumerate(zip(joined.pieces, joined.places, strict=True)):
            root = piece.root
            group = made_by.get(root)
            if (
                group is None
                or root in taken
                or isinstance(group.members[0], ALONE)
                or root.dtype is not joined.memory.dtype
            ):
                continue
            there = _strides(piece, stride)
            if there is None or (there != root.stride and _called(root, schedule, joined.call)):
                continue
            joined.computed[root], strides[root] = number, there
            taken.add(root)
        if 2 * len(joined.computed) > len(joined.pieces):
            for root, there in strides.items():
                root.stride = there
            found.append(joined)
        else:
            taken.difference_update(joined.computed)
    return found


def _joined(call: Call) -> Joined | None:
    """A stack or concatenation, with nothing computed in place yet."""
    target, args, results = call.extern.target, call.extern.args, call.extern.results
    if (
        target not in (aten.stack.default, aten.cat.default)
        or call.extern.kwargs
        or not isinstance(results[0], StoredTensor)
    ):
        return None
    memory, pieces = results[0], list(args[0])
    if not all(isinstance(piece, View) for piece in pieces):
        return None
    sizes = (*memory.shape, *(size for piece in pieces for size in piece.shape))
    if not all(type(size) is int for size in (*sizes, *memory.stride)):
        return None
    dim = (args[1] if len(args) > 1 else 0) % len(memory.shape)
    stride, start = memory.stride, 0
    places = []
    for piece in pieces:
        if target is aten.stack.default:
            places.append(((*stride[:dim], *stride[dim + 1 :]), start * stride[dim]))
            start += 1
        elif len(piece.shape) == len(memory.shape):
            places.append((stride, start * stride[dim]))
            start += piece.shape[dim]
        else:
            return None  # a piece without elements
    return Joined(call, memory, pieces, places, {})


def _strides(piece: View, stride: tuple[int, ...]) -> tuple[int, ...] | None:
    """Those of the tensor that the piece is a view of, where it lies with these; None where it is not all of it, or no
    longer runs along memory."""
    root = piece.root
    if not isinstance(root, (Pointwise, Reduction)) or root.numel != math.prod(piece.shape):
        return None
    axes = axes_for(piece.shape)
    found = []
    for at, size, own in zip(piece.position, root.shape, root.stride, strict=True):
        if size == 1:
            found.append(own)
        elif at in axes:
            found.append(stride[axes.index(at)])
        else:
            return None
    runs = [
        (size, there) for size, own, there in zip(root.shape, root.stride, found, strict=True) if own == 1 and size > 1
    ]
    return tuple(found) if any(there == 1 and size >= SHORTEST_LOOP for size, there in runs) else None


def _called(tensor: Tensor, schedule: Schedule, but: Call) -> bool:
    """Does another call read it, which may depend on its strides?"""
    return any(
        isinstance(unit, Call) and unit is not but and tensor in read_by_call(unit.extern) for unit in schedule.units
    )
