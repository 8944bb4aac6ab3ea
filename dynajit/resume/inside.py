"""The breaking instruction of an inlined frame, run where the traceback expects it.

In: the chain of frames at a break. Out: a function that runs the innermost frame's instruction for real, called through
one function for each frame in between; they bear the frames' names, files and lines, so that an exception shows the
frames that eager code would show.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit import _C
from dynajit.bytecode import Emitter, pushed_kinds, stack_shape
from dynajit.bytecode.canonical import JUMPS, TERMINATORS
from dynajit.interp.frame import SymFrame
from dynajit.resume.plan import null_operand, peeks
from dynajit.values.core.effect import Place
from dynajit.values.core.value import NULL, Value

_traceback_of: Callable[[BaseException], types.TracebackType | None] = vars(BaseException)["__traceback__"].__get__


def instruction_function(frames: Sequence[SymFrame], operands: Sequence[Value]) -> Callable[..., Any]:
    """Takes the operands that are not NULL. Returns what the instruction pushes (None for nothing, a tuple for
    several), or the truth value that a branch looks at. `frames` are the inlined ones, outermost first."""
    emit, frame = Emitter(), frames[-1]
    instr = frame.current
    names = [f"operand{number}" for number, value in enumerate(operands) if value is not NULL]
    emit.set_location(instr.positions)
    for number, value in enumerate(operands):
        if value is NULL:
            emit.push_null()
        else:
            emit.load_fast(f"operand{number}")
    for name in names:
        emit.delete_fast(name)
    if instr.op in JUMPS:
        emit.op("UNARY_NOT")
        emit.op("UNARY_NOT")
        emit.return_value()
    else:
        null = null_operand(operands)
        emit.rerun(instr, None, null)
        emit.drop_below(stack_shape(instr.op, instr.arg)[1], peeks(frame))
        if instr.op not in TERMINATORS:
            _return_pushed(emit, pushed_kinds(instr, False, null).count("value"))
    function = _function(emit, names, frame)
    for outer in reversed(frames[:-1]):
        function = _calling_function(outer, function, names)
    return function


def calling_functions(frames: Sequence[SymFrame | Place], inner: Callable[..., Any], argc: int) -> Callable[..., Any]:
    """A function that calls `inner` with its `argc` arguments through one function for each of the frames."""
    names = [f"argument{number}" for number in range(argc)]
    for outer in reversed(frames):
        inner = _calling_function(outer, inner, names)
    return inner


def placed_call(places: Sequence[Place], argc: int, names: tuple[str, ...]) -> Callable[..., Any]:
    """A function that takes another one with `argc` arguments, the last of them for the parameters `names`, and calls
    it from the innermost place, through one function for each of the others."""
    emit, inner = Emitter(), places[-1]
    args = [f"argument{number}" for number in range(argc)]
    emit.set_location(inner.current.positions)
    emit.begin_call(lambda: emit.load_fast("called"))
    for name in args:
        emit.load_fast(name)
    emit.end_call(argc, names)
    emit.return_value()
    return calling_functions(places[:-1], _function(emit, ["called", *args], inner), argc + 1)


def caught_inside(error: BaseException, frames: int) -> BaseException:
    """The exception without the first `frames` places of its traceback, the caller's among them; in generated code."""
    trace = _traceback_of(error)
    if trace is None or trace.tb_frame is not sys._getframe(1):
        return error  # made from its class and arguments just now: it shows no frame that it went through before
    while trace is not None and frames > 0:
        trace, frames = trace.tb_next, frames - 1
    return BaseException.with_traceback(error, trace)


def _return_pushed(emit: Emitter, count: int) -> None:
    if count == 0:
        emit.load_const(None)
    elif count > 1:
        emit.build_tuple(count)
    emit.return_value()


def _calling_function(frame: SymFrame | Place, inner: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    emit = Emitter()
    emit.set_location(frame.current.positions)
    emit.call_with_locals(inner, names)
    emit.return_value()
    return _function(emit, names, frame)


def _function(emit: Emitter, names: Sequence[str], frame: SymFrame | Place) -> Callable[..., Any]:
    original = frame.code_object
    code = emit.assemble(original.co_name, list(names), (), original, original.co_qualname)
    _C.mark_ours(code)
    return types.FunctionType(code, frame.globals, original.co_name)
