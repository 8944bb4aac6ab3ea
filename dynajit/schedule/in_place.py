"""Kernels that store their result over what they read, where nothing reads that any more.

In:  units in the order in which they run, what each reads, what must stay. Out: `taken_over`: computed tensors -> the
tensor in whose memory they are stored; `donors`: the same for inputs, which the call decides. A kernel reads an element
for the last time in the loop over a row in which it stores there, before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import torch

from dynajit.loopir.index import Index, linearise, substitute
from dynajit.loopir.nodes import Pointwise, Reduction, Tensor, domain_of
from dynajit.schedule.fuse import ALONE, Call, Group, Reading, Unit, read_by, read_by_call
from dynajit.schedule.loops import replacement

# Of so many inputs it is asked at each call whether they may be stored over.
MAX_DONORS = 2


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
    busy = {*kept, *elsewhere, *shared(units)}
    found: dict[Tensor, Tensor] = {}
    there: set[Tensor] = set()  # in memory
    for number, unit in enumerate(units):
        if isinstance(unit, Call):
            there.update(result for result in unit.extern.results if isinstance(result, Tensor))
            continue
        for source in _movable(unit, elsewhere):
            for target in _read_with(unit, source, reads):
                dies = target in there and target not in busy and last.get(target) == number
                memory = found.get(target, target)
                alike = (source.shape, source.stride) == (memory.shape, memory.stride)
                if dies and (alike or source not in kept or source in whole) and _fits(unit, source, target, reads):
                    found[source] = memory
                    busy.add(target)
                    break
        there.update(unit.stored)
    return found


def donors(
    units: Sequence[Unit],
    reads: Mapping[Tensor, tuple[Reading, ...]],
    stored_in: Mapping[Tensor, Tensor],
    given: Set[Tensor],
) -> dict[Tensor, list[Tensor]]:
    """Computed tensors -> which of the inputs `given` they may be stored over by the last kernel that reads it, if it
    turns out that nobody else holds its memory: what forward saved. `stored_in`: what is stored elsewhere. One may be
    there for several: the first takes it."""
    last = _last_readers(units, reads)
    elsewhere = {*stored_in, *stored_in.values()}
    free = set(given) - elsewhere - shared(units)
    found: dict[Tensor, list[Tensor]] = {}
    for number, unit in enumerate(units):
        if isinstance(unit, Call):
            continue
        for source in _movable(unit, elsewhere):
            dying = [tensor for tensor in _read_with(unit, source, reads) if tensor in free and last[tensor] == number]
            fitting = [tensor for tensor in dying if _fits(unit, source, tensor, reads)]
            if fitting:
                found[source] = fitting[:MAX_DONORS]
    return found


def _movable(unit: Group, elsewhere: Set[Tensor]) -> Iterator[Pointwise]:
    """What the unit stores in memory that is its own to choose, element by element."""
    if not (unit.bounds or isinstance(unit.members[0], ALONE)):
        for source in unit.stored:
            if isinstance(source, Pointwise) and source not in elsewhere and source not in unit.rows:
                yield source


def _read_with(unit: Group, source: Tensor, reads: Mapping[Tensor, tuple[Reading, ...]]) -> Iterator[Tensor]:
    """What the kernel reads, for the source first."""
    return iter(dict.fromkeys(tensor for member in (source, *unit.members) for tensor, _ in reads[member]))


def _fits(unit: Group, source: Tensor, target: Tensor, reads: Mapping[Tensor, tuple[Reading, ...]]) -> bool:
    """Is each element of `target` read only where the element of `source` that takes its place is stored, and in no
    later loop? Rows of float16 stay apart: blocks of them are converted at once where nothing writes to them."""
    if source.dtype is not target.dtype or source.numel != target.numel:
        return False
    place = linearise(source.axes, source.stride)

    def in_its_place(member: Tensor, position: tuple[Index, ...] | None) -> bool:
        if position is None or domain_of(member) != source.shape:
            return False
        own = member.place if isinstance(member, Reduction) else member.axes
        at = linearise(position, target.stride)
        return substitute(at, replacement(own, source.axes)) == place

    return all(
        in_its_place(member, position)
        for member in unit.members
        for tensor, position in reads[member]
        if tensor is target
    ) and (not unit.reduces or (source.dtype is not torch.float16 and _is_over(unit, source, target, reads)))


def _is_over(unit: Group, source: Tensor, target: Tensor, reads: Mapping[Tensor, tuple[Reading, ...]]) -> bool:
    """Is there nothing to be computed of `target` after the loop in which `source` is stored? What is neither stored
    nor a value of the row may be computed once more by whoever reads it."""
    loops: dict[Tensor, int] = {}  # that are over when it is there; see `_Draft._find_levels`
    for member in unit.members:
        read = [loops.get(tensor, 0) for tensor, _ in reads[member]]
        loops[member] = max(read, default=0) + isinstance(member, Reduction)
    made_of_it = {target}
    for member in unit.members:
        if not made_of_it.isdisjoint(tensor for tensor, _ in reads[member]):
            reduces = isinstance(member, Reduction)
            if loops[member] - reduces > loops[source]:
                return False
            if not reduces and member not in unit.stored:
                made_of_it.add(member)
    return True


def _last_readers(units: Sequence[Unit], reads: Mapping[Tensor, tuple[Reading, ...]]) -> dict[Tensor, int]:
    last: dict[Tensor, int] = {}
    for number, unit in enumerate(units):
        last.update(dict.fromkeys(read_by(unit, reads), number))
    return last


def shared(units: Sequence[Unit]) -> set[Tensor]:
    """Tensors that results of calls may share their memory with, and such results."""
    found: set[Tensor] = set()
    for unit in units:
        if isinstance(unit, Call) and (unit.extern.aliases or unit.extern.mutates or unit.extern.barrier):
            found |= read_by_call(unit.extern)
            found.update(result for result in unit.extern.results if isinstance(result, Tensor))
    return found
