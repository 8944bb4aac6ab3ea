"""Generators made while tracing.

In: the suspended frame of a generator function. Out: `GeneratorVal`, an iterator that steps the frame. Each step is
undoable as a whole: the frame's state before it is kept in the journal.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Sequence
from typing import Any

from dynajit.values.base import Exhausted, Raised, Tracer, Value
from dynajit.values.constant import ConstVal
from dynajit.values.iterators import IteratorVal


class GeneratorVal(IteratorVal):
    """A generator; `frame` is the interpreter's symbolic frame."""

    kind = types.GeneratorType

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.state = "created"

    def next(self, tx: Tracer) -> Value:
        return self.send(tx, ConstVal(None))

    def send(self, tx: Tracer, value: Value) -> Value:
        """Run to the next `yield`; raises Exhausted with the returned value at the end."""
        if self.state == "closed":
            raise Exhausted(ConstVal(None))
        if self.state == "running":
            raise tx.raised(ValueError, "generator already executing")
        self._save(tx)
        return self._step(tx, lambda: tx.resume_generator(self.frame, value))

    def throw(self, tx: Tracer, error: Value) -> Value:
        if self.state in ("created", "closed"):
            tx.journal.set_attr(self, "state", "closed")
            raise Raised(error)
        self._save(tx)
        return self._step(tx, lambda: tx.throw_into_generator(self.frame, error))

    def needs_closing(self) -> bool:
        """Whether CPython would still run code of the generator's when it is dropped: a `finally`, a `with`."""
        frame = self.frame
        handler = frame.current.handler
        if self.state != "suspended" or handler is None:
            return False
        # the handler around a whole generator turns StopIteration into RuntimeError
        return frame.instrs[handler].op != "CALL_INTRINSIC_1" and not _lets_generator_exit_pass(frame.instrs, handler)

    def _step(self, tx: Tracer, run: Any) -> Value:
        tx.journal.set_attr(self, "state", "running")
        try:
            done, value = run()
        except Raised:
            tx.journal.set_attr(self, "state", "closed")
            raise
        tx.journal.set_attr(self, "state", "closed" if done else "suspended")
        if self.needs_closing() and self not in tx.open_generators:
            tx.open_generators.append(self)
            tx.journal.record(lambda: tx.open_generators.remove(self))
        if done:
            raise Exhausted(value)
        return value  # type: ignore[no-any-return]

    def _save(self, tx: Tracer) -> None:
        frame = self.frame
        saved = frame.ip, list(frame.stack), dict(frame.locals), frame.current

        def restore() -> None:
            frame.ip, frame.stack, frame.locals, frame.current = saved[0], list(saved[1]), dict(saved[2]), saved[3]

        tx.journal.record(restore)

    def close(self, tx: Tracer) -> None:
        if self.state == "suspended":
            try:
                self.throw(tx, tx.raised(GeneratorExit).value)
            except (Exhausted, Raised) as end:
                if isinstance(end, Raised) and not issubclass(end.value.py_type(), (GeneratorExit, StopIteration)):
                    raise
                return
            raise tx.raised(RuntimeError, "generator ignored GeneratorExit")
        tx.journal.set_attr(self, "state", "closed")

    def rebuildable(self) -> bool:
        return False


def _lets_generator_exit_pass(instrs: Sequence[Any], handler: int) -> bool:
    """Whether the handler is one `except` clause for an exception of Python's own that is no GeneratorExit."""
    start, name, check, jump = instrs[handler : handler + 4]
    if (start.op, name.op, check.op, jump.op) != (
        "PUSH_EXC_INFO",
        "LOAD_GLOBAL",
        "CHECK_EXC_MATCH",
        "POP_JUMP_IF_FALSE",
    ):
        return False
    kind = getattr(builtins, name.arg[0], None)
    caught = isinstance(kind, type) and issubclass(kind, Exception)
    return caught and jump.target is not None and instrs[jump.target].op == "RERAISE"
