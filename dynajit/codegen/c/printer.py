"""Kernels of the schedule as C functions.

In:  `schedule.loops.Kernel`. Out: `print_kernel(kernel, threads)`: the text of one C function whose name is the
     placeholder `NAME`, so that equal kernels are equal texts, and the functions of `mathlib` it calls.
A new way to run a loop: a method of `_Printer` beside `_row_kernel`, `_column_kernel`, `_split_kernel`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from dynajit.loopir.index import Axis, Div, Index, Mod
from dynajit.loopir.nodes import Const, Op, Position, Reduction, Scalar, Tensor
from dynajit.loopir.ops import CHECKS, OPS, REDUCTIONS
from dynajit.loopir.size import FAR, Size, SizeSymbol, hint_of, is_symbolic, size_symbols, symbols_in
from dynajit.schedule.fuse import scalars_in
from dynajit.schedule.loops import COLUMN_BLOCK, KEEP_ELEMENTS, Kernel, Load, LoadAt, Local, Scratch, Section, Store

# Points times cost from which threads pay.
PARALLEL_WORK = 400_000
# A single row is cut into pieces of at least so many points, and no more pieces than this.
SPLIT_POINTS = 16_384
SPLIT_PIECES = 64
# float32 sums over more elements than this are carried in double from block to block.
SUM_BLOCK = 4096
# Loops at least this long, or a multiple of 16 long, use the widest vectors.
WIDE_ELEMENTS = 256

_MEMORY_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "uint16_t",
    torch.float16: "_Float16",
    torch.bool: "uint8_t",
    torch.uint8: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
}
# What a value of that dtype is in an expression.
_VALUE_TYPES = _MEMORY_TYPES | {torch.bfloat16: "float", torch.float16: "float", torch.bool: "int"}


def _nan_reduction(name: str, sign: str, ctype: str, start: str) -> str:
    keep = f"(omp_out {sign} omp_in || omp_out != omp_out) ? omp_out : omp_in"
    return f"#pragma omp declare reduction({name} : {ctype} : omp_out = {keep}) initializer(omp_priv = {start})\n"


# The greatest and the least of floats, where a NaN anywhere is the result.
NAN_REDUCTIONS = "".join(
    _nan_reduction(name, sign, ctype, start)
    for ctype, infinity in (("float", "__builtin_inff()"), ("double", "__builtin_inf()"))
    for name, sign, start in (("max_or_nan", ">", f"-{infinity}"), ("min_or_nan", "<", infinity))
)


@dataclass(slots=True)
class Printed:
    """The text of a function called NAME, the library functions it needs, and the symbols it takes after pointers."""

    text: str
    helpers: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    checked: bool = False  # returns 1 if an index was outside of its tensor


def print_kernel(kernel: Kernel) -> Printed:
    """The kernel in C."""
    printer = _Printer(kernel)
    text = printer.function()
    return Printed(text, tuple(printer.helpers), printer.sizes, printer.checked)


def _count(axes: tuple[Axis, ...]) -> int:
    return math.prod(a.size for a in axes)


def _rounded_up(size: int | Size, by: int) -> int | str:
    """ceil(size / by), as text if the size is symbolic."""
    return -(-size // by) if isinstance(size, int) else f"(({size} + {by - 1}) / {by})"


def index_symbols(index: Index) -> set[SizeSymbol]:
    """The symbols of sizes in an index."""
    numbers = [index.constant, *(factor for _, factor in index.terms)]
    inner: set[SizeSymbol] = set()
    for atom, _ in index.terms:
        if isinstance(atom, Axis):
            numbers.append(atom.size)
        else:
            numbers.append(atom.divisor)
            inner |= index_symbols(atom.index)
    return inner | size_symbols(numbers)


def symbols_of(node: Scalar) -> set[SizeSymbol]:
    """The symbols of sizes in one node of an expression."""
    if isinstance(node, Load):
        return index_symbols(node.address)
    return index_symbols(node.index) if isinstance(node, Position) else set()


@dataclass(slots=True)
class _Scope:
    """A block of text being written, and the variables that hold expressions in it."""

    lines: list[str]
    names: dict[Scalar, str] = field(default_factory=dict)


class _Printer:
    """The text of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.helpers: dict[str, None] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.count = 0
        self.locals: dict[Tensor, str] = {}
        self.arguments = {tensor: f"a{n}" for n, tensor in enumerate((*kernel.reads, *kernel.writes))}
        self.scratch = {tensor: f"s{n}" for n, tensor in enumerate(kernel.scratch)}
        self.sizes: tuple[str, ...] = ()
        self.lane = ""  # in column mode, the subscript of row values
        self.checked = any(
            isinstance(node, Op) and node.name in CHECKS for value in kernel.expressions() for node in scalars_in(value)
        )

    # ---- text

    def put(self, line: str) -> None:
        self.lines.append("  " * self.indent + line)

    def open(self, line: str) -> None:
        self.put(line + " {")
        self.indent += 1

    def close(self) -> None:
        self.indent -= 1
        self.put("}")

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def function(self) -> str:
        kernel = self.kernel
        parameters = [
            f"{'const ' if tensor not in kernel.writes else ''}{_MEMORY_TYPES[tensor.dtype]} *restrict {name}"
            for tensor, name in self.arguments.items()
        ]
        if kernel.mode == "column":
            self._column_kernel()
        elif not kernel.outer and kernel.inner and self._splits(kernel.inner[0].size):
            self._split_kernel()
        else:
            self._row_kernel()
        self.sizes = self._symbols()
        parameters += [f"const int64_t {name}" for name in self.sizes]
        attribute = "WIDE " if self._vector_axis_size() >= WIDE_ELEMENTS else ""
        result, before, after = ("int", "  int status = 0;\n", "  return status;\n") if self.checked else ("void", "", "")
        body = before + "\n".join(self.lines) + "\n" + after
        return f"{attribute}{result} NAME({', '.join(parameters)}) {{\n{body}}}\n"

    # ---- indices that may be outside

    def _watch(self) -> None:
        """From here on, `bad` tells whether an index was outside."""
        if self.checked:
            self.put("int bad = 0;")

    def _tell(self) -> None:
        """The kernel fails if one was."""
        if self.checked:
            self.put('if (bad) { _Pragma("omp atomic write") status = 1; }')

    def _simd(self, clauses: str = "") -> None:
        self.put("#pragma omp simd" + clauses + (" reduction(| : bad)" if self.checked else ""))

    def _check(self, node: Op, arguments: list[str]) -> str:
        place, size = arguments
        if node.name == "wrapped":
            inside = self.fresh("w")
            self.put(f"const int64_t {inside} = {place} < 0 ? {place} + {size} : {place};")
            place = inside
        self.put(f"bad |= (uint64_t){place} >= (uint64_t){size};")
        return f"((uint64_t){place} < (uint64_t){size} ? {place} : 0)"

    def _symbols(self) -> tuple[str, ...]:
        """The symbols of sizes in what was written."""
        kernel = self.kernel
        symbols: set[SizeSymbol] = set()
        for tensor in self.arguments:
            symbols |= size_symbols((*tensor.shape, *tensor.stride))
        symbols |= size_symbols(axis.size for axis in (*kernel.outer, *kernel.inner))
        symbols.update(*(symbols_of(scalar) for value in kernel.expressions() for scalar in scalars_in(value)))
        symbols.update(*(index_symbols(store.address) for store in kernel.all_stores()))
        if not symbols:
            return ()
        words = set(symbols_in("\n".join(self.lines)))
        return tuple(sorted(symbol.name for symbol in symbols if symbol.name in words))

    def _vector_axis_size(self) -> int:
        kernel = self.kernel
        if kernel.mode == "column":
            return COLUMN_BLOCK if hint_of(kernel.outer[-1].size) >= COLUMN_BLOCK else 0
        return hint_of(kernel.inner[-1].size) if kernel.inner else 0

    def _work(self) -> int:
        kernel = self.kernel
        return _count(kernel.outer) * _count(kernel.inner) * (4 + kernel.cost)

    def _parallel(self) -> bool:
        """Do threads pay, at least for some sizes?"""
        work = self._work()
        return isinstance(work, Size) or work >= PARALLEL_WORK

    def _threads(self) -> str:
        """The pragma before a loop for threads; where sizes are symbolic, it is decided at each call."""
        work = self._work()
        condition = f" if({work} >= {PARALLEL_WORK})" if isinstance(work, Size) else ""
        return f"#pragma omp parallel for schedule(static){condition}"

    def _splits(self, size: int) -> bool:
        return hint_of(self._work()) >= PARALLEL_WORK and hint_of(size) >= 2 * SPLIT_PIECES

    # ---- row mode: one row after the other

    def _row_kernel(self) -> None:
        kernel = self.kernel
        rows = _count(kernel.outer)
        if rows != 1:
            if self._parallel():
                self.put(self._threads())
            self._open_flat(kernel.outer, rows, "o")
        self._watch()
        for tensor, name in self.scratch.items():
            self._row_of_scratch(_VALUE_TYPES[tensor.dtype], name)
        for section in kernel.sections:
            self._row_section(section)
            if section.loops:
                self._accumulators(section)
                self._loop(section, kernel.inner, None)
        for name in self.scratch.values() if isinstance(_count(kernel.inner), Size) else ():
            self.put(f"if ({name} != {name}_row) __builtin_free({name});")
        self._tell()
        if rows != 1:
            self.close()

    def _row_of_scratch(self, ctype: str, name: str) -> None:
        """An array as long as the row: on the stack, unless the row is symbolic and turns out to be long."""
        length = _count(self.kernel.inner)
        if not isinstance(length, Size):
            self.put(f"{ctype} {name}[{length}];")
            return
        self.put(f"{ctype} {name}_row[{KEEP_ELEMENTS}];")
        room = f"__builtin_malloc(sizeof({ctype}) * {length})"
        self.put(f"{ctype} *restrict {name} = {length} <= {KEEP_ELEMENTS} ? {name}_row : ({ctype} *){room};")

    def _open_flat(self, axes: tuple[Axis, ...], count: int, variable: str, after: str = "") -> None:
        """One loop over all combinations of the axes, which become variables."""
        if len(axes) == 1 and not after:
            variable = axes[0].name
        self.open(f"for (int64_t {variable} = 0; {variable} < {count}; ++{variable})")
        if len(axes) > 1 or after:
            self._position(axes, f"({variable}{after})")

    def _position(self, axes: tuple[Axis, ...], number: str) -> None:
        for n, a in enumerate(axes):
            step = _count(axes[n + 1 :])
            text = number if step == 1 else f"{number} / {step}"
            self.put(f"const int64_t {a.name} = {text if n == 0 else f'{text} % {a.size}'};")

    def _row_section(self, section: Section) -> None:
        """Row values and their stores; in column mode in a loop over the lanes."""
        if not section.rows and not section.row_stores:
            return
        if self.lane:
            for tensor, _ in section.rows:
                name = self.locals[tensor] = self.fresh("t")
                self.put(f"{_VALUE_TYPES[tensor.dtype]} {name}[{COLUMN_BLOCK}];")
            self._open_lanes()
        scope = _Scope(self.lines)
        for tensor, value in section.rows:
            text = self.expression(value, scope)
            if self.lane:
                self.put(f"{self.locals[tensor]}[l] = {text};")
            else:
                self.locals[tensor] = text
        for store in section.row_stores:
            self._store(store, scope)
        if self.lane:
            self.close()

    # ---- accumulation

    def _wide(self, reduction: Reduction) -> bool:
        """Is this a long sum of float32, to be carried in double?"""
        count = _count(self.kernel.inner)
        long = isinstance(count, Size) or count > (512 if self.kernel.mode == "column" else SUM_BLOCK)
        return long and reduction.kind == "sum" and reduction.dtype is torch.float32

    def _start(self, reduction: Reduction) -> str:
        return _number(REDUCTIONS[reduction.kind].start(reduction.dtype), reduction.dtype)

    def _accumulators(self, section: Section) -> None:
        for reduction, _ in section.reductions:
            name = self.locals[reduction] = self.fresh("r")
            ctype = "double" if self._wide(reduction) else _VALUE_TYPES[reduction.dtype]
            self.put(f"{ctype} {name} = {self._start(reduction)};")

    def _clause(self, reduction: Reduction, name: str) -> str:
        sign = {"sum": "+", "prod": "*", "max": "max", "min": "min"}[reduction.kind]
        if reduction.dtype.is_floating_point and reduction.kind in ("max", "min"):
            self.helpers["nan_reductions"] = None
            sign += "_or_nan"
        return f" reduction({sign} : {name})"

    def _combine(self, reduction: Reduction, target: str, value: str) -> str:
        operation = OPS[REDUCTIONS[reduction.kind].combine].text(reduction.dtype)
        return f"{target} = {operation.format(target, value)};"

    def _loop(self, section: Section, axes: tuple[Axis, ...], bounds: tuple[str, str] | None) -> None:
        """The loop nest over the inner axes; `bounds` limit the first of them."""
        for a in axes[:-1]:
            low, high = bounds or ("0", str(a.size))
            bounds = None
            self.open(f"for (int64_t {a.name} = {low}; {a.name} < {high}; ++{a.name})")
        wide = [reduction for reduction, _ in section.reductions if self._wide(reduction)]
        if not axes:
            self._innermost(section)
        else:
            self._last_loop(section, axes[-1], bounds or ("0", str(axes[-1].size)), wide)
        for _ in axes[:-1]:
            self.close()

    def _last_loop(self, section: Section, last: Axis, bounds: tuple[str, str], wide: list[Reduction]) -> None:
        low, high = bounds
        name = last.name
        blocked = bool(wide) and (isinstance(last.size, Size) or last.size > SUM_BLOCK)
        totals = {reduction: self.locals[reduction] for reduction in wide}
        if blocked:
            self.open(f"for (int64_t b = {low}; b < {high}; b += {SUM_BLOCK})")
            self.put(f"const int64_t e = b + {SUM_BLOCK} < {high} ? b + {SUM_BLOCK} : {high};")
            low, high = "b", "e"
        for reduction in wide:
            self.locals[reduction] = self.fresh("p")
            self.put(f"float {self.locals[reduction]} = 0;")
        clauses = "".join(self._clause(r, self.locals[r]) for r, _ in section.reductions)
        self._simd(clauses)
        self.open(f"for (int64_t {name} = {low}; {name} < {high}; ++{name})")
        self._innermost(section)
        self.close()
        for reduction, total in totals.items():
            self.put(f"{total} += {self.locals[reduction]};")
            self.locals[reduction] = total
        if blocked:
            self.close()

    def _innermost(self, section: Section) -> None:
        scope = _Scope(self.lines)
        for store in section.stores:
            self._store(store, scope)
        for tensor, value in section.kept:
            self.put(f"{self.scratch[tensor]}[{self._scratch_index()}] = {self.expression(value, scope)};")
        for reduction, value in section.reductions:
            target = self.locals[reduction] + self.lane
            self.put(self._combine(reduction, target, self.expression(value, scope)))

    def _scratch_index(self) -> str:
        inner = self.kernel.inner
        parts = []
        step = 1
        for a in reversed(inner):
            parts.append(a.name if step == 1 else f"{step} * {a.name}")
            step *= a.size
        return " + ".join(reversed(parts)) or "0"

    # ---- column mode: a block of columns, all rows

    def _column_kernel(self) -> None:
        kernel = self.kernel
        last = kernel.outer[-1]
        blocks = _rounded_up(last.size, COLUMN_BLOCK)
        rows = _count(kernel.outer[:-1])
        count = rows * blocks if isinstance(rows, int) and isinstance(blocks, int) else f"{rows} * {blocks}"
        if self._parallel() and count != 1:
            self.put(self._threads())
        self.open(f"for (int64_t o = 0; o < {count}; ++o)")
        self._position(kernel.outer[:-1], f"(o / {blocks})")
        self.put(f"const int64_t base = o % {blocks} * {COLUMN_BLOCK};")
        left = f"{last.size} - base"
        self.put(f"const int64_t n = {left} < {COLUMN_BLOCK} ? {left} : {COLUMN_BLOCK};")
        self.lane = "[l]"
        self._watch()
        for section in kernel.sections:
            self._row_section(section)
            if section.loops:
                self._column_loop(section)
        self._tell()
        self.close()

    def _open_lanes(self) -> None:
        last = self.kernel.outer[-1]
        self._simd()
        self.open("for (int64_t l = 0; l < n; ++l)")
        self.put(f"const int64_t {last.name} = base + l;")

    def _column_loop(self, section: Section) -> None:
        for reduction, _ in section.reductions:
            name = self.locals[reduction] = self.fresh("r")
            ctype = "double" if self._wide(reduction) else _VALUE_TYPES[reduction.dtype]
            self.put(f"{ctype} {name}[{COLUMN_BLOCK}];")
            self.put(f"for (int64_t l = 0; l < {COLUMN_BLOCK}; ++l) {name}[l] = {self._start(reduction)};")
        for a in self.kernel.inner:
            self.open(f"for (int64_t {a.name} = 0; {a.name} < {a.size}; ++{a.name})")
        self._open_lanes()
        self._innermost(section)
        self.close()
        for _ in self.kernel.inner:
            self.close()

    # ---- one long row: cut into pieces, each piece a thread's

    def _split_kernel(self) -> None:
        kernel = self.kernel
        first = kernel.inner[0]
        points = _count(kernel.inner)
        pieces = max(2, min(SPLIT_PIECES, hint_of(points) // SPLIT_POINTS, hint_of(first.size)))
        size = _rounded_up(first.size, pieces)
        if isinstance(size, int):
            pieces = -(-first.size // size)
        self._watch()
        for section in kernel.sections:
            self._row_section(section)
            if section.loops:
                self._split_loop(section, first, pieces, size)
        self._tell()

    def _split_loop(self, section: Section, first: Axis, pieces: int, size: int | str) -> None:
        parts: dict[Reduction, str] = {}
        for reduction, _ in section.reductions:
            parts[reduction] = self.fresh("q")
            ctype = "double" if self._wide(reduction) else _VALUE_TYPES[reduction.dtype]
            self.put(f"{ctype} {parts[reduction]}[{pieces}];")
        self.put(self._threads())
        self.open(f"for (int64_t c = 0; c < {pieces}; ++c)")
        self.put(f"const int64_t low = c * {size};")
        self.put(f"const int64_t high = low + {size} < {first.size} ? low + {size} : {first.size};")
        self._watch()
        self._accumulators(section)
        self._loop(section, self.kernel.inner, ("low", "high"))
        self._tell()
        for reduction, part in parts.items():
            self.put(f"{part}[c] = {self.locals[reduction]};")
        self.close()
        self._accumulators(section)
        for reduction, part in parts.items():
            self.open(f"for (int64_t c = 0; c < {pieces}; ++c)")
            self.put(self._combine(reduction, self.locals[reduction], f"{part}[c]"))
            self.close()

    # ---- expressions

    def _store(self, store: Store, scope: _Scope) -> None:
        dtype = store.tensor.dtype
        value = store.value
        target = f"{self.arguments[store.tensor]}[{index_text(store.address)}]"
        if dtype is torch.bfloat16:
            self.helpers["bf16"] = None
            self.put(f"{target} = store_bf16({self.expression(value, scope)});")
        elif dtype is torch.float16:
            self.put(f"{target} = (_Float16){self.expression(value, scope)};")
        else:
            self.put(f"{target} = {self.expression(value, scope)};")

    def expression(self, node: Scalar, scope: _Scope) -> str:
        """A variable or number that holds the expression's value."""
        if isinstance(node, Const):
            return _number(node.value, node.dtype)
        found = scope.names.get(node)
        if found is None:
            found = scope.names[node] = self._define(node, scope)
        return found

    def _define(self, node: Scalar, scope: _Scope) -> str:
        if isinstance(node, Local):
            name = self.locals[node.tensor] + self.lane
            if isinstance(node.tensor, Reduction) and self._wide(node.tensor):
                return f"(float){name}"
            return name
        if isinstance(node, Scratch):
            return f"{self.scratch[node.tensor]}[{self._scratch_index()}]"
        if isinstance(node, Load):
            text = f"{self.arguments[node.tensor]}[{index_text(node.address)}]"
            text = self._loaded(text, node.dtype)
        elif isinstance(node, LoadAt):
            text = self._loaded(f"{self.arguments[node.tensor]}[{self.expression(node.arguments[0], scope)}]", node.dtype)
        elif isinstance(node, Position):
            text = index_text(node.index)
        else:
            assert isinstance(node, Op)
            if node.name == "guard":
                return self._guard(node, scope)
            arguments = [self.expression(argument, scope) for argument in node.arguments]
            text = self._operation(node, arguments)
        name = self.fresh("v")
        self.put(f"const {_VALUE_TYPES[node.dtype]} {name} = {text};")
        return name

    def _loaded(self, text: str, dtype: torch.dtype) -> str:
        """What is read from memory as a value."""
        if dtype is torch.bfloat16:
            self.helpers["bf16"] = None
            return f"load_bf16({text})"
        return f"(float){text}" if dtype is torch.float16 else text

    def _guard(self, node: Op, scope: _Scope) -> str:
        """A branch: the compiler makes masked loads of it where it vectorises."""
        condition, then, otherwise = node.arguments
        test = self.expression(condition, scope)
        name = self.fresh("v")
        self.put(f"{_VALUE_TYPES[node.dtype]} {name};")
        for opening, chosen in ((f"if ({test})", then), ("else", otherwise)):
            self.open(opening)
            inner = _Scope(self.lines, dict(scope.names))
            self.put(f"{name} = {self.expression(chosen, inner)};")
            self.close()
        return name

    def _operation(self, node: Op, arguments: list[str]) -> str:
        dtype = node.arguments[-1].dtype
        if node.name == "convert":
            return self._conversion(node.arguments[0].dtype, node.dtype, arguments[0])
        if node.name in CHECKS:
            return self._check(node, arguments)
        operation = OPS[node.name]
        kind = "f64" if dtype is torch.float64 else "f32"
        if operation.helper:
            self.helpers[f"{operation.helper}_{kind}"] = None
        return operation.text(dtype).format(
            *arguments, t="" if dtype is torch.float64 else "f", s=kind, T=_VALUE_TYPES[dtype]
        )

    def _conversion(self, source: torch.dtype, target: torch.dtype, value: str) -> str:
        if target is torch.bool:
            return f"({value} != 0)"
        if target is torch.bfloat16:
            self.helpers["bf16"] = None
            return f"round_bf16((float){value})"
        if target is torch.float16:
            self.helpers["f16"] = None
            return f"round_f16((float){value})"
        if source.is_floating_point and not target.is_floating_point:
            self.helpers["to_int"] = None
            kind = "f64" if source is torch.float64 else "f32"
            # torch takes unsigned bytes from 64 bits, shorter integers from 32
            bits = 64 if target in (torch.int64, torch.uint8) else 32
            return f"({_VALUE_TYPES[target]}){kind}_to_i{bits}({value})"
        return f"({_VALUE_TYPES[target]}){value}"


def _number(value: bool | float, dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        suffix = "" if dtype is torch.float64 else "f"
        value = float(value)
        if math.isnan(value):
            return f'__builtin_nan{suffix}("")'
        if math.isinf(value):
            return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
        text = f"{value:.17g}" if suffix == "" else f"{value:.9g}"
        if "e" not in text and "." not in text:
            text += ".0"
        return f"({text}{suffix})" if text.startswith("-") else text + suffix
    if dtype is torch.bool:
        return "1" if value else "0"
    if value == -(1 << 63):
        return "(-INT64_MAX - 1)"
    text = f"{int(value)}" if dtype is not torch.int64 else f"INT64_C({int(value)})"
    return f"({text})" if value < 0 else text


def index_text(index: Index) -> str:
    """An index as a C expression of type int64_t."""
    parts = []
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            text = atom.name
        else:
            text = _atom_text(atom)
        parts.append(text if coefficient == 1 else f"{coefficient} * {text}")
    if index.constant or not parts:
        parts.append(str(index.constant))
    return " + ".join(parts)


def _atom_text(atom: Div | Mod) -> str:
    """Division of what may be negative would round towards zero in C."""
    inside = index_text(atom.index)
    if len(atom.index.terms) > 1 or atom.index.constant or atom.index.terms[0][1] != 1:
        inside = f"({inside})"
    if not atom.index.low >= 0 and (is_symbolic((atom.index.low, atom.divisor)) or atom.index.low <= -FAR):
        # nobody knows how far below zero it may be
        divisor = atom.divisor
        whole = f"({inside} >= 0 ? {inside} / {divisor} : -((-{inside} + {divisor} - 1) / {divisor}))"
        return whole if isinstance(atom, Div) else f"({inside} - {divisor} * {whole})"
    if atom.index.low < 0:
        # moved up by a multiple of the divisor
        inside = f"(({inside}) + {-(atom.index.low // atom.divisor) * atom.divisor})"
        if isinstance(atom, Div):
            return f"({inside} / {atom.divisor} - {-(atom.index.low // atom.divisor)})"
    return f"({inside} {'/' if isinstance(atom, Div) else '%'} {atom.divisor})"
