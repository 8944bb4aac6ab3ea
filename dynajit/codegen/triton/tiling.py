"""Block sizes of a kernel, without timing anything.

In:  a `schedule.loops.Kernel`; for sizes that are symbolic the values at hand count.
Out: `tile(kernel)`: the `Tile` to print it with; `candidates(kernel)`: others worth timing under max-autotune.
A kernel's axes are gathered in dimensions of its tile: `x` (the outer axes of a reduction; all axes of a pointwise
kernel, or the last one), `r` (the inner axes of a reduction), `y` (of a pointwise kernel that reads along another axis
than it writes).
To tune: the constants, and `_pointwise`, `_reduction`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dynajit.codegen.triton.functions import Unprintable
from dynajit.loopir.index import Axis, axes_of
from dynajit.loopir.nodes import Scan, scalars_in
from dynajit.loopir.ops import MOMENTS
from dynajit.loopir.size import Size, hint_of
from dynajit.schedule.kernel import Kernel, Load, points_of

# A GPU of today runs some hundred blocks at once; fewer leave it half empty.
MULTIPROCESSORS = 132
# The longest row that one program holds in registers.
PERSISTENT = 16_384
# What it goes over longer ones in.
STEP = 4096
# Arithmetic of a kernel with an erf or two of the like.
DEAR = 40
# Columns of so many elements at most are a thread's own, which has so many numbers in registers.
SHORT, IN_REGISTERS = 32, 64
# Columns of a matrix in the cache that one program takes whole: their length, the matrix's elements, how many of them.
SHORT_COLUMN, CACHED, NARROW = 2048, 1 << 20, 8
# Rows of at least this many programs are not cut in pieces.
ENOUGH_PROGRAMS = 2 * MULTIPROCESSORS
# From so many on, programs of several rows each keep more of the memory busy.
MANY_ROWS = 8192
# Running sums of fewer rows than the one, longer than the other: one program a row leaves most of the GPU idle, and
# torch's function for it does better.
FEW_ROWS, LONG_SCAN = 64, 1 << 16
# Rows that have bounds: so many numbers of a row at least and at most are read at once, of so many columns.
SHORT_SEGMENT, LONG_SEGMENT, SEGMENT_COLUMNS = 4, 64, 128


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel is cut. `y` is an axis of a two-dimensional pointwise kernel. `looped`: over `r` in steps;
    `pieces`: programs that share a row."""

    x: int
    r: int = 1
    y: Axis | None = None
    y_size: int = 1
    looped: bool = False
    pieces: int = 1
    warps: int = 4


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def tile(kernel: Kernel) -> Tile:
    """The tile to print the kernel with."""
    if isinstance(kernel.group.members[0], Scan):
        return _any_length(kernel, _scan(kernel))
    return _any_length(kernel, _reduction(kernel)) if kernel.group.reduces else _pointwise(kernel)


def _any_length(kernel: Kernel, cut: Tile) -> Tile:
    """The tile, in steps if rows may be longer than those at hand."""
    return replace(cut, r=min(cut.r, STEP), looped=True) if isinstance(points_of(kernel.inner), Size) else cut


def candidates(kernel: Kernel) -> Iterator[Tile]:
    """Tiles to be timed, the one of `tile` first."""
    first = tile(kernel)
    yield first
    if isinstance(kernel.group.members[0], Scan) or kernel.bounds:
        return
    seen = {first}
    for made in _variants(kernel, first):
        if made not in seen:
            seen.add(made)
            yield made


def _variants(kernel: Kernel, first: Tile) -> Iterator[Tile]:
    for warps in (first.warps * 2, first.warps // 2):
        if 1 <= warps <= 32:
            yield replace(first, warps=warps)
    if not kernel.group.reduces:
        for size in (first.x * 2, first.x // 2):
            if 32 <= size <= 8192:
                yield replace(first, x=size)
        return
    for size in (first.x * 2, first.x // 2, first.x * 4):
        if size >= 1 and size * first.r <= 2 * PERSISTENT:
            yield replace(first, x=size)
    if first.looped:
        for size in (first.r * 2, first.r // 2):
            if size >= 8:
                yield replace(first, r=size)
        for pieces in (first.pieces * 2, first.pieces // 2):
            if first.pieces > 1 and pieces > 1:
                yield replace(first, pieces=pieces)


# ---- running sums and products


def _scan(kernel: Kernel) -> Tile:
    rows, length = hint_of(points_of(kernel.outer)), hint_of(points_of(kernel.inner))
    if rows < FEW_ROWS and length > LONG_SCAN:
        raise Unprintable("a scan of few long rows")
    if kernel.mode == "column":
        x, r = min(power_of_two(rows), 32), min(power_of_two(length), 64)
    else:
        r = min(power_of_two(length), STEP)
        x = max(1, min(1024 // r, power_of_two(rows // ENOUGH_PROGRAMS), 64))
    return Tile(x, r, looped=length > r, warps=_warps(x * r))


# ---- pointwise


def _pointwise(kernel: Kernel) -> Tile:
    axes = (*kernel.outer, *kernel.inner)
    points = hint_of(points_of(axes))
    across = kernel.across
    if across is not None:
        x = min(power_of_two(hint_of(axes[-1].size)), 64)
        y = min(power_of_two(hint_of(across.size)), 64 if x >= 32 else 4096 // max(x, 1))
        return Tile(x, y=across, y_size=y, warps=8 if x * y >= 4096 else 4)
    # At least one vector of 16 bytes for each thread, two for what is large.
    if points >= 1024 * 4 * MULTIPROCESSORS:
        return Tile(1024, warps=4)
    if points >= 256 * MULTIPROCESSORS:
        return Tile(256, warps=4 if kernel.cost > 40 else 2)
    return Tile(min(128, max(32, power_of_two(points))), warps=4 if points > 64 and kernel.cost > 40 else 1)


# ---- reductions


def _reduction(kernel: Kernel) -> Tile:
    rows, length = hint_of(points_of(kernel.outer)), hint_of(points_of(kernel.inner))
    if kernel.bounds:
        bounded, columns = split_outer(kernel)
        x = min(power_of_two(hint_of(points_of(columns))), SEGMENT_COLUMNS)
        mean = ceil_div(length, max(hint_of(points_of(bounded)), 1))
        r = min(max(power_of_two(mean), SHORT_SEGMENT), LONG_SEGMENT)
        # A row is one warp's, or each exchange between warps waits for all of them.
        return Tile(x, r, looped=True, warps=max(1, x * r // 1024))
    if kernel.mode == "column":
        return _columns(kernel, rows, length)
    single = can_split(kernel)
    if length <= min(1024 if single and rows < 8 else PERSISTENT, PERSISTENT):
        r = power_of_two(length)
        x = max(1, min(1024 // r, power_of_two(rows // ENOUGH_PROGRAMS)))
        while single and len(kernel.sections[0].reductions) == 1 and x * r < STEP and rows // x >= MANY_ROWS:
            x *= 2
        warps = _warps(x * r)
        # Dear arithmetic wants more independent work in each thread.
        return Tile(x, r, warps=warps // 2 if kernel.cost >= DEAR and warps == 8 else warps)
    pieces = 1
    if single and rows < ENOUGH_PROGRAMS:
        pieces = max(1, min(ceil_div(4 * MULTIPROCESSORS, rows), length // STEP))
    if single:
        return Tile(1, min(power_of_two(length), STEP), looped=True, pieces=pieces, warps=8)
    # Longer steps keep fewer rows in work at a time: what is read again comes from the cache.
    return Tile(1, min(power_of_two(length), 2 * STEP), looped=True, warps=16)


def split_outer(kernel: Kernel) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """The outer axes of a kernel whose rows have bounds: those that the bounds depend on and more, and the last of the
    others, if there is one."""
    fixed = {
        axis
        for bound in kernel.bounds
        for node in scalars_in(bound)
        if isinstance(node, Load)
        for axis in axes_of(node.address)
    }
    free = tuple(axis for axis in kernel.outer if axis not in fixed)[-1:]
    return tuple(axis for axis in kernel.outer if axis not in free), free


def _warps(elements: int) -> int:
    """Eight to sixteen elements for each thread."""
    for most, warps in ((256, 1), (512, 2), (2048, 4), (8192, 8)):
        if elements <= most:
            return warps
    return 16


def _columns(kernel: Kernel, rows: int, length: int) -> Tile:
    """Neighbouring threads read neighbouring outputs' elements."""
    if length <= SHORT:
        # As a pointwise kernel: a thread has whole columns, neighbours of which one read of 16 bytes brings.
        r, each = power_of_two(length), IN_REGISTERS // (2 if kernel.cost >= DEAR else 1)
        x = max(32, min(power_of_two(rows // ENOUGH_PROGRAMS), 1024, 4 * 32 * each // r))
        return Tile(x, r, warps=max(1, min(4, x * r // 256)))
    x = min(power_of_two(rows), 32 if length <= 64 else 64)
    if not can_split(kernel) and _passes(kernel) > 2 and length <= 512:
        x = min(x, 16)
        return Tile(x, power_of_two(length), warps=8 if x * length > 2048 else 4)
    if length <= SHORT_COLUMN and rows * length <= CACHED:
        # What pieces of columns gave: all programs there can be, each with a few columns at once.
        x, r = min(x, NARROW), power_of_two(length)
        return Tile(x, r, warps=max(1, min(8, x * r // 1024)))
    if not can_split(kernel):
        # Few columns for each program, or there are too few programs, and many of their elements at once.
        x, r = min(x, 16), min(power_of_two(length), 256)
        return Tile(x, r, looped=True, warps=_warps(x * r))
    programs = ceil_div(rows, x)
    pieces = 1
    if programs < 4 * MULTIPROCESSORS:
        pieces = max(1, min(ceil_div(8 * MULTIPROCESSORS, programs), length // 64))
    return Tile(x, 32, looped=True, pieces=pieces)


def _passes(kernel: Kernel) -> int:
    """How often the elements are needed one after another."""
    return len(kernel.sections) + any(reduction.kind in MOMENTS for reduction, _ in kernel.sections[0].reductions)


def can_split(kernel: Kernel) -> bool:
    """Is there one loop over the rows, so that programs can share a row and another kernel combine their results?"""
    return bool(kernel.sections[0].reductions) and not any(section.loops for section in kernel.sections[1:])
