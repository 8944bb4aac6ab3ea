"""From a group of tensors to a kernel: loops, and what is computed in which of them.

In:  a `fuse.Group` and the set of inlined tensors. Out: its `Kernel`.
A new loop order or tiling: `_columns`, `_loop_order` and `as_in_memory`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter

import torch

from dynajit.loopir import nodes
from dynajit.loopir.build import number
from dynajit.loopir.index import (
    Atom,
    Axis,
    Div,
    Index,
    Mod,
    axis,
    constant,
    contiguous_strides,
    linearise,
    stride_of,
    substitute,
    unravel,
)
from dynajit.loopir.nodes import (
    Const,
    Fetch,
    Op,
    Pointwise,
    Position,
    Read,
    Reduction,
    Scalar,
    Scan,
    Scatter,
    Shape,
    StoredTensor,
    Tensor,
    axis_of,
    domain_of,
    expressions_of,
    scalars_in,
)
from dynajit.loopir.ops import OPS
from dynajit.loopir.size import Size, divides, hint_of, is_symbolic
from dynajit.nested import reached
from dynajit.schedule.fuse import Group, row_of
from dynajit.schedule.kernel import (
    Kernel,
    Load,
    LoadAt,
    Scratch,
    Section,
    Store,
    Update,
    load,
    load_at,
    local,
    points_of,
)
from dynajit.schedule.target import CPU, KernelTarget

# A value needed by a later loop over the row is kept in a local array if it is at least this dear and the row this
# short.
KEEP_COST = 8
KEEP_ELEMENTS = 8192
# Pointwise kernels of fewer points are not tiled.
TILED_POINTS = 4096
# Elements of a loop that fill a vector, or several. Short rows of less than so many go by columns instead, if these lie
# no further apart in memory than this and fill vectors better, or are so many.
VECTOR, SHORT_ROW, NEAR, MANY = 16, 32, 64, 64
# Where little is done with them, those of so many and more fill vectors well enough.
LIGHT_ROW, LIGHT_COST = 24, 8
# How often the axes of a kernel are cut and merged in search of even addresses.
MAX_ATTEMPTS = 8
# Where memory that is handed on in part begins: at multiples of so many bytes. Of less than this none is.
PART_BYTES, MIN_BYTES = 16, 256


NO_PARTS: Mapping[Tensor, tuple[StoredTensor, int]] = {}


def build_kernel(group: Group, inlined: set[Tensor], target: KernelTarget = CPU) -> Kernel:
    """The kernel that computes the group on that target."""
    sizes, kinds = _common_axes(group)
    for attempt in itertools.count():
        draft = _Draft(group, inlined, sizes, kinds, target)
        kernel = draft.kernel()
        better = (draft.split_axes() or draft.merge_axes()) if attempt < MAX_ATTEMPTS else None
        if better is None:
            break
        sizes, kinds = better
    order = draft.as_in_memory()
    if order is not None:
        draft = _Draft(group, inlined, sizes, kinds, target, order=order)
        kernel = draft.kernel()
    if (group.piece or group.common) and (parts := draft.parts_read()):
        kernel = _Draft(group, inlined, sizes, kinds, target, parts, order).kernel()
        kernel.parts = {part: (tensor, start) for tensor, (part, start) in parts.items()}
    return kernel


def build_tile_kernel(group: Group, inlined: set[Tensor], sizes: Shape, target: KernelTarget) -> Kernel:
    """The kernel of a group without reductions on axes of these sizes: its domain's in the order in which what it
    stores lies in memory, cut or merged."""
    draft = _Draft(group, inlined, sizes, (True,) * len(sizes), target)
    stored = _largest(group.stored)
    if stored.numel == group.numel:
        draft.full = _in_order_of(stored, draft.full)
    return draft.kernel()


def _largest(tensors: Sequence[Tensor]) -> Tensor:
    return max(tensors, key=lambda tensor: hint_of(tensor.numel))


def _in_order_of(tensor: Tensor, place: Index) -> Index:
    """The number in its domain of the element that lies at that place of its memory, if it has no gaps."""
    order = sorted(range(len(tensor.shape)), key=lambda dim: -tensor.stride[dim])
    where = unravel(place, [tensor.shape[dim] for dim in order])
    position = [index for _, index in sorted(zip(order, where, strict=True), key=itemgetter(0))]
    return linearise(position, contiguous_strides(tensor.shape))


def _common_axes(group: Group) -> tuple[Shape, tuple[bool, ...]]:
    """The domain cut wherever a member's shape is cut, if these cuts nest."""
    cuts = _suffix_products(group.shape)
    for member in group.members:
        shape = domain_of(member)
        if member in group.rows and not isinstance(member, Reduction):
            continue
        wider = sorted(cuts | _suffix_products(shape), key=hint_of)
        if all(divides(a, b) for a, b in itertools.pairwise(wider)):
            cuts = set(wider)
    ordered = sorted(cuts, key=hint_of)
    if not ordered:
        return (), ()
    sizes = [b // a for a, b in zip(ordered, [*ordered[1:], group.numel], strict=True)]
    kinds = [_kind_at(group, start) for start in ordered]
    return tuple(reversed(sizes)), tuple(reversed(kinds))


def _suffix_products(shape: Shape) -> set[int]:
    """Strides of the row-major shape's dimensions longer than 1."""
    return {stride for stride, size in zip(contiguous_strides(shape), shape, strict=True) if size != 1}


def _kind_at(group: Group, stride: int) -> bool:
    kind = True
    for start, size, outer in zip(contiguous_strides(group.shape), group.shape, group.outer, strict=True):
        if size != 1 and _not_above(start, stride):
            return outer
        kind = outer
    return kind


def _not_above(start: int, stride: int) -> bool:
    """start <= stride, of the strides of cuts, of which each divides the next."""
    return start <= stride if type(start) is type(stride) is int else divides(start, stride)


class _Draft:
    """One attempt at the kernel, with given axes in the order of the domain. `order`: in another one; for each axis of
    the kernel the numbers of those of the domain that it runs through."""

    def __init__(
        self,
        group: Group,
        inlined: set[Tensor],
        sizes: Shape,
        kinds: tuple[bool, ...],
        target: KernelTarget,
        parts: Mapping[Tensor, tuple[StoredTensor, int]] = NO_PARTS,
        order: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.group = group
        self.parts = parts
        self.target = target
        self.inlined = inlined
        runs = [[n] for n in range(len(sizes))] if order is None else order
        self.sizes = tuple(math.prod(sizes[n] for n in run) for run in runs)
        self.kinds = tuple(kinds[run[0]] for run in runs)
        numbered = enumerate(zip(self.sizes, self.kinds, strict=True))
        self.indices = [axis(f"{'i' if outer else 'j'}{n}", size) for n, (size, outer) in numbered]
        where = [unravel(index, [sizes[n] for n in run]) for index, run in zip(self.indices, runs, strict=True)]
        in_domain = {
            n: place for run, places in zip(runs, where, strict=True) for n, place in zip(run, places, strict=True)
        }
        self.full = linearise([in_domain[n] for n in range(len(sizes))], contiguous_strides(sizes))
        self.row = row_of(self.full, sizes, kinds)
        self.members = set(group.members)
        self.level: dict[Tensor, int] = {}
        self.loops: dict[Tensor, set[int]] = {}
        self.kept: set[Tensor] = set()
        self.addresses: dict[Index, None] = {}
        self.loaded: dict[Tensor, None] = {}
        self.looked_through: set[Tensor] = set()
        self.memo: dict[tuple[object, ...], Scalar] = {}
        self.loop = 0

    # ---- the kernel

    def kernel(self) -> Kernel:
        self._find_levels()
        outer, inner, mode = self._loop_order()
        self._find_loops(mode)
        sections = [Section() for _ in range(max(self.level.values()) + 1)]
        for member in self.group.members:
            self._add(member, sections)
        bounds = self._bounds()
        scratch = [m for m in self.group.members if m in self.kept and m not in self.group.stored]
        reads = [tensor for tensor in self.loaded if tensor not in self.members]
        fused = sorted({*self.group.members, *self.looked_through}, key=lambda tensor: tensor.order)
        stored, cost = list(self.group.stored), self._cost(sections)
        kernel = Kernel(self.group, outer, inner, mode, sections, reads, stored, scratch, cost, fused)
        kernel.bounds = bounds
        if not self.group.reduces and not sections[0].updates:
            kernel.across = _across(kernel)
            if kernel.across is None and self.target.keeps_rows and not isinstance(self.group.members[0], Scan):
                _run_along_most(kernel)
        return kernel

    def _bounds(self) -> tuple[Scalar, ...]:
        member = self.group.members[0]
        if not self.group.bounds:
            return ()
        where, self.loop = unravel(self.row, member.shape), 0
        replace = replacement(member.axes, where)
        return tuple(self._resolve(bound, replace, (member, where)) for bound in self.group.bounds)

    def _cost(self, sections: list[Section]) -> int:
        cost = 0
        for section in sections:
            seen: set[Scalar] = set()
            for value in (
                *(value for _, value in section.reductions),
                *(store.value for store in section.stores),
                *(value for _, value in section.kept),
                *(value for update in section.updates for value in (*update.uneven, update.value)),
            ):
                seen.update(scalars_in(value))
            cost += sum(OPS[node.name].cost if isinstance(node, Op) else 1 for node in seen)
        return cost

    def _find_levels(self) -> None:
        """How many loops over the row have to be finished before a member can be computed."""
        for member in self.group.members:
            level = 0
            for tensor in self._member_reads(member):
                level = max(level, self.level[tensor])
            self.level[member] = level + isinstance(member, Reduction)

    def _member_reads(self, member: Tensor) -> list[Tensor]:
        """The group's members that it is made of, through what is computed where it is read."""

        def read_by(tensor: Tensor) -> Iterator[Tensor]:
            if tensor is member or tensor in self.inlined:
                nodes = (node for scalar in expressions_of(tensor) for node in scalars_in(scalar))
                yield from (node.tensor for node in nodes if isinstance(node, Read))

        found = [tensor for tensor in reached([member], read_by) if tensor is not member]
        return [tensor for tensor in found if tensor in self.members and tensor not in self.inlined]

    def _find_loops(self, mode: str) -> None:
        """In which loops each full member is computed; those needed again later are kept where that pays."""
        length = 1
        for size, outer in zip(self.sizes, self.kinds, strict=True):
            length *= 1 if outer else size
        short = hint_of(length) <= KEEP_ELEMENTS
        scratch = self.target.keeps_rows and mode == "row" and short and self.group.row_numel != 1
        stored = set(self.group.stored)
        for member in reversed(self.group.members):
            row = member in self.group.rows
            loops = self.loops.setdefault(member, set())
            if isinstance(member, Reduction):
                loops = {self.level[member] - 1}
            elif row:
                continue
            elif member in stored:
                loops.add(self.level[member])
            if len(loops) > 1 and not row:
                dear = self._own_cost(member) >= KEEP_COST
                if (member in stored and self.target.keeps_rows) or (dear and scratch):
                    self.kept.add(member)
                    loops = {min(loops)}
            for tensor in self._member_reads(member):
                self.loops.setdefault(tensor, set()).update(loops)

    def _own_cost(self, member: Tensor) -> int:
        assert isinstance(member, Pointwise)
        return sum(OPS[node.name].cost for node in scalars_in(member.body) if isinstance(node, Op))

    def _add(self, member: Tensor, sections: list[Section]) -> None:
        level = self.level[member]
        stored = member in self.group.stored
        if isinstance(member, Reduction):
            self.loop = level - 1
            sections[level - 1].reductions.append((member, self._body(member)))
            if stored:
                sections[level].row_stores.append(self._store(member, local(member), self.row))
        elif isinstance(member, Scatter):
            sections[level].updates.append(self._update(member))
        elif member in self.group.rows:
            self.loop = level
            sections[level].rows.append((member, self._body(member)))
            if stored:
                sections[level].row_stores.append(self._store(member, local(member), self.row))
        else:
            first = min(self.loops[member], default=level)
            self.loop = first
            if stored:
                sections[first].stores.append(self._store(member, self._body(member), self.full))
            elif member in self.kept:
                sections[first].kept.append((member, self._body(member)))
            else:  # for the readers, which find it: expressions are as deep as the group is long
                self._body(member)

    def _update(self, member: Scatter) -> Update:
        where = unravel(self.full, member.domain)
        replace = replacement(member.inner, where)
        at = tuple(self._resolve(place, replace, (member, where)) for place in member.at)
        value = self._resolve(member.body, replace, (member, where))
        self.loaded[member.base] = None
        return Update(member, member.kind, *self._parts_of_address(member, at), value)

    def _store(self, member: Tensor, value: Scalar, number: Index) -> Store:
        address = self._address(member, unravel(number, member.shape))
        return Store(member, address, value)

    def _address(self, tensor: Tensor, position: tuple[Index, ...]) -> Index:
        address = linearise(position, tensor.stride)
        self.addresses[address] = None
        return address

    # ---- expressions

    def _body(self, member: Tensor) -> Scalar:
        """The member's expression at the point at hand, in the loop at hand."""
        if isinstance(member, Reduction):
            where = unravel(self.full, member.domain)
            own: tuple[Index, ...] = member.place
        else:
            assert isinstance(member, Pointwise)
            where = unravel(self.row if member in self.group.rows else self.full, member.shape)
            own = member.axes
        return self._resolve(member.body, replacement(own, where), (member, where))

    def _resolve(self, node: Scalar, replace: Mapping[Atom, Index], where: tuple[object, ...]) -> Scalar:
        key = (self.loop, node, where)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self._resolved(node, replace, where)
        return found

    def _resolved(self, node: Scalar, replace: Mapping[Atom, Index], where: tuple[object, ...]) -> Scalar:
        if isinstance(node, Op):
            if node.name == "guard":
                known = decided(self._resolve(node.arguments[0], replace, where))
                if known is not None:
                    return self._resolve(node.arguments[1 if known else 2], replace, where)
            arguments = tuple(self._resolve(a, replace, where) for a in node.arguments)
            return (
                self._fetch(node, arguments) if isinstance(node, Fetch) else nodes.op(node.name, arguments, node.dtype)
            )
        if isinstance(node, Read):
            position = tuple(substitute(index, replace) for index in node.position)
            return self._read(node.tensor, position)
        if isinstance(node, Position):
            index = substitute(node.index, replace)
            self.addresses[index] = None
            return nodes.position(index)
        assert isinstance(node, Const)
        return node

    def _read(self, tensor: Tensor, position: tuple[Index, ...]) -> Scalar:
        if tensor in self.inlined:
            assert isinstance(tensor, Pointwise)
            self.looked_through.add(tensor)
            return self._resolve(tensor.body, replacement(tensor.axes, position), (tensor, position))
        if tensor not in self.members:
            address = self._address(tensor, position)
            part, start = self.parts.get(tensor, (tensor, 0))
            self.loaded[part] = None
            return load(part, address + (-start) if start else address)
        if tensor in self.group.rows:
            return local(tensor)
        if tensor in self.kept and self.loop > min(self.loops[tensor]):
            if tensor in self.group.stored:
                return load(tensor, self._address(tensor, position))
            return nodes.interned(Scratch, (Scratch, tensor), tensor=tensor, dtype=tensor.dtype)
        return self._body(tensor)

    def _fetch(self, node: Fetch, at: tuple[Scalar, ...]) -> Scalar:
        self.loaded[node.tensor] = None
        even, uneven = self._parts_of_address(node.tensor, at)
        if not uneven:
            return load(node.tensor, even)
        address = nodes.position(even)
        for part in uneven:
            address = part if address is nodes.position(constant(0)) else nodes.op("add", (address, part), torch.int64)
        return load_at(node.tensor, address, even)

    def _parts_of_address(self, tensor: Tensor, at: tuple[Scalar, ...]) -> tuple[Index, list[Scalar]]:
        """What only indices decide is summed as one; the rest moves by its dimension's stride."""
        even = constant(0)
        joined: list[tuple[Scalar, int | Size]] = []
        for place, stride in zip(at, tensor.stride, strict=True):
            if isinstance(place, Position):
                even = even + place.index * stride
            elif isinstance(place, Const):
                even = even + int(place.value) * stride
            else:
                joined.append((place, stride))
                while len(joined) > 1 and (one := _as_one(*joined[-2:])) is not None:
                    joined[-2:] = [one]
        uneven = [
            place if stride == 1 else nodes.op("mul", (place, number(stride, torch.int64)), torch.int64)
            for place, stride in joined
        ]
        self.addresses[even] = None
        return even, uneven

    def parts_read(self) -> dict[Tensor, tuple[StoredTensor, int]]:
        """The tensors of which the kernel reads nothing before some element: their memory from there on, and where."""
        starts: dict[Tensor, int] = {}
        other = {member.base for member in self.group.members if isinstance(member, Scatter)}
        for node in self.memo.values():
            if isinstance(node, LoadAt):
                other.add(node.tensor)
            elif isinstance(node, Load):
                starts[node.tensor] = min(node.address.low, starts.get(node.tensor, node.address.low))
        parts: dict[Tensor, tuple[StoredTensor, int]] = {}
        for tensor, least in starts.items():
            length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride, strict=True))
            same = not self.group.piece and tensor not in self.group.common
            if same or tensor in other or tensor in self.members or is_symbolic((least, length)):
                continue
            unit = max(1, PART_BYTES // tensor.dtype.itemsize)
            start = least // unit * unit
            if start > 0 and length * tensor.dtype.itemsize > MIN_BYTES:
                device = tensor.device if isinstance(tensor, StoredTensor) else torch.device(self.target.name)
                shape = (length - start,)
                name = f"{tensor.name}_from{start}"
                parts[tensor] = (
                    StoredTensor(name, shape, (1,), tensor.dtype, tensor.order, tensor.origin, device),
                    start,
                )
        return parts

    # ---- axes

    def _axes(self) -> list[Axis | None]:
        return [axis_of(index) for index in self.indices]

    def split_axes(self) -> tuple[Shape, tuple[bool, ...]] | None:
        """Axes cut where an address divides one, so that the parts move evenly; None if there is nothing to cut."""
        for address in self.addresses:
            for atom, _ in address.terms:
                if isinstance(atom, (Div, Mod)):
                    inside = axis_of(atom.index)
                    if inside is not None and divides(atom.divisor, inside.size) and atom.divisor < inside.size:
                        at = self._axes().index(inside)
                        sizes = (*self.sizes[:at], inside.size // atom.divisor, atom.divisor, *self.sizes[at + 1 :])
                        return sizes, (*self.kinds[: at + 1], *self.kinds[at:])
        return None

    def merge_axes(self) -> tuple[Shape, tuple[bool, ...]] | None:
        """Neighbouring axes as one where every address moves over both evenly; None if there are no such axes."""
        axes = self._axes()
        sizes = list(self.sizes[:1])
        kinds = list(self.kinds[:1])
        for at in range(1, len(axes)):
            first, second = axes[at - 1], axes[at]
            if kinds[-1] == self.kinds[at] and (first is None or second is None or self._even(first, second)):
                sizes[-1] *= self.sizes[at]
            else:
                sizes.append(self.sizes[at])
                kinds.append(self.kinds[at])
        return (tuple(sizes), tuple(kinds)) if len(sizes) < len(axes) else None

    def as_in_memory(self) -> list[list[int]] | None:
        """For reductions on CPUs: the order, as `_Draft` takes it, with axes of rows in the order in which most of what
        is read lies in memory, and as one those that everything moves over evenly; None for the order they have."""
        if not self.group.reduces or not self.target.keeps_rows or isinstance(self.group.members[0], Scan):
            return None
        number = {a: n for n, a in enumerate(self._axes()) if a is not None}
        outer = [a for a, n in number.items() if self.kinds[n]]
        inner = [a for a, n in number.items() if not self.kinds[n]]
        ordered = list(inner)
        self._by_steps(ordered)
        runs: list[list[Axis]] = []
        for a in (*outer, *ordered):
            if runs and self.kinds[number[runs[-1][-1]]] == self.kinds[number[a]] and self._even(runs[-1][-1], a):
                runs[-1].append(a)
            else:
                runs.append([a])
        if ordered == inner and len(runs) == len(number):
            return None
        alone = [[n] for n in range(len(self.sizes)) if n not in number.values()]
        return [*alone, *([number[a] for a in run] for run in runs)]

    def _even(self, first: Axis, second: Axis) -> bool:
        for address in self.addresses:
            slow, fast = stride_of(address, first), stride_of(address, second)
            if slow is None or fast is None or slow != fast * second.size:
                return False
        return True

    def _loop_order(self) -> tuple[tuple[Axis, ...], tuple[Axis, ...], str]:
        """Outer axes, inner axes, mode."""
        pairs = [(a, kind) for a, kind in zip(self._axes(), self.kinds, strict=True) if a is not None]
        outer = [a for a, kind in pairs if kind]
        inner = [a for a, kind in pairs if not kind]
        if not self.group.reduces:
            if isinstance(self.group.members[0], Scatter):
                return tuple(outer[:-1]), tuple(outer[-1:]), "row"
            target = _largest(self.group.stored)
            address = linearise(unravel(self.full, target.shape), target.stride)
            outer.sort(key=lambda a: -hint_of(stride_of(address, a) or 0))
            return tuple(outer[:-1]), tuple(outer[-1:]), "row"
        if not self.target.keeps_rows:
            self._by_steps(inner)
        columns = self._columns(outer, inner)
        if columns is None:
            return tuple(outer), tuple(inner), "row"
        return (*(a for a in outer if a is not columns), columns), tuple(inner), "column"

    def _by_steps(self, inner: list[Axis]) -> None:
        """Put the axes of rows in the order in which most of what is read lies in memory, neighbours last."""
        if len(inner) < 2:
            return
        of_largest = max(self._full_reads(), key=lambda read: hint_of(read[0].numel), default=None)
        steps = {} if of_largest is None else {a: stride_of(of_largest[1], a) for a in inner}
        if steps and None not in steps.values():
            inner.sort(key=lambda a: -hint_of(steps[a] or 0))

    def _columns(self, outer: list[Axis], inner: list[Axis]) -> Axis | None:
        """The outer axis that loops run along in column mode: where rows are short, one that fills vectors better than
        they do; else one along which more of what is read lies than along rows."""
        if not outer or not inner or self.group.bounds:
            return None
        reads, row = self._full_reads(), inner[-1]
        among = [a for a in (outer if self.target.keeps_rows else outer[-1:]) if hint_of(a.size) >= 8]

        def lies_along(a: Axis) -> int:
            return sum(hint_of(tensor.numel) for tensor, address in reads if stride_of(address, a) == 1)

        def fills(a: Axis) -> int:
            return min(hint_of(a.size), VECTOR)

        def is_near(a: Axis) -> bool:
            steps = [stride_of(address, a) for _, address in reads]
            return all(step is not None and hint_of(step) <= NEAR for step in steps)

        if self.target.keeps_rows and hint_of(points_of(tuple(inner))) < (LIGHT_ROW if self._is_light() else SHORT_ROW):
            near = [a for a in reversed(among) if (fills(a) > fills(row) or hint_of(a.size) >= MANY) and is_near(a)]
            if near:
                return max(near, key=lambda a: (fills(a), lies_along(a)))
        found = max(reversed(among), key=lies_along, default=None)
        return found if found is not None and lies_along(found) > lies_along(row) else None

    def _is_light(self) -> bool:
        """Is there one sum or extreme of each row, and nothing but cheap operations with it for each element? To turn
        what is read and stored takes longer then than to reduce within vectors."""
        members = self.group.members
        if sum(isinstance(member, Reduction) for member in members) > 1 or self.group.rows.issuperset(members):
            return False
        nodes = (node for member in members for node in scalars_in(self._body(member)) if isinstance(node, Op))
        return sum(OPS[node.name].cost for node in nodes) <= LIGHT_COST

    def _full_reads(self) -> list[tuple[Tensor, Index]]:
        """What reductions and full members read from memory, and where."""
        found: list[tuple[Tensor, Index]] = []
        for member in self.group.members:
            if isinstance(member, Reduction) or member not in self.group.rows:
                for node in scalars_in(self._body(member)):
                    if isinstance(node, Load):
                        found.append((node.tensor, node.address))
                    elif isinstance(node, LoadAt):
                        found.append((node.tensor, node.even))
        return found


def _across(kernel: Kernel) -> Axis | None:
    """The axis along which more is read with neighbouring addresses than along the last, if there is one."""
    if not kernel.inner or hint_of(kernel.group.numel) < TILED_POINTS:
        return None
    last = kernel.inner[-1]
    gain: dict[Axis, int] = {}
    for value in kernel.expressions():
        for node in scalars_in(value):
            if isinstance(node, Load):
                own = stride_of(node.address, last)
                for outer in kernel.outer:
                    if stride_of(node.address, outer) == 1 and own not in (0, 1):
                        gain[outer] = gain.get(outer, 0) + hint_of(node.tensor.numel)
    best = max(gain, key=gain.__getitem__, default=None)
    return best if best is not None and min(hint_of(best.size), hint_of(last.size)) >= 8 else None


def _run_along_most(kernel: Kernel) -> None:
    """Have the innermost loop go along the axis with the fewest places apart in memory, if these are half at most of
    those along the last, which is the order of what is stored, or no more where the last fills no vector."""
    if len(kernel.inner) != 1 or kernel.bounds:
        return
    loads = {node.address for node in kernel.scalars() if isinstance(node, Load)}
    places = [*loads, *(store.address for store in kernel.all_stores())]

    def apart(a: Axis) -> int:
        return sum(stride_of(place, a) not in (0, 1, 2) for place in places)

    (last,) = kernel.inner
    among = [a for a in reversed(kernel.outer) if hint_of(a.size) >= VECTOR // 2]
    best = min(among, key=apart, default=None)
    worse = 1 if hint_of(last.size) < VECTOR // 2 else 2
    if best is not None and worse * apart(best) <= apart(last) != 0:
        kernel.outer = (*(a for a in kernel.outer if a is not best), last)
        kernel.inner = (best,)


def _range(place: Scalar) -> tuple[int | None, int | None]:
    if isinstance(place, Position):
        return place.index.low, place.index.high
    return (int(place.value), int(place.value)) if isinstance(place, Const) else (None, None)


def decided(condition: Scalar, limits: Callable[[Scalar], tuple[int | None, int | None]] = _range) -> bool | None:
    """Whether the condition of a guard holds at every point, at none (False), or at some (None), with the least and the
    greatest value of a place as `limits` gives them."""
    if isinstance(condition, Const):
        return bool(condition.value)
    if not isinstance(condition, Op):
        return None
    if condition.name == "and":
        parts = [decided(argument, limits) for argument in condition.arguments]
        return False if False in parts else None if None in parts else True
    place, bound = condition.arguments
    if not isinstance(bound, Const):
        return None
    low, high = limits(place)
    if low is None or high is None:
        return None
    if condition.name == "lt":
        return True if high < bound.value else False if low >= bound.value else None
    return (True if low >= bound.value else False if high < bound.value else None) if condition.name == "ge" else None


def _as_one(whole: tuple[Scalar, int | Size], rest: tuple[Scalar, int | Size]) -> tuple[Scalar, int | Size] | None:
    """Two dimensions into which one number was divided, and their strides, as one: `(n / c) * (c * s) + (n % c) * s` is
    `n * s`, and `n % (k * c) * s` where the first is `(n / c) % k`. Places are not negative."""
    (high, step), (low, stride) = whole, rest
    if not (isinstance(low, Op) and low.name == "intmod" and isinstance(high, Op)):
        return None
    place, divisor = low.arguments
    if not isinstance(divisor, Const) or not type(step) is type(stride) is int or step != divisor.value * stride:
        return None
    if high.name == "intdiv" and high.arguments == low.arguments:
        return place, stride
    inside, count = high.arguments[0], high.arguments[-1]
    divided = isinstance(inside, Op) and inside.name == "intdiv" and inside.arguments == low.arguments
    if high.name == "intmod" and divided and isinstance(count, Const):
        both = number(int(count.value * divisor.value), torch.int64)
        return nodes.op("intmod", (place, both), torch.int64), stride
    return None


def replacement(own: tuple[Index, ...], where: tuple[Index, ...]) -> dict[Atom, Index]:
    """What `index.substitute` takes to have the axes `own` be at these places."""
    replace: dict[Atom, Index] = {}
    for mine, at in zip(own, where, strict=True):
        atom = axis_of(mine)
        if atom is not None:
            replace[atom] = at
    return replace
