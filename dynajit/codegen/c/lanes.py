"""Loops in blocks that fill several vectors: float16 is converted in registers, and sums are kept side by side.

In:  the innermost loop of a section: its axis, bounds, and what is done in it.
Out: its text: whole blocks, of which the compiler knows how many elements they have, and what is left over. One sum for
     each element of a block: an addition need not wait for the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dynajit.codegen.c.expressions import NOWHERE
from dynajit.codegen.c.halves import BLOCK, Found, Halves, Span
from dynajit.codegen.c.text import VALUE_TYPES, number
from dynajit.loopir.index import Axis, stride_of
from dynajit.loopir.nodes import Op, Reduction, Tensor, scalars_in
from dynajit.loopir.ops import OPS, REDUCTIONS
from dynajit.loopir.size import hint_of
from dynajit.schedule.kernel import Kernel, Load, Section

# Loops that do no more than this beside adding up keep sums of so many bytes at most, in the registers of four vectors,
# and are so many times longer; at least as many sums as one read of so many bytes brings.
MAX_COST = 8
LANE_BYTES = 256
BLOCKS = 8
SHORT_BYTES = 32


@dataclass(frozen=True, slots=True)
class BlockLoop:
    """A loop of `variable` from `low` to `high` along the axis; `base`: what is added to it for a place on the axis."""

    axis: Axis
    variable: str
    low: str
    high: str
    clauses: str
    body: Callable[[], None]
    base: str = ""
    count: int | None = None  # how many elements it has, or all loops like it together, if that is known


@dataclass(frozen=True, slots=True)
class LaneSums:
    """Names of arrays of `count` sums that a loop keeps side by side, and of those that note NaNs. short: the loop has
    few blocks."""

    count: int
    short: bool
    sums: dict[Reduction, str]
    nans: dict[Reduction, str]


class Lanes(Halves):
    """Accumulation, and loops in blocks."""

    def __init__(self, kernel: Kernel, stored_in: Mapping[Tensor, Tensor] = NOWHERE) -> None:
        super().__init__(kernel, stored_in)
        self.nans: dict[Reduction, str] = {}  # extremes in the loop at hand -> the variable that notes NaNs

    # ---- accumulation

    def start(self, reduction: Reduction) -> str:
        """The number that the reduction begins with."""
        return number(REDUCTIONS[reduction.kind].start(reduction.dtype), reduction.dtype)

    def clause(self, reduction: Reduction, name: str) -> str:
        """What OpenMP is told of the variable that holds it, and of that which notes NaNs."""
        sign = {"sum": "+", "prod": "*", "max": "max", "peak": "max", "min": "min"}[reduction.kind]
        flag = f" reduction(| : {self.nans[reduction]})" if reduction in self.nans else ""
        return f" reduction({sign} : {name}){flag}"

    def combine(self, reduction: Reduction, target: str, value: str) -> str:
        """The statement that takes one more value into `target`."""
        if reduction.kind == "peak":
            return f"{target} = {value} > {target} ? {value} : {target};"
        operation = OPS[REDUCTIONS[reduction.kind].combine].text(reduction.dtype)
        return f"{target} = {operation.format(target, value)};"

    def open_extremes(self, section: Section) -> dict[Reduction, str]:
        """The greatest and the least of floats, where a NaN anywhere is the result: in the loop NaNs are passed over
        and noted beside, which is one vector instruction each. The variables with the results of earlier loops."""
        totals = {}
        for reduction, _ in section.reductions:
            if reduction.dtype.is_floating_point and reduction.kind in ("max", "min"):
                totals[reduction] = self.locals[reduction]
                self.locals[reduction], self.nans[reduction] = self.fresh("p"), self.fresh("n")
                self.put(f"{VALUE_TYPES[reduction.dtype]} {self.locals[reduction]} = {self.start(reduction)};")
                self.put(f"int {self.nans[reduction]} = 0;")
        return totals

    def close_extremes(self, totals: dict[Reduction, str]) -> None:
        """After the loop: its extremes, NaN where one was noted, are taken into the `totals` of `open_extremes`."""
        for reduction, total in totals.items():
            part = self.locals[reduction]
            self.put(f"if ({self.nans.pop(reduction)}) {part} = {number(math.nan, reduction.dtype)};")
            self.put(self.combine(reduction, total, part))
            self.locals[reduction] = total

    # ---- sums side by side

    def open_lanes(self, section: Section, last: Axis, halves: bool) -> LaneSums | None:
        """Arrays of sums for the loop, if it is in blocks anyway, or long and does little else than add up rows."""
        if not section.reductions or not (halves or self._only_adds(section, last)):
            return None
        count = most = BLOCK
        if not halves:
            loads = (node.dtype for value in section.values() for node in scalars_in(value) if isinstance(node, Load))
            width = max(reduction.dtype.itemsize for reduction, _ in section.reductions)
            most = _power_of_two(LANE_BYTES // width // len(section.reductions))
            least = SHORT_BYTES // min((dtype.itemsize for dtype in loads), default=width)
            count = max(least, min(most, _power_of_two(hint_of(last.size) // BLOCKS)))
        # one block is a vector as it is; of few the notes of NaNs cost more than is won
        short = count < most
        if hint_of(last.size) < (2 * count if short else count) or (short and self.nans):
            return None
        lanes = LaneSums(count, short, {reduction: self.fresh("sum") for reduction, _ in section.reductions}, {})
        for reduction, name in lanes.sums.items():
            self.put(f"{VALUE_TYPES[reduction.dtype]} {name}[{count}];")
            self.put(f"for (int k = 0; k < {count}; ++k) {name}[k] = {self.start(reduction)};")
            if reduction in self.nans:
                lanes.nans[reduction] = self.fresh("n")
                self.put(f"int {lanes.nans[reduction]}[{count}] = {{0}};")
        return lanes

    def _only_adds(self, section: Section, last: Axis) -> bool:
        if section.stores or section.kept or self.checked:
            return False
        values = {node for value in section.values() for node in scalars_in(value)}
        loads = [node for node in values if isinstance(node, Load)]
        operations = [node for node in values if isinstance(node, Op)]
        return (
            sum(OPS[node.name].cost for node in operations) <= MAX_COST
            and not any(node.name in ("fetch", "guard") for node in operations)
            and all(stride_of(load.address, last) in (0, 1) for load in loads)
        )

    def close_lanes(self, lanes: LaneSums, clauses: str) -> None:
        """The sum of all lanes: of a short row half of them to the other half, and so on."""
        if lanes.short:
            self.open(f"for (int h = {lanes.count // 2}; h > 0; h /= 2)")
            self.open(self.simd(), "for (int k = 0; k < h; ++k)")
            for reduction, name in lanes.sums.items():
                self.put(self.combine(reduction, f"{name}[k]", f"{name}[k + h]"))
            self.close()
            self.close()
        self.open(self.simd(clauses), f"for (int k = 0; k < {1 if lanes.short else lanes.count}; ++k)")
        for reduction, name in lanes.sums.items():
            self.put(self.combine(reduction, self.locals[reduction], f"{name}[k]"))
        for reduction, name in lanes.nans.items():
            self.put(f"{self.nans[reduction]} |= {name}[k];")
        self.close()

    # ---- blocks

    def in_blocks(self, loop: BlockLoop, halves: Found, lanes: LaneSums | None) -> None:
        """The loop: whole blocks, and what is left over."""
        size = lanes.count if lanes is not None else BLOCK
        first = self.fresh("g")
        self.put(f"int64_t {first} = {loop.low};")
        if loop.count is None or loop.count >= size:
            self.open(f"for (; {first} + {size} <= {loop.high}; {first} += {size})")
            self._open_converted(loop, halves, first, str(size), "k")
            self._full_block(loop, lanes, first, size)
            self.close_halves()
            self.close()
        if loop.count is None or loop.count % size:
            if halves:
                self.open(f"if ({first} < {loop.high})")
                self._open_converted(loop, halves, first, f"{loop.high} - {first}", f"{loop.variable} - {first}")
            head = f"for (int64_t {loop.variable} = {first}; {loop.variable} < {loop.high}; ++{loop.variable})"
            # what a short row has left over fills no vector: one by one it need not be added up at the end
            self.open(*(() if lanes is not None and lanes.short else (self.simd(loop.clauses),)), head, has=[loop.axis])
            self._body(loop)
            self.close()
            if halves:
                self.close_halves()
                self.close()

    def _open_converted(self, loop: BlockLoop, halves: Found, first: str, count: str, place: str) -> None:
        if loop.base and halves:
            start = self.fresh("c")
            self.put(f"const int64_t {start} = {loop.base} + {first};")
            first = start
        if halves:
            self.open_halves(halves, Span(loop.axis, first, count, place))

    def _full_block(self, loop: BlockLoop, lanes: LaneSums | None, first: str, size: int) -> None:
        totals, nans = dict(self.locals), dict(self.nans)
        if lanes is not None:
            self.locals.update((reduction, f"{name}[k]") for reduction, name in lanes.sums.items())
            self.nans.update((reduction, f"{name}[k]") for reduction, name in lanes.nans.items())
        clauses = loop.clauses if lanes is None else ""
        self.open(self.simd(clauses), f"for (int k = 0; k < {size}; ++k)", has=[loop.axis])
        self.put(f"const int64_t {loop.variable} = {first} + k;")
        self._body(loop)
        self.close()
        self.locals, self.nans = totals, nans

    def _body(self, loop: BlockLoop) -> None:
        if loop.base:
            self.put(f"const int64_t {loop.axis.name} = {loop.base} + {loop.variable};")
        loop.body()


def _power_of_two(n: int) -> int:
    """The greatest that is not above n, and one at least."""
    return 1 << max(n, 1).bit_length() - 1
