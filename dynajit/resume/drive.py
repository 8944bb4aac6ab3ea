"""Generators that run in parts.

In: how a generator's code is cut (`bytecode/segments.py`) and a function that makes the call object of a part. Out: a
function that makes a generator which stands at a given place, suspended or not started. It is a real generator, so
`send`, `throw`, `close`, its end and what it has of an exception context are CPython's own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from dynajit import _C
from dynajit.bytecode import Segments
from dynajit.values.standing import MOVE, Standing, remember

# makes the call object of a part: (first instruction, slots on the stack, whether it is an exception handler)
MakePart = Callable[[int, int, bool], Callable[..., Any]]
Step = tuple[Any, ...]
# what runs between the program's parts must not meet a builtin that the program has replaced
_length, _next, _hasattr = len, next, hasattr
_BaseException, _GeneratorExit, _StopIteration = BaseException, GeneratorExit, StopIteration


def generator_maker(cut: Segments, make_part: MakePart) -> Callable[..., Any]:
    """(index of the yield it is suspended at; None: not started; -1: ended), stack, cells → generator."""
    parts = _Parts(cut, make_part)
    original = cut.code.code

    def make(at: int | None, stack: tuple[Any, ...], cells: tuple[types.CellType, ...]) -> Any:
        standing = Standing(parts)
        made: Any = _drive(parts, at, stack, cells, standing)
        remember(made, standing)
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
    parts: _Parts, at: int | None, stack: tuple[Any, ...], cells: tuple[types.CellType, ...], standing: Standing
) -> Generator[Any, Any, Any]:
    cut = parts.cut
    if at is None:
        step: Step = parts.part(cut.start, 1, False)(None, *cells)
    else:
        step = (*stack, None, at)  # its first step, which its maker takes, ends at this yield
    del stack
    while True:
        *below, value, index = step
        del step
        delegation = cut.delegation(index) if cut.yields(index) else None
        if delegation is not None:
            # where it stood when it was made: the iterator has given a value already
            giving, index, following = _going_on(below.pop()), delegation, cut.code.instrs[delegation].target
        elif cut.delegates(index):
            giving, following = below.pop(), cut.code.instrs[index].target
        elif cut.yields(index):
            giving, following = None, index + 1
        else:
            return value
        if giving is None:
            standing.suspend(index, below, cells)
        instr = cut.code.instrs[index]
        if instr.handler is None:
            sent = (yield value) if giving is None else (yield from giving)
            thrown = None
        else:
            sent = thrown = None
            try:
                sent = (yield value) if giving is None else (yield from giving)
            except _BaseException as error:
                thrown = error
        del value
        giving = None
        standing.go_on()
        if sent is MOVE:
            # what is between here and the place that it stands at from now on was traced in its caller
            sent = None
            if standing.step is None:
                return None
            step, standing.step = standing.step, None
            continue
        if thrown is None:
            assert following is not None
            step = parts.part(following, _length(below) + 1, False)(*below, sent, *cells)
        else:
            assert instr.handler is not None
            kept = [*below, None, None][: instr.handler_depth]
            throw = parts.part(instr.handler, _length(kept) + 1, True)
            kept.append(thrown)
            thrown = None
            step = _throw(throw, kept, cells)
        sent = thrown = None


def _going_on(receiver: Any) -> Generator[Any, Any, Any]:
    """What `yield from` does with an iterator that has given a value (PEP 380); the first step is for who makes it."""
    value: Any = None
    step: Any
    while True:
        try:
            sent = yield value
        except _GeneratorExit:
            if _hasattr(receiver, "close"):
                receiver.close()
            raise
        except _BaseException as error:
            if not _hasattr(receiver, "throw"):
                raise
            step = partial(receiver.throw, error)
        else:
            step = partial(_next, receiver) if sent is None else partial(receiver.send, sent)
        try:
            value = step()
        except _StopIteration as end:
            return end.value
        finally:
            step = sent = None


def _throw(part: Callable[..., Any], stack: list[Any], cells: tuple[Any, ...]) -> Step:
    """The exception is on top of the stack, and in no variable of the generator's frame nor of this one: its traceback
    keeps both, and they their callers, until the collector comes."""
    step: Step = part(*_emptied(stack), *cells)
    return step


def _emptied(values: list[Any]) -> tuple[Any, ...]:
    found = (*values,)
    values.clear()
    return found
