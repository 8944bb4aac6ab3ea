"""Exceptions of the capture where the rest of a function begins.

In: the function that was to be captured, and an exception: an interrupt, or what a backend raised. Out: what runs
instead. The rest of a function begins inside of the blocks that were open where it broke off: grad mode is off, a lock
is held. So the exception is raised at its first instruction, and what leaves those blocks runs.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from dynajit import _C
from dynajit.bytecode import Code, Emitter, build_segment
from dynajit.bytecode.part import Part, part_of
from dynajit.capture.session import Session
from dynajit.capture.variants import VariantData, n_given
from dynajit.guards.program import GuardSet

Raising = tuple[types.CodeType, Sequence[Any]]  # code, and what it is given


class _Beginning(NamedTuple):
    """Where the rest of a function begins, with how many slots on the stack; with `throw`, the last is the exception
    for the handler that begins there."""

    code: Code
    at: int
    depth: int
    throw: bool

    @property
    def handler(self) -> tuple[int, int] | None:
        """Which handler exceptions go to, and how many slots stay below. Instead of one for a handler, it gets them."""
        if self.throw:
            return self.at, self.depth - 1
        first = self.code.instrs[self.at]
        return None if first.handler is None else (first.handler, first.handler_depth)


def _beginning(function: types.FunctionType) -> _Beginning | None:
    part, segment = part_of(function), function.__dict__.get("_segment")
    if part is not None:
        return _Beginning(part.code, part.index, len(part.stack), part.throw)
    return None if segment is None else _Beginning(segment[0].code, *segment[1:])


def begins_in_block(function: types.FunctionType) -> bool:
    """Whether there are handlers for exceptions where the function begins: it is the rest of one."""
    part, beginning = part_of(function), _beginning(function)
    return (part is not None and part.inner is not None) or (beginning is not None and beginning.handler is not None)


def raising_variant(session: Session, function: types.FunctionType, error: BaseException) -> _C.Variant:
    """What raises the exception in the function's frame, for this call alone."""
    code, globals_, beginning = function.__code__, function.__globals__, _beginning(function)
    names, emit = code.co_varnames[: n_given(code)], Emitter()
    emit.set_location(beginning and beginning.code.instrs[beginning.at].positions)
    emit.begin_call(lambda: emit.load_const(partial(_raise_in, function, error)))
    for name in names:
        emit.load_fast(name)
    emit.end_call(len(names))
    emit.return_value()
    raising = types.FunctionType(emit.assemble(code.co_name, names, (), code), globals_, code.co_name)
    _C.mark_ours(raising.__code__)
    guards = GuardSet()
    data = VariantData(guards, "", True)
    return _C.Variant(guards.build(len(names), globals_), raising, False, globals_, data, session)


def _raise_in(function: Any, error: BaseException, *values: Any) -> Any:
    """Run what the function stands for, with the exception raised where it begins."""
    if not hasattr(function, "__code__") or not begins_in_block(function):
        raise error
    part = part_of(function)
    code, given = (_segment_raising if part is None else _part_raising)(function, error, values)
    return types.FunctionType(code, function.__globals__, function.__name__)(*given)


def _segment_raising(function: types.FunctionType, error: BaseException, values: Sequence[Any]) -> Raising:
    cut, _, depth, _ = function.__dict__["_segment"]
    index, below = _handled(function)
    return build_segment(cut, index, below + 1, True), (*values[:below], error, *values[depth:])


def _part_raising(function: types.FunctionType, error: BaseException, values: Sequence[Any]) -> Raising:
    part = part_of(function)
    assert part is not None
    slots, locals_, shared, cells, inputs = part.split(values)
    inner, kinds, index, throw = part.inner, part.stack, part.index, part.throw
    if inner is not None:  # the callee goes on first
        inner = inner._replace(function=partial(_raise_in, inner.function, error))
    else:
        index, below = _handled(function)
        kinds, throw = (*kinds[:below], "value"), True
        slots[kinds.count("value") - 1 :] = [error]
    raising = Part(part.code, index, kinds, part.locals, part.cells, inner, part.shared, throw)
    return raising.whole, (*slots, *locals_, *shared, *cells, *inputs)


def _handled(function: types.FunctionType) -> tuple[int, int]:
    beginning = _beginning(function)
    assert beginning is not None and beginning.handler is not None
    return beginning.handler
