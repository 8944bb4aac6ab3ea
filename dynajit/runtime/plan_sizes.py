"""The symbolic sizes of a call plan, as numbers that `csrc/plan_sizes.cpp` finds anew at each call.

In:  a `codegen.plan.Plan`.
Out: `PlanSizes`: symbols and sizes by number, and which places of the buffers hold which; `data()` for PlanExecutor.
     NotNative where a plan's sizes are not all ints that its inputs tell: such a plan runs as Python (`executor.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dynajit.codegen.plan import Plan, SizeStep
from dynajit.loopir.size import Size, symbols_in

_SIZE, _STRIDE, _NUMBER, _COMPUTED = range(4)
_READ = {"size": _SIZE, "stride": _STRIDE, "number": _NUMBER}


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
        others = False
        for step in plan.steps:
            if not isinstance(step, SizeStep):
                others = True
            elif others:
                raise NotNative  # an operator's result tells it
            else:
                self._source(step)

    def _source(self, step: SizeStep) -> None:
        if step.what == "expression":
            if "float_bits" in step.source:
                raise NotNative
            names = symbols_in(step.source)
            function = eval(f"lambda {', '.join(names)}: {step.source}", {"math": math, "small": small})
            source = (_COMPUTED, -1, 0, function, self.symbols_of(names))
        elif step.source in self.inputs:
            source = (_READ[step.what], self.inputs[step.source], step.at, None, ())
        else:
            raise NotNative
        self._symbols[step.symbol] = len(self._sources)
        self._sources.append(source)

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
