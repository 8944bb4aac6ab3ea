"""A kernel of the schedule as a Triton function.

In:  `schedule.loops.Kernel` and the `tiling.Tile` to cut it with.
Out: `print_kernel(kernel, tile)`: a `PrintedTriton` with the text of one function whose name is the placeholder `NAME`
     (so that equal kernels are equal texts), its arguments and how many programs there are. Sizes that are known are in
     the text; symbols are arguments after the pointers (`sizes.py`), and all numbers of such a kernel have 32 bits.
A kernel without reductions is one block of elements a program; one with reductions holds `x` rows in registers and
reads each once, or (`tile.looped`) goes over them in steps, once for each section.
A new way to run a loop: beside `_row_at_once` and `_row_in_steps`.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import torch

from dynajit.codegen.triton import functions, mathlib, sizes
from dynajit.codegen.triton.functions import Unprintable
from dynajit.codegen.triton.tiling import Tile, ceil_div, split_outer
from dynajit.loopir.index import Axis, Div, Index, Mod, constant
from dynajit.loopir.nodes import Const, Number, Op, Position, Reduction, Scalar, Scan, Tensor, position
from dynajit.loopir.ops import CHECKS, MOMENTS, REDUCTIONS
from dynajit.loopir.philox import places
from dynajit.loopir.size import UNBOUNDED, Size, Undecided, divides, is_symbolic
from dynajit.op_facts import LOW_PRECISION
from dynajit.schedule.kernel import Kernel, Load, LoadAt, Local, Section, Store, Update, points_of

_INT32 = 1 << 31


@dataclass(slots=True)
class PrintedTriton:
    """The text of a function called NAME (helpers included), the tensors it takes pointers to, and its programs."""

    text: str
    arguments: tuple[Tensor, ...]
    written: tuple[Tensor, ...]
    programs: int | str  # text over `sizes` as the plan has it, where they decide it
    warps: int
    stages: int = 2
    sizes: tuple[str, ...] = ()  # symbols that are arguments after the tensors
    extents: tuple[Size, ...] = ()  # numbers in it, each of which has to be below `sizes.LIMIT`


def print_kernel(kernel: Kernel, tile: Tile, partial: tuple[Tensor, ...] = ()) -> PrintedTriton:
    """The kernel in Triton. With `partial`, tensors of shape (pieces, rows), one for each of its reductions but means,
    then one for the mean of each expression that has moments and one for how many elements they are of: the part of the
    kernel up to its reductions, each piece's results stored there. Raises Unprintable."""
    return Printer(kernel, tile, partial).printed()


@dataclass(slots=True)
class Scope:
    """Lines being written, and the variables that hold expressions in them."""

    indent: int
    inside: frozenset[str]  # the dimensions whose variables may appear
    head: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    names: dict[Scalar, str] = field(default_factory=dict)
    axes: dict[Axis, str] = field(default_factory=dict)

    def put(self, line: str) -> None:
        """A line at the end."""
        self.lines.append("    " * self.indent + line)

    def text(self) -> list[str]:
        """All lines, the head's first."""
        return ["    " * self.indent + line for line in self.head] + self.lines


class Printer:
    """The text of one kernel."""

    def __init__(self, kernel: Kernel, tile: Tile, partial: tuple[Tensor, ...]) -> None:
        self.kernel = kernel
        self.tile = tile
        self.partial = partial
        written = tuple(kernel.writes)
        if partial:
            full = {store.tensor for store in kernel.sections[0].stores}
            written = (*(tensor for tensor in kernel.writes if tensor in full), *partial)
        self.written = written
        self.arguments = {tensor: f"a{n}" for n, tensor in enumerate((*kernel.reads, *written))}
        self.dims = self._dimensions()
        self.dim_of = {axis: name for name, axes in self.dims.items() for axis in axes}
        self.sizes = {name: points_of(axes) for name, axes in self.dims.items()}
        self.blocks = {"x": tile.x, "y": tile.y_size, "r": tile.r, "z": 1}
        self.extents: tuple[Size, ...] = ()
        self.wide = self._needs_wide_indices()
        self.masked = {name for name in "xyr" if name in self.dims and self._needs_mask(name)}
        self.tiled = tuple(name for name in ("y", "x", "r") if name in self.dims and not self._scalar(name))
        self.depends: dict[Scalar, frozenset[str]] = {}
        self.values: dict[Tensor, Scalar] = {}  # of stored tensors, for reads of what was just written
        self.locals: dict[Tensor, str] = {}
        self.means: dict[Scalar, str] = {}  # of the piece, for squared distances to it
        # Conditions under which the expression at hand is evaluated, and what they vary along.
        self.guards: list[tuple[str, frozenset[str]]] = []
        self.count = 0
        self.outer = Scope(1, frozenset("xyz") if tile.looped else frozenset("xyzr"))

    def _dimensions(self) -> dict[str, tuple[Axis, ...]]:
        kernel = self.kernel
        if kernel.bounds:
            rows, columns = split_outer(kernel)
            made = {"z": rows, "x": columns, "r": kernel.inner}
            return {name: axes for name, axes in made.items() if axes}
        if kernel.group.reduces:
            return {"x": kernel.outer, "r": kernel.inner}
        axes = (*kernel.outer, *kernel.inner)
        if self.tile.y is None:
            return {"x": axes}
        return {"z": tuple(a for a in axes[:-1] if a is not self.tile.y), "y": (self.tile.y,), "x": axes[-1:]}

    def _scalar(self, name: str) -> bool:
        """Is the dimension's variable one number a program?"""
        return name == "z" or (self.blocks[name] == 1 and (name != "x" or self.kernel.group.reduces) and name != "r")

    def _needs_mask(self, name: str) -> bool:
        if self._scalar(name):
            return False
        if name == "r" and self.kernel.bounds:
            return True
        if name == "r" and self.tile.pieces > 1:
            piece = self._piece
            return isinstance(piece, str) or piece * self.tile.pieces != self.sizes[name]
        return not divides(self.blocks[name], self.sizes[name])

    @property
    def _piece(self) -> int | str:
        """How much of a row is one program's, in whole steps."""
        tile, size = self.tile, self.sizes["r"]
        if isinstance(size, Size):
            return f"({sizes.blocks(size, tile.pieces * tile.r)} * {tile.r})"
        return ceil_div(ceil_div(size, tile.pieces), tile.r) * tile.r

    @property
    def _elements_of_piece(self) -> str:
        """How many elements of a row are the program's own, of none one, for their mean."""
        return f"tl.maximum({self._seen}, 1)" if self.tile.pieces > 1 else self._seen

    @property
    def _seen(self) -> str:
        """How many elements of a row are the program's own; of none this is no more than 0."""
        whole = sizes.text(self.sizes["r"])
        return f"tl.minimum({whole} - r_id * {self._piece}, {self._piece})" if self.tile.pieces > 1 else whole

    def _indices(self) -> list[Index]:
        """All that are computed, what is divided on the way among them."""
        nodes = self.kernel.scalars()
        found = [node.address for node in nodes if isinstance(node, Load)]
        found += [node.index for node in nodes if isinstance(node, Position)]
        found += [store.address for store in self.kernel.all_stores()]
        found += [update.even for section in self.kernel.sections for update in section.updates]
        for index in found:
            found += [atom.index for atom, _ in index.terms if not isinstance(atom, Axis)]
        return found

    def _needs_wide_indices(self) -> bool:
        addresses = self._indices()
        points = points_of((*self.kernel.outer, *(() if self.kernel.bounds else self.kernel.inner)))
        numbers = [points, *(bound for a in addresses for bound in (a.low, a.high))]
        if is_symbolic(numbers) or is_symbolic(self.sizes.values()):
            if any(not isinstance(number, Size) and abs(number) >= sizes.LIMIT for number in numbers):
                where = ", ".join(f"{address} of {address.low} to {address.high}" for address in addresses)
                raise Undecided(f"indices of 64 bits in a kernel with symbolic sizes: {where}")
            everything: list[Any] = [*numbers, *self.sizes.values()]
            self.extents = tuple(number for number in everything if isinstance(number, Size))
            return False
        reach = max(self.sizes[name] + self.blocks[name] for name in self.dims)
        points = reach if len(self.dims) == 1 else points
        return max(reach, points) >= _INT32 or any(a.high >= _INT32 or a.low < -_INT32 for a in addresses)

    # ---- the whole

    def printed(self) -> PrintedTriton:
        """The kernel as `print_kernel` gives it. Raises Unprintable."""
        programs = self._program_ids()
        kernel = self.kernel
        if isinstance(kernel.group.members[0], Scan):
            self._scan(kernel.group.members[0])
        elif not kernel.group.reduces:
            for section in kernel.sections:
                self._rows(section)
                self._elements(section, self.outer)
        elif self.tile.looped:
            self._row_in_steps()
        else:
            self._row_at_once()
        text = "\n".join(self.outer.text() or ["    pass"])
        symbols = sizes.arguments(text)
        names = ", ".join((*self.arguments.values(), *map(sizes.parameter, symbols)))
        function = f"@triton.jit\ndef NAME({names}):\n{text}\n"
        known = programs if isinstance(programs, int) else sizes.plan_text(programs)
        return PrintedTriton(
            functions.with_helpers(function),
            tuple(self.arguments),
            self.written,
            known,
            self.tile.warps,
            sizes=symbols,
            extents=self.extents,
        )

    def _program_ids(self) -> int | str:
        """Define the dimensions' variables; how many programs there are."""
        head = self.outer.head
        head.append("pid = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        programs = {
            name: self.tile.pieces if name == "r" else sizes.blocks(self.sizes[name], self.blocks[name])
            for name in self.dims
        }
        left = [name for name in ("x", "y", "z", "r") if programs.get(name, 1) not in (0, 1)]
        for n, name in enumerate(left):
            last = n == len(left) - 1
            head.append(f"{name}_id = pid" if last else f"{name}_id = pid % {programs[name]}")
            if not last:
                head.append(f"pid = pid // {programs[name]}")
        for name in self.dims:
            if name != "r" or not self.tile.looped:
                self._define(name, f"{name}_id" if name in left else "", head)
        return sizes.product(programs.values())

    def _define(self, name: str, number: str, lines: list[str]) -> None:
        """The variable of a dimension, and its mask; `number` counts blocks ("" is the first)."""
        block = self.blocks[name]
        if self._scalar(name):
            lines.append(f"{name} = {number or '0'}")
            return
        lines.append(f"{name} = {f'{number} * {block} + ' if number else ''}tl.arange(0, {block}){self._spread(name)}")
        if name in self.masked:
            lines.append(f"{name}m = {name} < {sizes.text(self.sizes[name])}")

    def _spread(self, name: str) -> str:
        """The subscript that lays the dimension along its axis of the tile."""
        if len(self.tiled) < 2:
            return ""
        return "[:, None]" if self.tiled[0] == name else "[None, :]"

    @property
    def _shape(self) -> str:
        return "[" + ", ".join(str(self.blocks[name]) for name in self.tiled) + "]"

    # ---- rows

    def _row_at_once(self) -> None:
        for section in self.kernel.sections:
            self._rows(section)
            self._elements(section, self.outer)
            for reduction, body in section.reductions:
                value = self._whole_tile(self._expression(body, self.outer), body)
                if reduction.kind in MOMENTS:
                    self._moment_at_once(reduction, body, value)
                    continue
                tile, _ = functions.reduction(reduction.kind, reduction.dtype)
                if "r" in self.masked:
                    value = f"tl.where(rm, {value}, {self._start(reduction)})"
                self._finish(reduction, tile, value)
            if self.partial:
                self._store_partial(section)
                return

    def _moment_at_once(self, reduction: Reduction, body: Scalar, value: str) -> None:
        """The mean of a row's values, or the sum of their squared distances to it."""
        if body not in self.means:
            self.means[body] = self._summed(reduction, value, self._elements_of_piece)
        self.locals[reduction] = self.means[body]
        if reduction.kind == "squared_deviations":
            distance = self._fresh("d")
            self.outer.put(f"{distance} = {value} - {self.means[body]}")
            self.locals[reduction] = self._summed(reduction, f"{distance} * {distance}")

    def _summed(self, reduction: Reduction, value: str, count: str = "") -> str:
        """A variable with the sum of the row's values in a tile, divided by `count`."""
        if "r" in self.masked:
            value = f"tl.where(rm, {value}, 0.0)"
        name = self._fresh("m")
        text = self._across(functions.reduction("sum", reduction.dtype)[0], f"({value})")
        self.outer.put(f"{name} = {text}{count and f' / {count}'}")
        return name

    def _row_in_steps(self) -> None:
        both: _Exponentials | None = None
        for section, after in zip(self.kernel.sections, (*self.kernel.sections[1:], None), strict=True):
            done = both is not None
            self._rows(section)
            both = None if done or self.partial or after is None else _exponentials(section, after)
            if both is not None:
                self._steps_of_both(both)
            elif section.loops and not done:
                self._steps(section)
            if self.partial:
                self._store_partial(section)
                return

    def _steps(self, section: Section) -> None:
        """One loop over the row."""
        tile, outer = self.tile, self.outer
        sums = [(reduction, body) for reduction, body in section.reductions if reduction.kind not in MOMENTS]
        totals = []
        for reduction, _ in sums:
            totals.append(self._fresh("s"))
            kind = functions.VALUE_TYPES[reduction.dtype]
            outer.put(f"{totals[-1]} = tl.full({self._shape}, {self._start_value(reduction)}, {kind})")
        moments = {body: reduction for reduction, body in section.reductions if reduction.kind in MOMENTS}
        shifts = {body: self._near_mean(reduction, body) for body, reduction in moments.items()}
        inner = Scope(2, frozenset("xyzr"))
        self._elements(section, inner)
        for (reduction, body), total in zip(sums, totals, strict=True):
            combined = functions.reduction(reduction.kind, reduction.dtype)[1]
            combined = combined.format(total, self._expression(body, inner))
            inner.put(f"{total} = " + (f"tl.where(rm, {combined}, {total})" if "r" in self.masked else combined))
        for body, shift in shifts.items():
            distance = f"{self._expression(body, inner)} - {shift}"
            inner.put(f"{shift}_d = " + (f"tl.where(rm, {distance}, 0.0)" if "r" in self.masked else distance))
            inner.put(f"{shift}_sum += {shift}_d")
            inner.put(f"{shift}_squares += {shift}_d * {shift}_d")
        if tile.pieces > 1:
            self._loop(self._piece, f"r_id * {self._piece} + ", inner)
        else:
            self._loop(sizes.text(self.sizes["r"]), "", inner)
        for (reduction, _), total in zip(sums, totals, strict=True):
            self._finish(reduction, functions.reduction(reduction.kind, reduction.dtype)[0], total)
        for reduction, body in section.reductions:
            if reduction.kind in MOMENTS:
                self._moment_of_sums(reduction, body, shifts[body])

    def _near_mean(self, reduction: Reduction, body: Scalar) -> str:
        """A variable with the mean of the first step's values: distances to it add up to something small, so that what
        their sum says of the mean can be taken off their squares."""
        outer, r = self.outer, self.tile.r
        first = Scope(1, frozenset("xyzr"))
        self._define("r", f"(r_id * {self._piece} // {r})" if self.tile.pieces > 1 else "", first.head)
        value = self._whole_tile(self._expression(body, first), body)
        outer.lines.extend(first.text())
        shift = self._summed(reduction, value, f"tl.minimum({self._elements_of_piece}, {r})")
        for what in ("sum", "squares"):
            outer.put(f"{shift}_{what} = tl.full({self._shape}, 0.0, {functions.VALUE_TYPES[reduction.dtype]})")
        return shift

    def _moment_of_sums(self, reduction: Reduction, body: Scalar, shift: str) -> None:
        """The moment, of the sums over all steps."""
        outer, count, away = self.outer, self._elements_of_piece, f"{shift}_away"
        tile = functions.reduction("sum", reduction.dtype)[0]
        if body not in self.means:
            self.means[body] = self._fresh("m")
            outer.put(f"{away} = {self._across(tile, f'{shift}_sum')}")
            outer.put(f"{self.means[body]} = {shift} + {away} / {count}")
        self.locals[reduction] = self.means[body]
        if reduction.kind == "squared_deviations":
            name = self.locals[reduction] = self._fresh("t")
            squares = self._across(tile, f"{shift}_squares")
            outer.put(f"{name} = {squares} - {away} * ({away} / {count})")
            outer.put(f"{name} = tl.where({name} < 0.0, 0.0, {name})")

    def _steps_of_both(self, both: _Exponentials) -> None:
        """One loop for the greatest and for the sum of what is exponential in the distance to it: the sum so far is of
        distances to the greatest so far, and is scaled anew after each step."""
        outer = self.outer
        inner = Scope(2, frozenset("xyzr"))
        greatest, total, up, base = (self._fresh("s") for _ in range(4))
        kind, exp = functions.VALUE_TYPES[both.total.dtype], functions.operation("exp", both.total.dtype)
        tile, combine = functions.reduction(both.greatest.kind, both.greatest.dtype)
        first = self._start(both.greatest)
        outer.put(f"{greatest} = {self._for_rows(first)}")
        outer.put(f"{total} = tl.full({self._shape}, 0.0, {kind})")
        value = self._whole_tile(self._expression(both.value, inner), both.value)
        seen = f"tl.where(rm, {value}, {first})" if "r" in self.masked else value
        inner.put(f"{up} = {combine.format(greatest, self._across(tile, seen))}")
        inner.put(f'{base} = tl.where({up} == float("-inf"), 0.0, {up})')  # as long as nothing else was seen
        added = exp.format(f"({value} - {base})")
        inner.put(f"{total} = {total} * {exp.format(f'({greatest} - {base})')}")
        inner.put(f"{total} += " + (f"tl.where(rm, {added}, 0.0)" if "r" in self.masked else added))
        inner.put(f"{greatest} = {up}")
        self._loop(sizes.text(self.sizes["r"]), "", inner)
        self.locals[both.greatest] = greatest
        nothing = f'tl.where({greatest} == float("-inf"), float("nan"), {total})'
        self._finish(both.total, functions.reduction("sum", both.total.dtype)[0], nothing)

    def _scan(self, scan: Scan) -> None:
        """Running sums or products: of the row at once, or in steps that take the total of those before along."""
        (store,) = self.kernel.sections[0].stores
        axis = len(self.tiled) - 1
        tile, both = functions.reduction(scan.kind, scan.dtype)
        helper = functions.scan(scan.kind)
        scope = Scope(2, frozenset("xyzr")) if self.tile.looped else self.outer
        value = self._whole_tile(self._expression(store.value, scope), store.value)
        running = f"tl.associative_scan({value}, {axis}, {helper})"
        if self.tile.looped:
            start = functions.number(REDUCTIONS[scan.kind].start(scan.dtype), scan.dtype)
            inside = f"tl.where(rm, {value}, {start})" if "r" in self.masked else value
            self.outer.put(f"total = {self._for_rows(start)}")
            scope.put(f"running = {both.format('total', running)}")
            scope.put(f"total = {both.format('total', self._across(tile, inside))}")
        else:
            scope.put(f"running = {running}")
        where, mask = self._index(store.address, scope), self._mask(self._axes_in(store.address))
        scope.put(f"tl.store({self.arguments[store.tensor]} + ({where}), running{mask})")
        if self.tile.looped:
            self._loop(sizes.text(self.sizes["r"]), "", scope)

    def _for_rows(self, number: str) -> str:
        """A number, once for each row."""
        return number.replace("[]", self._shape_along({"y", "x"})) if len(self.tiled) > 1 else number

    def _shape_along(self, dims: Set[str]) -> str:
        """That of values which vary along these dimensions."""
        return "[" + ", ".join(str(self.blocks[name]) if name in dims else "1" for name in self.tiled) + "]"

    def _loop(self, steps: int | str, first: str, inner: Scope) -> None:
        """The loop over `r` around what was written."""
        tile, outer = self.tile, self.outer
        low, end = "0", sizes.text(self.sizes["r"])
        if self.kernel.bounds:
            kind = "tl.int64" if self.wide else "tl.int32"
            low, end = (f"{self._expression(bound, outer)}.to({kind})" for bound in self.kernel.bounds)
            steps = end
        outer.put(f"for start in range({low}, {steps}, {tile.r}):")
        outer.put(f"    r = {first}start + tl.arange(0, {tile.r}){self._spread('r')}")
        if "r" in self.masked:
            outer.put(f"    rm = r < {end}")
        outer.lines.extend(inner.text())

    def _finish(self, reduction: Reduction, tile: str, value: str) -> None:
        """The tile combined to the row value."""
        name = self.locals[reduction] = self._fresh("t")
        self.outer.put(f"{name} = {self._across(tile, value)}")

    def _across(self, tile: str, value: str) -> str:
        """A tile combined along its rows: one value for each, as wide as values of rows are."""
        axis = len(self.tiled) - 1
        return tile.format(value, axis=axis) + ("[:, None]" if axis else "")

    def _store_partial(self, section: Section) -> None:
        mask = ", xm" if "x" in self.masked else ""
        piece = f"r_id * {sizes.text(self.sizes['x'])} + x" if self.tile.pieces > 1 else "x"
        values = [self.locals[reduction] for reduction, _ in section.reductions if reduction.kind != "mean"]
        values += self.means.values()
        if self.means:
            values.append(f"tl.maximum({self._seen}, 0).to(tl.float32)")
        for value, tensor in zip(values, self.partial, strict=True):
            self.outer.put(f"tl.store({self.arguments[tensor]} + ({piece}), {self._stored(value, tensor.dtype)}{mask})")

    def _whole_tile(self, text: str, node: Scalar) -> str:
        if self._depends(node) >= set(self.tiled):
            return text
        return f"tl.broadcast_to({text}, {self._shape})"

    def _start_value(self, reduction: Reduction) -> str:
        return self._start(reduction).split(", ", 1)[1].rsplit(", ", 1)[0]

    def _start(self, reduction: Reduction) -> str:
        value = REDUCTIONS[reduction.kind].start(reduction.dtype)
        return functions.number(value, reduction.dtype)

    def _rows(self, section: Section) -> None:
        for tensor, value in section.rows:
            self.locals[tensor] = self._expression(value, self.outer)
        if not self.partial:
            for store in section.row_stores:
                self._store(store, self.outer)

    def _elements(self, section: Section, scope: Scope) -> None:
        if section.kept:
            raise Unprintable("values kept between loops")
        for store in section.stores:
            self._store(store, scope)
        for update in section.updates:
            self._update(update, scope)

    # ---- expressions

    def _fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _stored(self, value: str, dtype: torch.dtype) -> str:
        return f"({value}).to(tl.uint8)" if dtype is torch.bool else value

    def _store(self, store: Store, scope: Scope) -> None:
        value = self._stored(self._expression(store.value, scope), store.tensor.dtype)
        where = self._index(store.address, scope)
        mask = self._mask(self._axes_in(store.address))
        scope.put(f"tl.store({self.arguments[store.tensor]} + ({where}), {value}{mask})")

    def _update(self, update: Update, scope: Scope) -> None:
        """Write where values say; sums by atomic additions."""
        places = [self._expression(part, scope) for part in update.uneven]
        where = " + ".join((self._index(update.even, scope), *places))
        value = self._stored(self._expression(update.value, scope), update.tensor.dtype)
        if self.tiled:  # each point its own, whatever place and value vary along
            where = f"{where} + tl.full({self._shape}, 0, tl.int32)"
            value = f"tl.broadcast_to({value}, {self._shape})"
        mask = self._mask(frozenset(self.tiled))
        pointer = f"{self.arguments[update.tensor]} + ({where})"
        if update.kind == "set":
            scope.put(f"tl.store({pointer}, {value}{mask})")
        else:
            scope.put(f'tl.atomic_add({pointer}, {value}{mask}, sem="relaxed")')

    def _mask(self, depends: frozenset[str]) -> str:
        parts = [f"{name}m" for name in "yxr" if name in self.masked and name in depends]
        return ", " + " & ".join(parts) if parts else ""

    def _expression(self, node: Scalar, scope: Scope) -> str:
        """A variable or constant that holds the expression's value."""
        if isinstance(node, Const):
            return functions.number(node.value, node.dtype)
        if isinstance(node, Local):
            return self.locals[node.tensor]
        if scope is not self.outer and not self.guards and self._depends(node) <= self.outer.inside:
            scope = self.outer  # the same in all steps
        found = scope.names.get(node)
        if found is None:
            text = self._text(node, scope)
            found = scope.names[node] = self._fresh("v")
            scope.put(f"{found} = {text}")
        return found

    def _text(self, node: Scalar, scope: Scope) -> str:
        if isinstance(node, (Load, LoadAt)):
            text = self._load(node, scope) if isinstance(node, Load) else self._fetch(node, scope)
            if node.dtype is torch.bool:
                return f"({text} != 0)"
            return f"{text}.to(tl.float32)" if node.dtype in LOW_PRECISION else text
        if isinstance(node, Position):
            return f"({self._index(node.index, scope)}).to(tl.int64)"
        if not isinstance(node, Op):
            raise Unprintable(f"a {type(node).__name__}")
        if node.name == "guard":
            return self._guard(node, scope)
        if node.name in CHECKS:
            return self._checked(node, scope)
        if node.name == "uniform":
            return self._uniform(node, scope)
        found = mathlib.special(node) if self._fills_tile(node) else None
        if found is not None:
            return f"{found[0]}({', '.join(self._expression(argument, scope) for argument in found[1])})"
        arguments = [self._expression(argument, scope) for argument in node.arguments]
        if node.name == "convert":
            return self._converted(node.arguments[0].dtype, node.dtype, arguments[0])
        return functions.operation(node.name, node.arguments[-1].dtype).format(*arguments)

    def _checked(self, node: Op, scope: Scope) -> str:
        """A place that a value gives; the program stops where it is outside."""
        place, size = (self._expression(argument, scope) for argument in node.arguments)
        if node.name == "wrapped":
            wrapped = self._fresh("v")
            scope.put(f"{wrapped} = tl.where({place} < 0, {place} + {size}, {place})")
            place = wrapped
        mask = self._mask(self._depends(node)).removeprefix(", ")
        tests = (test for test, _ in self.guards)
        conditions = [f"({place} < 0) | ({place} >= {size})", *([mask] if mask else []), *tests]
        scope.put(f"dj_refuse({' & '.join(f'({condition})' for condition in conditions)})")
        return place

    def _uniform(self, node: Op, scope: Scope) -> str:
        """A random number; where neighbours are a thread's four of a step, the four at once."""
        seed, offset, element, *layout = node.arguments
        vector, count = (part.value for part in layout if isinstance(part, Const))
        index = element.index if isinstance(element, Position) else constant(0)
        thread, step, word = places(index, int(vector), int(count))
        given = [self._expression(argument, scope) for argument in (seed, offset, position(thread), position(step))]
        if vector == 1 or not self._counts_fours(index):
            return f"dj_uniform({', '.join((*given, self._expression(position(word), scope)))})"
        shape = [self.blocks[name] for name in self.tiled]
        fours = f"[{', '.join(map(str, (*shape[:-1], shape[-1] // 4, 2, 2)))}]"
        tiles = (f"tl.reshape(tl.broadcast_to({place}, {self._shape}), {fours})" for place in given[2:])
        return f"tl.reshape(dj_uniform_fours({', '.join((*given[:2], *tiles))}), {self._shape})"

    def _counts_fours(self, index: Index) -> bool:
        """Does the index, modulo 4, count 0, 1, 2, 3 along the tile's last dimension, over and over from its start?"""
        if not self.tiled or self.blocks[self.tiled[-1]] % 4:
            return False
        last = self.dims[self.tiled[-1]]
        terms = dict(index.terms)
        return (
            index.constant % 4 == 0
            and all(isinstance(atom, Axis) for atom in terms)
            and _along(terms, last) == 1  # type: ignore[arg-type]
            and all(factor % 4 == 0 for atom, factor in index.terms if atom not in last)
        )

    def _converted(self, source: torch.dtype, target: torch.dtype, value: str) -> str:
        return functions.conversion(source, target, value)

    def _load(self, node: Load, scope: Scope) -> str:
        if isinstance(node.tensor, Number):
            return self.arguments[node.tensor]
        return self._loaded(node.tensor, self._index(node.address, scope), self._axes_in(node.address))

    def _fetch(self, node: LoadAt, scope: Scope) -> str:
        """The element where a value says."""
        return self._loaded(node.tensor, self._expression(node.arguments[0], scope), self._depends(node))

    def _loaded(self, tensor: Tensor, where: str, depends: frozenset[str]) -> str:
        mask = self._mask(depends)
        if self.guards:
            tests = " & ".join(test for test, _ in self.guards)
            depends = depends.union(*(along for _, along in self.guards))
            if not depends.isdisjoint(self.tiled):  # a mask may not have more dimensions than what it masks
                where = f"{where} + tl.full({self._shape_along(depends)}, 0, tl.int32)"
                mask = self._mask(depends)
            mask = f"{mask} & {tests}" if mask else f", {tests}"
        return f"tl.load({self.arguments[tensor]} + ({where}){mask})"

    def _guard(self, node: Op, scope: Scope) -> str:
        """Both values, what each reads masked by its condition."""
        condition = self._expression(node.arguments[0], scope)
        values = []
        for test, chosen in ((condition, node.arguments[1]), (f"({condition} == 0)", node.arguments[2])):
            outside = dict(scope.names)
            self.guards.append((test, self._depends(node.arguments[0])))
            values.append(self._expression(chosen, scope))
            self.guards.pop()
            scope.names = outside
        return f"tl.where({condition}, {values[0]}, {values[1]})"

    def _fills_tile(self, node: Scalar) -> bool:
        """Is the value a tile with an element for each thread, not a row's?"""
        return bool(self.tiled) and self._depends(node) >= set(self.tiled)

    def _depends(self, node: Scalar) -> frozenset[str]:
        """The dimensions along which the value varies."""
        found = self.depends.get(node)
        if found is None:
            if isinstance(node, Load):
                found = self._axes_in(node.address)
            elif isinstance(node, Position):
                found = self._axes_in(node.index)
            elif isinstance(node, Op):
                found = frozenset[str]().union(*(self._depends(argument) for argument in node.arguments))
            else:
                found = frozenset("x") if isinstance(node, Local) else frozenset()
            self.depends[node] = found
        return found

    # ---- indices

    def _axes_in(self, index: Index) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for atom, _ in index.terms:
            found |= {self.dim_of[atom]} if isinstance(atom, Axis) else self._axes_in(atom.index)
        return found

    def _index(self, index: Index, scope: Scope) -> str:
        """The index as an integer expression."""
        terms = dict(index.terms)
        parts = []
        for name, axes in self.dims.items():
            factor = _along(terms, axes)  # type: ignore[arg-type]
            if factor is not None:
                parts.append(name if factor == 1 else f"{sizes.text(factor)} * {name}")
                for axis in axes:
                    terms.pop(axis, None)
        for atom, factor in terms.items():
            text = self._axis(atom, scope) if isinstance(atom, Axis) else self._atom(atom, scope)
            parts.append(text if factor == 1 else f"{sizes.text(factor)} * {text}")
        if index.constant or not parts:
            parts.append(sizes.text(index.constant))
        return " + ".join(parts)

    def _atom(self, atom: Div | Mod, scope: Scope) -> str:
        inside, divisor = self._index(atom.index, scope), sizes.text(atom.divisor)
        if atom.index.low >= 0:
            return f"(({inside}) {'//' if isinstance(atom, Div) else '%'} {divisor})"
        if is_symbolic((atom.index.low, atom.divisor)) or atom.index.low <= -UNBOUNDED:
            raise Undecided(f"the sign of {atom.index}")
        # Division would round towards zero: moved up by a multiple of the divisor.
        steps = -(atom.index.low // atom.divisor)
        inside = f"({inside} + {steps * atom.divisor})"
        return f"({inside} // {divisor} - {steps})" if isinstance(atom, Div) else f"({inside} % {divisor})"

    def _axis(self, axis: Axis, scope: Scope) -> str:
        """The variable of one axis: its part of its dimension's."""
        name = self.dim_of[axis]
        axes = self.dims[name]
        if len(axes) == 1:
            return name
        home = scope if name == "r" and scope is not self.outer else self.outer
        found = home.axes.get(axis)
        if found is None:
            at = axes.index(axis)
            step = points_of(axes[at + 1 :])
            text = name if step == 1 else f"{name} // {sizes.text(step)}"
            found = home.axes[axis] = axis.name
            home.head.append(f"{found} = {text if at == 0 else f'{text} % {sizes.text(axis.size)}'}")
        return found


@dataclass(frozen=True, slots=True)
class _Exponentials:
    """The greatest `value` of a row, and the sum of exp(value - greatest)."""

    greatest: Reduction
    total: Reduction
    value: Scalar


def _exponentials(first: Section, second: Section) -> _Exponentials | None:
    """What the loops of two sections compute, if it is that and nothing else."""
    if [len(first.reductions), len(second.reductions)] != [1, 1] or any(
        section.stores or section.kept or section.updates for section in (first, second)
    ):
        return None
    (greatest, value), (total, body) = first.reductions[0], second.reductions[0]
    if greatest.kind not in ("max", "peak") or total.kind != "sum" or greatest.dtype is not total.dtype:
        return None
    if not (isinstance(body, Op) and body.name == "exp"):
        return None
    distance = body.arguments[0]
    if not (isinstance(distance, Op) and distance.name == "sub" and distance.arguments[0] is value):
        return None
    down = distance.arguments[1]
    return _Exponentials(greatest, total, value) if isinstance(down, Local) and down.tensor is greatest else None


def _along(terms: dict[Axis, int], axes: tuple[Axis, ...]) -> int | None:
    """The factor of the dimension's own variable, if its axes occur in the terms just as they do in it."""
    if not axes or terms.get(axes[-1], 0) == 0:
        return None
    expected = factor = terms[axes[-1]]
    for axis in reversed(axes):
        if terms.get(axis, 0) != expected:
            return None
        expected *= axis.size
    return factor


def rename(text: str, name: str) -> str:
    """The text with the function's name in place of NAME."""
    return re.sub(r"\bNAME\b", name, text, count=1)
