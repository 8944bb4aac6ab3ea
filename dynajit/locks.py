"""Locks of the whole process that a forked child finds open, whatever other threads did when it was forked.

In: nothing. Out: `ProcessLock`, to be used with `with`; the thread that has it may take it again. A child process has
only the thread that forked: a lock that another thread held would stay shut in it for ever. One more lock: one more
module-level `ProcessLock()`; hold it only around what runs no code of the user's.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_forked_calls: list[Callable[[], None]] = []
_all: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


class ProcessLock:
    """A lock that one thread holds at a time, as often as it likes."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def forked(self) -> None:
        """In a child: open, unless the thread that forked holds it and will let go of it."""
        if not self._lock._is_owned():
            self._lock = threading.RLock()


def on_fork(function: Callable[[], None]) -> Callable[[], None]:
    """A decorator: the function is called in each child, to mend what other threads had left half done."""
    _forked_calls.append(function)
    return function


def _forked() -> None:
    for lock in list(_all):
        lock.forked()
    for function in _forked_calls:
        function()


os.register_at_fork(after_in_child=_forked)
