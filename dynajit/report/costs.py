"""Rough costs, for reports: how fast this machine's memory is, what a graph break takes.

In: bytes. Out: seconds or a sentence. Estimates are of memory traffic alone, which binds nearly everything that is
generated; they say so.
"""

from __future__ import annotations

import functools
import time

import torch

_PROBE_BYTES = 64 << 20
# From the end of one graph to the start of the next: the continuation's guards and the call, on a common machine.
BREAK_SECONDS = 1e-6


@functools.cache
def memory_speed() -> float:
    """Bytes per second that a copy moves (reads and writes counted) between tensors that exist. Measured once, in about
    50 ms."""
    source = torch.ones(_PROBE_BYTES // 8, dtype=torch.float32)
    target = torch.ones_like(source)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return _PROBE_BYTES / best


def of_break(handed_over: int | None) -> str:
    """What a graph break costs each call, given the bytes of the tensors that cross it."""
    if not handed_over:
        return f"about {BREAK_SECONDS * 1e6:.0f} us a call; no tensors are handed over"
    seconds = BREAK_SECONDS + 2 * handed_over / memory_speed()
    return (
        f"about {microseconds(seconds)} a call: {size(handed_over)} are written before it and read again after it, "
        "and no kernel spans it"
    )


def microseconds(seconds: float) -> str:
    """The time in us or ms."""
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def size(count: int) -> str:
    """Bytes with a unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"
