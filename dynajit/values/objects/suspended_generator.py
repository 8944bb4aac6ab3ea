"""Generators that generated code made (`resume/drive.py`), met again from outside: after a break, in what goes on.

In: a generator suspended at a yield of its own, or not started. Out: `SuspendedGenerator`, whose next part is traced in
its caller; where it is suspended afterwards is an effect (`move`). What it keeps on its stack and in its variables is
guarded when read.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.guards.source import CallSource, ConstSource, Source
from dynajit.report import breaks
from dynajit.values.containers.iterators import IteratorVal
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.value import Exhausted, GraphBreak, Raised, Tracer, Value
from dynajit.values.objects.exceptions import HandledVal
from dynajit.values.objects.generators import ended_by, stop_iteration_error, throw_exit
from dynajit.values.scalars.constant import ConstVal, is_none

#: sent to a generator to have it go on elsewhere: as `Suspension.step` says
MOVE: Any = object()
_ENDED = -1
#: where a generator is that was not started
START = -2


class Suspension:
    """Where a generator is suspended. `at`: at which yield, or START; None: it runs, or can't be moved from there."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts
        self.at: int | None = None
        self.below: Sequence[Any] = ()
        self.cells: tuple[types.CellType, ...] = ()
        self.step: tuple[Any, ...] | None = None

    def suspend(self, at: int, below: Sequence[Any], cells: tuple[types.CellType, ...]) -> None:
        """It is about to yield a value of its own."""
        if not any(isinstance(value, BaseException) for value in below):
            self.at, self.below, self.cells = at, below, cells

    def resumed(self) -> None:
        """It was resumed."""
        self.at, self.below, self.cells = None, (), ()


_suspensions: weakref.WeakKeyDictionary[Any, Suspension] = weakref.WeakKeyDictionary()


def remember(generator: Any, suspension: Suspension) -> None:
    """What a generator keeps of itself, found again by `suspension_of`."""
    _suspensions[generator] = suspension


def suspension_of(generator: Any) -> Suspension | None:
    """Where the generator is suspended, if generated code made it and can move it."""
    found = _suspensions.get(generator)
    return found if found is not None and found.at is not None else None


def move(generator: Any, at: int, below: list[Any]) -> None:
    """Have it be suspended at another yield, or ended; in generated code, after what is in between has run."""
    suspension = _suspensions[generator]
    suspension.step = None if at == _ENDED else (*below, None, at)
    if suspension.at != START:
        with contextlib.suppress(StopIteration):
            generator.send(MOVE)
    elif at == _ENDED:
        generator.close()
    else:
        next(generator)


def _is_suspended_at(parts: Any, at: int, depth: int, generator: Any) -> bool:
    found = _suspensions.get(generator)
    return found is not None and found.parts is parts and found.at == at and len(found.below) == depth


@functools.lru_cache(maxsize=256)
def _cell_reader(position: int) -> Callable[[Any], types.CellType]:
    return lambda generator: _suspensions[generator].cells[position]


@functools.lru_cache(maxsize=256)
def _slot_reader(position: int) -> Callable[[Any], Any]:
    return lambda generator: _suspensions[generator].below[position]


class SuspendedGenerator(IteratorVal):
    """A suspended generator from outside that can be moved."""

    kind = types.GeneratorType

    def __init__(self, real: Any, suspension: Suspension, source: Source) -> None:
        self.real_object = real
        self.source: Source = source
        self.parts = suspension.parts
        self.running = False
        #: known once it is resumed
        self.at: int | None = None
        self.below: list[Value] = []
        self.cells: list[Value] = []

    def describe(self) -> str:
        return f"the generator {self.real_object.__qualname__}"

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name.startswith("gi_") or name in ("__name__", "__qualname__"):
            raise GraphBreak(breaks.FRAME_INTROSPECTION, f"{name} of {self.describe()}")
        return tx.class_attribute(self, types.GeneratorType, name)

    def _open(self, tx: Tracer) -> int:
        """Rely on where it is suspended, and read what it keeps."""
        if self.running:
            raise tx.raised(ValueError, "generator already executing")
        if self.at is not None:
            return self.at
        found, source = suspension_of(self.real_object), self.source
        if found is None or found.at is None:
            raise GraphBreak(breaks.GENERATOR, self.describe())
        stands = functools.partial(_is_suspended_at, self.parts, found.at, len(found.below))
        tx.guard(source, "PREDICATE", stands, f"is suspended at instruction {found.at}")
        below = [
            tx.wrap(value, CallSource(source, _slot_reader(i), f"slot {i} of {{}}"))
            for i, value in enumerate(found.below)
        ]
        cells = [
            tx.wrap_cell(cell, CallSource(source, _cell_reader(i), f"cell {i} of {{}}"))
            for i, cell in enumerate(found.cells)
        ]
        for name, value in (("at", found.at), ("below", below), ("cells", cells)):
            tx.journal.set_attr(self, name, value)
        return found.at

    def next(self, tx: Tracer) -> Value:
        return self.send(tx, ConstVal(None))

    def send(self, tx: Tracer, value: Value) -> Value:
        """Run to the next `yield`."""
        at = self._open(tx)
        if at == _ENDED:
            raise Exhausted(ConstVal(None))
        if at == START:
            if not is_none(value):
                raise tx.raised(TypeError, "can't send non-None value to a just-started generator")
            return self._run(tx, self.parts.part(self.parts.cut.start, 1, False), [ConstVal(None)])
        return self._run(tx, self.parts.part(at + 1, len(self.below) + 1, False), [*self.below, value])

    def throw(self, tx: Tracer, error: Value) -> Value:
        at = self._open(tx)
        if at == _ENDED:
            raise Raised(error)
        instr = None if at == START else self.parts.cut.code.instrs[at]
        if instr is None or instr.handler is None:
            self._suspend_at(tx, _ENDED, [])
            raise ended_by(tx, error, has_begun=at != START)
        kept = [*self.below, ConstVal(None), ConstVal(None)][: instr.handler_depth]
        return self._run(tx, self.parts.part(instr.handler, len(kept) + 1, True), [*kept, error])

    def close(self, tx: Tracer) -> None:
        if self.at != _ENDED:
            throw_exit(tx, self)

    def _run(self, tx: Tracer, part: Callable[..., Any], stack: Sequence[Value]) -> Value:
        """Run a part; raises Exhausted with the returned value at the end."""
        call = tx.wrap(part, ConstSource(part, part.__qualname__))
        tx.journal.set_attr(self, "running", True)
        outer = tx.exceptions.enter_generator(ConstVal(None))
        error: Raised | None = None
        step: Value | None = None
        try:
            with tx.not_resumable():
                step = self._iterated(tx, tx.call(call, [*stack, *self.cells], {}))
        except Raised as raised:
            error = raised
        tx.exceptions.leave_generator(outer)
        tx.journal.set_attr(self, "running", False)
        if error is not None:
            self._suspend_at(tx, _ENDED, [])
            if error.is_a(StopIteration):
                raise Raised(stop_iteration_error(tx, error.value)) from None
            raise error
        assert isinstance(step, TupleVal)
        *below, result, stop = step.values(tx)
        place = stop.const()
        if not self.parts.cut.yields(place):
            if self.parts.cut.delegates(place):
                raise GraphBreak(breaks.GENERATOR, f"{self.describe()}, which goes on with another iterator")
            self._suspend_at(tx, _ENDED, [])
            raise Exhausted(result)
        if self.parts.cut.delegation(place) is not None or any(map(_is_exception, below)):
            raise GraphBreak(breaks.GENERATOR, f"{self.describe()}, where it stops")
        self._suspend_at(tx, place, below)
        return result

    def _iterated(self, tx: Tracer, step: Value) -> Value:
        """Go on while it stops only to ask an iterator for its next item."""
        cut = self.parts.cut
        while True:
            assert isinstance(step, TupleVal)
            *stack, place = step.values(tx)
            index = place.const()
            if not cut.iterates(index):
                return step
            instr = cut.code.instrs[index]
            try:
                stack.append(stack[-1].next(tx))
                following, throws = index + 1, False
            except Exhausted:
                del stack[-1]
                following, throws = instr.target, False
            except Raised as raised:
                if instr.handler is None:
                    raise
                stack = [*[*stack, ConstVal(None)][: instr.handler_depth], raised.value]
                following, throws = instr.handler, True
            part = self.parts.part(following, len(stack), throws)
            step = tx.call(tx.wrap(part, ConstSource(part, part.__qualname__)), [*stack, *self.cells], {})

    def _suspend_at(self, tx: Tracer, at: int, below: list[Value]) -> None:
        tx.journal.set_attr(self, "at", at)
        tx.journal.set_attr(self, "below", below)
        tx.journal.touch(self)

    def effect_children(self) -> Sequence[Value]:
        return self.below

    def emit_effect(self, out: Any) -> None:
        out.run(move, self, self.at, [*self.below])


def _is_exception(value: Value) -> bool:
    return isinstance(value, HandledVal) or issubclass(value.py_type(), BaseException)
