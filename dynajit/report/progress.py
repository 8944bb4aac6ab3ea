"""A line on the terminal while a compile takes long.

In: `with watch(name):` around a compile (capture does it), `count(done, total)` from whoever has many things to do.
Out: after two seconds, on stderr, `dynajit: compiling forward: c_compile, 3 of 12 kernels, 4.5 s`, redrawn until the
compile ends and then wiped. Nothing in pipes and notebooks, unless `config.progress` is "on".
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from dynajit.config import config
from dynajit.report import phases

_DELAY_S, _PERIOD_S, _PATIENCE_S = 2.0, 0.25, 1.0
_local = threading.local()


class _Watch:
    """One compile being watched by a thread of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done: tuple[int, int, str] | None = None
        self.counted: str | None = None  # the phase that `done` is of
        self._stack = phases.thread_stack()
        self._start = time.perf_counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dynajit progress", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The line as of now."""
        phase = phases.running(self._stack)
        parts = [phase or "starting"]
        if self.done is not None and self.counted == phase:
            parts.append("{} of {} {}".format(*self.done))
        return f"dynajit: compiling {self.name}: {', '.join(parts)}, {time.perf_counter() - self._start:.1f} s"

    def end(self) -> None:
        self._ended.set()
        # A terminal that is stopped, or a pipe that nobody reads, takes no more: the program goes on all the same.
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # stderr was closed meanwhile
            self._draw()

    def _draw(self) -> None:
        stream, width, delay = sys.stderr, 0, _DELAY_S
        while not self._ended.wait(delay):
            delay = _PERIOD_S
            line = self.text()
            stream.write("\r" + line.ljust(width))
            stream.flush()
            width = len(line)
        if width:
            stream.write("\r" + " " * width + "\r")
            stream.flush()


@contextlib.contextmanager
def watch(name: str) -> Iterator[None]:
    """Show progress while the block runs; a watch inside a watch is part of it."""
    if getattr(_local, "watch", None) is not None or not _wanted():
        yield
        return
    _local.watch = _Watch(name)
    try:
        yield
    finally:
        ended, _local.watch = _local.watch, None
        ended.end()


def count(done: int, total: int, what: str = "kernels") -> None:
    """Say how far the phase at hand is."""
    watching: _Watch | None = getattr(_local, "watch", None)
    if watching is not None:
        watching.done, watching.counted = (done, total, what), phases.running()


def _wanted() -> bool:
    if config.progress != "auto":
        return config.progress == "on"
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False  # no stderr, or a closed one
