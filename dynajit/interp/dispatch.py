"""The table of opcode handlers.

In: functions behind `@opcode("NAME", ...)`. Out: `HANDLERS`, by canonical opcode. A handler takes (interpreter, frame,
instruction), works on the frame's stack, sets `frame.ip` to jump, and returns None, or the frame's result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynajit.bytecode import Instr
from dynajit.interp.frame import SymFrame

Handler = Callable[[Any, SymFrame, Instr], Any]
HANDLERS: dict[str, Handler] = {}
# Instructions that neither break nor change anything but the frame itself need no checkpoint.
SIMPLE: set[str] = set()


def opcode(*names: str, simple: bool = False) -> Callable[[Handler], Handler]:
    """Give canonical opcodes their meaning.

    Args:
        names: canonical opcodes, as in bytecode/canonical.py.
        simple: the handler cannot break or raise, and changes only its frame's stack and locals.
    """

    def register(fn: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = fn
            if simple:
                SIMPLE.add(name)
        return fn

    return register
