"""What the handlers of a logger may change: the program may read it behind a call that is put off.

In: the logger that is called. Out: `Handlers`: who its records reach, guarded, and whether the
trace looks at any object that these keep.
"""

from __future__ import annotations

import collections
import functools
import logging
import types
from collections.abc import Iterator
from typing import Any

from dynajit.guards.source import ConstSource
from dynajit.values.base import Tracer, Value

_MOST = 1000
_NOT_FOLLOWED = (type, types.ModuleType, logging.Logger, logging.LoggerAdapter, logging.Manager, logging.LogRecord)


class Handlers:
    """Who is told of a call of a logger's method."""

    def __init__(self, tx: Tracer, logger: Value | None) -> None:
        real: Any = logging.root if logger is None else getattr(logger, "real_object", None)
        while isinstance(real, logging.LoggerAdapter):
            real = real.logger
        self._reached: dict[int, Any] = {}
        if not isinstance(real, logging.Logger):
            return
        told = _told(real)
        source = ConstSource(real, f"logger {real.name}")
        tx.guard(source, "PREDICATE", functools.partial(_tells, tuple(map(id, told))), "has the handlers it had")
        self._reached = {id(obj): obj for obj in _reach(told)}

    def looked_at(self, tx: Tracer) -> bool:
        """Whether the trace has read any object that they keep."""
        return not self._reached.keys().isdisjoint(tx.outside_objects())


def _told(logger: logging.Logger) -> list[Any]:
    """The handlers and filters on the way of a logger's records."""
    found: list[Any] = []
    current: logging.Logger | None = logger
    while current is not None:
        found += [*(current.filters if current is logger else ()), *current.handlers]
        current = current.parent if current.propagate else None
    return found


def _tells(expected: tuple[int, ...], logger: logging.Logger) -> bool:
    return tuple(map(id, _told(logger))) == expected


def _reach(roots: list[Any]) -> Iterator[Any]:
    """Objects that code of these may change: what they keep, and what their methods' globals and cells name."""
    waiting = list(roots)
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        obj = waiting.pop()
        if id(obj) in seen or isinstance(obj, _NOT_FOLLOWED):
            continue
        seen.add(id(obj))
        yield obj
        if isinstance(obj, types.MethodType):
            waiting += [obj.__self__, obj.__func__]
        elif isinstance(obj, types.FunctionType):
            waiting += _named(obj)
        elif isinstance(obj, dict):
            waiting += obj.values()
        elif isinstance(obj, (list, tuple, set, frozenset, collections.deque)):
            waiting += obj
        elif hasattr(obj, "__dict__"):
            waiting += vars(obj).values()
            methods = (value for cls in type(obj).__mro__ for value in vars(cls).values())
            waiting += [method for method in methods if isinstance(method, types.FunctionType)]


def _named(function: types.FunctionType) -> Iterator[Any]:
    """What a function of the program's may reach besides its arguments."""
    if function.__module__ == "logging":
        return
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        yield cell
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not bound yet
