"""Seconds by compile phase.

In: `with collect() as phases:` around one compile (capture does it), `with timer("guards"):` around each phase,
anywhere below. Out: the dictionary `phases`, name to seconds of wall clock. A phase inside a phase is not counted
twice: the outer one excludes it. A compile inside a compile has its own dictionary, and the outer phases exclude it.
`timer` outside a `collect` does nothing.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# The phases in use, in order.
PHASES = (
    "bytecode",
    "interpretation",
    "guards",
    "backend",
    "aot",
    "lowering",
    "codegen",
    "c_compile",
)


class _Span:
    """A running phase or collection: seconds spent in spans inside it, and where phases are added."""

    __slots__ = ("inner", "phases")

    def __init__(self, phases: dict[str, float]) -> None:
        self.inner = 0.0
        self.phases = phases


_local = threading.local()


@contextmanager
def collect() -> Iterator[dict[str, float]]:
    """Measure the phases of one compile in this thread; yields the dictionary being filled."""
    phases: dict[str, float] = {}
    with _span(phases, None):
        yield phases


@contextmanager
def timer(name: str) -> Iterator[None]:
    """Add the time spent inside, less that of timers inside it, to a phase of this thread's current compile."""
    stack = _stack()
    if not stack:
        yield
        return
    with _span(stack[-1].phases, name):
        yield


@contextmanager
def _span(phases: dict[str, float], name: str | None) -> Iterator[None]:
    stack = _stack()
    span = _Span(phases)
    stack.append(span)
    start = time.perf_counter()
    try:
        yield
    finally:
        elapsed = time.perf_counter() - start
        stack.pop()
        if name is not None:
            phases[name] = phases.get(name, 0.0) + elapsed - span.inner
        if stack:
            stack[-1].inner += elapsed


def _stack() -> list[_Span]:
    stack: list[_Span] | None = getattr(_local, "stack", None)
    if stack is None:
        stack = _local.stack = []
    return stack
