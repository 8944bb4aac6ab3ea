"""What one capture did, as plain data.

In: `capture/` fills one `CompileRecord` for each frame it looked at and calls `publish`; while it is being filled,
any layer below finds it by `current()` and adds what it knows. Out: listeners (`listen`) get it: the counters,
`explain`, tests. One more fact: a field with a default here, filled where it is known.
"""

import contextlib
import linecache
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dynajit.report import caret, costs


@dataclass(frozen=True)
class FrameLoc:
    """A place in the user's code: the span of an instruction, columns in UTF-8 bytes, and the function's name."""

    filename: str
    lineno: int | None
    end_lineno: int | None = None
    col: int | None = None
    end_col: int | None = None
    function: str | None = None

    def render(self, context: int = 0) -> str:
        """The traceback-like text with carets."""
        return caret.render(
            self.filename, self.lineno, self.end_lineno, self.col, self.end_col, context, function=self.function
        )

    def short(self) -> str:
        """`file:line`."""
        return f"{self.filename}:{self.lineno}"


@dataclass
class KernelRecord:
    """One generated kernel: the operations fused in it, the user's lines they come from, and how many bytes one call
    reads and writes (None where sizes are not known beforehand)."""

    name: str
    operations: tuple[str, ...]
    lines: tuple[str, ...] = ()
    bytes_moved: int | None = None
    calls: int = 1


@dataclass
class CollectiveRecord:
    """One collective: the bytes of the tensors that it is given (None where sizes are not known beforehand), and the
    kernels and operations that run before it is waited for."""

    name: str
    bytes_given: int | None
    beside: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """How large it is, and what runs beside it."""
        size = "a size known when it is called" if self.bytes_given is None else costs.size(self.bytes_given)
        runs = ", ".join(f"{name} x {count}" if count > 1 else name for name, count in Counter(self.beside).items())
        return f"{self.name} of {size}; beside it: {runs or 'nothing'}"


@dataclass
class CodeRecord:
    """What a backend made of one ATen graph: `phase` is "inference", "forward" or "backward", `source` the generated
    text, `extern` the operations that are called through torch's dispatcher, `copies` what is copied at each replay
    where it is recorded as a CUDA graph."""

    name: str
    phase: str
    source: str
    language: str
    kernels: list[KernelRecord] = field(default_factory=list)
    extern: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    collectives: list[CollectiveRecord] = field(default_factory=list)


@dataclass
class GraphRecord:
    """One captured graph. `first_line` and `last_line` are (file, line) of its first and last operation."""

    compile_id: str
    op_count: int
    graph_module: Any  # torch.fx.GraphModule
    first_line: tuple[str, int] | None = None
    last_line: tuple[str, int] | None = None
    why_ended: str = "return"
    output_bytes: int | None = None  # of the tensors it hands over, where sizes are known
    code: list[CodeRecord] = field(default_factory=list)


@dataclass
class BreakRecord:
    """One graph break that happened. An attempt that was lifted to an outer call is not one of its own: `lifted_from`
    says so.

    `kind` is the identifier in `report/breaks.py`; `user_stack` goes from the outermost frame to the innermost;
    `text` is the source with the caret, `handed_over` the bytes of the tensors that cross the break, if known. `loops`
    are the loops that were cut out for it, so that it could be where it is: the graph before each of them ended too.
    """

    kind: str
    reason: str
    hint: str = ""
    user_stack: list[FrameLoc] = field(default_factory=list)
    text: str = ""
    lifted_from: str | None = None
    handed_over: int | None = None
    loops: list[FrameLoc] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, FrameLoc | None]:
        """The kind and the innermost line: what two records of one break have in common."""
        return self.kind, self.user_stack[-1] if self.user_stack else None

    @property
    def cost(self) -> str:
        """What the break costs each call, as a sentence."""
        return costs.of_break(self.handed_over)

    def about_loops(self) -> list[str]:
        """A sentence for each loop that was cut out."""
        return [
            f"Inside of the loop in line {loop.lineno}: its body is compiled by itself, and the graph before it ends"
            for loop in self.loops
        ]

    def render(self, whole_stack: bool = False) -> str:
        """What, where, why and what to do; with the lines of all frames if asked."""
        lines = [f"{self.reason} [{self.kind}]"]
        lines += [loc.render() for loc in self.user_stack[:-1]] if whole_stack else []
        lines += [self.text.rstrip("\n")] if self.text else [loc.render() for loc in self.user_stack[-1:]]
        if self.lifted_from:
            lines.append(f"  broken at the call outside, because of: {self.lifted_from}")
        if len(self.user_stack) > 1:
            chain = " > ".join(f"{loc.function} (line {loc.lineno})" for loc in self.user_stack)
            lines.append(f"  Called through: {chain}")
        lines += [f"  {text}" for text in self.about_loops()]
        if self.handed_over is not None:
            lines.append(f"  Cost: {self.cost}")
        if self.hint:
            lines.append(f"  What to do: {self.hint}")
        return "\n".join(lines)


@dataclass
class GuardRecord:
    """One guard: its text for the reader, the source it looks at, the user's line that made it necessary."""

    text: str
    source: str
    user_loc: FrameLoc | None = None

    def render(self, with_line: bool = False) -> str:
        """The guard, and after it its place, with that line's text if asked."""
        if self.user_loc is None:
            return self.text
        line = linecache.getline(self.user_loc.filename, self.user_loc.lineno or 0).strip() if with_line else ""
        return f"{self.text}  # {self.user_loc.short()}" + (f": {line}" if line else "")


@dataclass
class CompileRecord:
    """One frame that capture looked at.

    `compile_id` is "[frame/variant]", `phases` are seconds, `skipped` says why nothing was compiled,
    `effects` what is changed beside tensors, as a guard names it.
    """

    compile_id: str
    code_name: str
    filename: str
    firstlineno: int
    graphs: list[GraphRecord] = field(default_factory=list)
    breaks: list[BreakRecord] = field(default_factory=list)
    guards: list[GuardRecord] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    recompile_reason: str | None = None
    skipped: str | None = None
    effects: list[str] = field(default_factory=list)
    code: types.CodeType | None = None
    spans: list[tuple[str, float, float]] = field(default_factory=list)  # phase, start and end by time.perf_counter()

    @property
    def lines(self) -> range:
        """The lines of the frame's code; none if it is not known."""
        if self.code is None:
            return range(0)
        last = max((line for _, _, line in self.code.co_lines() if line), default=self.firstlineno)
        return range(self.firstlineno, last + 1)


Listener = Callable[[CompileRecord], None]

_permanent: list[Listener] = []
_local = threading.local()


@contextlib.contextmanager
def recording(record: CompileRecord) -> Iterator[None]:
    """Inside, `record` is this thread's `current()`."""
    outer = current()
    _local.current = record
    try:
        yield
    finally:
        _local.current = outer


def current() -> CompileRecord | None:
    """The record being filled in this thread, if a frame is being compiled."""
    return getattr(_local, "current", None)


def subscribe(callback: Listener) -> None:
    """Call `callback` after each capture in any thread, for the rest of the process (the counters)."""
    _permanent.append(callback)


@contextlib.contextmanager
def listen(callback: Listener) -> Iterator[None]:
    """Call `callback` after each capture that this thread makes inside the `with`."""
    listeners = _listeners()
    listeners.append(callback)
    try:
        yield
    finally:
        listeners.remove(callback)


def is_listened() -> bool:
    """Whether the thread waits for the records of its captures."""
    return bool(_listeners())


def publish(record: CompileRecord) -> None:
    """Hand a finished record to the listeners. Called by capture, once for each frame it looked at."""
    for callback in (*_permanent, *_listeners()):
        callback(record)


def _listeners() -> list[Listener]:
    listeners: list[Listener] | None = getattr(_local, "listeners", None)
    if listeners is None:
        listeners = _local.listeners = []
    return listeners
