"""One frame of the traced program.

In: a decoded code object, its globals and bound arguments. Out: the symbolic frame the machine steps, and the
checkpoint taken before an instruction that may break.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

from dynajit.bytecode import Code, Instr, Loop, loops, target
from dynajit.report.records import FrameLoc
from dynajit.values.core.value import NULL, Direct, Value
from dynajit.values.objects.functions import CellVal


class Checkpoint(NamedTuple):
    """Everything needed to be back before an instruction: lengths of the logs, and the frame's stack."""

    instr: Instr
    stack: list[Value]
    journal: int
    graph: tuple[int, int, int, bool]
    guards: int


class FrameState(NamedTuple):
    """A frame's own state, which the logs do not know of."""

    frame: SymFrame
    current: Instr
    ip: int
    checkpoint: Checkpoint | None
    stack: list[Value]
    locals: dict[str, Value]
    cells: dict[str, CellVal]

    def restore(self) -> None:
        frame = self.frame
        frame.current, frame.ip, frame.checkpoint = self.current, self.ip, self.checkpoint
        frame.stack, frame.locals, frame.cells = self.stack.copy(), self.locals.copy(), self.cells.copy()


class Snapshot(NamedTuple):
    """The chain of frames before an instruction of the innermost one: a place to roll back to from far."""

    states: list[FrameState]
    checkpoint: Checkpoint

    @property
    def frames(self) -> list[SymFrame]:
        return [state.frame for state in self.states]

    def restore(self, tx: Any) -> None:
        """Roll the interpreter back to here."""
        tx.rollback(self.checkpoint)
        for state in self.states:
            state.restore()


class Given(NamedTuple):
    """The parameters of what takes a frame's place: those of its code, then the cells of its free variables. `cells`
    are those whose argument is a cell."""

    names: tuple[str, ...]
    cells: frozenset[str]

    @property
    def locals(self) -> list[str]:
        """Those that are passed by value."""
        return [name for name in self.names if name not in self.cells]


class SymFrame:
    """A frame while it is interpreted.

    Attributes:
        direct: what the caller's current instruction makes of the frame's return value, so that a break inside can be
            continued in both; None if it does more than that.
        checkpoint: state before the instruction at hand, if that instruction may break.
        given: how the outermost frame's code is called.
        namespace: where the names of source text that runs in it are looked up.
        gave_names: the dictionary of the frame's local names that the program was given last.
        opening: called when the frame starts to run, of one that goes on in the middle of its code.
    """

    def __init__(
        self,
        code: Code,
        code_object: types.CodeType,
        globals_: dict[str, Any],
        locals_: dict[str, Value],
        cells: dict[str, CellVal],
        direct: Direct,
    ) -> None:
        self.code = code
        self.code_object = code_object
        self.instrs = code.instrs
        self.globals = globals_
        self.locals = locals_
        self.cells = cells
        self.direct = direct
        self.stack: list[Value] = []
        self.ip = code.entry
        self.current: Instr = code.instrs[min(code.entry, len(code.instrs) - 1)]
        self.checkpoint: Checkpoint | None = None
        self.is_generator = code.is_generator
        self._location: tuple[Instr, FrameLoc] | None = None
        self.given = Given((), frozenset())
        self.opening: Callable[[Any], None] | None = None
        self.namespace: Any = None
        self.gave_names: Value | None = None
        self.loops: list[Loop] = loops(code)
        #: where loops are entered, and what they span
        self.loop_starts = {loop.entry: loop.members for loop in self.loops}
        #: the state at the last entry of each loop that was entered
        self.entered: dict[int, Snapshot] = {}

    def state(self) -> FrameState:
        """A copy of the frame's own state."""
        return FrameState(
            self,
            self.current,
            self.ip,
            self.checkpoint,
            self.stack.copy(),
            self.locals.copy(),
            self.cells.copy(),
        )

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        return self.stack.pop()

    def popn(self, count: int) -> list[Value]:
        if count == 0:
            return []
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def push_callable(self, value: Value) -> None:
        """What is called next, and the NULL beside it, in this Python's order."""
        self.stack.extend((value, NULL) if target().NULL_AFTER_CALLABLE else (NULL, value))

    def pop_callable(self) -> tuple[Value, list[Value]]:
        """What is called, and the object that stands before its arguments if there is one: pushed by push_callable, or
        by code that knows of a method and its object."""
        first, second = self.popn(2)
        if first is NULL:
            return second, []
        return first, [] if second is NULL else [second]

    def location(self) -> FrameLoc:
        """Where the frame stands, in the user's file."""
        if self._location is not None and self._location[0] is self.current:
            return self._location[1]
        lineno, end_lineno, col, end_col = self.current.positions
        found = FrameLoc(
            self.code_object.co_filename,
            lineno or self.code_object.co_firstlineno,
            end_lineno,
            col,
            end_col,
            self.code_object.co_name,
        )
        self._location = (self.current, found)
        return found


class Yielded:
    """What a generator's frame gives when it suspends."""

    def __init__(self, value: Value) -> None:
        self.value = value
