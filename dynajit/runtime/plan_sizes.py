"""The symbolic sizes of a call plan, as numbers that `csrc/plan/plan_sizes.cpp` finds anew at each call.

In:  a `codegen.plan.Plan`.
Out: `PlanSizes`: symbols and sizes by number, and which places of the buffers hold which; `data()` for PlanExecutor.
     NotNative where not all of a plan's sizes are what its inputs tell: such a plan runs as Python (`executor.py`).

A symbol that is a float is held as the int64 that has its bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from dynajit import _C
from dynajit.codegen.plan import Plan, SizeStep
from dynajit.loopir.size import Size, symbols_in

_SIZE, _STRIDE, _NUMBER, _COMPUTED, _FLOAT = range(5)
_READ = {"size": _SIZE, "stride": _STRIDE, "number": _NUMBER, "float": _FLOAT}
_BITS = re.compile(r"float_bits\((\w+)\)")


class NotNative(Exception):
    """The plan is one for the executor in Python."""


class TooLarge(Exception):
    """A number that a kernel computes with has more bits than the kernel has for it."""


def small(limit: int, numbers: Sequence[int]) -> int:
    """0, or TooLarge where one of the numbers is not below the limit."""
    if any(abs(number) >= limit for number in numbers):
        raise TooLarge
    return 0


class PlanSizes:
    """The numbers given to a plan's symbols and sizes so far."""

    def __init__(self, plan: Plan) -> None:
        self.inputs = {name: number for number, name in enumerate(plan.inputs)}
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
        others = False
        for step in plan.steps:
            if not isinstance(step, SizeStep):
                others = True
            elif others:
                raise NotNative  # an operator's result tells it
            else:
                self._source(step)

    def _source(self, step: SizeStep) -> None:
        bits = _BITS.fullmatch(step.source) if step.what == "expression" else None
        if bits:
            if bits[1] not in self._floats:
                raise NotNative
            (self._symbols[step.symbol],) = self.symbols_of([bits[1]])
            return
        if step.what == "expression":
            names = symbols_in(step.source)
            function = self._function(step, names)
            source: tuple[Any, ...] = (_COMPUTED, -1, 0, function, self.symbols_of(names))
        elif step.source in self.inputs:
            source = (_READ[step.what], self.inputs[step.source], step.at, None, ())
        else:
            raise NotNative
        self._symbols[step.symbol] = len(self._sources)
        self._sources.append(source)

    def _function(self, step: SizeStep, names: Sequence[str]) -> Callable[..., int]:
        """The step's expression, of symbols as they are held."""
        known = {"math": math, "small": small, "bits": _C.float_bits, "value": _C.float_of_bits}
        given = ", ".join(f"value({name})" if name in self._floats else name for name in names)
        text = f"(lambda {', '.join(names)}: {step.source})({given})"
        text = f"bits({text})" if step.symbol in self._floats else text
        return eval(f"lambda {', '.join(names)}: {text}", known)  # type: ignore[no-any-return]

    def symbols_of(self, names: Sequence[str]) -> tuple[int, ...]:
        """The numbers of symbols."""
        if not self._symbols.keys() >= set(names):
            raise NotNative
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
