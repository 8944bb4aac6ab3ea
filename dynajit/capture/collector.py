"""The garbage collector while a frame is captured.

A capture makes many objects that live until its end. Left alone, the collector would walk the whole process's heap
several times meanwhile, which takes as long as the capture itself. Young objects are still collected, less often.
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any

from dynajit.process_state import changed

_YOUNG, _MIDDLE, _OLD = 50_000, 50, 1_000_000  # ten young ones would have Python walk what a capture left
_RELAXED = changed((gc.get_threshold, gc.set_threshold, (_YOUNG, _MIDDLE, _OLD)))


def relaxed() -> contextlib.AbstractContextManager[Any]:
    """Thresholds are high inside, in all threads, and the program's own after the last one leaves. Where the program
    wants no automatic collection, or less of it, they stay as they are."""
    (own,) = _RELAXED.before()
    return _RELAXED if 0 < own[0] <= _YOUNG else contextlib.nullcontext()
