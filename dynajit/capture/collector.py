"""The garbage collector while a frame is captured.

A capture makes many objects that live until its end. Left alone, the collector would walk the whole process's heap
several times meanwhile, which takes as long as the capture itself. Young objects are still collected, less often.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

from dynajit.locks import ProcessLock, on_fork

_YOUNG, _MIDDLE, _OLD = 20_000, 50, 1_000_000
_lock = ProcessLock()
_depth = 0
_mine = threading.local()  # `depth`: how many of them are this thread's
_former: tuple[int, int, int] = (0, 0, 0)


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Thresholds are high inside, in all threads, and the program's own after the last one leaves."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _depth, _former
    with _lock:
        _depth += 1
        _mine.depth = _own_depth() + 1
        if _depth == 1:
            _former = gc.get_threshold()
            if _former[0]:  # zero: the program wants no automatic collection
                gc.set_threshold(max(_former[0], _YOUNG), max(_former[1], _MIDDLE), _OLD)


def _leave() -> None:
    global _depth
    with _lock:
        _depth -= 1
        _mine.depth = _own_depth() - 1
        if _depth == 0:
            _set_back()


def _set_back() -> None:
    if gc.get_threshold()[2] == _OLD:  # else somebody set them meanwhile
        gc.set_threshold(*_former)


def _own_depth() -> int:
    return getattr(_mine, "depth", 0)


@on_fork
def _forked() -> None:
    """Captures of other threads never end here."""
    global _depth
    ended = _depth > 0
    _depth = _own_depth()
    if ended and _depth == 0:
        _set_back()
