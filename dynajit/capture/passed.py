"""Calls that run eagerly because another thread was capturing when they began.

In: the code objects of such calls, by thread. Out: whether what a thread is about to capture is called by one of them
that has a variant by now. That variant has it inside; captured alone, it would be compiled for this one call.
"""

from __future__ import annotations

import sys
import threading
import types

from dynajit import _C
from dynajit.capture.variants import is_eager


class _Passed(threading.local):
    """This thread's, by identity: those that have returned are forgotten at the next look."""

    def __init__(self) -> None:
        self.codes: set[int] = set()


_passed = _Passed()


def note(code: types.CodeType) -> None:
    """This thread's call of it runs eagerly."""
    _passed.codes.add(id(code))


def is_inside_captured(session: object) -> bool:
    """Whether this thread is in such a call that the session has a variant of by now."""
    if not _passed.codes:
        return False
    frame: types.FrameType | None = sys._getframe(1)
    running = {}
    while frame is not None:
        if id(frame.f_code) in _passed.codes:
            running[id(frame.f_code)] = frame.f_code
        frame = frame.f_back
    _passed.codes.intersection_update(running)
    variants = (variant for code in running.values() for variant in _C.variants(code))
    return any(variant.key is session and not is_eager(variant) for variant in variants)
