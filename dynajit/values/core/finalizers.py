"""Objects that run code when the program lets go of the last reference: instances of classes that have a `__del__`,
those that `weakref.finalize` was told of, and suspended generators.

In: what a variable, container or attribute held before it is written. Out: a graph break if that may run code, which
could change anything. Such instances are never made while tracing; generators are (`generators.py`).
"""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Iterable
from typing import Any

from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Value

# items of a container that is let go of
MAX_LOOKED_AT = 8


def has_finaliser(cls: type) -> bool:
    """Whether instances run code of the program's when they die."""
    return isinstance(getattr(cls, "__del__", None), types.FunctionType)


def _is_finalized(real: Any) -> bool:
    """Whether the program asked for a call when this very object dies."""
    references = (each for each in weakref.getweakrefs(real) if issubclass(type(each), weakref.ref))  # no proxies
    return any(isinstance(reference.__callback__, weakref.finalize) for reference in references)


def dies_with(real: Any) -> type | None:
    """The class of what runs code of the program's when this object dies: itself, or what a container holds first, or
    what it has as an attribute."""
    kind = type(real)
    if has_finaliser(kind) or _is_finalized(real) or (kind is types.GeneratorType and real.gi_suspended):
        return kind
    parts = real if kind in (list, tuple, set, frozenset) else real.values() if kind is dict else _attributes(real)
    looked_at = itertools.islice(parts, MAX_LOOKED_AT)
    return next((type(part) for part in looked_at if has_finaliser(type(part)) or _is_finalized(part)), None)


def _attributes(real: Any) -> Iterable[Any]:
    try:
        kept = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return ()
    return kept.values() if type(kept) is dict else ()


def check_dropped(old: Any) -> None:
    """`old`, a model or an item nobody looked at, is about to be replaced."""
    if isinstance(old, Value):
        cls, real = old.py_type(), old.real_object
    else:
        cls, real = type(old.obj), old.obj
    if has_finaliser(cls) or _is_finalized(real):
        raise dropped(cls)


def check_removed(before: Iterable[Any], after: Iterable[Any]) -> None:
    """Of the items of a container only those in `after` are about to stay."""
    stay = set(map(id, after))
    for old in before:
        if id(old) not in stay:
            check_dropped(old)


def dropped(cls: type) -> GraphBreak:
    return GraphBreak(breaks.UNKNOWN_CALL, f"letting go of {cls.__qualname__}, whose instances run code when they die")
