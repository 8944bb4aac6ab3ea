"""What makes more memory than it lets go of runs as late as it can.

In:  units in an order in which they may run, and what each reads. Out: `sunk`, the same units in another such order:
a unit whose results are larger than what dies with it stands before the first that needs them. In a backward graph
these are values that are computed again, and gradients of weights that others are added to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynajit.loopir.nodes import Scatter, Tensor
from dynajit.loopir.size import hint_of
from dynajit.schedule.fuse import Call, Group, Reading, Unit, values_in

# Calls that do nothing but compute, by the names of their operators.
_PURE = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "cat", "clone"))
# Less than this is not worth an order other than the graph's.
LEAST_BYTES = 1 << 16


def sunk(units: Sequence[Unit], reads: Mapping[Tensor, tuple[Reading, ...]], fixed: set[Tensor]) -> list[Unit]:
    """The units in their new order. `fixed`: tensors that are stored in others' memory; who makes them stays."""
    following: dict[Unit, set[Unit]] = {}
    for unit in units:
        for other in unit.before:
            following.setdefault(other, set()).add(unit)
    later: list[Unit] = []  # from here on, the next first
    read_later: set[Tensor] = set()
    for unit in reversed(units):
        place, read = 0, _read_by(unit, reads)
        if _may_move(unit, fixed):
            dying = sum(map(_bytes, read - read_later))
            made = sum(map(_bytes, _made_by(unit)))
            if made > dying + LEAST_BYTES:
                place = _place(later, following.get(unit, set()))
        later.insert(place, unit)
        read_later |= read
    return later


def _place(later: Sequence[Unit], following: set[Unit]) -> int:
    for place, unit in enumerate(later):
        if unit in following or (isinstance(unit, Call) and (unit.extern.mutates or unit.extern.barrier)):
            return place
    return 0


def _may_move(unit: Unit, fixed: set[Tensor]) -> bool:
    if isinstance(unit, Call):
        return str(unit.extern.target) in _PURE
    return not any(tensor in fixed or isinstance(tensor, Scatter) for tensor in (*unit.members, *unit.stored))


def _read_by(unit: Unit, reads: Mapping[Tensor, tuple[Reading, ...]]) -> set[Tensor]:
    if isinstance(unit, Group):
        return {tensor for member in unit.members for tensor, _ in reads[member]}
    return {value.root for value in values_in((unit.extern.args, unit.extern.kwargs))}


def _made_by(unit: Unit) -> list[Tensor]:
    made = unit.stored if isinstance(unit, Group) else unit.extern.results
    return [tensor for tensor in made if isinstance(tensor, Tensor)]


def _bytes(tensor: Tensor) -> int:
    return hint_of(tensor.numel) * tensor.dtype.itemsize
