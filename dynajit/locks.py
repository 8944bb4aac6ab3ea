"""Locks of the whole process that a forked child finds open, whatever other threads did when it was forked.

In: nothing. Out: `process_lock()`, a lock to be used with `with`; the thread that has it may take it again. A child
process has only the thread that forked: a lock that another thread held would stay shut in it for ever. One more lock:
one more `process_lock()`, of a module or an object; where code of the user's runs inside, nobody may wait for it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_forked_calls: list[Callable[[], None]] = []
_all: weakref.WeakSet[Any] = weakref.WeakSet()


def process_lock() -> Any:
    """A lock that one thread holds at a time, as often as it likes.

    It is Python's own, with no method written in Python: an interrupt (Ctrl+C) comes between two instructions, so that
    the first one of a Python `__exit__` would never let go of it.
    """
    lock = threading.RLock()
    _all.add(lock)
    return lock


def on_fork(function: Callable[[], None]) -> Callable[[], None]:
    """A decorator: the function is called in each child, to mend what other threads had left half done."""
    _forked_calls.append(function)
    return function


def _forked() -> None:
    for lock in list(_all):
        if not lock._is_owned():  # else the thread that forked will let go of it
            lock._at_fork_reinit()
    for function in _forked_calls:
        function()


os.register_at_fork(after_in_child=_forked)
