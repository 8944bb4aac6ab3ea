"""Frames that begin in the middle of their code: continuations.

In: a `Part` and its arguments, as real objects (the outermost frame's) or as values (an inlined call's). Out: a
symbolic frame of the whole original code that stands where the part begins, with the part's stack, locals and cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynajit.bytecode import Instr, Part
from dynajit.guards.source import CellSource, ConstSource, LocalSource
from dynajit.interp.frame import Given, SymFrame
from dynajit.values.core.value import NULL, Direct, Raised, Value
from dynajit.values.objects.functions import CellVal, CompiledVal, FunctionVal


def inlined_part(part: Part, globals_: dict[str, Any], args: Sequence[Value], direct: Direct) -> SymFrame:
    """The frame of a call of a part, made while tracing."""
    slots, locals_, shared, cells, inputs = part.split(args)
    frame = _frame(part, globals_, direct)
    frame.locals = dict(zip(part.locals, locals_, strict=True))
    frame.cells = dict(zip(part.cells, cells, strict=True))
    frame.opening = lambda tx: _open(tx, frame, part, slots, shared, inputs)
    return frame


def outermost_part(tx: Any, part: Part, globals_: dict[str, Any], values: Sequence[Any]) -> SymFrame:
    """The outermost frame, with what its guards are to read."""
    frame = _frame(part, globals_, None)
    frame.given = Given(part.names, part.cell_names)
    places = range(len(values))
    slots, locals_, shared, cells, inputs = part.split(places)
    tx.bind_locals(frame, [(place, part.names[place], values[place]) for place in locals_])
    for place in cells:
        name = part.names[place]
        frame.cells[name] = tx.wrap_cell(values[place], CellSource(place, name))

    def opening(tx: Any) -> None:
        def read(places: list[int]) -> list[Value]:
            return [tx.wrap(values[place], LocalSource(place, part.names[place])) for place in places]

        passed = [tx.wrap_cell(values[place], CellSource(place, part.names[place])) for place in shared]
        _open(tx, frame, part, read(slots), passed, read(inputs))

    frame.opening = opening
    return frame


def _frame(part: Part, globals_: dict[str, Any], direct: Direct) -> SymFrame:
    frame = SymFrame(part.code, part.code.code, globals_, {}, {}, direct)
    frame.instrs, frame.loops = part.instrs, part.loops
    frame.loop_starts = {loop.entry: loop.members for loop in frame.loops}
    frame.ip = part.calling if part.inner is not None else part.index
    frame.current = frame.instrs[frame.ip]
    return frame


def _open(tx: Any, frame: SymFrame, part: Part, slots: list[Value], shared: list[CellVal], inputs: list[Value]) -> None:
    """Put the frame's stack there, and the locals that were passed in cells, which nobody else has."""
    for name, cell in zip(part.shared, shared, strict=True):
        found = cell.get(tx)
        if found is not None:
            frame.locals[name] = found
    values = iter(slots)
    frame.stack = [NULL if kind == "null" else next(values) for kind in part.stack]
    if part.inner is not None:
        frame.push_callable(_callee(tx, part.inner.function))
        frame.stack.extend(inputs)
    if part.throw:
        first = frame.instrs[part.index]
        throwing = Instr(part.index, "RERAISE", 0, first.positions, first.raw)
        throwing.handler, throwing.handler_depth = part.index, len(frame.stack) - 1
        throwing.handler_lasti = any(instr.handler_lasti for instr in frame.instrs if instr.handler == part.index)
        tx.enter_handler(frame, throwing, Raised(frame.stack[-1]))


def _callee(tx: Any, call_object: Any) -> CompiledVal:
    """The rest of the callee: captured with its caller, and called by name where that is not possible."""
    source = ConstSource(call_object, call_object.__qualname__)
    return CompiledVal(call_object, FunctionVal.outside(tx, call_object.function, source), source)
