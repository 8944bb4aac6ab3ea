"""Which way a trace went where values that vary decide it: `if n > best`, a flag in a set, the order of a heap.

In: decisions, as the trace takes them. Out: the outcomes at each place, in order, which a variant keeps: where variants
went too many ways (`capture/misses.py`) the next trace ends the graph there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from dynajit.report import breaks
from dynajit.report.places import is_own
from dynajit.values.core.value import GraphBreak

#: Whether it is asked for an object's type, then file, line and name of a function and an instruction of it, for each
#: frame from the program's innermost one inwards. It keeps no code alive.
Place = tuple[bool, tuple[tuple[str, int, str, int], ...]]
Outcome = TypeVar("Outcome")


class Decisions:
    """Those of one trace."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self.ways: dict[Place, tuple[Any, ...]] = {}
        tx.graph.shapes.decide = self.take

    def take(self, ask: Callable[[], Outcome], of_type: bool = False) -> Outcome:
        """What `ask` decides, and guards; a graph break if there were too many ways to go on. `of_type`: what type an
        object has, or whether it is None."""
        tx = self._tx
        place = of_type, self._place()
        if place in tx.seen.varying_places and not (tx.runs_elsewhere or tx.static_numbers):
            raise GraphBreak(breaks.VARYING_VALUE, "what follows from numbers or texts that vary", at=self._call())
        outcome = ask()
        tx.journal.set_item(self.ways, place, (*self.ways.get(place, ()), outcome))
        return outcome

    def _place(self) -> tuple[tuple[str, int, str, int], ...]:
        found: list[tuple[str, int, str, int]] = []
        for frame in reversed(self._tx.frames):
            code = frame.code.code
            found.append((code.co_filename, code.co_firstlineno, code.co_name, frame.current.index))
            if not is_own(code.co_filename):
                break
        return tuple(found)

    def _call(self) -> Any:
        """Before the call that the decision is made in, if it is one of Python's library, which computes with no
        tensors, or of a function that calls itself: parts of these are no use. None: here."""
        frames = self._tx.frames
        codes = [frame.code for frame in frames]
        depth = len(frames)
        while depth > 1 and _is_library(frames[depth - 1]):
            depth -= 1
        if codes.count(codes[-1]) > 1:
            depth = max(codes.index(codes[-1]), 1)
        return self._tx.snapshot(depth) if depth < len(frames) else None


def _is_library(frame: Any) -> bool:
    name = str(frame.globals.get("__name__"))
    return name.partition(".")[0] in sys.stdlib_module_names
