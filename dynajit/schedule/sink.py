"""What makes more memory than it lets go of runs as late as it can.

In:  units in an order in which they may run, and what each reads. Out: `sink_units`, the same units in another such
order: a unit whose results are larger than what dies with it is before the first that needs them, or at the end. In a
backward graph these are values that are computed again, gradients of weights, and what is added to those in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from dynajit.loopir.nodes import Scatter, Tensor
from dynajit.schedule.fuse import Call, Reading, Unit, made_by, read_by

# Calls that do nothing but compute, by the names of their operators.
_PURE = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "cat", "clone"))
# Less than this is not worth an order other than the graph's.
MIN_BYTES = 1 << 16


def sink_units(
    units: Sequence[Unit],
    reads: Mapping[Tensor, tuple[Reading, ...]],
    fixed: Set[Tensor],
    waited_for: Set[Tensor] = frozenset(),
) -> list[Unit]:
    """The units in their new order. `fixed`: tensors that are stored in others' memory; who makes them stays.
    `waited_for`: tensors that are handed out as soon as they are there."""
    following: dict[Unit, set[Unit]] = {}
    for unit in units:
        for other in unit.before:
            following.setdefault(other, set()).add(unit)
    own = _added_to_products(units, reads)
    bases = {scatter.base for scatter in own}  # whose memory is that of what they make
    later: list[Unit] = []  # from here on, the next first
    read_later: set[Tensor] = set()
    for unit in reversed(units):
        place, read = 0, read_by(unit, reads)
        stays = not _may_move(unit, fixed - own) or not waited_for.isdisjoint(made_by(unit))
        made = 0 if stays else sum(tensor.nbytes for tensor in made_by(unit))
        if made > MIN_BYTES:
            last = _last_place(later, following.get(unit, set()))
            # What it reads lives until then. Where others read it in between, that counts for what only the caller
            # needs: a gradient, which is in nobody's way until the peak is over.
            held = read - bases if last == len(later) else read - read_later
            if made > sum(tensor.nbytes for tensor in held) + MIN_BYTES:
                place = last
        later.insert(place, unit)
        read_later |= read
    return later


def _last_place(later: Sequence[Unit], following: set[Unit]) -> int:
    """The last place among the units to come: before the first that has to follow, or that waits for a collective,
    which is on its way meanwhile."""
    for place, unit in enumerate(later):
        stops = isinstance(unit, Call) and (unit.extern.mutates or unit.extern.barrier or unit.extern.holds)
        if stops or unit in following:
            return place
    return len(later)


def _added_to_products(units: Sequence[Unit], reads: Mapping[Tensor, tuple[Reading, ...]]) -> set[Scatter]:
    """Scatters into the result of a call that may move, which nobody else reads."""
    products = {tensor for unit in units if isinstance(unit, Call) and _is_pure(unit) for tensor in made_by(unit)}
    readers = Counter(tensor for unit in units for tensor in read_by(unit, reads))
    made = (tensor for unit in units for tensor in made_by(unit) if isinstance(tensor, Scatter))
    return {scatter for scatter in made if scatter.base in products and readers[scatter.base] <= 1}


def _may_move(unit: Unit, fixed: Set[Tensor]) -> bool:
    if isinstance(unit, Call):
        return _is_pure(unit)
    return not any(tensor in fixed for tensor in (*unit.members, *unit.stored))


def _is_pure(call: Call) -> bool:
    return str(call.extern.target) in _PURE
