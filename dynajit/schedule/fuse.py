"""Which computed tensors are computed together.

In:  a `Program` of the loop IR.
Out: `Schedule`: groups (one kernel each) and extern calls in an order in which they can run, and for each group the
     tensors it stores. A tensor that is neither stored nor used across groups exists in registers only; a cheap one
     is computed again wherever it is read (`inlined`).
To fuse more: `_Fusion._can_join`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from dynajit.loopir.index import Atom, Index, contiguous_strides, linearise, substitute, unravel
from dynajit.loopir.nodes import (
    Extern,
    Fetch,
    NameRef,
    Op,
    Pointwise,
    Program,
    Read,
    Reduction,
    Scalar,
    Scan,
    Scatter,
    Shape,
    StoredTensor,
    Tensor,
    View,
    axis_of,
    domain_of,
    expressions_of,
    scalars_in,
)
from dynajit.loopir.ops import CHECKS, OPS
from dynajit.loopir.size import is_symbolic
from dynajit.nested import leaves_in, reached
from dynajit.schedule import split
from dynajit.schedule.beside import run_together
from dynajit.schedule.pieces import pieces_around, placed_once
from dynajit.schedule.target import CPU, KernelTarget

# A tensor that costs no more than this to compute again from one read is computed again rather than stored.
CHEAP = 3
# What is computed at fewer places than it is read at should not cost more than this.
CHEAP_BROADCAST = 3
# What has branches in it, and more elements than this for each that it is made of, is a kernel where several read it.
ENLARGED = 2
# Pieces that all points of what is put together from them compute cost no more than this together.
CHEAP_PIECES = 64
MAX_MEMBERS = 512
# How many of the last units a tensor may join that it does not read from.
BESIDE = 4
# Kernels of no more points than this do nothing worth a launch of their own.
TINY = 4096
# So many units back a kernel is looked for that reads the same memory.
SIBLINGS_BACK = 32

# So many results of calls, each of so many bytes or more, are added up at a time.
SUMMED_AT_ONCE, MIN_SUMMED_BYTES = 4, 1 << 14

# These are kernels of their own, with what is inlined in them.
ALONE = (Scan, Scatter)

# So many kernels that are alike may be steps of a loop.
MIN_STEPS = 4

# Which tensor is read, and where; None: anywhere.
Reading = tuple[Tensor, tuple[Index, ...] | None]


@dataclass(eq=False, slots=True)
class Group:
    """Tensors computed in one kernel. `shape` and `outer` are the domain all share, adjacent dimensions of a kind
    merged; `full` members have an element for each point of it, `rows` one for each combination of the outer
    dimensions."""

    shape: Shape
    outer: tuple[bool, ...]
    members: list[Tensor] = field(default_factory=list)
    rows: set[Tensor] = field(default_factory=set)
    stored: list[Tensor] = field(default_factory=list)
    before: set[Unit] = field(default_factory=set)
    first: int = 0
    last: int = 0
    piece: bool = False  # of a group that was too long
    common: set[Tensor] = field(default_factory=set)  # what other steps of a loop read too, maybe other parts of it

    @property
    def numel(self) -> int:
        """Points of the domain."""
        return math.prod(self.shape)

    @property
    def row_numel(self) -> int:
        """Points of the outer dimensions."""
        return math.prod([size for size, outer in zip(self.shape, self.outer, strict=True) if outer])

    @property
    def bounds(self) -> tuple[Scalar, ...]:
        """Those of the reductions, all of which have the same."""
        return next((member.bounds for member in self.members if isinstance(member, Reduction)), ())

    @property
    def reduces(self) -> bool:
        """Is there a reduction among the members?"""
        return not all(self.outer)


@dataclass(eq=False, slots=True)
class Call:
    """An extern call as a unit of the schedule."""

    extern: Extern
    before: set[Unit] = field(default_factory=set)
    first: int = 0
    last: int = 0


Unit = Group | Call


@dataclass(slots=True)
class Schedule:
    """Units in order of execution, and the tensors that are computed again wherever they are read."""

    units: list[Unit]
    inlined: set[Tensor]
    stored_in: dict[Tensor, Tensor] = field(default_factory=dict)  # where that is another tensor's memory
    reads: dict[Tensor, tuple[Reading, ...]] = field(default_factory=dict)  # of members, through what is inlined
    whole: set[Tensor] = field(default_factory=set)  # returned, and nothing else is left of that other tensor
    needed: frozenset[Tensor] = frozenset()  # in memory, whatever the groups
    donors: dict[Tensor, list[Tensor]] = field(default_factory=dict)  # stored over one, if nobody else holds its memory


def made_by(unit: Unit) -> list[Tensor]:
    """The tensors in memory that it gives."""
    made = unit.stored if isinstance(unit, Group) else unit.extern.results
    return [tensor for tensor in made if isinstance(tensor, Tensor)]


def fuse(
    program: Program, target: KernelTarget = CPU, again: Set[Tensor] = frozenset(), finer: bool = False
) -> Schedule:
    """Group the program's tensors. `again`: those computed wherever they are read. `finer`: see `split.gathers`."""
    return _Fusion(program, target, again, finer).run()


def collapsed(shape: Shape, outer: Sequence[bool]) -> tuple[Shape, tuple[bool, ...]]:
    """The domain with adjacent dimensions of a kind merged and those of size 1 left out."""
    sizes: list[int] = []
    kinds: list[bool] = []
    for size, kind in zip(shape, outer, strict=True):
        if size == 1:
            continue
        if kinds and kinds[-1] == kind:
            sizes[-1] *= size
        else:
            sizes.append(size)
            kinds.append(kind)
    return tuple(sizes), tuple(kinds)


def row_of(full: Index, shape: Shape, outer: Sequence[bool]) -> Index:
    """The number of the row in which element number `full` of the domain is."""
    where = unravel(full, shape)
    kept = [(index, size) for index, size, is_outer in zip(where, shape, outer, strict=True) if is_outer]
    return linearise([index for index, _ in kept], contiguous_strides([size for _, size in kept]))


def values_in(tree: Any) -> Iterator[View]:
    """The `View`s in the arguments of an extern call."""
    return (leaf for leaf in leaves_in(tree) if isinstance(leaf, View))


def read_by_call(extern: Extern) -> set[Tensor]:
    """The tensors in the arguments of an extern call, and those that it holds."""
    return {*extern.holds, *(value.root for value in values_in((extern.args, extern.kwargs)))}


class _Fusion:
    """The state while grouping."""

    def __init__(self, program: Program, target: KernelTarget, again: Set[Tensor], finer: bool) -> None:
        self.program = program
        self.again, self.finer = again, finer
        self.target = target
        self.readers: dict[Tensor, list[Tensor]] = {}
        self.forced: set[Tensor] = set()
        self.inlined: set[Tensor] = set()
        self.apart: set[Tensor] = set()  # computed in a kernel of its own
        self.cost: dict[Tensor, int] = {}
        self.length: dict[Tensor, int] = {}  # of their text, as `split` counts
        self.reads: dict[Tensor, tuple[Reading, ...]] = {}
        self.unit_of: dict[Tensor | str, Unit] = {}  # of what is no tensor of the IR by its name
        self.units: list[Unit] = []

    def run(self) -> Schedule:
        live = self._live_items()
        self._count_uses(live)
        needed = frozenset(self.forced)
        calls: list[Call] = []
        barrier: Call | None = None
        for item in live:
            if isinstance(item, Extern):
                call = self._add_call(item, calls)
                barrier = call if item.barrier else barrier
            elif not self._inline(item):
                self._place(item, barrier)
        self._split_long()
        self._choose_stored()
        self._note_steps()
        stored_in: dict[Tensor, Tensor] = {}
        if self.target.stores_in_place:
            outputs = {value.root for value in values_in(self.program.outputs)}
            stored_in = store_in_place(self.units, self.reads, outputs, self.program.device, self.target.reads_first)
        for item in live:
            if isinstance(item, Scatter):
                stored_in[item] = stored_in.get(item.base, item.base)
        self._order_mutations()
        units = _in_order(self.units)
        return Schedule(units, self.inlined, stored_in, self.reads, needed=needed)

    # ---- uses

    def _live_items(self) -> list[Tensor | Extern]:
        """Items whose value is used, or that do more than give a value."""
        needed: set[Tensor] = {value.root for value in values_in(self.program.outputs)}
        live: list[Tensor | Extern] = []
        for item in reversed(self.program.items):
            if isinstance(item, Extern):
                used = any(result in needed for result in item.results if isinstance(result, Tensor))
                if (
                    used
                    or item.mutates
                    or item.barrier
                    or item.keep_order
                    or item.holds  # which is read until the wait
                    or any(isinstance(r, str) for r in item.results)
                ):
                    live.append(item)
                    needed |= read_by_call(item)
            elif item in needed or _updates_input(item):
                live.append(item)
                needed.update(tensor for tensor, _ in direct_reads(item))
        live.reverse()
        return live

    def _count_uses(self, live: list[Tensor | Extern]) -> None:
        segment = 0
        segments: dict[Tensor, int] = {}
        self.forced.update(value.root for value in values_in(self.program.outputs))
        for item in live:
            if isinstance(item, Extern):
                self.forced |= read_by_call(item)
                segment += item.barrier
                continue
            segments[item] = segment
            if _updates_input(item):
                self.forced.add(item)
            reads = direct_reads(item)
            self.forced.update(tensor for tensor, position in reads if position is None)
            for tensor in dict.fromkeys(tensor for tensor, _ in reads):
                self.readers.setdefault(tensor, []).append(item)
                if segments.get(tensor, segment) != segment:
                    self.forced.add(tensor)

    # ---- inlining

    def _inline(self, item: Tensor) -> bool:
        """Note what `item` reads once its inlined producers are looked through; decide whether it is one itself."""
        reads: dict[Reading, None] = {}
        cost, length = 0, split.REDUCTION * isinstance(item, Reduction)
        if isinstance(item, Scatter):
            reads[item.base, None] = None
        for node in _scalars_of(item):
            length += split.NODE * isinstance(node, (Op, Read))
            if isinstance(node, Op):
                cost += OPS[node.name].cost if node.name != "convert" else 0
                if isinstance(node, Fetch):
                    reads[node.tensor, None] = None
            elif isinstance(node, Read):
                if node.tensor in self.inlined:
                    cost += self.cost[node.tensor]
                    length += self.length[node.tensor] - self.cost[node.tensor]
                    for reading in self._reads_through(node):
                        reads[reading] = None
                else:
                    reads[node.tensor, node.position] = None
        self.cost[item], self.length[item] = cost, cost + length
        self.reads[item] = tuple(reads)
        if self.target.keeps_rows and item not in self.again and self._branches_often(item):
            self.apart.add(item)
            self.forced.add(item)
        if (
            isinstance(item, (Reduction, Scan, Scatter))
            or item in self.forced
            or self.length[item] > split.EXPRESSION
            or (self.finer and split.gathers(item, {tensor for tensor, _ in reads if tensor in self.unit_of}))
            or self._adds_up(item)
            or not self._worth_inlining(item, cost, len(reads))
        ):
            return False
        self.inlined.add(item)
        return True

    def _reads_through(self, node: Read) -> Iterator[Reading]:
        tensor = node.tensor
        replace: dict[Atom, Index] = {}
        for own, at in zip(tensor.axes, node.position, strict=True):
            atom = axis_of(own)
            if atom is not None and own is not at:
                replace[atom] = at
        for source, position in self.reads[tensor]:
            if position is not None and replace:
                position = tuple(substitute(index, replace) for index in position)
            yield source, position

    def _worth_inlining(self, item: Tensor, cost: int, reads: int) -> bool:
        if (reads == 0 and cost <= 2 * CHEAP) or item in self.again:
            return True
        if reads <= 1 and cost <= CHEAP:
            return True
        if self.target.forgets_broadcasts and cost <= CHEAP:
            large = [tensor for tensor, _ in self.reads[item] if 4 * tensor.numel > item.numel]
            if len(large) <= 1:
                return True
        readers = self.readers.get(item, [])
        if len(readers) != 1:
            return False
        reader = readers[0]
        if cost <= CHEAP_BROADCAST or math.prod(domain_of(reader)) <= item.numel:
            return True
        if self.target.cuts_loops:
            placed = placed_once(item, reader, self.reads[item])
        else:
            placed = 0 < cost * pieces_around(item, reader) <= CHEAP_PIECES
        if not placed:
            return False
        # what is in registers now would have to be stored for it
        held = {tensor for tensor, _ in self.reads[item] if isinstance(self.unit_of.get(tensor), Group)}
        return 2 * sum(tensor.numel for tensor in held - self.forced) <= item.numel

    def _adds_up(self, item: Tensor) -> bool:
        """Is it a part of a sum of the results of many calls? Added up a few at a time they need not all be there."""
        readers = self.readers.get(item, [])
        if not _is_sum(item) or len(readers) != 1 or not _is_sum(readers[0]) or not self.target.adds_up_early:
            return False
        calls = {tensor for tensor, _ in self.reads[item] if isinstance(self.unit_of.get(tensor), Call)}
        dying = [tensor for tensor in calls if tensor.shape == item.shape and len(self.readers[tensor]) == 1]
        if len(dying) < SUMMED_AT_ONCE or item.nbytes < MIN_SUMMED_BYTES:
            return False
        self.apart.add(item)
        return True

    def _branches_often(self, item: Tensor) -> bool:
        """Whether branches say for each of many places which of few elements is read, and that for several readers."""
        sources = {tensor for tensor, _ in self.reads[item]}
        if len(self.readers.get(item, [])) < 2 or is_symbolic((item.numel, *(tensor.numel for tensor in sources))):
            return False
        if item.numel <= ENLARGED * sum(tensor.numel for tensor in sources):
            return False
        return any(isinstance(node, Op) and node.name == "guard" for node in _scalars_of(item))

    # ---- grouping

    def _add_call(self, extern: Extern, calls: list[Call]) -> Call:
        call = Call(extern, first=extern.order, last=extern.order)
        for leaf in leaves_in((extern.args, extern.kwargs)):
            if isinstance(leaf, (View, NameRef)):
                self._depend(call, leaf.root if isinstance(leaf, View) else leaf.name)
        if extern.barrier:
            call.before.update(self.units)
        for other in reversed(calls):
            if other.extern.barrier or (extern.keep_order and other.extern.keep_order):
                call.before.add(other)
                if other.extern.barrier:
                    break
        for result in extern.results:
            if result is not None:
                self.unit_of[result] = call
        if extern.early:
            self.unit_of.update(dict.fromkeys(extern.mutates, call))
        calls.append(call)
        self.units.append(call)
        return call

    def _depend(self, unit: Unit, tensor: Tensor | str) -> None:
        producer = self.unit_of.get(tensor)
        if producer is not None and producer is not unit:
            unit.before.add(producer)

    def _place(self, item: Tensor, barrier: Call | None) -> None:
        """Into a group it reads from, or one of its own."""
        before = {self.unit_of[tensor] for tensor, _ in self.reads[item] if tensor in self.unit_of}
        if barrier is not None:
            before.add(barrier)
        candidates = sorted((u for u in before if isinstance(u, Group)), key=lambda g: g.last, reverse=True)
        others = self._siblings(item, candidates) if self.target.joins_siblings else self._beside(item, before)
        for group in (*candidates, *others):
            shape = self._can_join(group, item, before)
            if shape is not None:
                group.shape, group.outer, as_row = shape
                if as_row == "members":
                    group.rows.update(group.members)
                elif as_row == "item":
                    group.rows.add(item)
                break
        else:
            if isinstance(item, Reduction):
                group = Group(*collapsed(item.domain, item.outer_mask), first=item.order)
            elif isinstance(item, Scan):
                outer = [dim != item.dim for dim in range(len(item.shape))]
                group = Group(*collapsed(item.shape, outer), first=item.order)
            else:
                domain = domain_of(item)
                group = Group(*collapsed(domain, [True] * len(domain)), first=item.order)
            self.units.append(group)
        if isinstance(item, Reduction):
            group.rows.add(item)
        group.members.append(item)
        group.last = item.order
        group.before |= before - {group}
        self.unit_of[item] = group

    def _beside(self, item: Tensor, before: set[Unit]) -> Iterator[Group]:
        """Late groups over the same points that read from memory what `item` reads: read once together."""
        mine = {tensor for tensor, _ in self.reads[item] if tensor.numel > 1}
        if isinstance(item, Reduction):
            own: tuple[Any, Any] = collapsed(item.domain, item.outer_mask)
        else:
            own = collapsed(item.shape, [True] * len(item.shape))
        for unit in reversed(self.units[-BESIDE:]):
            if not isinstance(unit, Group) or unit in before or (unit.shape, unit.outer) != own:
                continue
            theirs = {tensor for member in unit.members for tensor, _ in self.reads[member]}
            apart = not mine & theirs or any(_depends(other, unit) for other in before)
            if not apart and run_together(item, unit.members, self.reads):
                yield unit

    def _siblings(self, item: Tensor, tried: list[Group]) -> Iterator[Group]:
        """Groups of the item's own domain that read what it reads, or that are as tiny as it is."""
        if not self.target.joins_siblings:
            return
        reduces = isinstance(item, Reduction)
        shape = collapsed(item.domain, item.outer_mask) if isinstance(item, Reduction) else None
        # What is small beside the domain is no reason: a vector that each row of a matrix is multiplied with is read
        # from a cache. Reductions take it as one all the same, for what is done with both of their results.
        read = {tensor for tensor, _ in self.reads[item] if reduces or 2 * tensor.numel >= item.numel}
        tiny = not reduces and item.numel <= TINY
        for unit in reversed(self.units[-SIBLINGS_BACK:]):
            if not isinstance(unit, Group) or unit in tried or unit.reduces != reduces:
                continue
            if (unit.shape, unit.outer) != shape if reduces else unit.numel != item.numel:
                continue
            if tiny or any(tensor in read for member in unit.members for tensor, _ in self.reads[member]):
                yield unit

    def _can_join(self, group: Group, item: Tensor, before: set[Unit]) -> tuple[Shape, tuple[bool, ...], str] | None:
        """The group's domain with `item` in it and who is a row; None if it doesn't fit."""
        if len(group.members) >= MAX_MEMBERS or isinstance(item, ALONE) or isinstance(group.members[0], ALONE):
            return None
        if item in self.apart or group.members[0] in self.apart:
            return None
        shape, outer, as_row = group.shape, group.outer, ""
        if isinstance(item, Reduction):
            own_shape, own_outer = collapsed(item.domain, item.outer_mask)
            if group.reduces:
                if (own_shape, own_outer) != (shape, outer) or item.bounds != group.bounds:
                    return None
            elif item.bounds:
                return None
            elif math.prod(own_shape) != group.numel:
                if item.numel != group.numel:
                    return None
                as_row = "members"
            shape, outer = own_shape, own_outer
        elif item.numel != group.numel or group.bounds:
            if not group.reduces or item.numel != group.row_numel:
                return None
            as_row = "item"
        if not self._aligned(group, item, shape, outer, as_row) or self._needs_whole_rows(group, item, as_row):
            return None
        if any(unit is not group and _depends(unit, group) for unit in before):
            return None
        return shape, outer, as_row

    def _needs_whole_rows(self, group: Group, item: Tensor, as_row: str) -> bool:
        """Does `item` loop over rows again that the target cuts in pieces?"""
        if is_symbolic(group.shape):
            return False  # no target that cuts rows is given symbolic sizes
        rows, length = group.row_numel, group.numel // max(group.row_numel, 1)
        if not group.reduces or as_row == "item" or not self.target.splits(rows, length, self._across(group)):
            return False

        def read_by(tensor: Tensor) -> Iterator[Tensor]:
            return (read for read, _ in self.reads.get(tensor, ()) if self.unit_of.get(read) is group)

        read = reached((tensor for tensor, _ in self.reads[item]), read_by)
        return any(tensor in group.rows for tensor in read)

    def _across(self, group: Group) -> bool:
        """Does most of what the group's reductions read lie across memory, neighbours in different rows?"""
        along = across = 0
        for member in group.members:
            if not isinstance(member, Reduction):
                continue
            for tensor, _ in self.reads[member]:
                if tensor.shape != member.domain:
                    continue
                strides: dict[bool, int] = {}
                for size, stride, outer in zip(tensor.shape, tensor.stride, member.outer_mask, strict=True):
                    if size != 1:
                        strides[outer] = min(stride, strides.get(outer, stride))
                if len(strides) == 2:
                    across += tensor.numel * (strides[True] < strides[False])
                    along += tensor.numel * (strides[True] > strides[False])
        return across > along

    def _aligned(self, group: Group, item: Tensor, shape: Shape, outer: tuple[bool, ...], as_row: str) -> bool:
        """Does `item` read the group's members only at the point at hand?"""
        if isinstance(item, Reduction):
            full = linearise(item.place, contiguous_strides(item.domain))
            row = row_of(full, shape, outer)
        elif as_row == "item":
            full = None
            row = linearise(item.axes, contiguous_strides(item.shape))
        else:
            full = linearise(item.axes, contiguous_strides(item.shape))
            row = row_of(full, shape, outer)
        for tensor, position in self.reads[item]:
            if self.unit_of.get(tensor) is group:
                is_row = tensor in group.rows or as_row == "members"
                if position is None or linearise(position, contiguous_strides(tensor.shape)) is not (
                    row if is_row else full
                ):
                    return False
        return True

    # ---- afterwards

    def _split_long(self) -> None:
        """Several kernels of a group that is too long to be compiled as one."""
        pieces: dict[Unit, list[Group]] = {}
        for unit in self.units:
            if isinstance(unit, Group) and len(unit.members) > 1 and not unit.bounds:
                lengths = [self.length[member] for member in unit.members]
                reads = [{tensor for tensor, _ in self.reads[member]} for member in unit.members]
                points = split.cut_points(unit.members, lengths, reads)
                if len(points) > 2:
                    pieces[unit] = list(_parts(unit, points))
        if not pieces:
            return
        for parts in pieces.values():
            self.unit_of.update((member, part) for part in parts for member in part.members)
        self.units = [part for unit in self.units for part in pieces.get(unit, [unit])]
        for unit in self.units:
            unit.before = {part for other in unit.before for part in pieces.get(other, [other])}
        for parts in pieces.values():
            for one, two in itertools.pairwise(parts):
                two.before.add(one)

    def _choose_stored(self) -> None:
        for unit in self.units:
            if isinstance(unit, Group):
                for member in unit.members:
                    for tensor, _ in self.reads[member]:
                        if self.unit_of.get(tensor) is not unit:
                            self.forced.add(tensor)
        for unit in self.units:
            if isinstance(unit, Group):
                unit.stored = [member for member in unit.members if member in self.forced]

    def _note_steps(self) -> None:
        """What groups read that are like several others, as the steps of a loop are."""
        alike: defaultdict[Any, list[Group]] = defaultdict(list)
        for unit in self.units:
            if isinstance(unit, Group):
                members = ((type(m), m.shape, m.dtype, self.length[m], m in unit.rows) for m in unit.members)
                alike[unit.shape, unit.outer, tuple(members)].append(unit)
        for groups in alike.values():
            if len(groups) >= MIN_STEPS:
                read = [{tensor for member in group.members for tensor, _ in self.reads[member]} for group in groups]
                times = Counter(itertools.chain.from_iterable(read))
                for group, own in zip(groups, read, strict=True):
                    group.common = {tensor for tensor in own if times[tensor] > 1}

    def _order_mutations(self) -> None:
        """Who reads a tensor runs before the call that overwrites it."""
        for call in self.units:
            if not isinstance(call, Call) or not call.extern.mutates or call.extern.early:
                continue
            for unit in self.units:
                if unit is not call and self._touches(unit, call):
                    call.before.add(unit)

    def _touches(self, unit: Unit, call: Call) -> bool:
        mutated = call.extern.mutates
        if isinstance(unit, Group):
            return any(tensor in mutated for member in unit.members for tensor, _ in self.reads[member])
        if unit.first >= call.first:
            return False
        return not read_by_call(unit.extern).isdisjoint(mutated)


def _parts(group: Group, points: Sequence[int]) -> Iterator[Group]:
    """The group cut at these positions, save where a part had values of rows and of points but no reduction."""

    def kinds(start: int, end: int) -> set[str]:
        members = group.members[start:end]
        return {"r" if isinstance(m, Reduction) else "row" if m in group.rows else "full" for m in members}

    ends: list[int] = []
    for end in points[1:]:
        if ends and group.reduces and kinds(ends[-1], end) == {"row", "full"}:
            ends.pop()
        ends.append(end)
    if group.reduces and len(ends) > 1 and kinds(0, ends[0]) == {"row", "full"}:
        del ends[0]
    for start, end in itertools.pairwise([0, *ends]):
        shape, outer, rows = group.shape, group.outer, group.rows.intersection(group.members[start:end])
        if group.reduces and "r" not in kinds(start, end):
            sizes = tuple(size for size, kind in zip(shape, outer, strict=True) if kind or not rows)
            shape, outer = collapsed(sizes, [True] * len(sizes))
            rows = set()
        yield Group(
            shape, outer, group.members[start:end], rows, [], set(group.before), group.first, group.last, piece=True
        )


def _is_sum(item: Tensor) -> bool:
    return isinstance(item, Pointwise) and isinstance(item.body, Op) and item.body.name == "add"


def _updates_input(item: Tensor) -> bool:
    return isinstance(item, Scatter) and isinstance(item.base, StoredTensor)


def _scalars_of(item: Tensor) -> Iterator[Scalar]:
    """Each distinct node of a computed tensor's expressions once."""
    return iter(dict.fromkeys(node for scalar in expressions_of(item) for node in scalars_in(scalar)))


def direct_reads(item: Tensor) -> list[Reading]:
    """What the tensor's expressions read, producers not looked through."""
    found: list[Reading] = [(item.base, None)] if isinstance(item, Scatter) else []
    for node in _scalars_of(item):
        if isinstance(node, Read):
            found.append((node.tensor, node.position))
        elif isinstance(node, Fetch):
            found.append((node.tensor, None))
    return found


def store_in_place(
    units: list[Unit],
    reads: dict[Tensor, tuple[Reading, ...]],
    outputs: set[Tensor],
    device: torch.device,
    reads_first: bool = False,
) -> dict[Tensor, Tensor]:
    """Computed tensors that are copied to an input at the end -> the input, where they can be stored there at once.
    Takes these copies out of `units`; whatever reads the former contents is made to run before."""
    stored_in: dict[Tensor, Tensor] = {}
    group_of = {member: unit for unit in units if isinstance(unit, Group) for member in unit.stored}
    raising = [unit for unit in units if reads_first and _may_raise(unit, reads)]
    for call, source, target in _copies(units, device):
        group = group_of.get(source)
        if group is None or source in outputs or source in stored_in or _seen_through(source, units):
            continue
        readers = [unit for unit in units if unit not in (call, group) and target in read_by(unit, reads)]
        # where something raises, no input is to have changed yet
        earlier = {*readers, *(unit for unit in raising if unit is not call)}
        if any(_depends(unit, group) for unit in earlier):
            continue
        in_place = reads_first and _reads_in_place(group, source, target, reads)
        if not in_place and not _reads_only_itself(group, source, target, reads):
            continue
        group.before.update(earlier)
        stored_in[source] = target
        units.remove(call)
        for unit in (unit for unit in units if call in unit.before):
            unit.before = (unit.before | {group}) - {call, unit}
    return stored_in


# Library functions that raise for no values of their arguments.
_NEVER_RAISE = frozenset(
    f"aten.{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "copy_", "clone", "_to_copy"),
        *("native_layer_norm", "native_group_norm", "native_batch_norm", "_softmax", "_log_softmax"),
        *("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"),
        *("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward"),
        *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    )
)


def _may_raise(unit: Unit, reads: Mapping[Tensor, tuple[Reading, ...]]) -> bool:
    """May the unit find values that it has to raise for?"""
    if isinstance(unit, Call):
        return str(unit.extern.target).rpartition(".")[0] not in _NEVER_RAISE
    return any(position is None for member in unit.members for _, position in reads[member]) or any(
        isinstance(node, Op) and node.name in CHECKS for member in unit.members for node in _scalars_of(member)
    )


def _copies(units: list[Unit], device: torch.device) -> list[tuple[Call, Tensor, Tensor]]:
    """The calls that copy a computed tensor whole to an input as it is, with both."""
    found: list[tuple[Call, Tensor, Tensor]] = []
    for call in units:
        if not isinstance(call, Call) or str(call.extern.target) != "aten.copy_.default" or not call.extern.mutates:
            continue
        target, value = call.extern.args[:2]
        if isinstance(value, View) and target.whole and value.whole:
            source, into = value.root, target.root
            same = (source.shape, source.stride, source.dtype) == (into.shape, into.stride, into.dtype)
            there = isinstance(into, StoredTensor) and into.device == device
            if same and there and isinstance(source, (Pointwise, Reduction)):
                found.append((call, source, into))
    return found


def _seen_through(tensor: Tensor, units: list[Unit]) -> bool:
    """Is there an operator whose result may share memory with the tensor?"""
    return any(
        isinstance(unit, Call) and unit.extern.aliases and any(unit.extern.results) and tensor in read_by(unit, {})
        for unit in units
    )


def read_by(unit: Unit, reads: Mapping[Tensor, tuple[Reading, ...]]) -> set[Tensor]:
    """The tensors that the unit reads."""
    if isinstance(unit, Group):
        return {tensor for member in unit.members for tensor, _ in reads[member]}
    return read_by_call(unit.extern)


def _reads_only_itself(
    group: Group, source: Tensor, target: Tensor, reads: Mapping[Tensor, tuple[Reading, ...]]
) -> bool:
    """Within the group, is each element of `target` read only for the element of `source` that takes its place, and
    that just once?"""
    used = False
    for member in group.members:
        for tensor, position in reads[member]:
            if tensor is target:
                if member is not source or position != source.axes:
                    return False
                used = True
    # in a later loop over the row the value would be computed again
    again = group.reduces and source not in group.rows
    return not (used and again and any(tensor is source for m in group.members for tensor, _ in reads[m]))


def _reads_in_place(group: Group, source: Tensor, target: Tensor, reads: Mapping[Tensor, tuple[Reading, ...]]) -> bool:
    """Is each member pointwise, and does it read `target` only where the element of `source` of the same place is
    stored?"""
    return not (group.reduces or group.rows or isinstance(group.members[0], ALONE)) and all(
        member.shape == source.shape and position == member.axes
        for member in group.members
        for tensor, position in reads[member]
        if tensor is target
    )


def _depends(unit: Unit, on: Unit) -> bool:
    """Must `unit` run after `on`?"""
    return on in reached([unit], lambda current: (other for other in current.before if other.last >= on.first))


def _in_order(units: list[Unit]) -> list[Unit]:
    """Each unit after those it depends on; otherwise in graph order."""
    done: set[Unit] = set()
    result: list[Unit] = []
    for unit in units:
        stack = [unit]
        while stack:
            current = stack[-1]
            waiting = [other for other in current.before if other not in done]
            if current in done:
                stack.pop()
            elif waiting:
                stack.extend(sorted(waiting, key=lambda u: u.last, reverse=True))
            else:
                done.add(current)
                result.append(current)
                stack.pop()
    return result
