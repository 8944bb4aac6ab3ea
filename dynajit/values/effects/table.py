"""The engine of calls that are made for real each time the compiled function runs, for what a trace can't know or do.

In: a function's row, `Rule`, and its arguments as values. Out: a call in generated code, and the model of what it will
give. Where the call comes, is the row's `when`:

* before the graph's call: numbers drawn, seeds, states. Its arguments exist by then; what it gives is an input of the
  graph, about which nothing can be decided: a symbolic number, a tensor, an object that is only handed on.
* right after the graph's call, where it must not come before what the graph has computed so far (the clock; torch's
  own generators, once the graph has drawn). The first operation that would have to follow it ends the graph there.
* among the effects (`deferred.py`), in the program's order, after what it is given was made: warnings, contexts.

If the graph raises, the original runs instead: `state` says what the call changed, and is put back before.
To add a function, add a row to the table of its file, and a program to that file's tests.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from dynajit.guards.source import RunTimeSource
from dynajit.report import breaks
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.deferred import DeferredCall, defer_call
from dynajit.values.objects.lookup import lookup_type
from dynajit.values.objects.objects import ObjVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal, from_symbolic


class When(enum.Enum):
    """Where generated code makes a call."""

    BEFORE = "before the graph's"
    AFTER = "right after the graph's"
    EFFECT = "among the effects"


class State(NamedTuple):
    """What a call changes besides its result: how to save it and to put it back. `owner`: the object whose it is."""

    save: Callable[..., Any]
    restore: Callable[..., Any]
    owner: Value

    def same(self, other: State) -> bool:
        """Is it the same state of the same object?"""
        source = self.owner.source
        same_owner = self.owner is other.owner or (source is not None and source == other.owner.source)
        return self.save is other.save and same_owner


Arguments = tuple[Sequence[Value], dict[str, Value]]
Gives = Callable[[Tracer, RunTimeSource, Sequence[Value]], Value]


class Rule(NamedTuple):
    """What is known of a function that is called for real.

    Attributes:
        name: for messages.
        function: the function, or a class.
        arguments: rule, interpreter, the program's arguments → those to call it with; raises GraphBreak for others.
        gives: what the call gives. None: nothing. int, float: a number; another class: an object of it, whose methods
            are in a table too; a function: interpreter, source, arguments → model.
        state: arguments → what the call changes.
        when: where the call comes; or interpreter, rule, arguments → that.
    """

    name: str
    function: Any
    arguments: Callable[..., Arguments]
    gives: type | Gives | None = None
    state: Callable[[Sequence[Value]], State | None] = lambda args: None
    when: When | Callable[[Tracer, Rule, Sequence[Value]], When] = When.BEFORE


class RealCall(NamedTuple):
    """One call around the graph's. `late`: after it."""

    function: Callable[..., Any]
    args: Sequence[Value]
    kwargs: dict[str, Value]
    source: RunTimeSource
    late: bool
    state: State | None


class RunTimeObject(Value):
    """An object that a call gave; its methods are calls, too."""

    def __init__(self, kind: type, source: RunTimeSource) -> None:
        self.kind = kind
        self.source = source

    def truth(self, tx: Tracer) -> bool:
        self.unsupported("the truth value")

    def getattr(self, tx: Tracer, name: str) -> Value:
        if callable(lookup_type(self.kind, name)[0]):
            return tx.class_attribute(self, self.kind, name)
        return super().getattr(tx, name)


def refuse(detail: str) -> NoReturn:
    """Raise the GraphBreak of a call that no table has a row for, or of arguments that its row does not take."""
    raise GraphBreak(breaks.SKIPPED_CALL, detail)


def register(rules: Iterable[Rule]) -> None:
    """Have the functions of a table called by their rows."""
    for rule in rules:
        builtin(rule.function)(model_of(rule))


def model_of(rule: Rule) -> Callable[..., Value]:
    """The model of the row's function. It takes what `arguments` takes."""
    arguments = functools.partial(rule.arguments, rule)

    @functools.wraps(arguments)
    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        return apply(tx, rule, *arguments(tx, *args, **kwargs))

    return model


def no_arguments(rule: Rule, tx: Tracer) -> Arguments:
    """The `arguments` of a function that takes none."""
    return [], {}


def apply(tx: Tracer, rule: Rule, args: Sequence[Value], kwargs: dict[str, Value] | None = None) -> Value:
    """Have generated code make the call; the model of what it gives.

    Raises:
        GraphBreak: an argument is known only later than the call, or what is traced doesn't run once, now.
    """
    when = rule.when if isinstance(rule.when, When) else rule.when(tx, rule, args)
    if when is When.EFFECT:
        defer_call(tx, tx.from_real(rule.function), args, kwargs or {}).may_draw = False
        return ConstVal(None)
    if tx.runs_elsewhere or tx.static_numbers:
        refuse(f"{rule.name} in {tx.runs_elsewhere or 'an autograd.Function'}")
    state = rule.state(args)
    deferred = [value for value in tx.journal.dirty.values() if isinstance(value, DeferredCall)]
    if state is not None and any(call.may_draw for call in deferred):
        refuse(f"{rule.name} after what is logged, whose handlers may draw too")
    given = [_argument(tx, rule.name, arg) for arg in args]
    named = {key: _argument(tx, rule.name, arg) for key, arg in (kwargs or {}).items()}
    source = RunTimeSource(len(tx.calls), rule.name)
    tx.calls.append(RealCall(rule.function, given, named, source, when is When.AFTER, state))
    tx.journal.record(tx.calls.pop)
    return _given(tx, rule.gives, source, args)


def _given(tx: Tracer, gives: type | Gives | None, source: RunTimeSource, args: Sequence[Value]) -> Value:
    """The model of what a call gives."""
    if gives is None:
        return ConstVal(None)
    if gives in (int, float):
        return from_symbolic(tx, tx.graph.shapes.unknown(gives, source), source)
    return RunTimeObject(gives, source) if isinstance(gives, type) else gives(tx, source, args)


def _argument(tx: Tracer, name: str, value: Value) -> Value:
    """The argument as it is at the call, which comes before any effect."""
    if isinstance(value, SymVal):
        if value.from_graph:
            refuse(f"{name} of a number that the graph computes")
        return value
    if isinstance(value, RunTimeObject):
        return value
    if value.is_const():
        return ConstVal(value.const())
    if value.fake is not None:
        entry = next((entry for entry in tx.graph.inputs if entry.node is value.node), None)
        if entry is None or entry.requires_grad or tx.graph.writes_inputs():
            refuse(f"{name} of a tensor that the graph computes or may write, or that requires gradients")
        return value
    if isinstance(value, ObjVal) and value.source is not None and not is_changed(tx, value):
        return value
    refuse(f"{name} of {value.describe()}")


def is_changed(tx: Tracer, value: Value) -> bool:
    """Whether the program has changed the object, or set attributes of it."""
    parts = (value, value.payload, getattr(value, "_dict", None))
    return any(part is not None and id(part) in tx.journal.dirty for part in parts)


def follow(tx: Tracer, detail: str, follows: Callable[[Any], bool]) -> None:
    """From now on, an operation for which `follows` says so ends the graph at the call at hand: made before the graph,
    the call would come too early, made after it, too late."""
    here, before = tx.snapshot(), tx.graph.watch

    def watch(target: Any) -> None:
        if before is not None:
            before(target)
        if follows(target):
            raise GraphBreak(breaks.SKIPPED_CALL, detail, at=here)

    tx.journal.set_attr(tx.graph, "watch", watch)


@contextlib.contextmanager
def running_elsewhere(tx: Tracer, what: str) -> Iterator[None]:
    """What is traced in the body does not run once, now: it is a branch, or runs again in backward."""
    outer, tx.runs_elsewhere = tx.runs_elsewhere, what
    try:
        yield
    finally:
        tx.runs_elsewhere = outer
