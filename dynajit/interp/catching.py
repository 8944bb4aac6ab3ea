"""Whether the program may go on, or do something, when the operation at hand raises as it runs.

In: symbolic frames, each at its current instruction. Out: whether one of them is inside of a `try`, or of a `with` of
the program's own. An exception of a graph leaves all of the code that the graph stands for, and no such block sees it,
save where the frame can be run again (`resume/rerun.py`).
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynajit.values.objects.functions import MethodVal

if TYPE_CHECKING:
    from dynajit.interp.frame import SymFrame

_RAISED_BY_KERNELS = (RuntimeError, IndexError)
# their `__exit__` does what `Rerun` does as well
_HARMLESS = ("torch", "contextlib.nullcontext")


def catches(frames: Sequence[SymFrame]) -> bool:
    """Whether a block in one of the frames sees what the current instruction raises."""
    return any(frame.current.handler is not None and _frame_catches(frame) for frame in frames)


def _frame_catches(frame: SymFrame) -> bool:
    inside: Any = frame.current
    while inside.handler is not None:
        at = inside.handler
        if frame.instrs[at].op == "PUSH_EXC_INFO":
            with_block = frame.instrs[at + 1].op == "WITH_EXCEPT_START"
            if _exit_acts(frame, inside.handler_depth) if with_block else _clause_fits(frame, at + 1):
                return True
        inside = frame.instrs[at]  # which an outer block encloses
    return False


def _exit_acts(frame: SymFrame, depth: int) -> bool:
    """Whether the `__exit__` below `depth` on the stack does more than torch's do."""
    leave = frame.stack[depth - 1] if 0 < depth <= len(frame.stack) else None
    if not isinstance(leave, MethodVal):
        return True
    kind = leave.owner.py_type()
    return not f"{kind.__module__}.{kind.__qualname__}".startswith(_HARMLESS)


def _clause_fits(frame: SymFrame, at: int) -> bool:
    """Whether what kernels raise meets one of the `except` clauses from instruction `at` on, or a `finally`."""
    instrs = frame.instrs
    while instrs[at].op != "RERAISE":
        names = []
        while instrs[at].op == "LOAD_GLOBAL":
            names.append(instrs[at].arg[0])
            at += 1
        at += instrs[at].op == "BUILD_TUPLE"
        if not names or instrs[at].op != "CHECK_EXC_MATCH":
            return True
        kinds = [frame.globals.get(name, getattr(builtins, name, None)) for name in names]
        if any(not isinstance(kind, type) or any(issubclass(r, kind) for r in _RAISED_BY_KERNELS) for kind in kinds):
            return True
        following = instrs[at + 1].target
        if following is None:
            return True
        at = following
    return False


def nobody_catches(frames: Sequence[SymFrame]) -> bool:
    """An exception that leaves the innermost frame is sure to leave the outermost one."""
    return all(frame.current.handler is None for frame in frames) and all(
        frame.direct is not None and not frame.is_generator for frame in frames[1:]
    )
