"""Calls that are only effects: made for real by the generated code, after the graph.

In: a function whose result the program can't depend on (it is None), such as a logger's methods. Out: an entry in the
journal. To let another function be replayed, add it to `is_replayed`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from dynajit.config import config
from dynajit.values.base import Tracer, Value
from dynajit.values.constant import ConstVal

_LOGGER_METHODS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception", "log"})


class CallEffect(Value):
    """One call to make, in order with the other effects."""

    def __init__(self, function: Value, args: Sequence[Value], kwargs: dict[str, Value], positions: Any = None) -> None:
        self.function = function
        self.args = list(args)
        self.kwargs = dict(kwargs)
        self.positions = positions  # a logger looks at its caller's line

    def py_type(self) -> type:
        return type(None)

    def describe(self) -> str:
        return f"a call of {self.function.describe()}"

    def effect_children(self) -> Sequence[Value]:
        return (self.function, *self.args, *self.kwargs.values())

    def emit_effect(self, out: Any) -> None:
        if self.positions is not None:
            out.emit.set_location(self.positions)
        out.emit.begin_call(lambda: out.push(self.function))
        for part in (*self.args, *self.kwargs.values()):
            out.push(part)
        out.emit.end_call(len(self.args) + len(self.kwargs), tuple(self.kwargs))
        out.emit.pop_top()


def is_replayed(function: Any, args: Sequence[Value]) -> bool:
    """Whether calling the function with these arguments is an effect without a result: logging, to a real logger."""
    if not config.replay_logging or not args or not issubclass(args[0].py_type(), logging.Logger):
        return False
    if isinstance(function, functools._lru_cache_wrapper):
        return getattr(function, "__wrapped__", None) is not None
    name = getattr(function, "__name__", "")
    return name in _LOGGER_METHODS and function is getattr(logging.Logger, name)


def replay(tx: Tracer, function: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """Put the call off to the generated code."""
    outermost: Any = tx.frames[0]  # type: ignore[attr-defined]
    tx.journal.touch(CallEffect(function, args, kwargs, outermost.current.positions))
    return ConstVal(None)
