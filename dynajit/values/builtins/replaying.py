"""Making objects written in C that only their own methods change: streams in memory, arrays, hashes, locks."""

from __future__ import annotations

import _thread
import array
import functools
import hashlib
import io
import threading
from typing import Any

from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.builtins.registry import builtin, constructor
from dynajit.values.effects.replayed import HASH, KINDS, Kind, ReplayedVal, known_argument


def _make(make: Any, kind: Kind, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    given = tuple(known_argument(arg) for arg in args)
    named = {name: known_argument(arg) for name, arg in kwargs.items()}
    try:
        return ReplayedVal(make, given, named, kind)
    except Exception as error:
        raise GraphBreak(breaks.RAISES, f"{type(error).__name__} of {make.__qualname__}") from None


def _outside_lock(method: str, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    """A lock from outside: what it protects, other threads may read and write."""
    raise GraphBreak(breaks.HELD_LOCK, method)


_LOCKS: tuple[type, ...] = (_thread.LockType, _thread.RLock)
for _kind in _LOCKS:
    for _name in ("__enter__", "__exit__", "acquire", "release", "locked"):
        if hasattr(_kind, _name):
            builtin(getattr(_kind, _name))(functools.partial(_outside_lock, f"{_kind.__name__}.{_name}"))
for _class in (io.StringIO, io.BytesIO, array.array):
    constructor(_class)(functools.partial(_make, _class, KINDS[_class]))
_lock: Any = threading.Lock  # a function, or the class itself
(constructor if isinstance(_lock, type) else builtin)(_lock)(functools.partial(_make, _lock, KINDS[_thread.LockType]))
builtin(threading.RLock)(functools.partial(_make, threading.RLock, KINDS[_thread.RLock]))
for _name in sorted(hashlib.algorithms_guaranteed):
    _function = getattr(hashlib, _name)
    if not isinstance(_function, type):
        builtin(_function)(functools.partial(_make, _function, HASH))
builtin(hashlib.new)(functools.partial(_make, hashlib.new, HASH))
