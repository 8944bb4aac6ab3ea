"""Tensors that are large, and cheap to compute of little: differences of all pairs, windows of an image.

In:  a `Program`. Out: `fuse_spread`: its schedule, in which such a tensor is not stored for several kernels to read,
but computed by each of them: the program is grouped once, and once more without what turned out to be stored so. The
second is taken where less memory is in use at once. So is a grouping in which a kernel that is too long has more places
to be cut at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set

from dynajit.loopir.nodes import (
    Extern,
    Op,
    Pointwise,
    Position,
    Program,
    Read,
    Reduction,
    Scalar,
    Scan,
    Scatter,
    Tensor,
    axes_for,
    axis_of,
    domain_of,
    scalars_in,
)
from dynajit.loopir.ops import OPS
from dynajit.loopir.size import hint_of, is_symbolic
from dynajit.nested import reached
from dynajit.schedule.fuse import Group, Schedule, fuse, made_by, read_by, values_in
from dynajit.schedule.pieces import step
from dynajit.schedule.target import KernelTarget

# So many times as large as all that it is made of, where it is not read as it lies; less in bytes stays in a cache.
SPREAD, MIN_BYTES = 2, 1 << 16
# What may be done in all for each element by those who have it from nobody then.
COST = 16
# Of the memory in use at once, this part is worth it.
GAIN = 0.1


def fuse_spread(program: Program, target: KernelTarget) -> Schedule:
    """As `fuse`, with less in memory."""
    schedule = fuse(program, target)
    if not target.spreads:
        return schedule
    outputs = {value.root for value in values_in(program.outputs)}

    def smaller(other: Schedule) -> bool:
        return _most_at_once(other, outputs) <= (1 - GAIN) * _most_at_once(schedule, outputs)

    again = _Spread(schedule, _written(program)).found()
    if again:
        other = fuse(program, target, again)
        if smaller(other):
            schedule = other
        else:
            again.clear()
    if any(isinstance(unit, Group) and unit.piece for unit in schedule.units):
        other = fuse(program, target, again, finer=True)
        schedule = other if smaller(other) else schedule
    return schedule


def _written(program: Program) -> set[Tensor]:
    """What something is stored over: it is read no later than the graph says."""
    scatters = {item.base for item in program.items if isinstance(item, Scatter)}
    return scatters.union(*(item.mutates for item in program.items if isinstance(item, Extern)))


class _Spread:
    """What a schedule stores, though it is spread out of little. `written`: what may not be read later than it is."""

    def __init__(self, schedule: Schedule, written: Set[Tensor]) -> None:
        self.schedule = schedule
        self.written = written
        self.groups = [unit for unit in schedule.units if isinstance(unit, Group)]
        self.readers: dict[Tensor, list[tuple[Group, Tensor]]] = {}
        for group in self.groups:
            for member in group.members:
                for tensor in dict.fromkeys(tensor for tensor, _ in schedule.reads[member]):
                    self.readers.setdefault(tensor, []).append((group, member))

    def found(self) -> set[Tensor]:
        """Tensors that are better computed wherever they are read."""
        found: set[Tensor] = set()
        for group in self.groups:
            for tensor in group.stored:
                if tensor not in self.schedule.needed and tensor.nbytes >= MIN_BYTES:
                    own = set(self._registers(tensor, group))
                    if self._better_computed(tensor, own, group):
                        found |= own
        return found

    def _better_computed(self, tensor: Tensor, own: set[Tensor], group: Group) -> bool:
        """`own`: the tensor and what is computed for it in its group."""
        if not all(map(self._may_be_computed, own)):
            return False
        readers = [pair for each in own for pair in self.readers[each] if pair[1] not in own]
        times = sum(other is not group for other, _ in readers)
        sources = {source for each in own for source, _ in self.schedule.reads[each]} - own
        cost = sum(map(self._cost, own))
        # what moves elements, or is read side by side, is made of as many
        alike = not cost or all(self._reads_contiguously(reader, own) for _, reader in readers)
        spread = 1 if alike else SPREAD
        kept = self._read_anyway(own, readers) if alike else set()
        return (
            sources.isdisjoint(self.written)
            and spread * sum(source.nbytes for source in sources - kept) <= tensor.nbytes
            and times * cost <= COST
            and not any(hint_of(math.prod(domain_of(reader))) > hint_of(tensor.numel) for _, reader in readers)
        )

    def _read_anyway(self, own: set[Tensor], readers: list[tuple[Group, Tensor]]) -> set[Tensor]:
        """What each kernel that reads some of `own` reads beside, for something else: it is there all the same."""
        beside = [
            {source for member in group.members if member not in own for source, _ in self.schedule.reads[member]}
            for group in {group for group, _ in readers}
        ]
        return set.intersection(*beside) if beside else set()

    def _reads_contiguously(self, reader: Tensor, own: Set[Tensor]) -> bool:
        """Does it read what lies side by side, one after the other?"""
        if isinstance(reader, Scatter):
            places = reader.inner
        else:
            places = reader.place if isinstance(reader, Reduction) else axes_for(reader.shape)
        along = next((axis_of(place) for place in reversed(places) if place.terms), None)
        found = ((tensor, at) for tensor, at in self.schedule.reads[reader] if tensor in own)
        return all(at is not None and step(tensor, at, along) <= 1 for tensor, at in found)

    def _registers(self, tensor: Tensor, group: Group) -> Iterator[Tensor]:
        """The tensor and what it is made of that is not in memory."""
        here = set(group.members).difference(group.stored, group.rows)
        return reached([tensor], lambda each: (source for source, _ in self.schedule.reads[each] if source in here))

    def _may_be_computed(self, tensor: Tensor) -> bool:
        return isinstance(tensor, Pointwise) and not isinstance(tensor, Scan) and not is_symbolic(tensor.shape)

    def _cost(self, tensor: Tensor) -> int:
        """For an element, without what only its place decides: loops are cut there."""
        assert isinstance(tensor, Pointwise)
        cost = 0
        for node in scalars_in(tensor.body):
            if isinstance(node, Op) and not _of_places(node):
                cost += OPS[node.name].cost if node.name != "convert" else 0
            elif isinstance(node, Read) and node.tensor in self.schedule.inlined:
                cost += self._cost(node.tensor)
        return cost


def _of_places(node: Op) -> bool:
    """Is it a choice by the place, or a part of what is asked for one?"""

    def asks(scalar: Scalar) -> bool:
        return all(not isinstance(each, Read) for each in scalars_in(scalar))

    return node.name == "guard" or (asks(node) and any(isinstance(each, Position) for each in scalars_in(node)))


def _most_at_once(schedule: Schedule, outputs: Set[Tensor]) -> int:
    """Bytes in use during the unit during which they are most."""
    last: dict[Tensor, int] = {}
    made: dict[Tensor, int] = {}
    for number, unit in enumerate(schedule.units):
        last.update(dict.fromkeys(read_by(unit, schedule.reads), number))
        made.update(dict.fromkeys(made_by(unit), number))
    change = [0] * (len(schedule.units) + 1)
    for tensor, number in made.items():
        if tensor not in schedule.stored_in:
            change[number] += tensor.nbytes
            end = len(schedule.units) if tensor in outputs else last.get(tensor, number) + 1
            change[end] -= tensor.nbytes
    most = used = 0
    for each in change:
        used += each
        most = max(most, used)
    return most
