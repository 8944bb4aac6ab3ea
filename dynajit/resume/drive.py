"""Generators that run in parts.

In: how a generator's code is cut (`bytecode/segments.py`) and a function that makes the call object of a part. Out: a
function that makes a generator which stands at a given place, suspended or not started. It is a real generator, so
`send`, `throw`, `close`, its end and what it has of an exception context are CPython's own.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal, NamedTuple

from dynajit import _C
from dynajit.bytecode import Segments, build_iteration
from dynajit.values.objects.suspended_generator import MOVE, START, Suspension, remember

# (first instruction, slots on the stack, whether it is an exception handler, what varies of the topmost slot)
Key = tuple[int, int, bool, str]
# makes the call object of a part
MakePart = Callable[[int, int, bool, str], Callable[..., Any]]
_COUNTERS: dict[type, str] = {type(iter(range(0))): "item", enumerate: "first"}
Step = tuple[Any, ...]
# what runs between the program's parts must not meet a builtin that the program has replaced
_length, _next, _hasattr = len, next, hasattr
_BaseException, _GeneratorExit, _StopIteration = BaseException, GeneratorExit, StopIteration


def generator_maker(cut: Segments, make_part: MakePart) -> Callable[..., Any]:
    """(index of the yield it is suspended at; None: not started; -1: ended), stack, cells → generator."""
    parts = _Parts(cut, make_part)
    original = cut.code.code

    def make(at: int | None, stack: tuple[Any, ...], cells: tuple[types.CellType, ...]) -> Any:
        suspension = Suspension(parts)
        if at is None:
            suspension.suspend(START, (), cells)
        made: Any = _run_generator_parts(parts, at, stack, cells, suspension)
        remember(made, suspension)
        made.__name__, made.__qualname__ = original.co_name, original.co_qualname
        if at == -1:
            made.close()
        elif at is not None:
            _next(made)
        return made

    return make


class _Stop(NamedTuple):
    """A place where parts stop: what is done there, and where it goes on."""

    kind: Literal["item", "yield", "delegate", "going on", "return"]
    #: the instruction; of "going on" the SEND whose value is given
    at: int
    following: int
    #: where the next item is asked for, if nothing is done before
    passed: int | None
    handler: int | None
    handler_depth: int


def _stop(cut: Segments, index: int) -> _Stop:
    instr = cut.code.instrs[index]
    delegation = cut.delegation(index) if cut.yields(index) else None
    if delegation is not None:
        # where it stood when it was made: the iterator has given a value already
        return _stop(cut, delegation)._replace(kind="going on")
    passed = cut.passed.get(index)
    handled = passed, instr.handler, instr.handler_depth
    if cut.iterates(index):
        return _Stop("item", index, index + 1, *handled)
    if cut.delegates(index):
        assert instr.target is not None
        return _Stop("delegate", index, instr.target, *handled)
    return _Stop("yield" if cut.yields(index) else "return", index, index + 1, *handled)


class _Header(NamedTuple):
    """Where a `for` loop asks for its next item: how that is done, and the parts after it."""

    ask: Callable[[Any], tuple[Any] | None]
    body: Callable[..., Any]
    end: Callable[..., Any]


class _Parts:
    """The call objects of one generator function's parts, made when first needed."""

    def __init__(self, cut: Segments, make_part: MakePart) -> None:
        self.cut = cut
        self.stops = {index: _stop(cut, index) for index in cut.stacks}
        self.headers: dict[int, _Header] = {}
        self._make = make_part
        self._made: dict[Key, Callable[..., Any]] = {}

    def part(self, index: int, depth: int, throw: bool, varying: str = "") -> Callable[..., Any]:
        key = index, depth, throw, varying
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = _C.call_eager(self._make, key)
        return found

    def header(self, index: int, depth: int, iterator: type) -> _Header:
        """`depth`: how many slots there are below the iterator."""
        target = self.cut.code.instrs[index].target
        assert target is not None
        body = self.part(index + 1, depth + 2, False, _COUNTERS.get(iterator, ""))
        ask = _C.call_eager(_asking, (self.cut, index))
        found = self.headers[index] = _Header(ask, body, self.part(target, depth, False))
        return found


def _asking(cut: Segments, index: int) -> Callable[..., Any]:
    """Asks an iterator for its next item, in a frame of the program's function and line."""
    code = build_iteration(cut, index)
    _C.mark_ours(code)
    return types.FunctionType(code, {}, code.co_name)


def _run_generator_parts(
    parts: _Parts, at: int | None, stack: tuple[Any, ...], cells: tuple[types.CellType, ...], suspension: Suspension
) -> Generator[Any, Any, Any]:
    cut, stops, headers = parts.cut, parts.stops, parts.headers
    step: Step
    if at is None:
        suspension.resumed()
    if suspension.step is not None:  # moved before it was started: what is in between was traced in its caller
        step, suspension.step = suspension.step, None
    elif at is None:
        step = parts.part(cut.start, 1, False)(None, *cells)
    else:
        step = (*stack, None, at)  # its first step, which its maker takes, ends at this yield
    del stack
    while True:
        *below, value, index = step
        del step
        kind, index, following, passed, handler, handler_depth = stops[index]
        if kind == "item":
            header = headers.get(index)
            if header is None:
                header = parts.header(index, _length(below), type(value))
            thrown = None
            if handler is None:
                found = header.ask(value)
            else:
                try:
                    found = header.ask(value)
                except _BaseException as error:
                    thrown = error
            if thrown is None:
                args = (*below, *cells) if found is None else (*below, value, *found, *cells)
                part = header.end if found is None else header.body
                del value, found
                step = part(*args)
                del args
                continue
            below.append(value)
            del value
        else:
            if kind == "return":
                return value
            giving = None
            if kind == "yield":
                suspension.suspend(index, below, cells)
            else:
                giving = below.pop() if kind == "delegate" else _going_on(below.pop())
            sent = thrown = None
            if handler is None:
                sent = (yield value) if giving is None else (yield from giving)
            else:
                try:
                    sent = (yield value) if giving is None else (yield from giving)
                except _BaseException as error:
                    thrown = error
            del value
            giving = None
            suspension.resumed()
            if sent is MOVE:
                # what is between here and the place that it stands at from now on was traced in its caller
                sent = None
                if suspension.step is None:
                    return None
                step, suspension.step = suspension.step, None
                continue
            if thrown is None:
                if passed is not None:
                    step = (*below, passed)
                else:
                    step = parts.part(following, _length(below) + 1, False)(*below, sent, *cells)
                sent = None
                continue
        assert handler is not None
        kept = [*below, None, None][:handler_depth]
        throw = parts.part(handler, _length(kept) + 1, True)
        kept.append(thrown)
        thrown = None
        step = _throw(throw, kept, cells)


def _going_on(receiver: Any) -> Generator[Any, Any, Any]:
    """What `yield from` does with an iterator that has given a value (PEP 380); the first step is for who makes it."""
    value: Any = None
    step: Any
    while True:
        try:
            sent = yield value
        except _GeneratorExit:
            close = _close_of(receiver)
            if close is not None:
                close()
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


def _close_of(receiver: Any) -> Callable[[], Any] | None:
    """Its `close`, if it has one; what looking for it raises is told to nobody but the hook for such exceptions."""
    try:
        found: Callable[[], Any] | None = receiver.close if _hasattr(receiver, "close") else None
    except _BaseException as error:
        told = sys.UnraisableHookArgs((type(error), error, error.__traceback__, None, receiver))  # type: ignore[call-arg, misc]
        sys.unraisablehook(told)
        return None
    return found


def _throw(part: Callable[..., Any], stack: list[Any], cells: tuple[Any, ...]) -> Step:
    """The exception is on top of the stack, and in no variable of the generator's frame nor of this one: its traceback
    keeps both, and they their callers, until the collector comes."""
    step: Step = part(*_emptied(stack), *cells)
    return step


def _emptied(values: list[Any]) -> tuple[Any, ...]:
    found = (*values,)
    values.clear()
    return found
