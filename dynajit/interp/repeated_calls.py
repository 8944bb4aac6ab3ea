"""A call that is made again, of the same function on the same objects, gives what it gave, without another trace.

In: calls of Python functions from outside that are about to be traced (`Calls.inline`). Out: their results. Kept are
those of calls that were handed only objects from outside and constants, that changed nothing and added nothing to the
graph, and that gave an object from outside or one that there is only once. What they read is guarded, and `call_state`
tells whether the program has written any of it since. Attributes of classes that look them up in Python, as
configurations do, are so read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dynajit.config import config
from dynajit.guards.source import CallSource, ConstSource, RunTimeSource
from dynajit.interp import fuel
from dynajit.interp.call_state import call_state, tables
from dynajit.values.containers.lazy_list import OutsideList
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.value import Value
from dynajit.values.objects.functions import FunctionVal
from dynajit.values.objects.objects import ObjVal
from dynajit.values.scalars.constant import ConstVal

_OBJECTS = (ObjVal, FunctionVal, DictVal, ListVal, OutsideList, TupleVal)


class _Kept(NamedTuple):
    """A call. journal_end: how long the journal was at its end. leaves: values whose ids are in its key."""

    result: Value
    journal_end: int
    leaves: list[Value]


class RepeatedCalls:
    """Those of one trace."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self._kept: dict[tuple[Any, ...], _Kept] = {}
        self._on = config.share_layers and fuel.current() is None  # which counts single instructions

    def call(
        self, function: FunctionVal, args: Sequence[Value], kwargs: dict[str, Value], trace: Callable[[], Value]
    ) -> Value:
        """The result of a call; `trace` traces it."""
        tx = self._tx
        state = None
        if self._on and all(map(_is_from_outside, (*args, *kwargs.values()))):
            state = call_state(tx, (function.real_function, function.source), args, kwargs)
        if state is None or not all(map(_is_from_outside, state.leaves)):
            return trace()
        kept = self._kept.get(state.key)
        if kept is not None:
            tx.calls_repeated = True
            return kept.result
        before, changed = (tables(tx), tx.graph.mark()), len(tx.journal.changed)
        result = trace()
        if (
            (tables(tx), tx.graph.mark()) == before
            and not any(one is not None and one.source is not None for one in tx.journal.changed[changed:])
            and _is_there_once(result)
            and not any(result is leaf for leaf in state.leaves)
        ):
            self._kept[state.key] = _Kept(result, tx.journal.mark(), state.leaves)
        return result

    def forget_after(self, journal: int) -> None:
        """The trace goes back to where its journal was so long."""
        self._kept = {key: kept for key, kept in self._kept.items() if kept.journal_end <= journal}


def _is_from_outside(value: Value) -> bool:
    return isinstance(value, ConstVal) or (type(value) is ObjVal and value.source is not None)


def _is_there_once(value: Value) -> bool:
    """Whether another call would give this very object."""
    source = value.source
    if source is None:
        return type(value) is ConstVal and (value.value is None or type(value.value) is bool)
    known = isinstance(value, ConstVal) or type(value) in _OBJECTS
    return known and not isinstance(source, (CallSource, ConstSource, RunTimeSource))
