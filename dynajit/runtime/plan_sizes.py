"""The symbolic sizes of a call plan, as numbers that `csrc/plan/plan_sizes.cpp` finds anew at each call.

In:  a `codegen.plan.Plan`.
Out: `PlanSizes`: symbols and sizes by number, and which places of the buffers hold which; `data()` for PlanExecutor.
     The symbols that its inputs tell come first; those that results tell are found when these are there.

A symbol that is a float is held as the int64 that has its bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from dynajit import _C
from dynajit.codegen.plan import Plan, SizeStep
from dynajit.loopir.size import Size, size_symbols, symbols_in

_SIZE, _STRIDE, _NUMBER, _COMPUTED, _FLOAT = range(5)
_READ = {"size": _SIZE, "stride": _STRIDE, "number": _NUMBER, "float": _FLOAT}
_BITS = re.compile(r"float_bits\((\w+)\)")


def _needs(step: SizeStep) -> Sequence[str]:
    """The symbols that an expression is of, or what is read."""
    return symbols_in(step.source) if step.what == "expression" else [step.source]


class TooLarge(Exception):
    """A number that a kernel computes with has more bits than the kernel has for it."""


def small(limit: int, numbers: Sequence[int]) -> int:
    """0, or TooLarge where one of the numbers is not below the limit."""
    if any(abs(number) >= limit for number in numbers):
        raise TooLarge
    return 0


class PlanSizes:
    """The numbers given to a plan's symbols and sizes so far."""

    def __init__(self, plan: Plan, slot: Callable[[str], int]) -> None:
        self._slot = slot
        self._symbols: dict[str, int] = {}
        self._sources: list[tuple[Any, ...]] = []
        self._sizes: dict[Any, int] = {}
        self._terms: list[list[tuple[int, list[int]]]] = []
        self._patches: list[tuple[int, int, int, int]] = []
        given = [step for step in plan.steps if isinstance(step, SizeStep)]
        # the bits of each float that is computed are asked for: `loopir.size.SizeTable`
        texts = (step.source for step in given if step.what == "expression")
        asked = {found[1] for text in texts if (found := _BITS.fullmatch(text))}
        self._floats = {s.symbol for s in given if s.what == "float" or (s.what == "expression" and s.symbol in asked)}
        self.late: set[SizeStep] = set()
        for step in given:
            known = self._symbols if step.what == "expression" else plan.inputs
            if all(name in known for name in _needs(step)):
                self.add([step])
            else:
                self.late.add(step)

    def add(self, steps: Sequence[SizeStep]) -> tuple[int, int]:
        """The symbols of these steps, all of which they need being there; the first one's number and how many."""
        first = len(self._sources)
        for step in steps:
            names = _needs(step)
            if step.what == "expression" and _BITS.fullmatch(step.source) and names[0] in self._floats:
                (self._symbols[step.symbol],) = self.symbols_of(names)  # floats are held so
                continue
            source: tuple[Any, ...]
            if step.what == "expression":
                source = (_COMPUTED, -1, 0, self._function(step, names), self.symbols_of(names))
            else:
                source = (_READ[step.what], self._slot(step.source), step.at, None, ())
            self._symbols[step.symbol] = len(self._sources)
            self._sources.append(source)
        return first, len(self._sources) - first

    def known(self, sizes: Sequence[int]) -> bool:
        """Are these numbers that are known by now?"""
        return self._symbols.keys() >= {symbol.name for symbol in size_symbols(sizes)}

    def _function(self, step: SizeStep, names: Sequence[str]) -> Callable[..., int]:
        """The step's expression, of symbols as they are held."""
        known = {"math": math, "small": small, "float_bits": _C.float_bits, "value": _C.float_of_bits}
        given = ", ".join(f"value({name})" if name in self._floats else name for name in names)
        text = f"(lambda {', '.join(names)}: {step.source})({given})"
        text = f"float_bits({text})" if step.symbol in self._floats else text
        return eval(f"lambda {', '.join(names)}: {text}", known)  # type: ignore[no-any-return]

    def symbols_of(self, names: Sequence[str]) -> tuple[int, ...]:
        """The numbers of symbols."""
        return tuple(self._symbols[name] for name in names)

    def number(self, size: int | Size) -> int:
        """The number of a size."""
        found = self._sizes.get(size)
        if found is None:
            terms = size.terms if isinstance(size, Size) else {(): size}
            row = [(factor, list(self.symbols_of([s.name for s in key]))) for key, factor in terms.items()]
            found = self._sizes[size] = len(self._terms)
            self._terms.append(row)
        return found

    def row(self, slot: int, what: int, sizes: Sequence[int]) -> tuple[int, ...]:
        """Numbers of a slot's buffer, 0 in place of those that are found at each call."""
        for at, size in enumerate(sizes):
            if isinstance(size, Size):
                self._patches.append((slot, what, at, self.number(size)))
        return tuple(0 if isinstance(size, Size) else size for size in sizes)

    def data(self) -> tuple[list[Any], list[Any], list[Any]]:
        """What PlanExecutor takes."""
        return self._sources, self._terms, self._patches
