"""Effects of a call: calls that generated code makes after the graph's, in the program's order.

In: a function of whose result the program looks at nothing. Out: an entry in the journal. A logger and a warning tell a
line, so `defer_call` has the call made where the program's frames were; and what such a call may print has to be as it
was then: if it changes later on, the graph ends at the call instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.report import breaks
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.effect import CallEffect, Place
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.mutation_snapshot import MutationSnapshot
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal


class DeferredCall(CallEffect):
    """An effect that runs code which may look at what the program does meanwhile.

    Attributes:
        at: the interpreter's state before the call; None: nothing makes it come too late.
        comes_too_late: each says whether the call would print or do something else now than it would have then.
        may_draw: whether what it runs may draw random numbers.
    """

    may_draw = True
    at: Any = None

    def __init__(self, function: Value, args: Sequence[Value], kwargs: dict[str, Value] | None = None) -> None:
        super().__init__(function, args, kwargs)
        self.comes_too_late: list[Callable[[Tracer], bool]] = []


def late_call(tx: Tracer) -> DeferredCall | None:
    """The first deferred call that would see something else now than it would have seen then."""
    calls = (value for value in tx.journal.dirty.values() if isinstance(value, DeferredCall))
    return next((call for call in calls if any(is_late(tx) for is_late in call.comes_too_late)), None)


def defer_call(
    tx: Tracer,
    function: Value,
    args: Sequence[Value],
    kwargs: dict[str, Value],
    printed: Sequence[Value] = (),
) -> DeferredCall:
    """Have the generated code make a call where the program is.

    Args:
        tx: the interpreter.
        function: what is called.
        args: its arguments.
        kwargs: its named arguments.
        printed: arguments whose contents it looks at.
    """
    if tx.runs_elsewhere:
        raise GraphBreak(breaks.OUTPUT_CALL, f"{function.describe()} in {tx.runs_elsewhere}")
    effect = DeferredCall(function, args, kwargs)
    effect.positions = tx.frames[0].current.positions
    effect.places = [
        Place(frame.code_object, frame.globals, frame.current)
        for frame in tx.frames[1:]
        if not str(frame.globals.get("__name__")).startswith("dynajit.")
    ]
    printed = [value for value in printed if not never_changes(value)]
    tx.journal.touch(effect)
    if printed:
        if tx.globals_written and not all(map(_is_known, printed)):
            raise GraphBreak(breaks.OUTPUT_CALL, f"{function.describe()} of an object, after globals were written")
        effect.comes_too_late.append(_changes(tx, effect, printed))
    effect.at = tx.snapshot()
    return effect


def break_outside_forward(tx: Tracer, name: str, level: Value | None) -> None:
    """Break at the call of a module if `name`, called now, looks for the line to tell outside of the module's forward.

    Args:
        tx: the interpreter.
        name: what is called.
        level: how many frames out it looks; None: only at its caller.
    """
    if tx.runs_elsewhere:
        return
    known = level is None or (level.is_const() and type(level.const()) is int)
    reach = (1 if level is None else level.const()) if known else len(tx.frames)
    for depth in range(len(tx.frames) - 1, max(len(tx.frames) - reach, 0), -1):
        if _is_modules_forward(tx.frames[depth]):
            told = f"{name} that tells a line outside of a module's forward"
            raise GraphBreak(breaks.OUTPUT_CALL, told, at=tx.snapshot(depth))
    if not known:
        raise GraphBreak(breaks.OUTPUT_CALL, f"{name} whose stack level is not known")


def _is_modules_forward(frame: Any) -> bool:
    """Whether torch's frames, which are not traced, may be between this one and its caller: the module is then called
    for real."""
    names = frame.code_object.co_varnames
    owner = frame.locals.get(names[0]) if names and frame.code_object.co_name == "forward" else None
    return isinstance(owner, Value) and issubclass(owner.py_type(), torch.nn.Module)


def _changes(tx: Tracer, effect: DeferredCall, values: Sequence[Value]) -> Callable[[Tracer], bool]:
    """Whether anything is otherwise later that these show when they are printed."""
    known = all(_is_known(value) for value in values)
    snapshot, changes = MutationSnapshot(values), tx.journal.changes
    tensors = [value for value in values if value.fake is not None] if known else tx.tensors.values()
    versions = [(tensor.fake, _version(tensor.fake)) for tensor in tensors]

    def changed(tx: Tracer) -> bool:
        if snapshot.changed() is not None or any(_version(fake) != then for fake, then in versions):
            return True
        if known:
            return False
        # the program's own code prints it: it may look at anything
        calls = [value for value in tx.journal.dirty.values() if isinstance(value, DeferredCall)]
        later = next(number for number, value in enumerate(reversed(calls)) if value is effect)
        return tx.journal.changes > changes + later

    return changed


def _version(fake: torch.Tensor) -> int | None:
    return None if fake.is_inference() else fake._version


def _is_known(value: Value) -> bool:
    """Whether all that its text depends on is seen: numbers, tensors, and builtin containers of these made here."""
    if isinstance(value, (ConstVal, SymVal)) or value.fake is not None:
        return True
    if value.source is not None or not isinstance(value, (TupleVal, ListVal, DictVal)):
        return value.is_const() and not value.symbolic
    return all(_is_known(part) for part in value.children())


def never_changes(value: Value) -> bool:
    """Whether what it shows when it is printed is always the same."""
    if isinstance(value, TupleVal) and value.source is None:
        return all(map(never_changes, value.children()))
    return isinstance(value, SymVal) or value.is_const()
