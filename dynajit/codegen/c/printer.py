"""Kernels of the schedule as C functions.

In:  `schedule.loops.Kernel`. Out: `print_kernel(kernel, threads)`: the text of one C function whose name is the
     placeholder `NAME`, so that equal kernels are equal texts, and the functions of `mathlib` it calls.
A new way to run a loop: a method of `_Printer` beside `_row_kernel`, `_column_kernel`, `_split_kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dynajit.codegen.c.bits import with_bits
from dynajit.codegen.c.expressions import HERE, NOWHERE, ROW
from dynajit.codegen.c.halves import Found, Span, always_read
from dynajit.codegen.c.lanes import BlockLoop, Lanes
from dynajit.codegen.c.segments import cuts, outer_cuts
from dynajit.codegen.c.tails import VECTOR, filled
from dynajit.codegen.c.text import MEMORY_TYPES, VALUE_TYPES, index_symbols, index_text, symbols_of
from dynajit.loopir.index import Atom, Axis, Index, axis, stride_of, substitute
from dynajit.loopir.nodes import Op, Reduction, Scalar, Scan, Scatter, Tensor, position, scalars_in
from dynajit.loopir.ops import OPS, REDUCTIONS
from dynajit.loopir.size import UNBOUNDED, Size, SizeSymbol, hint_of, size_symbols, symbols_in
from dynajit.schedule.kernel import Kernel, Load, Section, Store, Update, points_of
from dynajit.schedule.loops import KEEP_ELEMENTS

# Points times cost from which threads pay.
PARALLEL_WORK = 400_000
# A single row is cut into pieces of at least so many points, and no more pieces than this.
SPLIT_POINTS = 16_384
SPLIT_PIECES = 64
# Pieces are a multiple of so many elements: vectors that start where lines of the cache do are read once.
EVEN_PIECES = 64
# float32 sums over more elements than this are carried in double from block to block.
SUM_BLOCK = 4096
# What is read across the order of memory is read in tiles of this size.
ACROSS, ALONG = 32, 128
# Running sums are taken of so many elements at once; a multiple of eight.
SCANNED = 256
# How many columns go together in column mode, and how many bytes may be kept of them.
COLUMN_BLOCKS = (1024, 512, 256, 128, 64)
COLUMN_BYTES = 24 * 1024
# Rows of which columns are summed in float32 before they are added up in double.
COLUMN_ROWS = 256
# Loops at least this long, or a multiple of 16 long, use the widest vectors.
WIDE_ELEMENTS = 256


@dataclass(slots=True)
class Printed:
    """The text of a function called NAME, the library functions it needs, and the symbols it takes after pointers."""

    text: str
    helpers: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    checked: bool = False  # returns 1 if an index was outside of its tensor
    parameters: tuple[Tensor, ...] = ()  # whose memory it takes pointers to


def print_kernel(
    kernel: Kernel,
    stored_in: Mapping[Tensor, Tensor] = NOWHERE,
    donors: Mapping[Tensor, Sequence[Tensor]] | None = None,
) -> Printed:
    """The kernel in C. `stored_in`: tensors that it stores in another's memory; `donors`: those in whose memory it may
    be asked to."""
    printer = _Printer(with_bits(kernel), stored_in)
    for tensor, over in (donors or {}).items():
        printer.maybe_same.update((tensor, *over) if over else ())
        printer.overwritten.update(over)
    text = printer.function()
    return Printed(text, tuple(printer.helpers), printer.sizes, printer.checked, printer.parameters)


def _lies_across(address: Index, across: Axis, along: Axis) -> bool:
    """Do neighbours in memory lie along the one axis, and not along the other, which it varies with?"""
    return stride_of(address, across) == 1 and stride_of(address, along) not in (None, 0, 1)


def _rounded_up(size: int | Size, by: int) -> int | str:
    """ceil(size / by), as text if the size is symbolic."""
    return -(-size // by) if isinstance(size, int) else f"(({size} + {by - 1}) / {by})"


class _Printer(Lanes):
    """The loops of one kernel."""

    sizes: tuple[str, ...] = ()
    block = 0  # in column mode, how many columns go together

    def function(self) -> str:
        kernel = self.kernel
        written = {*kernel.writes, *self.stored_over.values()}
        apart = {tensor: "" if tensor in self.maybe_same else "restrict " for tensor in self.parameters}
        parameters = [
            f"{'' if tensor in written else 'const '}{MEMORY_TYPES[tensor.dtype]} *{alone}{self.arguments[tensor]}"
            for tensor, alone in apart.items()
        ]
        self.watch()
        if isinstance(kernel.group.members[0], Scan):
            self._scan_kernel(kernel.group.members[0])
        elif isinstance(kernel.group.members[0], Scatter):
            self._scatter_kernel(kernel.sections[0].updates[0])
        elif kernel.mode == "column":
            self._column_kernel()
        elif kernel.across is not None:
            self._tiled_kernel(kernel.across)
        elif not kernel.outer and kernel.inner and self._splits(kernel.inner[0].size):
            self._split_kernel()
        else:
            self._row_kernel()
        self.tell()
        self.sizes = self._symbols()
        parameters += [f"const int64_t {name}" for name in self.sizes]
        attribute = "WIDE " if self._vector_axis_size() >= WIDE_ELEMENTS else ""
        lines = self.blocks[0].lines
        if self.checked:
            lines = ["  int status = 0;", *lines, "  return status;"]
        head = f"{attribute}{'int' if self.checked else 'void'} NAME({', '.join(parameters)})"
        return "\n".join([head + " {", *lines, "}", ""])

    def _symbols(self) -> tuple[str, ...]:
        """The symbols of sizes in what was written."""
        kernel = self.kernel
        symbols: set[SizeSymbol] = set()
        for tensor in self.arguments:
            symbols |= size_symbols((*tensor.shape, *tensor.stride))
        symbols |= size_symbols(axis.size for axis in (*kernel.outer, *kernel.inner))
        symbols.update(*map(symbols_of, kernel.scalars()))
        symbols.update(*(index_symbols(store.address) for store in kernel.all_stores()))
        if not symbols:
            return ()
        words = set(symbols_in("\n".join(self.blocks[0].lines)))
        return tuple(sorted(symbol.name for symbol in symbols if symbol.name in words))

    def _vector_axis_size(self) -> int:
        kernel = self.kernel
        if kernel.mode == "column":
            return self._column_block() if hint_of(kernel.outer[-1].size) >= COLUMN_BLOCKS[-1] else 0
        return hint_of(kernel.inner[-1].size) if kernel.inner else 0

    def _work(self) -> int:
        kernel = self.kernel
        return points_of(kernel.outer) * points_of(kernel.inner) * (4 + kernel.cost)

    def _threads(self) -> tuple[str, ...]:
        """The pragma before a loop for threads, if they pay; where sizes are symbolic, it is decided at each call."""
        work = self._work()
        if not isinstance(work, Size):
            return ("#pragma omp parallel for schedule(static)",) if work >= PARALLEL_WORK else ()
        return (f"#pragma omp parallel for schedule(static) if({work} >= {PARALLEL_WORK})",)

    def _splits(self, size: int) -> bool:
        return hint_of(self._work()) >= PARALLEL_WORK and hint_of(size) >= 2 * SPLIT_PIECES

    # ---- row mode: one row after the other

    def _row_kernel(self) -> None:
        kernel = self.kernel
        self._open_rows()
        for tensor, name in self.scratch.items():
            self._row_of_scratch(VALUE_TYPES[tensor.dtype], name)
        for section in kernel.sections:
            self._row_section(section)
            if section.loops:
                self._accumulators(section)
                self._loop(section, kernel.inner, None)
        for name in self.scratch.values() if isinstance(points_of(kernel.inner), Size) else ():
            self.put(f"if ({name} != {name}_row) __builtin_free({name});")
        self._close_rows()

    def _open_rows(self) -> None:
        """The loop over rows, if there are several."""
        rows = points_of(self.kernel.outer)
        if rows != 1:
            self._open_flat(self._threads(), self.kernel.outer, rows)
            self.watch()
        self.gains(ROW)

    def _close_rows(self) -> None:
        if points_of(self.kernel.outer) != 1:
            self.tell()
            self.close()

    def _row_of_scratch(self, ctype: str, name: str) -> None:
        """An array as long as the row: on the stack, unless the row is symbolic and turns out to be long."""
        length = points_of(self.kernel.inner)
        if not isinstance(length, Size):
            self.put(f"{ctype} {name}[{length}];")
            return
        self.put(f"{ctype} {name}_row[{KEEP_ELEMENTS}];")
        room = f"__builtin_malloc(sizeof({ctype}) * {length})"
        self.put(f"{ctype} *restrict {name} = {length} <= {KEEP_ELEMENTS} ? {name}_row : ({ctype} *){room};")

    def _open_flat(self, before: tuple[str, ...], axes: tuple[Axis, ...], count: int | str, after: str = "") -> None:
        """One loop over all combinations of the axes, which become variables."""
        variable = axes[0].name if len(axes) == 1 and not after else "o"
        self.open(*before, f"for (int64_t {variable} = 0; {variable} < {count}; ++{variable})")
        if len(axes) > 1 or after:
            self._position(axes, f"({variable}{after})")
        self.gains(*axes)

    def _open_nest(self, axes: Sequence[Axis]) -> None:
        """A loop over each of the axes, one inside of the other."""
        for a in axes:
            self.open(f"for (int64_t {a.name} = 0; {a.name} < {a.size}; ++{a.name})", has=[a])

    def _position(self, axes: tuple[Axis, ...], number: str) -> None:
        for n, a in enumerate(axes):
            step = points_of(axes[n + 1 :])
            text = number if step == 1 else f"{number} / {step}"
            self.put(f"const int64_t {a.name} = {text if n == 0 else f'{text} % {a.size}'};")

    def _row_section(self, section: Section) -> None:
        """Row values and their stores; in column mode in a loop over the lanes."""
        if not section.rows and not section.row_stores:
            return
        if self.lane:
            for tensor, _ in section.rows:
                name = self.locals[tensor] = self.fresh("t")
                self.put(f"{VALUE_TYPES[tensor.dtype]} {name}[{self.block}];")
            values = [value for _, value in section.rows] + [store.value for store in section.row_stores]
            self._open_lanes(values, section.row_stores)
        for tensor, value in section.rows:
            text = self.expression(value)
            if self.lane:
                self.put(f"{self.locals[tensor]}[l] = {text};")
            else:
                self.locals[tensor] = text
        for store in section.row_stores:
            self.store(store)
        if self.lane:
            self.close()

    # ---- accumulation

    def wide(self, reduction: Reduction) -> bool:
        """Is this a long sum of float32, to be carried in double?"""
        count = points_of(self.kernel.inner)
        long = isinstance(count, Size) or count > (512 if self.kernel.mode == "column" else SUM_BLOCK)
        return long and reduction.kind == "sum" and reduction.dtype is torch.float32

    def _carried(self, reduction: Reduction) -> str:
        """The C type in which it is computed."""
        return "double" if self.wide(reduction) else VALUE_TYPES[reduction.dtype]

    def _accumulators(self, section: Section) -> None:
        for reduction, _ in section.reductions:
            name = self.locals[reduction] = self.fresh("r")
            self.put(f"{self._carried(reduction)} {name} = {self.start(reduction)};")

    def _loop(self, section: Section, axes: tuple[Axis, ...], bounds: tuple[str, str] | None) -> None:
        """The loop nest over the inner axes; `bounds` limit the first of them."""
        for a in axes[:-1]:
            low, high = bounds or ("0", str(a.size))
            bounds = None
            self.open(f"for (int64_t {a.name} = {low}; {a.name} < {high}; ++{a.name})", has=[a])
        wide = [reduction for reduction, _ in section.reductions if self.wide(reduction)]
        if not axes:
            self._innermost(section)
        else:
            self._last_loop(section, axes[-1], bounds or ("0", str(axes[-1].size)), wide)
        for _ in axes[:-1]:
            self.close()

    def _last_loop(self, section: Section, last: Axis, bounds: tuple[str, str], wide: list[Reduction]) -> None:
        low, high = bounds
        blocked = bool(wide) and (isinstance(last.size, Size) or last.size > SUM_BLOCK)
        totals = {reduction: self.locals[reduction] for reduction in wide}
        if blocked:
            self.open(f"for (int64_t b = {low}; b < {high}; b += {SUM_BLOCK})")
            self.put(f"const int64_t e = b + {SUM_BLOCK} < {high} ? b + {SUM_BLOCK} : {high};")
            low, high = "b", "e"
        for reduction in wide:
            self.locals[reduction] = self.fresh("p")
            self.put(f"float {self.locals[reduction]} = 0;")
        greatest = self.open_extremes(section)
        clauses = "".join(self.clause(r, self.locals[r]) for r, _ in section.reductions)
        if (low, high) == ("0", str(last.size)):
            self._pieces(section, last, clauses)
        else:
            self._piece(section, last, clauses, low, high)
        for reduction, total in totals.items():
            self.put(f"{total} += {self.locals[reduction]};")
            self.locals[reduction] = total
        self.close_extremes(greatest)
        if blocked:
            self.close()

    def _pieces(self, section: Section, last: Axis, clauses: str) -> None:
        """The whole innermost loop: one after the other of its pieces, or that of the piece of an axis outside of it in
        which we are."""
        pieces = cuts(section.values(), last)
        axis, outside = outer_cuts(section.values(), (*self.kernel.outer, *self.kernel.inner[:-1]), last)
        if len(pieces) == 1 and axis is not None:
            for n, piece in enumerate(outside):
                test = f"if ({axis.name} < {piece.high})" if n < len(outside) - 1 else ""
                self.open(" ".join(filter(None, ("else" if n else "", test))), guarded=True)
                self.piece = piece
                self._piece(section, last, clauses, "0", str(last.size))
                self.close()
        else:
            for piece in pieces:
                self.piece = piece if len(pieces) > 1 else None
                self._piece(section, last, clauses, str(piece.low), str(piece.high))
        self.piece = None

    def _piece(self, section: Section, last: Axis, clauses: str, low: str, high: str) -> None:
        halves = self.find(section, last)
        sums = self.open_lanes(section, last, bool(halves))
        if halves.only_copies(section):
            self.open_halves(halves, Span(last, low, f"{high} - {low}", ""))
            self.close_halves()
        elif halves or sums is not None:
            count = int(high) - int(low) if low.isdigit() and high.isdigit() else None
            loop = BlockLoop(last, last.name, low, high, clauses, lambda: self._innermost(section), count=count)
            self.in_blocks(loop, halves, sums)
        else:
            head = f"for (int64_t {last.name} = {low}; {last.name} < {high}; ++{last.name})"
            if low == "0" and high.isdigit() and self.piece is None:
                places = [store.address for store in section.stores]
                head = self._head(last, last.name, int(high), section.values(), places, bool(section.reductions))
            self.open(self.simd(clauses), head, has=[last])
            self._innermost(section)
            self.close()
        if sums is not None:
            self.close_lanes(sums, clauses)

    def _head(
        self, axis: Axis, name: str, count: int, values: list[Scalar], stores: list[Index], reduces: bool = False
    ) -> str:
        """The start of a loop of so many elements, which may leave out lanes of its last vector."""
        # an array of the row is read back sooner where it was not written by lanes
        stays = self.checked or (self.scratch and count <= VECTOR)
        end = count if stays else filled(count, axis, values, stores, reduces, self.needs_of, self.kernel.writes)
        if end == count:
            return f"for (int64_t {name} = 0; {name} < {count}; ++{name})"
        return f"for (int64_t {name} = 0; {name} < PADDED({count}, {end}); ++{name}) if ({name} < {count})"

    def _read_first(self, section: Section) -> None:
        """Variables for what is stored over."""
        over = self.overwritten
        if not over:
            return
        for value in section.values():
            for node in scalars_in(value):
                if isinstance(node, Load) and node.tensor in over:
                    self.expression(node)

    def _innermost(self, section: Section) -> None:
        self._read_first(section)
        for store in section.stores:
            self.store(store)
        for tensor, value in section.kept:
            self.put(f"{self.scratch[tensor]}[{self.scratch_index()}] = {self.expression(value)};")
        for reduction, value in section.reductions:
            target = self.locals[reduction] + self.lane
            text = self.expression(value)
            if reduction in self.nans:
                self.put(f"{target} = {text} {'>' if reduction.kind == 'max' else '<'} {target} ? {text} : {target};")
                self.put(f"{self.nans[reduction]} |= {text} != {text};")
            else:
                self.put(self.combine(reduction, target, text))

    def scratch_index(self) -> str:
        inner = self.kernel.inner
        parts = []
        step = 1
        for a in reversed(inner):
            parts.append(a.name if step == 1 else f"{step} * {a.name}")
            step *= a.size
        return " + ".join(reversed(parts)) or "0"

    # ---- column mode: a block of columns, all rows

    def _column_block(self) -> int:
        """How many columns go together: memory is read in order the longer the more, if the level 1 cache holds what is
        kept of each; but every thread gets a block."""
        kernel = self.kernel
        kept = sum(len(section.rows) + len(section.reductions) for section in kernel.sections)
        if kernel.inner:
            tiles = (self._along_rows(section) + self._stored_along_rows(section) for section in kernel.sections)
            kept += ACROSS // 2 * max(map(len, tiles))
        rows, columns = hint_of(points_of(kernel.outer[:-1])), hint_of(kernel.outer[-1].size)
        for block in COLUMN_BLOCKS:
            if 8 * kept * block <= COLUMN_BYTES and rows * -(-columns // block) >= torch.get_num_threads():
                return block
        return COLUMN_BLOCKS[-1]

    def _column_kernel(self) -> None:
        kernel = self.kernel
        self._open_column_blocks()
        self.lane = "[l]"
        self.watch()
        for section in kernel.sections:
            self._row_section(section)
            if section.loops:
                self._column_loop(section)
        self.tell()
        self.close()

    def _open_blocks(self, axes: tuple[Axis, ...], blocks: int | str) -> int | str:
        """The loop over these axes and, in the innermost place, so many blocks of another one."""
        rows = points_of(axes)
        count = rows * blocks if isinstance(rows, int) and isinstance(blocks, int) else f"{rows} * {blocks}"
        self._open_flat(self._threads() if count != 1 else (), axes, count, f" / {blocks}")
        self.gains(ROW)
        return blocks

    def _open_column_blocks(self) -> None:
        """The loop over blocks of columns: `base` is a block's first column, `n` how many it has."""
        kernel = self.kernel
        last = kernel.outer[-1]
        block = self.block = self._column_block()
        if isinstance(last.size, int) and last.size <= block:  # lengths that the compiler knows: it keeps registers
            self.block, rows = last.size, points_of(kernel.outer[:-1])
            self._turn_once()
            self._open_flat(self._threads() if rows != 1 else (), kernel.outer[:-1], rows)
            self.gains(ROW)
            self.put(f"const int64_t base = 0, n = {last.size};")
            return
        blocks = self._open_blocks(kernel.outer[:-1], _rounded_up(last.size, block))
        self.put(f"const int64_t base = o % {blocks} * {self.block};")
        left = f"{last.size} - base"
        self.put(f"const int64_t n = {left} < {self.block} ? {left} : {self.block};")

    def _open_lanes(self, values: list[Scalar], stores: list[Store]) -> None:
        last = self.kernel.outer[-1]
        head = "for (int64_t l = 0; l < n; ++l)"
        if self.block == last.size and isinstance(last.size, int):
            head = self._head(last, "l", last.size, values, [store.address for store in stores])
        self.open(self.simd(), head, has=[last])
        self.put(f"const int64_t {last.name} = base + l;")

    def _lanes_loop(self, halves: Found, body: Callable[[], None], section: Section | None = None) -> None:
        """The loop over the columns of a block, where the section's values are computed."""
        if halves:
            last = self.kernel.outer[-1]
            count = last.size if isinstance(last.size, int) else None
            self.in_blocks(BlockLoop(last, "l", "0", "n", "", body, "base", count), halves, None)
        else:
            self._open_lanes(section.values() if section else [], section.stores if section else [])
            body()
            self.close()

    def _column_loop(self, section: Section) -> None:
        for reduction, _ in section.reductions:
            name = self.locals[reduction] = self.fresh("r")
            self.put(f"{self._carried(reduction)} {name}[{self.block}];")
            self.put(f"for (int64_t l = 0; l < {self.block}; ++l) {name}[l] = {self.start(reduction)};")
        *others, last = self.kernel.inner
        columns = self.kernel.outer[-1]
        self._open_nest(others)
        halves = self.find(section, columns)
        before = {} if halves else self._before_rows(section, last)
        totals = self._open_column_parts(section, last)
        low, high = ("b", "e") if totals else ("0", str(last.size))
        stored = [] if halves else self._stored_along_rows(section)
        tiles = [load for load in self._along_rows(section) if load not in self.turned]
        back = [(store, self.fresh("q")) for store in stored]
        if tiles or back:
            self.open(f"for (int64_t y = {low}; y < {high}; y += {ACROSS})")
            self.put(f"const int64_t y_end = y + {ACROSS} < {high} ? y + {ACROSS} : {high};")
            for load in tiles:
                self._turn(load, last, columns, ("base", "n", "l"), self.block)
            for store, name in back:
                self.put(f"{MEMORY_TYPES[store.tensor.dtype]} {name}[{ACROSS * self.block}];")
                self.gathered[store.tensor] = f"{name}[({last.name} - y) * {self.block} + l]"
            low, high = "y", "y_end"

        def body() -> None:
            self.blocks[-1].names.update(before)
            self._innermost(section)

        self.open(f"for (int64_t {last.name} = {low}; {last.name} < {high}; ++{last.name})", has=[last])
        self._lanes_loop(halves, body, section)
        self.close()
        self.turned = {load: name for load, name in self.turned.items() if load not in tiles}
        self.gathered = {}
        for store, name in back:
            self._turn_back(store, name, last, columns)
        if tiles or back:
            self.close()
        for reduction, total in totals.items():
            self.put(f"for (int64_t l = 0; l < n; ++l) {total}[l] += {self.locals[reduction]}[l];")
            self.locals[reduction] = total
        for _ in (*others, *(("blocks",) if totals else ())):
            self.close()

    def _turn_once(self) -> None:
        """What is read in tiles, and whole for each point of the loops around the columns, is turned before them."""
        *others, last = self.kernel.inner or (None,)
        outside = [*self.kernel.outer[:-1], *others]
        if last is None or type(last.size) is not int or last.size > ACROSS or not self.kernel.outer[:-1]:
            return
        for load in dict.fromkeys(load for section in self.kernel.sections for load in self._along_rows(section)):
            same = load.tensor not in self.kernel.writes and all(stride_of(load.address, each) == 0 for each in outside)
            if same and load.dtype.itemsize != 2:  # which `halves` sees to
                if not self.turned:
                    self.put(f"const int64_t y = 0, y_end = {last.size};")
                self._turn(load, last, self.kernel.outer[-1], ("0", str(self.block), "l"), self.block)

    def _along_rows(self, section: Section) -> list[Load]:
        """What neighbours in memory along the rows, at every point: it is read in tiles."""
        if hint_of(self.kernel.inner[-1].size) < 5:
            return []
        loads = self._read_across(section.values(), self.kernel.inner[-1], self.kernel.outer[-1])
        return [load for load in loads if load.tensor not in self.overwritten]

    def _stored_along_rows(self, section: Section) -> list[Store]:
        """What is stored side by side along the rows: it goes by way of tiles, a vector of a row at once."""
        last, columns = self.kernel.inner[-1], self.kernel.outer[-1]
        if hint_of(last.size) < 5:
            return []
        read = {node.tensor for value in section.values() for node in scalars_in(value) if isinstance(node, Load)}
        return [
            store
            for store in section.stores
            if _lies_across(store.address, last, columns)
            and store.tensor.dtype.itemsize == 4
            and store.tensor not in self.stored_over
            and store.tensor not in self.maybe_same
            and store.tensor not in read
        ]

    def _before_rows(self, section: Section, last: Axis) -> dict[Scalar, str]:
        """What is made of elements that lie apart for neighbouring columns, and is the same for each `last`: computed
        once, and where it is kept."""
        columns = self.kernel.outer[-1]
        apart = {load for load in always_read(section.values()) if stride_of(load.address, columns) not in (None, 0, 1)}
        made: dict[Scalar, str] = {}
        todo, seen = section.values(), set[Scalar]()
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            needs = self.needs_of(node)
            if columns in needs and last not in needs and HERE not in needs and not apart.isdisjoint(scalars_in(node)):
                made[node] = f"{self.fresh('h')}[l]"
            elif isinstance(node, Op):
                todo += node.arguments[:1] if node.name == "guard" else node.arguments
        for node, name in made.items():
            self.put(f"{VALUE_TYPES[node.dtype]} {name.replace('[l]', f'[{self.block}]')};")
        if made:
            self._open_lanes(list(made), [])
            for node, name in made.items():
                self.put(f"{name} = {self.expression(node)};")
            self.close()
        return made

    def _open_column_parts(self, section: Section, last: Axis) -> dict[Reduction, str]:
        """Long sums are of float32 in blocks of rows, which costs half of sums in double; the names of those."""
        totals = {reduction: self.locals[reduction] for reduction, _ in section.reductions if self.wide(reduction)}
        if not totals or hint_of(last.size) <= COLUMN_ROWS:
            return {}
        self.open(f"for (int64_t b = 0; b < {last.size}; b += {COLUMN_ROWS})")
        self.put(f"const int64_t e = b + {COLUMN_ROWS} < {last.size} ? b + {COLUMN_ROWS} : {last.size};")
        for reduction in totals:
            name = self.locals[reduction] = self.fresh("p")
            self.put(f"float {name}[{self.block}];")
            self.put(f"for (int64_t l = 0; l < n; ++l) {name}[l] = 0;")
        return totals

    # ---- running sums and products

    def _scan_kernel(self, scan: Scan) -> None:
        kernel = self.kernel
        carried = "double" if scan.dtype.is_floating_point else VALUE_TYPES[scan.dtype]
        if scan.dtype.is_floating_point and scan.dtype.itemsize < 4:
            carried = "float"
        sign, start = ("+", "0") if scan.kind == "sum" else ("*", "1")
        ((section),) = kernel.sections
        (store,) = section.stores
        if kernel.mode == "column":
            self._scan_columns(store, carried, sign, start)
            return
        self._open_rows()
        self.put(f"{carried} t = {start};")
        self._open_nest(kernel.inner[:-1])
        self._scan_row(store, carried, sign)
        for _ in kernel.inner[:-1]:
            self.close()
        self._close_rows()

    def _scan_row(self, store: Store, carried: str, sign: str) -> None:
        """Block after block: the elements, running sums of these in place, and their stores."""
        last = self.kernel.inner[-1]
        name = last.name
        self.open(f"for (int64_t b = 0; b < {last.size}; b += {SCANNED})")
        self.put(f"const int64_t n = {last.size} - b < {SCANNED} ? {last.size} - b : {SCANNED};")
        self.put(f"{carried} p[{SCANNED}];")
        self.open(self.simd(), f"for (int64_t {name} = b; {name} < b + n; ++{name})", has=[last])
        self.put(f"p[{name} - b] = {self.expression(store.value)};")
        self.close()
        kind = {"float": "f32", "double": "f64", "int64_t": "i64"}.get(carried)
        if sign == "+" and kind is not None:
            self.helpers[f"running_{kind}"] = None
            self.put(f"t = running_{kind}(p, n, t);")
        else:
            self.put(f"for (int64_t k = 0; k < n; ++k) p[k] = t = t {sign} p[k];")
        self.open("#pragma omp simd", f"for (int64_t {name} = b; {name} < b + n; ++{name})", has=[last])
        self.put_stored(store, f"p[{name} - b]")
        self.close()
        self.close()

    def _scan_columns(self, store: Store, carried: str, sign: str, start: str) -> None:
        kernel = self.kernel
        self._open_column_blocks()
        block = self.block
        self.watch()
        self.put(f"{carried} t[{block}];")
        self.put(f"for (int64_t l = 0; l < {block}; ++l) t[l] = {start};")
        self._open_nest(kernel.inner)
        halves = self.find(kernel.sections[0], kernel.outer[-1])
        halves.stores += [stored for stored, _ in halves.copies]
        halves.copies = []

        def add() -> None:
            self.put(f"t[l] = t[l] {sign} {self.expression(store.value)};")
            self.put_stored(store, "t[l]")

        self._lanes_loop(halves, add)
        for _ in kernel.inner:
            self.close()
        self.tell()
        self.close()

    # ---- places that values say

    def _scatter_kernel(self, update: Update) -> None:
        """Updates in row-major order. Threads share out an axis that no two values of which have a place in common, or,
        where rows are long enough to pay for every thread's looking at all places, the places."""
        kernel = self.kernel
        axes = (*kernel.outer, *kernel.inner)
        first = 0
        while first < len(axes) - 1 and self._apart(update, axes[first]):
            first += 1
        self.gains(ROW)
        row = axes[-1] if axes and self._apart(update, axes[-1]) else None
        shares = not first and row is not None and update.uneven and hint_of(row.size) >= 8
        workers = torch.get_num_threads() if shares and hint_of(self._work()) >= PARALLEL_WORK else 1
        if first:
            self._open_flat(self._threads(), axes[:first], points_of(axes[:first]))
            self.watch()
        elif workers > 1:
            self.open("#pragma omp parallel for schedule(static)", f"for (int64_t c = 0; c < {workers}; ++c)")
            self.watch()
            reach = update.tensor.numel
            self.put(f"const int64_t low = c * {reach} / {workers}, high = (c + 1) * {reach} / {workers};")
        self._open_nest(axes[first:-1])
        if workers > 1:
            start = " + ".join(self.expression(part) for part in update.uneven)
            self.put(f"if ({start} < low || {start} >= high) continue;")
        if axes:
            last, pragma = axes[-1], (self.simd(),) if row is not None else ()
            self.open(*pragma, f"for (int64_t {last.name} = 0; {last.name} < {last.size}; ++{last.name})", has=[last])
        self._update(update)
        for _ in axes[first:]:
            self.close()
        if first or workers > 1:
            self.tell()
            self.close()

    def _apart(self, update: Update, axis: Axis) -> bool:
        """Do no two values of the axis have a place in common?"""
        even = stride_of(update.even, axis)
        return even not in (None, 0) and not any(axis in self.needs_of(part) for part in update.uneven)

    def _update(self, update: Update) -> None:
        parts = [self.expression(part) for part in (position(update.even), *update.uneven)]
        target = f"{self.arguments[update.tensor]}[{' + '.join(parts)}]"
        value, dtype = self.expression(update.value), update.tensor.dtype
        if update.kind == "set":
            self.put(f"{target} = {self.in_memory(value, update.value.dtype, dtype)};")
        else:
            operation = OPS[REDUCTIONS[update.kind].combine].text(dtype)
            self.put(f"{target} = {operation.format(target, value)};")

    # ---- tiles: what lies across is read in squares, so that each line of the cache is read once

    def _tiled_kernel(self, across: Axis) -> None:
        kernel = self.kernel
        along = kernel.inner[-1]
        others = tuple(a for a in kernel.outer if a is not across)
        turned = self._read_across(kernel.expressions(), across, along)
        # a tile serves all of the axes that what is turned does not depend on, if enough is left for the threads
        inside = tuple(a for a in others if all(stride_of(load.address, a) == 0 for load in turned))
        outside = tuple(a for a in others if a not in inside)
        if hint_of(points_of(outside)) * hint_of(across.size) < 2 * ACROSS * torch.get_num_threads():
            inside, outside = (), others
        blocks = self._open_blocks(outside, _rounded_up(across.size, ACROSS))
        self.watch()
        self._bounds("y", f"o % {blocks} * {ACROSS}", ACROSS, across)
        self.open(f"for (int64_t x = 0; x < {along.size}; x += {ALONG})")
        self._bounds("x", "", ALONG, along)
        for load in turned:
            self._turn(load, across, along, ("x", "x_end - x", f"{along.name} - x"), ALONG)
        for each in inside:
            self.open(f"for (int64_t {each.name} = 0; {each.name} < {each.size}; ++{each.name})", has=[each])
        self.open(f"for (int64_t {across.name} = y; {across.name} < y_end; ++{across.name})", has=[across])
        (section,) = kernel.sections
        self._last_loop(section, along, ("x", "x_end"), [])
        for _ in range(len(inside) + 2):
            self.close()
        self.tell()
        self.close()

    def _read_across(self, values: Iterable[Scalar], across: Axis, along: Axis) -> list[Load]:
        """What is read along the other axis, at every point."""
        return [
            load
            for load in always_read(values)
            if _lies_across(load.address, across, along) and load.dtype.itemsize in (2, 4, 8)
        ]

    def _turn(self, load: Load, across: Axis, along: Axis, tile: tuple[str, str, str], width: int) -> None:
        """Bring a tile of what is read into the order in which it is needed, from `y` on `across`; `tile`: where it
        begins on the other axis, how many there are of it, and which of them is at hand."""
        first, count, place = tile
        bits = 8 * load.dtype.itemsize
        self.helpers[f"turn_{bits}"] = None
        name = self.turned[load] = self.fresh("q")
        corner: dict[Atom, Index] = {across: axis("y", UNBOUNDED), along: axis(first, UNBOUNDED)}
        start = index_text(substitute(load.address, corner))
        step = stride_of(load.address, along)
        source = f"(const uint{bits}_t *)({self.arguments[load.tensor]} + {start})"
        self.put(f"{MEMORY_TYPES[load.dtype]} {name}[{ACROSS * width}];")
        self.put(f"turn_{bits}({source}, {step}, {count}, y_end - y, (uint{bits}_t *){name}, {width});")
        self.turned_place = f"({across.name} - y) * {width} + {place}"

    def _turn_back(self, store: Store, tile: str, across: Axis, along: Axis) -> None:
        """Bring the tile of what was computed to memory, in which what is `across` lies together."""
        self.helpers["turn_32"] = None
        corner: dict[Atom, Index] = {across: axis("y", UNBOUNDED), along: axis("base", UNBOUNDED)}
        place = f"{self.arguments[store.tensor]} + {index_text(substitute(store.address, corner))}"
        step = stride_of(store.address, along)
        self.put(f"turn_32((const uint32_t *){tile}, {self.block}, y_end - y, n, (uint32_t *)({place}), {step});")

    def _bounds(self, name: str, start: str, block: int, axis: Axis) -> None:
        if start:
            self.put(f"const int64_t {name} = {start};")
        self.put(f"const int64_t {name}_end = {name} + {block} < {axis.size} ? {name} + {block} : {axis.size};")

    # ---- one long row: cut into pieces, each piece a thread's

    def _split_kernel(self) -> None:
        kernel = self.kernel
        first = kernel.inner[0]
        points = points_of(kernel.inner)
        pieces = max(2, min(SPLIT_PIECES, hint_of(points) // SPLIT_POINTS, hint_of(first.size)))
        size = _rounded_up(first.size, pieces)
        if isinstance(size, int):
            if len(kernel.inner) == 1 and size > SPLIT_POINTS // 2:
                size = -(-size // EVEN_PIECES) * EVEN_PIECES
            pieces = -(-first.size // size)
        self.gains(ROW)
        for section in kernel.sections:
            self._row_section(section)
            if section.loops:
                self._split_loop(section, first, pieces, size)

    def _split_loop(self, section: Section, first: Axis, pieces: int, size: int | str) -> None:
        parts: dict[Reduction, str] = {}
        for reduction, _ in section.reductions:
            parts[reduction] = self.fresh("q")
            self.put(f"{self._carried(reduction)} {parts[reduction]}[{pieces}];")
        self.open(*self._threads(), f"for (int64_t c = 0; c < {pieces}; ++c)")
        self.put(f"const int64_t low = c * {size};")
        self.put(f"const int64_t high = low + {size} < {first.size} ? low + {size} : {first.size};")
        self.watch()
        self._accumulators(section)
        self._loop(section, self.kernel.inner, ("low", "high"))
        self.tell()
        for reduction, part in parts.items():
            self.put(f"{part}[c] = {self.locals[reduction]};")
        self.close()
        self._accumulators(section)
        for reduction, part in parts.items():
            self.open(f"for (int64_t c = 0; c < {pieces}; ++c)")
            self.put(self.combine(reduction, self.locals[reduction], f"{part}[c]"))
            self.close()
