"""Generators that run in parts.

In: how a generator's code is cut (`bytecode/segments.py`) and a function that makes the call object of a part. Out: a
function that makes a generator which stands at a given place, suspended or not started. It is a real generator, so
`send`, `throw`, `close`, its end and what it has of an exception context are CPython's own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from typing import Any

from dynajit import _C
from dynajit.bytecode import Segments

# makes the call object of a part: (first instruction, slots on the stack, whether it is an exception handler)
MakePart = Callable[[int, int, bool], Callable[..., Any]]
Step = tuple[Any, ...]
# what runs between the program's parts must not meet a builtin that the program has replaced
_length, _next, _BaseException = len, next, BaseException


def generator_maker(cut: Segments, make_part: MakePart) -> Callable[..., Any]:
    """(index of the yield it is suspended at; None: not started; -1: ended), stack, cells → generator."""
    parts = _Parts(cut, make_part)
    original = cut.code.code

    def make(at: int | None, stack: tuple[Any, ...], cells: tuple[types.CellType, ...]) -> Any:
        made: Any = _drive(parts, at, stack, cells)
        made.__name__, made.__qualname__ = original.co_name, original.co_qualname
        if at == -1:
            made.close()
        elif at is not None:
            _next(made)
        return made

    return make


class _Parts:
    """The call objects of one generator function's parts, made when first needed."""

    def __init__(self, cut: Segments, make_part: MakePart) -> None:
        self.cut = cut
        self._make = make_part
        self._made: dict[tuple[int, int, bool], Callable[..., Any]] = {}

    def part(self, index: int, depth: int, throw: bool) -> Callable[..., Any]:
        key = index, depth, throw
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = _C.call_eager(self._make, key)
        return found


def _drive(
    parts: _Parts, at: int | None, stack: tuple[Any, ...], cells: tuple[types.CellType, ...]
) -> Generator[Any, Any, Any]:
    cut = parts.cut
    if at is None:
        step: Step = parts.part(cut.start, 1, False)(None, *cells)
    else:
        step = (*stack, None, at)  # its first step, which its maker takes, ends at this yield
    del stack
    while True:
        *below, value, index = step
        if not cut.yields(index):
            return value
        del step
        instr = cut.code.instrs[index]
        if instr.handler is None:
            sent = yield value
            thrown = None
        else:
            sent = thrown = None
            try:
                sent = yield value
            except _BaseException as error:
                thrown = error
        del value
        if thrown is None:
            step = parts.part(index + 1, _length(below) + 1, False)(*below, sent, *cells)
        else:
            assert instr.handler is not None
            kept = below[: instr.handler_depth]
            throw = parts.part(instr.handler, _length(kept) + 1, True)
            step = _throw(throw, kept, thrown, cells)
        sent = thrown = None


def _throw(part: Callable[..., Any], stack: list[Any], error: BaseException, cells: tuple[Any, ...]) -> Step:
    """Outside of the generator's frame, whose variables would keep the exception's traceback in a cycle."""
    try:
        result: Step = part(*stack, error, *cells)
    finally:
        del error
    return result
