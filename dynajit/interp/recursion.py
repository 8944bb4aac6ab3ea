"""Room on the stack for the interpreter's own frames, on top of the user's.

In: what to run. Out: its result. Python's limit belongs to the process, not to a thread: the first compile of several
at once raises it, and the last one sets it back.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from dynajit.locks import ProcessLock, on_fork

_LIMIT = 20_000

_lock = ProcessLock()
_running = 0
_mine = threading.local()  # `depth`: how many of them are this thread's
_former: int | None = None  # the program's own limit, while ours is set


def with_deep_recursion(run: Callable[[], Any]) -> Any:
    """Run with room for 20,000 frames. Raises RecursionError at the very end of the user's own room, where the limit
    couldn't be set back."""
    _enter()
    try:
        return run()
    finally:
        _leave()


def _enter() -> None:
    global _running, _former
    with _lock:
        if _running == 0:
            if _former is None:
                _former = sys.getrecursionlimit()
            sys.setrecursionlimit(_former)  # raises if this frame is too deep for it
            sys.setrecursionlimit(max(_former, _LIMIT))
        _running += 1
        _mine.depth = _own_depth() + 1


def _leave() -> None:
    global _running
    with _lock:
        _running -= 1
        _mine.depth = _own_depth() - 1
        if _running == 0:
            _set_back()


def _set_back() -> None:
    global _former
    assert _former is not None
    # A thread that came while another was compiling may be too deep to set it back: the next compile does.
    with contextlib.suppress(RecursionError):
        sys.setrecursionlimit(_former)
        _former = None


def _own_depth() -> int:
    return getattr(_mine, "depth", 0)


@on_fork
def _forked() -> None:
    """Compiles of other threads never end here."""
    global _running
    ended = _running > 0
    _running = _own_depth()
    if ended and _running == 0:
        _set_back()
