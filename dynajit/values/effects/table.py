"""Calls that generated code makes for real, in their order, for what a trace can't know: numbers drawn at random, the
clock, states of generators.

In: a function and arguments that exist before the graph is called. Out: an entry in `tx.calls`, and the model of what
the call will give: a symbolic number about which nothing can be decided, a tensor that is an input of the graph, or an
object that is only handed on. A call comes before the graph's, or, where it must not come before what the graph has
computed so far (the clock, torch's own random state), after it; an operation that would have to follow such a call ends
the graph at the call. To add a function, write its model with `call`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from dynajit.guards.source import RunTimeSource
from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.constant import ConstVal
from dynajit.values.effects.deferred import DeferredCall
from dynajit.values.lookup import lookup_type
from dynajit.values.objects import ObjVal
from dynajit.values.symbolic import SymVal, from_symbolic
from dynajit.values.tensor import TensorVal


class State(NamedTuple):
    """What a call changes besides its result: how to save it, and put it back if the graph raises and the original runs
    instead. `owner`: the object whose state it is."""

    save: Callable[..., Any]
    restore: Callable[..., Any]
    owner: Value

    def same(self, other: State) -> bool:
        """Is it the same state of the same object?"""
        source = self.owner.source
        same_owner = self.owner is other.owner or (source is not None and source == other.owner.source)
        return self.save is other.save and same_owner


class RealCall(NamedTuple):
    """One call to make. `late`: behind the graph's call."""

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

    def py_type(self) -> type:
        return self.kind

    def truth(self, tx: Tracer) -> bool:
        self.unsupported("the truth value")

    def getattr(self, tx: Tracer, name: str) -> Value:
        if callable(lookup_type(self.kind, name)[0]):
            return tx.class_attribute(self, self.kind, name)
        return super().getattr(tx, name)


def refuse(detail: str) -> NoReturn:
    raise GraphBreak(breaks.SKIPPED_CALL, detail)


def call(
    tx: Tracer,
    name: str,
    function: Callable[..., Any],
    args: Sequence[Value],
    kwargs: dict[str, Value] | None = None,
    late: bool = False,
    state: State | None = None,
) -> RunTimeSource:
    """Have generated code make a call; where what it gives is found.

    Args:
        tx: the interpreter.
        name: the function's name for messages.
        function: what is called.
        args: positional arguments: constants, numbers and objects from outside, or of earlier calls.
        kwargs: keyword arguments.
        late: behind the graph's call. The first operation that is traced from then on, and for which `follows` says so,
            ends the graph at this call.
        state: what the call changes.

    Raises:
        GraphBreak: an argument is known only later, or what is traced does not run once, now.
    """
    if tx.runs_elsewhere or tx.static_numbers:
        refuse(f"{name} in {tx.runs_elsewhere or 'an autograd.Function'}")
    if state is not None and any(
        isinstance(value, DeferredCall) and value.may_draw for value in tx.journal.dirty.values()
    ):
        refuse(f"{name} behind what is logged, whose handlers may draw too")
    source = RunTimeSource(len(tx.calls), name)
    made = RealCall(function, [_argument(tx, name, arg) for arg in args], _named(tx, name, kwargs), source, late, state)
    tx.calls.append(made)
    tx.journal.record(tx.calls.pop)
    return source


def _named(tx: Tracer, name: str, kwargs: dict[str, Value] | None) -> dict[str, Value]:
    return {key: _argument(tx, name, value) for key, value in (kwargs or {}).items()}


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
    if isinstance(value, TensorVal):
        entry = next((entry for entry in tx.graph.inputs if entry.node is value.node), None)
        if entry is None or entry.requires_grad or any(each.mutated for each in tx.graph.inputs):
            refuse(f"{name} of a tensor that the graph computes or may write, or that requires gradients")
        return value
    if isinstance(value, ObjVal) and value.source is not None and not _changed(tx, value):
        return value
    refuse(f"{name} of {value.describe()}")


def _changed(tx: Tracer, value: ObjVal) -> bool:
    parts = (value, value.payload, value._dict)
    return any(part is not None and id(part) in tx.journal.dirty for part in parts)


def number(tx: Tracer, kind: type, source: RunTimeSource) -> Value:
    """The int or float that a call gives."""
    return from_symbolic(tx, tx.graph.shapes.unknown(kind, source), source)


def tensor(tx: Tracer, source: RunTimeSource, fake: torch.Tensor) -> TensorVal:
    """The new tensor that a call gives; `fake`: one like it."""
    sizes = [_hint(size) for size in fake.shape], [_hint(stride) for stride in fake.stride()]
    like = torch.empty_strided(*sizes, dtype=fake.dtype, device=fake.device)
    entry = tx.graph.add_made(source, like, fake)
    made = TensorVal(entry.node, entry.fake, torch.Tensor, source, like)
    tx.remember_tensor(made)
    return made


def _hint(number: Any) -> int:
    return int(number.node.hint) if isinstance(number, torch.SymInt) else int(number)


def follow(tx: Tracer, detail: str, follows: Callable[[Any], bool]) -> None:
    """From now on, an operation for which `follows` says so ends the graph at the call at hand: made before, it would
    come too early, made behind, too late."""
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
