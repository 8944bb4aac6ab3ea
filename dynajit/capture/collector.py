"""The garbage collector while a frame is captured.

A capture makes many objects that live until its end. Left alone, the collector would walk the whole process's heap
several times meanwhile, which takes as long as the capture itself. Young objects are still collected, less often.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator

from dynajit.locks import on_fork, process_lock

_YOUNG, _MIDDLE, _OLD = 50_000, 50, 1_000_000  # ten young ones would have Python walk what a capture left
_lock = process_lock()
_former: tuple[int, int, int] = (0, 0, 0)


class _Capture:
    """One that goes on, of the thread that made this."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


# Held weakly: a capture that an interrupt ended before it could leave is gone with its frame.
_running: weakref.WeakSet[_Capture] = weakref.WeakSet()


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Thresholds are high inside, in all threads, and the program's own after the last one leaves."""
    capture = _Capture()
    try:
        with _lock:
            _set_high()
            _running.add(capture)
        yield
    finally:
        with _lock:
            _running.discard(capture)
            _set_back()


def _set_high() -> None:
    global _former
    now = gc.get_threshold()
    if now[0] and now[2] != _OLD:  # zero: the program wants no automatic collection
        _former = now
        gc.set_threshold(max(now[0], _YOUNG), max(now[1], _MIDDLE), _OLD)


def _set_back() -> None:
    if not _running and gc.get_threshold()[2] == _OLD:  # else somebody set them meanwhile
        gc.set_threshold(*_former)


@on_fork
def _forked() -> None:
    """Captures of other threads never end here."""
    for capture in list(_running):
        if capture.thread != threading.get_ident():
            _running.discard(capture)
    _set_back()
