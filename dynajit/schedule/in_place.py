"""Kernels that store their result over what they read, where nothing reads that any more.

In:  units in the order in which they run, what each reads, what must stay. Out: `taken_over`: computed tensors -> the
tensor in whose memory they are stored. Only kernels without reductions: each reads an element before it stores there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from dynajit.loopir.index import linearise
from dynajit.loopir.nodes import Pointwise, Tensor
from dynajit.schedule.fuse import ALONE, Call, Group, Reading, Unit, read_by, read_by_call


def taken_over(
    units: Sequence[Unit],
    reads: Mapping[Tensor, tuple[Reading, ...]],
    stored_in: Mapping[Tensor, Tensor],
    kept: Set[Tensor],
    whole: Set[Tensor] = frozenset(),
) -> dict[Tensor, Tensor]:
    """`stored_in`: what is stored elsewhere already. `kept`: tensors whose memory is not the graph's to write, or is
    returned; `whole`: those of them that are returned as they are, with no view of them, so that they may have a shape
    of their own in the memory that they take over."""
    last = _last_readers(units, reads)
    elsewhere = {*stored_in, *stored_in.values()}
    busy = {*kept, *elsewhere, *_shared(units)}
    found: dict[Tensor, Tensor] = {}
    there: set[Tensor] = set()  # in memory
    for number, unit in enumerate(units):
        if isinstance(unit, Call):
            there.update(result for result in unit.extern.results if isinstance(result, Tensor))
            continue
        if not (unit.reduces or unit.rows or isinstance(unit.members[0], ALONE)):
            for source in unit.stored:
                if source in elsewhere or not isinstance(source, Pointwise):
                    continue
                for target in dict.fromkeys(tensor for tensor, _ in reads[source]):
                    dies = target in there and target not in busy and last.get(target) == number
                    memory = found.get(target, target)
                    alike = (source.shape, source.stride) == (memory.shape, memory.stride)
                    if dies and (alike or source not in kept or source in whole) and _fits(unit, source, target, reads):
                        found[source] = memory
                        busy.add(target)
                        break
        there.update(unit.stored)
    return found


def _fits(unit: Group, source: Tensor, target: Tensor, reads: Mapping[Tensor, tuple[Reading, ...]]) -> bool:
    """Is each element of `target` read only where the element of `source` that takes its place is stored?"""
    if source.dtype is not target.dtype or source.numel != target.numel:
        return False
    place = linearise(source.axes, source.stride)
    return all(
        member.shape == source.shape
        and position is not None
        and member.axes == source.axes
        and linearise(position, target.stride) == place
        for member in unit.members
        for tensor, position in reads[member]
        if tensor is target
    )


def _last_readers(units: Sequence[Unit], reads: Mapping[Tensor, tuple[Reading, ...]]) -> dict[Tensor, int]:
    last: dict[Tensor, int] = {}
    for number, unit in enumerate(units):
        last.update(dict.fromkeys(read_by(unit, reads), number))
    return last


def _shared(units: Sequence[Unit]) -> set[Tensor]:
    """Tensors that results of calls may share their memory with, and such results."""
    found: set[Tensor] = set()
    for unit in units:
        if isinstance(unit, Call) and (unit.extern.aliases or unit.extern.mutates or unit.extern.barrier):
            found |= read_by_call(unit.extern)
            found.update(result for result in unit.extern.results if isinstance(result, Tensor))
    return found
