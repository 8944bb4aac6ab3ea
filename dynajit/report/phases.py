"""Seconds by compile phase.

In: `with collect() as phases:` around one compile (capture does it), `with timer("guards"):` around each phase,
anywhere below. Out: the dictionary `phases`, name to seconds of wall clock. A phase inside a phase is not counted
twice: the outer one excludes it. A compile inside a compile has its own dictionary, and the outer phases exclude it.
`timer` outside a `collect` does nothing. `Phases.spans` keeps each phase's start and end, for traces.
"""

import threading
import time
from collections.abc import Iterator, Sequence
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


class Phases(dict[str, float]):
    """Name to seconds; and in `spans` (name, start, end) of each time, by `time.perf_counter()`."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[str, float, float]] = []


class _Span:
    """A running phase or collection: its name, seconds spent in spans inside it, and where phases are added."""

    __slots__ = ("inner", "name", "phases")

    def __init__(self, phases: Phases, name: str | None) -> None:
        self.inner = 0.0
        self.phases = phases
        self.name = name


_local = threading.local()


@contextmanager
def collect() -> Iterator[Phases]:
    """Measure the phases of one compile in this thread; yields the dictionary being filled."""
    phases = Phases()
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
def _span(phases: Phases, name: str | None) -> Iterator[None]:
    stack = _stack()
    span = _Span(phases, name)
    stack.append(span)
    start = time.perf_counter()
    try:
        yield
    finally:
        end = time.perf_counter()
        elapsed = end - start
        stack.pop()
        if name is not None:
            phases.spans.append((name, start, end))
            phases[name] = phases.get(name, 0.0) + elapsed - span.inner
        if stack:
            stack[-1].inner += elapsed


def running(stack: Sequence[_Span] | None = None) -> str | None:
    """The innermost phase that runs in this thread, or in the one that `stack` belongs to (`thread_stack`)."""
    for span in reversed(_stack() if stack is None else [*stack]):
        if span.name is not None:
            return span.name
    return None


def thread_stack() -> Sequence[_Span]:
    """This thread's running phases, for `running` in another thread."""
    return _stack()


def _stack() -> list[_Span]:
    stack: list[_Span] | None = getattr(_local, "stack", None)
    if stack is None:
        stack = _local.stack = []
    return stack
