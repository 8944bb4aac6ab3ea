"""Where a kernel is cut that compilers would take too long for.

In:  how long each member of a kernel is, and what it reads. Out: `cut_points`; `gathers`, for there to be good ones.
The time that gcc and Triton take for a kernel grows with the square of its length, once that is above `LIMIT`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from dynajit.loopir.nodes import Tensor

# Of an operation or a read, beside the operation's cost; of a reduction.
NODE, REDUCTION = 4, 128
# A kernel of this length takes Triton (for sm_90) 0.4 to 0.8 s and gcc 0.3 s; one of twice, four and eight times that
# takes Triton 1.4 to 3, 8 and 48 s, gcc 1, 4 and 14 s.
LIMIT = 2000
# An expression of this length is a member of its own, at whose ends a kernel may be cut.
EXPRESSION = 400


def gathers(item: Tensor, made: Set[Tensor]) -> bool:
    """Is the tensor made of several that are as large, not in memory at the start? As a member of its own it ends their
    lives: where a kernel is cut after it, it is stored, not they."""
    return sum(tensor.numel == item.numel for tensor in made) > 1


def cut_points(members: Sequence[Tensor], lengths: Sequence[int], reads: Sequence[Iterable[Tensor]]) -> list[int]:
    """The positions of the members with which a new kernel begins, the first and the end included: the kernels are
    about equally long, and the fewest bytes go from one to a later one, or are read by both."""
    total = sum(lengths)
    count = -(-total // LIMIT)
    if count <= 1:
        return [0, len(members)]
    crossing = _bytes_across(members, reads)
    even = total / count
    points, length = [0], 0
    best: int | None = None
    at = 0
    while at < len(members):
        length += lengths[at]
        at += 1
        if length >= 0.6 * even and at < len(members) and (best is None or crossing[at] <= crossing[best]):
            best = at
        if length >= 1.2 * even and best is not None:
            points.append(best)
            at, length, best = best, 0, None
    return [*points, len(members)]


def _bytes_across(members: Sequence[Tensor], reads: Sequence[Iterable[Tensor]]) -> list[int]:
    """Bytes written or read once more if the kernel is cut before the member at each position."""
    first: dict[Tensor, int] = {}
    last: dict[Tensor, int] = {}
    made = {member: at for at, member in enumerate(members)}
    for at, read in enumerate(reads):
        for tensor in read:
            first.setdefault(tensor, made.get(tensor, at))
            last[tensor] = at
    change = [0] * (len(members) + 1)
    for tensor, end in last.items():
        moved = tensor.nbytes * (2 if tensor in made else 1)
        change[first[tensor] + 1] += moved
        change[end + 1] -= moved
    for at in range(1, len(change)):
        change[at] += change[at - 1]
    return change
