"""Exception objects made while tracing.

In: an exception class and its arguments. Out: `ExceptionVal`, which a handler in the traced program may catch and
look at; one that leaves the outermost frame ends the graph, and the line runs for real.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynajit.values.base import Raised, Tracer, Value
from dynajit.values.constant import ConstVal
from dynajit.values.objects import ObjVal
from dynajit.values.sequence import TupleVal


class ExceptionVal(ObjVal):
    """An instance of a subclass of BaseException."""

    def __init__(self, cls: type[BaseException], args: Sequence[Value]) -> None:
        super().__init__(cls)
        self.args = TupleVal(args)
        self.new_args = tuple(args)
        self.cause: Value = ConstVal(None)
        self.context: Value = ConstVal(None)

    def describe(self) -> str:
        text = ", ".join(str(arg.const()) if isinstance(arg, ConstVal) else arg.describe() for arg in self.new_args)
        return f"{self.cls.__name__}: {text}"

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "args":
            return self.args
        if name == "__cause__":
            return self.cause
        if name == "__context__":
            return self.context
        if name == "__suppress_context__":
            return ConstVal(not (isinstance(self.cause, ConstVal) and self.cause.value is None))
        if name == "value" and issubclass(self.cls, StopIteration):
            return self.new_args[0] if self.new_args else ConstVal(None)
        return super().getattr(tx, name)

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        if name == "args":
            tx.journal.set_attr(self, "args", TupleVal(tx.unpack(value)))
            return
        if name in ("__cause__", "__context__"):
            tx.journal.set_attr(self, name.strip("_"), value)
            return
        if name in ("__suppress_context__", "__traceback__"):
            return
        super().setattr(tx, name, value)


def raised(tx: Tracer, kind: type[BaseException], args: Sequence[object]) -> Raised:
    """A `Raised` with an exception of builtin class made by a model."""
    return Raised(ExceptionVal(kind, [tx.from_real(arg) for arg in args]))


def exception_arguments(value: Value) -> list[Any]:
    """Real arguments, for messages."""
    if not isinstance(value, ExceptionVal):
        return []
    return [arg.const() if arg.is_const() else arg.describe() for arg in value.new_args]
