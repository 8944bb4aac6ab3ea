"""Scalar expressions as C: each is a variable, defined in the outermost block in which it can be.

In:  `schedule.loops` expressions, and the blocks of text that are open.
Out: lines in these blocks. `Expressions` is what a kernel's printer is made on; loops are the printer's business.
Compilers can't move what a loop repeats out of it where threads share pointers, so it is done here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from dynajit.codegen import float8
from dynajit.codegen.c.ranges import Ranges, variant
from dynajit.codegen.c.segments import Piece, simplified
from dynajit.codegen.c.text import VALUE_TYPES, index_text, number
from dynajit.loopir.build import fits
from dynajit.loopir.index import Axis, axes_of
from dynajit.loopir.nodes import Const, Op, Position, Reduction, Scalar, Tensor
from dynajit.loopir.ops import CHECKS, OPS
from dynajit.loopir.size import hint_of
from dynajit.op_facts import LOW_PRECISION
from dynajit.schedule.kernel import Kernel, Load, LoadAt, Local, Scratch, Store

# What an expression may depend on beside axes: a row's values, and things that are right only where they are asked for.
ROW = "row"
HERE = "here"
Needs = frozenset[Axis | str]
# Floats that are float32 in expressions: `mathlib` has `load_`, `store_`, `cut_` (which does not round) and `round_`.
_HELPERS = {torch.bfloat16: "bf16", torch.float16: "f16"}
# Elements of a loop for which vectors pay.
MIN_VECTORS = 16
# Where the second argument is a number, one comparison does; of two zeros it is the first, as in eager.
_WITH_NUMBER = {"maximum": "({1} > {0} ? {1} : {0})", "minimum": "({1} < {0} ? {1} : {0})"}


@dataclass(slots=True)
class TextBlock:
    """A block of text being written: what may be used in it, and the variables that hold expressions in it."""

    has: Needs
    indent: int
    lines: list[str] = field(default_factory=list)
    names: dict[Scalar, str] = field(default_factory=dict)
    guarded: bool = False  # not always run: what is in it stays in it


NOWHERE: Mapping[Tensor, Tensor] = {}


class Expressions:
    """The text of one kernel, block by block."""

    def __init__(self, kernel: Kernel, stored_in: Mapping[Tensor, Tensor] = NOWHERE) -> None:
        self.kernel = kernel
        self.helpers: dict[str, None] = {}
        self.blocks = [TextBlock(frozenset(), 1)]
        self.count = 0
        self.locals: dict[Tensor, str] = {}
        # one pointer for what is read and what is stored over it: through two the compiler would take them for apart
        read_from = {stored_in.get(tensor, tensor): tensor for tensor in kernel.reads}
        self.stored_over = {
            tensor: read_from[stored_in[tensor]] for tensor in kernel.writes if stored_in.get(tensor) in read_from
        }
        self.overwritten = set(self.stored_over.values())  # what is read
        self.maybe_same: set[Tensor] = set()  # whose pointers may turn out to be equal
        own = (tensor for tensor in kernel.writes if tensor not in self.stored_over)
        self.parameters: tuple[Tensor, ...] = (*kernel.reads, *own)
        self.arguments = {tensor: f"a{n}" for n, tensor in enumerate(self.parameters)}
        self.arguments.update((tensor, self.arguments[over]) for tensor, over in self.stored_over.items())
        self.scratch = {tensor: f"row{n}" for n, tensor in enumerate(kernel.scratch)}
        self.turned: dict[Load, str] = {}  # what is read from a tile that was brought in order
        self.turned_place = ""
        self.gathered: dict[Tensor, str] = {}  # what is stored in a tile that is brought to memory: the place there
        self.converted: dict[Load, str] = {}  # what is read from an array of what it becomes
        self.piece: Piece | None = None  # of the loop that is being written
        self.lane = ""  # in column mode, the subscript of row values
        self.needs: dict[Scalar, Needs] = {}
        self.ranges = Ranges(kernel)
        self.checked = kernel.checked

    # ---- blocks

    def put(self, line: str) -> None:
        """A line in the innermost block."""
        block = self.blocks[-1]
        block.lines.append("  " * block.indent + line)

    def open(self, *header: str, has: Iterable[Axis | str] = (), guarded: bool = False) -> None:
        """A block in which the variables of these axes exist."""
        outside = self.blocks[-1]
        # The header goes along with the body: what is printed into the outer block later on comes before both.
        lines = ["  " * outside.indent + line for line in (*header[:-1], f"{header[-1]} {{")]
        self.blocks.append(TextBlock(frozenset(has), outside.indent + 1, lines, guarded=guarded))

    def close(self) -> None:
        """The end of the innermost block."""
        block = self.blocks.pop()
        self.blocks[-1].lines += [*block.lines, "  " * self.blocks[-1].indent + "}"]

    def gains(self, *what: Axis | str) -> None:
        """These can be used in the innermost block from here on."""
        self.blocks[-1].has |= frozenset(what)

    def fresh(self, prefix: str) -> str:
        """A name that is not taken."""
        self.count += 1
        return f"{prefix}{self.count}"

    def _home(self, node: Scalar) -> int:
        """The outermost block in which the expression can be evaluated, of those that are run as often."""
        missing = self.needs_of(node)
        first = next((n for n, block in reversed(list(enumerate(self.blocks))) if block.guarded), 0)
        for n, block in enumerate(self.blocks):
            missing -= block.has
            if not missing and n >= first:
                return n
        return len(self.blocks) - 1

    def needs_of(self, node: Scalar) -> Needs:
        """What the expression depends on."""
        found = self.needs.get(node)
        if found is None:
            found = self.needs[node] = self._find_needs(node)
        return found

    def _find_needs(self, node: Scalar) -> Needs:
        if isinstance(node, Load):
            written = node.tensor in self.kernel.writes
            return frozenset({HERE}) if written else frozenset(axes_of(node.address))
        if isinstance(node, Position):
            return frozenset(axes_of(node.index))
        if isinstance(node, Local):
            return frozenset({ROW, self.kernel.outer[-1]}) if self.lane else frozenset({ROW})
        if isinstance(node, Scratch):
            return frozenset({HERE})
        if isinstance(node, Op):
            return frozenset[Axis | str]().union(*(self.needs_of(argument) for argument in node.arguments))
        return frozenset()

    # ---- indices that may be outside

    def watch(self) -> None:
        """From here on, `bad` tells whether an index was outside."""
        if self.checked:
            self.put("int bad = 0;")

    def tell(self) -> None:
        """The kernel fails if one was."""
        if self.checked:
            self.put('if (bad) { _Pragma("omp atomic write") status = 1; }')

    def simd(self, clauses: str = "") -> str:
        """The pragma before a loop that is vectorised."""
        return "#pragma omp simd" + clauses + (" reduction(| : bad)" if self.checked else "")

    def _check(self, node: Op, arguments: list[str]) -> str:
        place, size = arguments
        if node.name == "wrapped":
            inside = self.fresh("place")
            self.put(f"const int64_t {inside} = {place} < 0 ? {place} + {size} : {place};")
            place = inside
        self.put(f"bad |= (uint64_t){place} >= (uint64_t){size};")
        return f"((uint64_t){place} < (uint64_t){size} ? {place} : 0)"

    # ---- expressions

    def store(self, store: Store) -> None:
        """The element of a stored tensor."""
        rounded = isinstance(store.value, Load) or (isinstance(store.value, Op) and store.value.name == "convert")
        self.put_stored(store, self.expression(store.value), rounded)

    def put_stored(self, store: Store, value: str, rounded: bool = False) -> None:
        """The line that stores this value; `rounded`: the tensor's dtype can hold it as it is."""
        target = self.gathered.get(store.tensor) or f"{self.arguments[store.tensor]}[{index_text(store.address)}]"
        self.put(f"{target} = {self.in_memory(value, store.value.dtype, store.tensor.dtype, rounded)};")

    def in_memory(self, value: str, source: torch.dtype, dtype: torch.dtype, rounded: bool = False) -> str:
        """A value of dtype `source` as memory of that dtype holds it; `rounded`: it is one that the dtype can hold."""
        helper = self._helper(dtype)
        if helper is None or source is torch.int16:  # these are the bits, see `bits.py`
            return value
        self.helpers[helper] = None
        cut = rounded and source is dtype
        return f"{'cut' if cut else 'store'}_{helper}({value})"

    def expression(self, node: Scalar) -> str:
        """A variable or number that holds the expression's value."""
        if isinstance(node, Const):
            return number(node.value, node.dtype)
        for block in reversed(self.blocks):
            found = block.names.get(node)
            if found is not None:
                return found
        if self.piece is not None:
            simpler = simplified(node, self.piece)
            if simpler is not node:
                made = self.blocks[-1].names[node] = self.expression(simpler)
                return made
        # Everything in the block of its own: blocks inside of it are put aside.
        home = self._home(node)
        inner = self.blocks[home + 1 :]
        del self.blocks[home + 1 :]
        made = self._define(node)
        self.blocks[home].names[node] = made
        self.blocks += inner
        return made

    def _define(self, node: Scalar) -> str:
        if isinstance(node, Local):
            name = self.locals[node.tensor] + self.lane
            if isinstance(node.tensor, Reduction) and self.wide(node.tensor):
                return f"(float){name}"
            return name
        if isinstance(node, Scratch):
            return f"{self.scratch[node.tensor]}[{self.scratch_index()}]"
        if isinstance(node, Load):
            text = self.converted.get(node) or self._loaded(self._memory(node), node.dtype)
        elif isinstance(node, LoadAt):
            address = self.expression(node.arguments[0])
            text = self._loaded(f"{self.arguments[node.tensor]}[{address}]", node.dtype)
        elif isinstance(node, Position):
            text = index_text(node.index)
        else:
            assert isinstance(node, Op)
            if node.name == "guard":
                return self._guard(node)
            arguments = [self.expression(argument) for argument in node.arguments]
            text = self._operation(node, arguments)
        name = self.fresh("v")
        self.put(f"const {VALUE_TYPES[node.dtype]} {name} = {text};")
        return name

    def wide(self, reduction: Reduction) -> bool:
        """Is this a long sum of float32, to be carried in double?"""
        raise NotImplementedError

    def scratch_index(self) -> str:
        """Where in its row a kept element is."""
        raise NotImplementedError

    def _helper(self, dtype: torch.dtype) -> str | None:
        """The functions that convert such floats: in loops too short for vectors those that convert one by one."""
        inner = self.kernel.inner
        if dtype is torch.float16 and self.kernel.mode == "row" and inner and hint_of(inner[-1].size) < MIN_VECTORS:
            return "f16_single"
        return _HELPERS.get(dtype)

    def _loaded(self, text: str, dtype: torch.dtype) -> str:
        """What is read from memory as a value: bools of any byte but 0 are true, as `view(torch.bool)` makes them."""
        if dtype is torch.bool:
            return f"({text} != 0)"
        helper = self._helper(dtype)
        if helper is None:
            return text
        self.helpers[helper] = None
        return f"load_{helper}({text})"

    def _memory(self, load: Load) -> str:
        """Where it is."""
        if load in self.turned:
            return f"{self.turned[load]}[{self.turned_place}]"
        return f"{self.arguments[load.tensor]}[{index_text(load.address)}]"

    def _guard(self, node: Op) -> str:
        """A branch: the compiler makes masked loads of it where it vectorises."""
        condition, then, otherwise = node.arguments
        test = self.expression(condition)
        name = self.fresh("v")
        self.put(f"{VALUE_TYPES[node.dtype]} {name};")
        for opening, chosen in ((f"if ({test})", then), ("else", otherwise)):
            self.open(opening, guarded=True)
            self.put(f"{name} = {self.expression(chosen)};")
            self.close()
        return name

    def _operation(self, node: Op, arguments: list[str]) -> str:
        dtype = node.arguments[-1].dtype
        if node.name == "convert":
            if node.dtype in LOW_PRECISION and fits(node.arguments[0], node.dtype):
                return f"(float){arguments[0]}"
            return self._conversion(node.arguments[0].dtype, node.dtype, arguments[0])
        if node.name in CHECKS:
            return self._check(node, arguments)
        operation = OPS[node.name]
        kind = "f64" if dtype is torch.float64 else "f32"
        if operation.helper and kind == "f32":
            chosen = variant(operation.helper, self.ranges.of(node.arguments[0]))
            if chosen != operation.helper:
                self.helpers[f"{chosen}_f32"] = None
                return f"{chosen}_f32({arguments[0]})"
        if operation.helper:
            self.helpers[f"{operation.helper}_{kind}"] = None
        text = operation.text(dtype)
        if node.name in _WITH_NUMBER and dtype.is_floating_point and _is_number(node.arguments[1]):
            text = _WITH_NUMBER[node.name]
        return text.format(*arguments, t="" if dtype is torch.float64 else "f", s=kind, T=VALUE_TYPES[dtype])

    def _conversion(self, source: torch.dtype, target: torch.dtype, value: str) -> str:
        encoding = float8.encoding_of(source)
        if encoding is not None:
            self.helpers[encoding] = None
            value, source = f"{float8.from_name(source)}({value})", torch.float32
        encoding = float8.encoding_of(target)
        if encoding is not None:
            self.helpers[encoding] = None
            return f"{float8.to_name(target)}((float){value})"
        if target is torch.bool:
            return f"({value} != 0)"
        helper = self._helper(target)
        if helper is not None:
            self.helpers[helper] = None
            return f"round_{helper}((float){value})"
        if source.is_floating_point and not target.is_floating_point:
            self.helpers["to_int"] = None
            kind = "f64" if source is torch.float64 else "f32"
            # torch takes unsigned bytes from 64 bits, shorter integers from 32
            bits = 64 if target in (torch.int64, torch.uint8) else 32
            return f"({VALUE_TYPES[target]}){kind}_to_i{bits}({value})"
        return f"({VALUE_TYPES[target]}){value}"


def _is_number(node: Scalar) -> bool:
    return isinstance(node, Const) and node.value == node.value
