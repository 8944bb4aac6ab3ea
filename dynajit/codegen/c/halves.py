"""Float16 in blocks: processors convert many at once, which gcc's vectoriser does not use on x86.

In:  a section of a kernel and the axis of its innermost loop.
Out: `Halves.find`: which of its reads and stores of float16 lie together in memory along the axis. The printer cuts the
     loop in blocks: a function of `mathlib` converts what a block reads before its loop, and what it stores after it.
All others are converted one by one, by arithmetic that is vectorised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from dynajit.codegen.c.expressions import NOWHERE, Expressions
from dynajit.codegen.c.segments import Piece, simplified
from dynajit.codegen.c.text import index_text
from dynajit.loopir.build import convert
from dynajit.loopir.index import Axis, Index, axis, stride_of, substitute
from dynajit.loopir.nodes import Op, Scalar, Tensor
from dynajit.loopir.size import UNBOUNDED, hint_of
from dynajit.schedule.kernel import Kernel, Load, Section, Store

# Elements of a block: as many as four of the widest vectors hold. And the shortest loop that is worth it.
BLOCK = 64
MIN_SIZE = 32


@dataclass(slots=True)
class Found:
    """What is converted in blocks: reads, stores, and stores of what is in memory as float32."""

    loads: list[Load] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    copies: list[tuple[Store, Load]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores or self.copies)

    def only_copies(self, section: Section) -> bool:
        """Is there nothing else to do in the loop?"""
        return len(self.copies) == len(section.stores) > 0 and not section.kept and not section.reductions


@dataclass(frozen=True, slots=True)
class Span:
    """A block of a loop: the axis, the variable with its first value, how many, and the place in it of the loop's."""

    axis: Axis
    first: str
    count: str
    place: str

    def start(self, address: Index) -> str:
        """The address of the block's first element."""
        return index_text(substitute(address, {self.axis: axis(self.first, UNBOUNDED)}))


class Halves(Expressions):
    """Expressions of which the float16 are converted in blocks."""

    def __init__(self, kernel: Kernel, stored_in: Mapping[Tensor, Tensor] = NOWHERE) -> None:
        super().__init__(kernel, stored_in)
        self.stored: dict[Tensor, str] = {}  # in the loop at hand: the place in an array that stands for the memory
        self.last_lines: list[str] = []  # what follows it

    def find(self, section: Section, last: Axis) -> Found:
        """What is read and stored in a row along `last`."""
        found = Found()
        if hint_of(last.size) < MIN_SIZE:
            return found
        read = always_read(section.values(), self.piece)
        for store in section.stores:
            rows = store.tensor.dtype is torch.float16 and stride_of(store.address, last) == 1
            if not rows or store.value.dtype is torch.int16 or any(load.tensor is store.tensor for load in read):
                continue
            source = _unrounded(store.value)
            if isinstance(source, Load) and source.dtype is torch.float32 and self._row(source, last):
                found.copies.append((store, source))
            else:
                found.stores.append(store)
        found.loads = [load for load in read if load.dtype is torch.float16 and self._row(load, last)]
        return found

    def _row(self, load: Load, last: Axis) -> bool:
        """Does it read memory in order, which nothing is written to?"""
        written = load.tensor in self.kernel.writes or load.tensor in self.overwritten
        return not written and load not in self.turned and stride_of(load.address, last) == 1

    def open_halves(self, found: Found, span: Span) -> None:
        """What comes before the loop over a block: arrays of what is read and stored in it."""
        self.helpers["f16_blocks"] = None
        for load in found.loads:
            name = self.fresh("q")
            memory = f"{self.arguments[load.tensor]} + {span.start(load.address)}"
            self.put(f"float {name}[{BLOCK}];")
            self.put(f"{_function('f16_to_f32', span)}({memory}, {name}, {span.count});")
            self.converted[load] = f"{name}[{span.place}]"
        for store in found.stores:
            name = self.fresh("q")
            self.put(f"float {name}[{BLOCK}];")
            self.stored[store.tensor] = f"{name}[{span.place}]"
            self._after(store, name, span)
        for store, source in found.copies:
            self.stored[store.tensor] = ""
            self._after(store, f"{self.arguments[source.tensor]} + {span.start(source.address)}", span)

    def _after(self, store: Store, source: str, span: Span) -> None:
        memory = f"{self.arguments[store.tensor]} + {span.start(store.address)}"
        self.last_lines.append(f"{_function('f32_to_f16', span)}({source}, {memory}, {span.count});")

    def close_halves(self) -> None:
        """What comes after the loop."""
        for line in self.last_lines:
            self.put(line)
        self.last_lines = []
        self.stored.clear()
        self.converted.clear()

    def put_stored(self, store: Store, value: str, rounded: bool = False) -> None:
        """The line that stores this value; in an array, if it is float16 that is converted after the loop."""
        target = self.stored.get(store.tensor)
        if target is None:
            super().put_stored(store, value, rounded)
        else:
            self.put(f"{target} = {value};")

    def store(self, store: Store) -> None:
        """The element of a stored tensor; in an array, if it is float16 that is converted after the loop."""
        target = self.stored.get(store.tensor)
        if target is None:
            super().store(store)
        elif target:
            self.put(f"{target} = {self.expression(convert(_unrounded(store.value), torch.float32))};")


def _function(name: str, span: Span) -> str:
    """One of a number of elements that the compiler knows is inlined, and what it converts stays in registers."""
    return f"{name}_block" if span.count == str(BLOCK) else name


def _unrounded(value: Scalar) -> Scalar:
    """What is rounded to float16 when it is stored anyway."""
    if isinstance(value, Op) and value.name == "convert" and value.dtype is torch.float16:
        return value.arguments[0]
    return value


def always_read(values: Iterable[Scalar], piece: Piece | None = None) -> list[Load]:
    """The reads at every point: what a guard may leave out may not be read."""
    found: dict[Load, None] = {}
    todo = list(values)
    seen = set(todo)
    while todo:
        node = todo.pop()
        node = simplified(node, piece) if piece is not None else node
        if isinstance(node, Load):
            found[node] = None
        elif isinstance(node, Op):
            arguments = node.arguments[:1] if node.name == "guard" else node.arguments
            todo += [argument for argument in arguments if argument not in seen]
            seen.update(todo)
    return list(found)
