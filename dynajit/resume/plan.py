"""Where a break can happen: the innermost frame that can be gone on with, and what is live there.

In: the chain of frames at the break. Out: `Plan`, or None if even the outermost frame can't be continued. A frame can
be continued if its current instruction is in no loop, with or try block, and if its return value is just what
its caller's instruction pushes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dynajit.bytecode import SlotKind, cells_live, live_before, pushed_kinds, regions, stack_shape
from dynajit.bytecode.cfg import super_sites
from dynajit.interp.frame import SymFrame
from dynajit.values.base import NULL, Value

# Instructions that name a local, cell or global mean something only in their own frame's code.
_FRAME_BOUND = frozenset(
    {
        "LOAD_FAST",
        "LOAD_FAST_CHECK",
        "LOAD_FAST_AND_CLEAR",
        "DELETE_FAST",
        "LOAD_DEREF",
        "STORE_DEREF",
        "DELETE_DEREF",
        "LOAD_GLOBAL",
        "STORE_GLOBAL",
        "DELETE_GLOBAL",
        "IMPORT_NAME",
        "LOAD_NAME",
        "STORE_NAME",
        "DELETE_NAME",
    }
)
_NEVER_RERUN = frozenset(
    {
        "YIELD_VALUE",
        "SEND",
        "RETURN_GENERATOR",
        "FOR_ITER",
        "RERAISE",
        "PUSH_EXC_INFO",
        "POP_EXCEPT",
        "WITH_EXCEPT_START",
        "LOAD_SPECIAL",
        "CHECK_EXC_MATCH",
        "BEFORE_WITH",
        "UNKNOWN",
        "LOAD_LOCALS",
        "SETUP_ANNOTATIONS",
        "GET_AWAITABLE",
        "CLEANUP_THROW",
        "BEFORE_ASYNC_WITH",
        "GET_AITER",
        "GET_ANEXT",
        "END_ASYNC_FOR",
        "ASYNC_GEN_WRAP",
    }
)


class Resume(NamedTuple):
    """How one frame goes on: before the instruction `at`, with `stack` below the slots that the broken instruction
    pushes (kinds `pushes`)."""

    frame: SymFrame
    at: int
    stack: list[Value]
    pushes: tuple[SlotKind, ...]
    locals: list[str]
    cells: list[str]


class Plan(NamedTuple):
    """A break at the current instruction of `frames[-1]`; `lifted` if that is not where tracing stopped."""

    frames: list[SymFrame]
    lifted: bool


def plan_breaks(frames: list[SymFrame]) -> Iterator[Plan]:
    """The frames that can be broken at, innermost first, each with all frames outside of it."""
    resumable = 0
    for depth, frame in enumerate(frames):
        if frame.code.refusal is not None or (depth > 0 and not frame.direct) or frame.checkpoint is None:
            break
        if regions(frame.code)[frame.current.index]:
            break
        resumable = depth + 1
    while resumable:
        frame = frames[resumable - 1]
        instr = frame.current
        rerunnable = (
            instr.op not in _NEVER_RERUN
            and instr.index not in super_sites(frame.code)
            and not (resumable > 1 and instr.op in _FRAME_BOUND)
        )
        if rerunnable and frame.checkpoint is not None and frame.checkpoint.instr is instr:
            yield Plan(frames[:resumable], resumable < len(frames))
        resumable -= 1


def resume_after(frame: SymFrame, jump: bool = False) -> Resume:
    """How the frame goes on behind its current instruction."""
    instr = frame.current
    assert frame.checkpoint is not None
    pops, _ = stack_shape(instr.op, instr.arg, jump)
    stack = frame.checkpoint.stack
    index = instr.target if jump else instr.index + 1
    assert index is not None
    live = live_before(frame.code)[index]
    cells = cells_live(frame.code, index)
    names = [
        name
        for name in frame.code_object.co_varnames
        if name in live and name not in frame.cells and name in frame.locals
    ]
    return Resume(
        frame,
        index,
        stack[: len(stack) - pops],
        pushed_kinds(instr, jump),
        names,
        [name for name in frame.cells if name in cells],
    )


def operands(frame: SymFrame) -> list[Value]:
    """What the current instruction takes from the stack."""
    assert frame.checkpoint is not None
    pops, _ = stack_shape(frame.current.op, frame.current.arg, False)
    stack = frame.checkpoint.stack
    return stack[len(stack) - pops :]


def slot_kinds(resume: Resume, calls: bool) -> tuple[SlotKind, ...]:
    """The kinds of a continuation's stack slots, without those that an inner continuation pushes (`calls`)."""
    below: tuple[SlotKind, ...] = tuple("null" if value is NULL else "value" for value in resume.stack)
    return below if calls else (*below, *resume.pushes)
