"""Generators made while tracing.

In: the suspended frame of a generator function. Out: `GeneratorVal`, an iterator that steps the frame. Each step is
undoable as a whole: the frame's state before it is kept in the journal. In generated code it becomes a generator
that goes on in parts cut out of the function (`bytecode/segments.py`).
"""

from __future__ import annotations

import builtins
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.bytecode import segments
from dynajit.report import breaks
from dynajit.values.containers.iterators import IteratorVal, ended_iterator
from dynajit.values.core.value import NULL, Exhausted, GraphBreak, Raised, Tracer, Value
from dynajit.values.objects.exceptions import ExceptionVal, HandledVal
from dynajit.values.scalars.constant import ConstVal, is_none


class GeneratorVal(IteratorVal):
    """A generator; `frame` is the interpreter's symbolic frame."""

    kind = types.GeneratorType

    def __init__(self, frame: Any, name: str | None = None, qualname: str | None = None) -> None:
        self.frame = frame
        #: the function's, when it was called
        self.names = name or frame.code_object.co_name, qualname or frame.code_object.co_qualname
        self.state = "created"
        #: the exception that it handles where it stands
        self.handled: Value | None = ConstVal(None)
        #: the library's function that this is a traced stand-in for, with its arguments
        self.origin: tuple[Callable[..., Any], Sequence[Value], dict[str, Value]] | None = None

    def py_type(self) -> type:
        if self.origin is None:
            return self.kind
        if self.origin[0] is iter:
            return type(iter(_NothingByPosition()))
        return self.origin[0] if isinstance(self.origin[0], type) else itertools.chain

    def describe(self) -> str:
        return f"the generator {self.frame.code_object.co_qualname}"

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in ("__name__", "__qualname__") and self.origin is None:
            return ConstVal(self.names[name == "__qualname__"])
        if name.startswith("gi_"):
            raise GraphBreak(breaks.FRAME_INTROSPECTION, f"{name} of {self.describe()}")
        return super().getattr(tx, name)

    def next(self, tx: Tracer) -> Value:
        return self.send(tx, ConstVal(None))

    def send(self, tx: Tracer, value: Value) -> Value:
        """Run to the next `yield`; raises Exhausted with the returned value at the end."""
        if self.state == "closed":
            raise Exhausted(ConstVal(None))
        if self.state == "running":
            raise tx.raised(ValueError, "generator already executing")
        if self.state == "created" and not is_none(value):
            raise tx.raised(TypeError, "can't send non-None value to a just-started generator")
        self._save(tx)
        return self._step(tx, lambda: tx.resume_generator(self.frame, value))

    def throw(self, tx: Tracer, error: Value) -> Value:
        if self.state in ("created", "closed"):
            is_over = self.state == "closed"
            tx.journal.set_attr(self, "state", "closed")
            raise Raised(error) if is_over else ended_by(tx, error, has_begun=False)
        self._save(tx)
        return self._step(tx, lambda: tx.throw_into_generator(self.frame, error))

    def needs_closing(self) -> bool:
        """Whether CPython would still run code of the generator's when it is dropped: a `finally`, a `with`."""
        handler = self.frame.current.handler if self.state == "suspended" else None
        while handler is not None:
            outer = _outer_of_passed(self.frame.instrs, handler)
            if outer is None:
                # the handler around a whole generator turns StopIteration into RuntimeError
                return bool(self.frame.instrs[handler].op != "CALL_INTRINSIC_1")
            handler = self.frame.instrs[outer].handler
        return False

    def _step(self, tx: Tracer, run: Any) -> Value:
        tx.journal.set_attr(self, "state", "running")
        outer = tx.exceptions.enter_generator(self.handled)
        try:
            done, value = run()
        except Raised as error:
            self._leave(tx, outer)
            tx.journal.set_attr(self, "state", "closed")
            if error.is_a(StopIteration):
                raise Raised(stop_iteration_error(tx, error.value)) from None
            raise
        self._leave(tx, outer)
        tx.journal.set_attr(self, "state", "closed" if done else "suspended")
        if self.needs_closing() and self not in tx.open_generators:
            tx.open_generators.append(self)
            tx.journal.record(lambda: tx.open_generators.remove(self))
        if done:
            raise Exhausted(value)
        return value  # type: ignore[no-any-return]

    def _leave(self, tx: Tracer, outer: Any) -> None:
        """The caller goes on: what the generator handles is its own affair."""
        tx.journal.set_attr(self, "handled", tx.exceptions.current)
        tx.exceptions.leave_generator(outer)

    def _save(self, tx: Tracer) -> None:
        frame = self.frame
        saved = frame.ip, list(frame.stack), dict(frame.locals), frame.current

        def restore() -> None:
            frame.ip, frame.stack, frame.locals, frame.current = saved[0], list(saved[1]), dict(saved[2]), saved[3]

        tx.journal.record(restore)

    def close(self, tx: Tracer) -> None:
        if self.state == "suspended":
            throw_exit(tx, self)
        else:
            tx.journal.set_attr(self, "state", "closed")

    # -- generated code

    def rebuildable(self) -> bool:
        if self.origin is not None:
            return self.state == "created" or (self.state == "closed" and self.origin[0] is iter)
        frame = self.frame
        if self.state == "running" or str(frame.globals.get("__name__")).startswith("dynajit."):
            return False
        if self.state == "closed":
            return True
        handles = any(isinstance(value, (ExceptionVal, HandledVal)) for value in frame.stack)
        if not is_none(self.handled) or self.names != _names(frame):
            return False
        return not handles and NULL not in frame.stack and segments(frame.code) is not None

    def children(self) -> Sequence[Value]:
        if self.origin is not None:
            return [] if self.state == "closed" else [*self.origin[1], *self.origin[2].values()]
        cut = segments(self.frame.code)
        if self.state == "closed" or cut is None:
            return []
        frame = self.frame
        named = [frame.locals[name] for name in cut.shared if name in frame.locals]
        return [*frame.stack, *named, *(frame.cells[name] for name in cut.cells)]

    def rebuild(self, out: Any) -> None:
        """A generator that goes on where this one stands, in compiled parts."""
        if self.origin is not None:
            function, args, kwargs = self.origin
            if self.state == "closed":  # an iterator over an object that has `__getitem__` alone
                out.call_on(ended_iterator, _NothingByPosition())
            else:
                out.call_on(function, *args, *kwargs.values(), names=tuple(kwargs))
            return
        out.call_const(out.generator_maker(self.frame), lambda: self._push_state(out), 3)

    def _push_state(self, out: Any) -> None:
        """Where it stands (-1: at its end, None: at its start), its stack, its variables in cells."""
        frame = self.frame
        cut = segments(frame.code)
        if self.state == "closed" or cut is None:
            out.consts(-1, (), ())
            return
        out.const(frame.current.index if self.state == "suspended" else None)
        for value in frame.stack:
            out.push(value)
        out.emit.build_tuple(len(frame.stack))
        for name in cut.shared:
            out.call_on(types.CellType, *([frame.locals[name]] if name in frame.locals else []))
        for name in cut.cells:
            out.push(frame.cells[name])
        out.emit.build_tuple(len(cut.shared) + len(cut.cells))


class _NothingByPosition:
    """What `iter` of has the type of iterators over objects that have `__getitem__` alone."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError


def stands_for(
    made: Value, real: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value] | None = None
) -> Value:
    """Say that a generator, not started yet, is the traced form of a library's iterator."""
    if isinstance(made, GeneratorVal):
        made.origin = real, list(args), kwargs or {}
    return made


def throw_exit(tx: Tracer, generator: Any) -> None:
    """Have a suspended generator end, by a GeneratorExit."""
    try:
        generator.throw(tx, tx.raised(GeneratorExit).value)
    except (Exhausted, Raised) as end:
        if isinstance(end, Raised) and not end.is_a(GeneratorExit, StopIteration):
            raise
        return
    raise tx.raised(RuntimeError, "generator ignored GeneratorExit")


def _names(frame: Any) -> tuple[str, str]:
    return frame.code_object.co_name, frame.code_object.co_qualname


def stop_iteration_error(tx: Tracer, error: Value) -> Value:
    """What a StopIteration that leaves a generator becomes (PEP 479)."""
    made = tx.raised(RuntimeError, "generator raised StopIteration").value
    made.setattr(tx, "__cause__", error)
    made.setattr(tx, "__context__", error)
    return made


def _leave_unstarted() -> bool:
    """Whether this Python has a StopIteration leave a generator that has not begun as it was thrown in."""
    try:
        (None for _ in ()).throw(StopIteration)
    except RuntimeError:
        return False
    except StopIteration:
        pass
    return True


_LEAVES_UNSTARTED = _leave_unstarted()


def ended_by(tx: Tracer, error: Value, has_begun: bool) -> Raised:
    """What comes out of a generator that has nothing to handle what is thrown in."""
    raised = Raised(error)
    is_turned = raised.is_a(StopIteration) and (has_begun or not _LEAVES_UNSTARTED)
    return Raised(stop_iteration_error(tx, error)) if is_turned else raised


def _outer_of_passed(instrs: Sequence[Any], handler: int) -> int | None:
    """If the handler does nothing to a GeneratorExit but hand it on, the instruction that raises it again: the handler
    is one `except` clause for an exception of Python's own, or only tidies up."""
    clause = instrs[handler : handler + 4]
    ops = [instr.op for instr in clause]
    if ops[:3] == ["COPY", "POP_EXCEPT", "RERAISE"]:
        return handler + 2
    if ops[:1] == ["CLEANUP_THROW"]:  # around a `yield from`, which ends by a StopIteration alone
        return handler
    if ops != ["PUSH_EXC_INFO", "LOAD_GLOBAL", "CHECK_EXC_MATCH", "POP_JUMP_IF_FALSE"]:
        return None
    _, name, _, jump = clause
    kind = getattr(builtins, name.arg[0], None)
    caught = isinstance(kind, type) and issubclass(kind, Exception)
    return jump.target if caught and jump.target is not None and instrs[jump.target].op == "RERAISE" else None
