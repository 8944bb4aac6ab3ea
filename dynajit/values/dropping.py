"""Objects whose class has a `__del__`: code runs when the program lets go of the last reference.

In: what a variable, container or attribute held before it is written. Out: a graph break if that may run code, which
could change anything. Such objects are never made while tracing.
"""

from __future__ import annotations

import types
from typing import Any

from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Value


def has_finaliser(cls: type) -> bool:
    """Whether instances run code of the program's when they die."""
    return isinstance(getattr(cls, "__del__", None), types.FunctionType)


def check_dropped(old: Any) -> None:
    """`old`, a model or an item nobody looked at, is about to be replaced."""
    cls = old.py_type() if isinstance(old, Value) else type(old.obj)
    if has_finaliser(cls):
        raise dropped(cls)


def dropped(cls: type) -> GraphBreak:
    return GraphBreak(breaks.UNKNOWN_CALL, f"letting go of {cls.__qualname__}, whose instances run code when they die")


__all__ = ["check_dropped", "dropped", "has_finaliser"]
