"""How far a call is traced: `dynajit.bisect` lets the front end go on for ever fewer instructions.

In:  `with limited(instructions) as fuel:` around a call of a compiled function. Out: the first so many instructions
that this thread traces are traced as always; the next one breaks the graph, and what comes after it runs eagerly.
`fuel.used` counts, `fuel.stopped_at` tells the instruction that was not traced any more and the user's lines that led
to it. Counted are the instructions at which programs break too; the others only move values about in the frame, and
code that goes on in the middle of these does not exist.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from dynajit.bytecode import Instr
from dynajit.interp.dispatch import HANDLERS, Handler
from dynajit.interp.frame import SymFrame
from dynajit.report import breaks
from dynajit.report.records import FrameLoc
from dynajit.values.core.value import GraphBreak

_COUNTED = frozenset(
    {
        *("CALL", "CALL_FUNCTION_EX", "CALL_KW", "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR"),
        *("BINARY_OP", "BINARY_SUBSCR", "BINARY_SLICE", "STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR", "DELETE_ATTR"),
        *("UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_NOT", "COMPARE_OP", "CONTAINS_OP", "GET_ITER", "FOR_ITER"),
    }
)
_local = threading.local()


class Fuel:
    """What is left of the instructions that may be traced; `limit` None: as many as there are."""

    def __init__(self, limit: int | None) -> None:
        self.used = 0
        self.stopped_at: tuple[str, list[FrameLoc]] | None = None
        self._limit = limit
        self.handlers = {op: self._counted(step) if op in _COUNTED else step for op, step in HANDLERS.items()}

    @property
    def empty(self) -> bool:
        """Whether an instruction was met for which there was none: nothing is captured any more."""
        return self.stopped_at is not None

    def _counted(self, handler: Handler) -> Handler:
        @functools.wraps(handler)
        def counted(tx: Any, frame: SymFrame, instr: Instr) -> Any:
            if self.used == self._limit:
                self.stopped_at = instr.op, tx.user_stack()
                raise GraphBreak(breaks.STOPPED, f"after {self.used} instructions")
            self.used += 1
            return handler(tx, frame, instr)

        return counted


@contextlib.contextmanager
def limited(limit: int | None) -> Iterator[Fuel]:
    """Calls of this thread in the block capture so many instructions."""
    _local.fuel = fuel = Fuel(limit)
    try:
        yield fuel
    finally:
        _local.fuel = None


def current() -> Fuel | None:
    """What this thread's captures are limited by."""
    return getattr(_local, "fuel", None)


def handlers() -> dict[str, Handler]:
    """What each opcode means to a capture that begins now."""
    fuel = current()
    return HANDLERS if fuel is None else fuel.handlers
