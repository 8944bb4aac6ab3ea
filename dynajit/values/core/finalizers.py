"""Objects that run code when the program lets go of the last reference: instances of classes that have a `__del__`, and
suspended generators.

In: what a variable, container or attribute held before it is written. Out: a graph break if that may run code, which
could change anything. Such instances are never made while tracing; generators are (`generators.py`).
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable
from typing import Any

from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Value

# items of a container that is let go of
MAX_LOOKED_AT = 8


def has_finaliser(cls: type) -> bool:
    """Whether instances run code of the program's when they die."""
    return isinstance(getattr(cls, "__del__", None), types.FunctionType)


def dies_with(real: Any) -> type | None:
    """The class of what runs code of the program's when this object dies: itself, or what a container holds first, or
    what it has as an attribute."""
    kind = type(real)
    if has_finaliser(kind) or (kind is types.GeneratorType and real.gi_suspended):
        return kind
    parts = real if kind in (list, tuple, set, frozenset) else real.values() if kind is dict else _attributes(real)
    return next((type(part) for part in itertools.islice(parts, MAX_LOOKED_AT) if has_finaliser(type(part))), None)


def _attributes(real: Any) -> Iterable[Any]:
    try:
        kept = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return ()
    return kept.values() if type(kept) is dict else ()


def check_dropped(old: Any) -> None:
    """`old`, a model or an item nobody looked at, is about to be replaced."""
    cls = old.py_type() if isinstance(old, Value) else type(old.obj)
    if has_finaliser(cls):
        raise dropped(cls)


def dropped(cls: type) -> GraphBreak:
    return GraphBreak(breaks.UNKNOWN_CALL, f"letting go of {cls.__qualname__}, whose instances run code when they die")
