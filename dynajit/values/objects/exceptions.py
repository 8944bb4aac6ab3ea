"""Exception objects made while tracing.

In: an exception class and its arguments. Out: `ExceptionVal`, which a handler in the traced program may catch and
look at; one that leaves the outermost frame ends the graph, and the line runs for real.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit import _C
from dynajit.guards.source import AttrSource, ConstSource
from dynajit.report import breaks
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.journal import Journal
from dynajit.values.core.value import GraphBreak, Raised, Tracer, Value
from dynajit.values.objects.lookup import in_python
from dynajit.values.objects.objects import ObjVal, maker
from dynajit.values.scalars.constant import ConstVal, is_literal, is_none
from dynajit.values.scalars.unread import join_texts


class ExceptionVal(ObjVal):
    """An instance of a subclass of BaseException."""

    def __init__(self, cls: type[BaseException], args: Sequence[Value]) -> None:
        super().__init__(cls)
        self.args = TupleVal(args)
        self.cause: Value = ConstVal(None)
        self.context: Value = ConstVal(None)
        self.suppress = False
        self.traceback: Value | None = None  # that the program has set
        self.origin: ExceptionVal | None = None  # of a part of an exception group: the group

    def describe(self) -> str:
        text = ", ".join(str(arg.hint) if isinstance(arg, ConstVal) else arg.describe() for arg in self.args.items)
        return f"{self.cls.__name__}: {text}"

    def real(self) -> Any:
        """An exception of the same class and arguments, for its text; nothing of a user's `__init__` runs."""
        args = [arg.real() for arg in self.args.items]
        if in_python(self.cls, "__init__"):
            made = self.cls.__new__(self.cls, *args)
            made.args = tuple(args)
            return made
        return self.cls(*args)

    def getattr(self, tx: Tracer, name: str) -> Value:
        own = {"args": self.args, "__cause__": self.cause, "__suppress_context__": ConstVal(self.suppress)}
        if name == "__context__":
            own[name] = none_outside(tx) if isinstance(self.context, HandledVal) else self.context
        elif issubclass(self.cls, BaseExceptionGroup) and len(self.args.items) == 2:
            own["message"], errors = self.args.values(tx)
            own["exceptions"] = TupleVal(tx.unpack(errors)) if name == "exceptions" else errors
        if name in own:
            return own[name]
        if name == "value" and issubclass(self.cls, StopIteration) and name not in self.slots:
            return self.args.items[0] if self.args.items else ConstVal(None)
        if name == "__traceback__":
            if self.raised_at is None or self.traceback is not None:
                raise GraphBreak(breaks.FRAME_INTROSPECTION, "__traceback__")
            return TracebackVal(self)
        return super().getattr(tx, name)

    def _slot(self, tx: Tracer, name: str, found: Any, fallback: bool) -> Value:
        """The attributes that builtin exceptions keep beside `args` are None until they are set."""
        if name not in self.slots and found.__objclass__.__module__ == "builtins":
            return ConstVal(None)
        return super()._slot(tx, name, found, fallback)

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        if name == "args":
            tx.journal.set_attr(self, "args", TupleVal(tx.unpack(value)))
            return
        if name in ("__cause__", "__context__"):
            tx.journal.set_attr(self, name.strip("_"), value)
            if name == "__cause__":
                tx.journal.set_attr(self, "suppress", True)
            return
        if name == "__suppress_context__":
            tx.journal.set_attr(self, "suppress", value.truth(tx))
            return
        if name == "__traceback__":
            if isinstance(value, TracebackVal) and value.error is self:
                return
            if not isinstance(value, TracebackVal) and not is_none(value):
                raise GraphBreak(breaks.FRAME_INTROSPECTION, "__traceback__")
            tx.journal.set_attr(self, "traceback", value)
            return
        super().setattr(tx, name, value)

    def children(self) -> Sequence[Value]:
        return tuple(self.args.items)

    def rebuild(self, out: Any) -> None:
        new = make_stop_iteration if issubclass(self.cls, StopIteration) else maker(self.cls)
        out.call_on(new, self.cls, *self.args.items)
        out.later(self, self._fill)

    def _fill(self, out: Any) -> None:
        super()._fill(out)
        for name, value in (("__cause__", self.cause), ("__context__", self.context)):
            if not is_none(value):
                out.set_attr(self, name, value)
        if self.suppress:
            out.set_attr(self, "__suppress_context__", True)

    def fill_children(self) -> Sequence[Value]:
        # a traceback is not made again: what needs it goes back to before it was
        known = () if self.traceback is None else (self.traceback,)
        return [*super().fill_children(), self.cause, self.context, *known]


def make_stop_iteration(cls: type[StopIteration], *args: Any) -> StopIteration:
    """Its `value` is set where it is initialised; in generated code."""
    made = StopIteration.__new__(cls, *args)
    StopIteration.__init__(made, *args)
    return made


class HandledVal(Value):
    """The exception (or None) that was being handled when the traced code was entered: by anybody (`inherited`), or by
    the generator alone that the code is part of, as what is restored where a handler ends."""

    kind = BaseException

    def __init__(self, inherited: bool = False) -> None:
        self.inherited = inherited

    def describe(self) -> str:
        return "the exception that the caller handles"

    def truth(self, tx: Tracer) -> bool:
        raise GraphBreak(breaks.FRAME_INTROSPECTION, self.describe())

    def rebuild(self, out: Any) -> None:
        out.call_on(sys.exception if self.inherited else _C.own_exception)


def none_outside(tx: Tracer) -> Value:
    """None, where whoever called the traced code handles no exception. contextlib asks only to find the end of a chain,
    which is none of the caller's: it relies on nothing."""
    if sys.exception() is not None:
        raise GraphBreak(breaks.FRAME_INTROSPECTION, "the exception that the caller handles")
    if tx.caller_module() != "contextlib":
        tx.guard(ConstSource(sys.exception, "sys.exception"), "PREDICATE", _gives_none, "gives None")
    return ConstVal(None)


def _gives_none(function: Callable[[], object]) -> bool:
    return function() is None


class HandledExceptions:
    """Which exceptions the traced code handles. Every change is undoable.

    Attributes:
        current: the one being handled (ConstVal of None: none); None: as when the outermost frame was entered. In a
            generator that is being run: by the generator.
        callers: those that a running generator's callers handle.
        by_graph: restored by the end of a handler that the code starts in, before the graph's first operation.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.current: Value | None = None
        self.callers: tuple[Value | None, ...] = ()
        self.by_graph: Value | None = None
        self.outside, self.inherited = HandledVal(), HandledVal(inherited=True)

    def handle(self, error: Value | None) -> None:
        """From here on this exception is being handled."""
        self.journal.set_attr(self, "current", error)

    def enter_generator(self, own: Value | None) -> tuple[Value | None, tuple[Value | None, ...]]:
        """A generator goes on that handles `own`; returns what `leave_generator` restores."""
        outer = self.current, self.callers
        self.journal.set_attr(self, "callers", (*self.callers, self.current))
        self.handle(own)
        return outer

    def leave_generator(self, outer: tuple[Value | None, tuple[Value | None, ...]]) -> None:
        """The generator's caller goes on."""
        self.handle(outer[0])
        self.journal.set_attr(self, "callers", outer[1])

    def topmost(self) -> Value | None:
        """The exception that code run now sees as being handled; None: what was handled outside."""
        for handled in (self.current, *reversed(self.callers)):
            if handled is None or not is_none(handled):
                return handled
        return None


class TracebackVal(Value):
    """The traceback of an exception made while tracing: there is one, and nothing more is known of it."""

    kind = types.TracebackType

    def __init__(self, error: ExceptionVal) -> None:
        self.error = error

    def describe(self) -> str:
        return "a traceback"


def traceback_of(tx: Tracer, error: Value) -> Value:
    """The traceback that `__exit__` is given."""
    if isinstance(error, ExceptionVal):
        return TracebackVal(error)
    real = error.real_object
    if real is None or error.source is None:
        return ConstVal(None)
    if raised_at(error) is not None:
        raise GraphBreak(breaks.FRAME_INTROSPECTION, "__traceback__")
    return tx.wrap(real.__traceback__, AttrSource(error.source, "__traceback__"))


def raised(tx: Tracer, kind: type[BaseException], args: Sequence[object], slots: dict[str, Value]) -> Raised:
    """A `Raised` with an exception of builtin class made by a model, whose arguments are models or plain objects;
    `slots` are its own attributes."""
    made = ExceptionVal(kind, [arg if isinstance(arg, Value) else tx.from_real(arg) for arg in args])
    made.slots.update(slots)
    return Raised(made)


def raised_again(tx: Tracer, error: Exception) -> Raised:
    """What real code raised while tracing, as the traced program's exception: attributes beside `args` included."""
    made = ExceptionVal(type(error), [tx.from_real(arg) for arg in error.args])
    for base in type(error).__mro__:
        for name, found in vars(base).items():
            if isinstance(found, types.MemberDescriptorType) and not name.startswith("__"):
                value = getattr(error, name, None)
                if value is not None and is_literal(value):
                    made.slots.setdefault(name, ConstVal(value))
    for name, value in vars(error).items():
        made.instance_dict(tx).setitem(tx, ConstVal(name), tx.from_real(value))
    return Raised(made)


def with_context(tx: Tracer, error: Value, owner: Value, name: str) -> None:
    """What CPython adds to an AttributeError that leaves the reading of `owner.name`."""
    if give_context(tx, error, owner, ConstVal(name)):
        tx.journal.set_attr(error, "raised_at", None)  # it gets them where the attribute is read, for real too


def give_context(tx: Tracer, error: Value, owner: Value, name: Value) -> bool:
    """Whether the error took the object and the name: it has none."""
    if not (isinstance(error, ExceptionVal) and issubclass(error.cls, AttributeError)):
        return False
    if any(not is_none(error.slots.get(slot)) for slot in ("name", "obj")):
        return False
    for slot, value in (("name", name), ("obj", owner)):
        tx.journal.set_item(error.slots, slot, value)
    return True


def raised_at(value: Value | None) -> Any:
    """The state before the exception was raised, if the value is one that was."""
    error = value.error if isinstance(value, TracebackVal) else value
    return error.raised_at if isinstance(error, ObjVal) else None


_PLAIN_TEXTS = (BaseException.__str__, BaseException.__repr__, KeyError.__str__)


def has_plain_text(value: Value, method: object) -> bool:
    """Whether it is an exception whose text is made of its arguments: `method` is what its class has."""
    return issubclass(value.py_type(), BaseException) and method in _PLAIN_TEXTS


def plain_text(tx: Tracer, value: Value, method: object) -> Value:
    """What `BaseException.__str__` or `__repr__`, or `KeyError.__str__`, gives."""
    args = value.getattr(tx, "args")
    given = tx.unpack(args)
    named = method is BaseException.__repr__
    if not given and not named:
        return ConstVal("")
    single = len(given) == 1
    if single and method is BaseException.__str__ and given[0].py_type() is str:
        return given[0]  # the message may be another one at each call
    of_text = repr if named or (single and method is KeyError.__str__) else str
    text = tx.call(tx.from_real(of_text), [given[0] if single else args], {})
    if not named:
        return text
    name = value.py_type().__name__
    return join_texts(tx, [ConstVal(f"{name}("), text, ConstVal(")")] if single else [ConstVal(name), text])
