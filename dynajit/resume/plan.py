"""Where a break can happen: the innermost frame that can be gone on with, and what is live there.

In: the chain of frames at the break. Out: `ResumePlan`s, the best first. A frame can be continued if its return value
is just what its caller's instruction pushes. Where an exception handler is around the instruction, the frame goes on in
the handler if the instruction raises; `with` and `try` blocks need nothing else. In a loop the frame would go on with
the next iteration inside of what continues this one, so the loop as a whole runs instead, with its body as a function
in which the break is met again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dynajit.bytecode import (
    Leave,
    Loop,
    Outline,
    SlotKind,
    cells_live,
    live_before,
    outline,
    pushed_kinds,
    stack_shape,
    target,
)
from dynajit.bytecode.cfg import super_sites
from dynajit.bytecode.continuation import ways_on
from dynajit.bytecode.return_action import ReturnAction
from dynajit.interp.frame import Checkpoint, Snapshot, SymFrame
from dynajit.interp.machine import Interpreter
from dynajit.values.core.value import NULL, Value
from dynajit.values.scalars.constant import ConstVal

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
        "PUSH_EXC_INFO",
        "POP_EXCEPT",
        "LOAD_SPECIAL",
        "UNKNOWN",
        "CALL_INNER",
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


# A function that calls itself goes on once for each call under way. Past so many parameters for what is to go on, the
# call is made for real and captured by itself: code, time and the interpreter's room grow with the square.
_MAX_PARAMETERS = 250


class Resume(NamedTuple):
    """How one frame goes on: before the instruction `at`, with `stack` below the slots that the broken instruction
    pushes (kinds `pushes`). Locals in `shared` are passed in cells. With `throw`, `at` is an exception handler and what
    is pushed the exception."""

    frame: SymFrame
    at: int
    stack: list[Value]
    pushes: tuple[SlotKind, ...]
    locals: list[str]
    cells: list[str]
    shared: tuple[str, ...] = ()
    throw: bool = False


class ResumePlan(NamedTuple):
    """A break in `frames[-1]`: at its current instruction, or (`cut`) where a loop is entered that runs as a whole.
    `lifted` if that is not where tracing stopped; `back` is where to roll back to. `ends`: the instruction raises what
    nobody catches, and nothing goes on."""

    frames: list[SymFrame]
    lifted: bool
    back: Snapshot
    cut: Outline | None = None
    ends: bool = False

    def restore(self, tx: Interpreter) -> None:
        """Be back where the break is."""
        self.back.restore(tx)


def plan_breaks(frames: list[SymFrame], raises: bool = False) -> Iterator[ResumePlan]:
    """Where the break can be: at the outermost loop that is being run, else in the innermost frame that can be gone on
    with, then in those outside of it. With `raises`, where the instruction stands, whatever is around it, if nobody
    catches what it raises."""
    sound = all(frame.code.refusal is None and frame.current.handler is None for frame in frames)
    if raises and sound and (before := _before(frames, len(frames))) is not None:
        yield ResumePlan(frames, False, Snapshot([], before), ends=True)
    resumable = 0
    for depth, frame in enumerate(frames):
        if depth > 0 and len(frames[0].given.names) > _MAX_PARAMETERS:
            break
        if frame.code.refusal is not None or (depth > 0 and frame.direct is None) or frame.checkpoint is None:
            break
        loop = next((loop for loop in frame.loops if frame.current.index in loop.members), None)
        if loop is not None:
            yield from _loop_plan(frames, depth, loop)
            break
        resumable = depth + 1
    while resumable:
        before = _before(frames, resumable)
        if before is not None:
            yield ResumePlan(frames[:resumable], resumable < len(frames), Snapshot([], before))
        resumable -= 1


def _before(frames: list[SymFrame], depth: int) -> Checkpoint | None:
    """The state before the instruction at hand of the innermost of the first `depth` frames, if it can run in other
    code."""
    frame = frames[depth - 1]
    instr, before = frame.current, frame.checkpoint
    if instr.op in _NEVER_RERUN or instr.index in super_sites(frame.code):
        return None
    if (depth > 1 and instr.op in _FRAME_BOUND) or before is None or before.instr is not instr:
        return None
    return before


def _loop_plan(frames: list[SymFrame], depth: int, loop: Loop) -> Iterator[ResumePlan]:
    """Run the loop with its body as a function; the break is met again in there."""
    frame = frames[depth]
    entered = frame.entered.get(loop.entry)
    if entered is None:
        return
    state = entered.states[0]
    bound = frozenset(name for name in frame.code.varnames if name in state.locals)
    cut = outline(frame.code, loop, bound)
    if cut is not None:
        yield ResumePlan(frames[: depth + 1], False, entered, cut)


def resume_after(frame: SymFrame, jump: bool = False, calls: ReturnAction | None = None) -> Resume:
    """How the frame goes on after its current instruction; `calls`: what it makes of what
    its callee returns, which goes on first."""
    instr = frame.current
    assert frame.checkpoint is not None
    pops, _ = stack_shape(instr.op, instr.arg, jump)
    operands = frame.checkpoint.stack
    stack = operands[: len(operands) - pops]
    index = instr.target if jump else instr.index + 1
    assert index is not None
    if calls is not None:
        index = instr.index if calls.result == "again" else index
        if instr.op != "CALL_INNER":  # whose operands are only the call's: the instruction's own were seen to before
            stack = {"again": operands[:-1], "decide": operands}.get(calls.result, stack)
        stack = stack if calls.under is None else [*stack, calls.under]
    starts = [index, *(ways_on(frame.code, instr.index, calls) if calls is not None else ())]
    pushes = pushed_kinds(instr, jump, null_operand(operands[len(operands) - pops :]))
    if calls is None and not jump and pushes == ("value",) and frame.code.instrs[index].op == "POP_TOP":
        # a statement: nobody takes what it gives
        index, pushes = index + 1, ()
    return Resume(
        frame,
        index,
        stack,
        pushes,
        _live_locals(frame, starts),
        _live_cells(frame, starts),
    )


def resume_handler(frame: SymFrame, handler: int) -> Resume:
    """How the frame goes on in its exception handler."""
    assert frame.checkpoint is not None
    depth = next(instr.handler_depth for instr in frame.instrs if instr.handler == handler)
    return Resume(
        frame,
        handler,
        frame.checkpoint.stack[:depth],
        ("value",),
        _live_locals(frame, [handler]),
        _live_cells(frame, [handler]),
        throw=True,
    )


def resume_loop(frame: SymFrame, stack: list[Value], cut: Outline, leave: Leave) -> Resume:
    """How the frame goes on after a loop."""
    pushes: tuple[SlotKind, ...] = ("value",)
    made = Resume(frame, leave.target, stack[: cut.floor], pushes * leave.slots, [], [])
    return _with_shared(made, cut)


def resume_loop_handler(frame: SymFrame, stack: list[Value], cut: Outline) -> Resume:
    """How the frame goes on in the exception handler around a loop."""
    assert cut.handler is not None
    depth = next(instr.handler_depth for instr in frame.instrs if instr.handler == cut.handler)
    made = Resume(frame, cut.handler, stack[:depth], ("value",), [], [], throw=True)
    return _with_shared(made, cut)


def _with_shared(resume: Resume, cut: Outline) -> Resume:
    """Locals that the loop changes are passed by value where they are sure to be bound, else in their cells."""
    frame, at = resume.frame, resume.at
    live = live_before(frame.code)[at]
    sure = cut.bound.get(at, frozenset())
    named = [
        name
        for name in frame.code.varnames
        if name in live and name not in frame.cells and (name in sure if name in cut.shared else name in frame.locals)
    ]
    shared = tuple(name for name in cut.shared if name in live and name not in sure)
    return resume._replace(locals=named, cells=_live_cells(frame, [at]), shared=shared)


def _live_locals(frame: SymFrame, starts: Sequence[int]) -> list[str]:
    live = frozenset().union(*(live_before(frame.code)[start] for start in starts))
    return [name for name in frame.code.varnames if name in live and name not in frame.cells and name in frame.locals]


def _live_cells(frame: SymFrame, starts: Sequence[int]) -> list[str]:
    live = frozenset().union(*(cells_live(frame.code, start) for start in starts))
    return [name for name in frame.cells if name in live]


def operands(frame: SymFrame) -> list[Value]:
    """What the current instruction takes from the stack, or looks at there."""
    assert frame.checkpoint is not None
    pops, _ = stack_shape(frame.current.op, frame.current.arg, False)
    stack = frame.checkpoint.stack
    start = len(stack) - pops
    return [
        *(ConstVal(None) if value is NULL else value for value in stack[start - peeks(frame) : start]),
        *stack[start:],
    ]


def null_operand(values: Sequence[Value]) -> int | None:
    """The place of a NULL among operands."""
    return next((place for place, value in enumerate(values) if value is NULL), None)


def peeks(frame: SymFrame) -> int:
    """How many slots below its operands the current instruction looks at when it words an error."""
    return (3 if target().NULL_AFTER_CALLABLE else 2) if frame.current.op == "DICT_MERGE" else 0


def slot_kinds(resume: Resume, calls: bool) -> tuple[SlotKind, ...]:
    """The kinds of a continuation's stack slots, without those that an inner continuation pushes (`calls`)."""
    below: tuple[SlotKind, ...] = tuple("null" if value is NULL else "value" for value in resume.stack)
    return below if calls else (*below, *resume.pushes)
