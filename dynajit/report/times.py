"""Compile time over the life of the process: `dynajit.compile_times()`.

In: every published `CompileRecord`. Out: a table by phase, and the whole as a trace file.
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dynajit.locks import process_lock
from dynajit.report import debug, records
from dynajit.report.phases import PHASES

# The trace file shows this many of the latest compiles.
_KEPT = 256


class CompileTimes:
    """Seconds by phase. `str()` is a table, `seconds` the dictionary, `frames` how many frames were looked at."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.frames = 0
        # compile id, function, and its spans as flat numbers and strings, which cost the garbage collector nothing
        self._compiles: collections.deque[tuple[Any, ...]] = collections.deque(maxlen=_KEPT)
        self._lock = process_lock()

    def add(self, record: records.CompileRecord) -> None:
        """Count one capture."""
        flat = tuple(part for span in record.spans for part in span)
        with self._lock:
            self.frames += 1
            self._compiles.append((f"{record.compile_id} {record.code_name}", *flat))
            for name, seconds in record.phases.items():
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def clear(self) -> None:
        """Start again from nothing."""
        with self._lock:
            self.frames = 0
            self.seconds.clear()
            self._compiles.clear()

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the compiles as a trace-event file for chrome://tracing or Perfetto."""
        with self._lock:
            compiles = [*self._compiles]
        events = debug.trace_events({name: [*zip(*[iter(flat)] * 3, strict=True)] for name, *flat in compiles})
        Path(path).write_text(json.dumps(events), encoding="utf-8")

    def __str__(self) -> str:
        with self._lock:
            rows = [*_in_order(self.seconds)]
            frames = self.frames
        total = sum(seconds for _, seconds in rows)
        lines = [f"{name:<15} {seconds:9.3f} s" for name, seconds in [*rows, ("total", total)]]
        return "\n".join([f"{frames} frames looked at", *lines])


def one_compile(record: records.CompileRecord, spans: bool) -> str:
    """The phases of one compile on a line; with `spans`, below it, when each ran (ms)."""
    text = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in record.phases.items())
    if not spans or not record.spans:
        return text
    zero = min(start for _, start, _ in record.spans)
    rows = sorted((start, end, name) for name, start, end in record.spans)
    return "\n".join(
        [text, *(f"{(start - zero) * 1e3:9.2f} to {(end - zero) * 1e3:9.2f}  {name}" for start, end, name in rows)]
    )


def _in_order(seconds: dict[str, float]) -> Iterator[tuple[str, float]]:
    for name in (*PHASES, *sorted(set(seconds) - set(PHASES))):
        if name in seconds:
            yield name, seconds[name]


_times = CompileTimes()
records.subscribe(_times.add)


def compile_times() -> CompileTimes:
    """Seconds by compile phase since the start of the process or the last `reset()`; print it."""
    return _times
