"""Attributes that each thread has its own of: `threading.local` while tracing.

In: an object from outside. Out: `ThreadLocalVal`: the running thread's attributes are read, and guarded; writing one
ends the graph. Subclasses run their `__init__` in each thread that reads them first, and are not traced.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from dynajit.guards.source import AttrSource, Source
from dynajit.values.core.value import Tracer, Value


class ThreadLocalVal(Value):
    """An instance of `threading.local` itself."""

    kind = threading.local

    def __init__(self, real: Any, source: Source) -> None:
        self.real_object = real
        self.source: Source = source

    def getattr(self, tx: Tracer, name: str) -> Value:
        own = self.real_object.__dict__
        if name in own:
            return tx.wrap(own[name], AttrSource(self.source, name))
        if name == "__dict__" or hasattr(threading.local, name):
            return super().getattr(tx, name)
        tx.guard(self.source, "PREDICATE", functools.partial(_lacks, name), f"has no {name!r} in this thread")
        raise tx.raised(AttributeError, f"'_thread._local' object has no attribute '{name}'")


def _lacks(name: str, local: Any) -> bool:
    return name not in local.__dict__
