"""Compiling graphs beside the program: the option `background`.

In:  a captured graph that runs as captured, and what compiles it. Tracing is done at the call, for it reads the
     program's objects; what follows works on the graph and fake tensors alone, in one thread for all jobs.
Out: the graph's call becomes the compiled one's, between two calls. `wait()` waits for what is under way, and raises
     what the backend raised.

A graph is as right as captured as it is compiled, so that a job may fail or be given up at any time.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynajit import _C, symbols
from dynajit.graph.shapes import Shapes
from dynajit.locks import on_fork
from dynajit.report import logs, progress, records
from dynajit.report.phases import collect, timer
from dynajit.values.tensors.torch_state import SETTINGS, EntryState

if TYPE_CHECKING:
    from dynajit.report.records import CompileRecord

_changed = threading.Condition()
_waiting: collections.deque[BackgroundCompile] = collections.deque()
_failures: list[BaseException] = []
_state = {"running": False}


class BackgroundCompile:
    """One graph to be compiled: `make` gives the callable and whether it is flat (`_C.GraphCall`)."""

    def __init__(
        self,
        call: _C.GraphCall,
        make: Callable[[], tuple[Callable[..., Any], bool]],
        examples: Sequence[Any],
        shapes: Shapes,
        state: EntryState,
        record: CompileRecord,
    ) -> None:
        self.call = weakref.ref(call)
        self.make = make
        self.shapes = shapes
        self.state = state.values
        self.inference = torch.is_inference_mode_enabled()
        self.threads = torch.get_num_threads()
        self.record = record
        self.graph = record.graphs[-1]
        self.places = _places_of_symbols(examples)
        self.guards = 0

    def submit(self) -> None:
        """The variant is complete: whatever is decided about sizes from now on is not among its guards."""
        self.guards = len(self.shapes.env.guards) if self.shapes.active else 0
        with _changed:
            _waiting.append(self)
            if not _state["running"]:
                _state["running"] = True
                threading.Thread(target=_work, name="dynajit compile").start()

    def run(self) -> None:
        """Compile the graph, and have it called from the next call on."""
        call = self.call()
        if call is None:
            return  # forgotten meanwhile
        before = call.fn
        with self._as_captured():
            if not self._is_as_captured():
                return self._give_up("torch's settings are others than when it was captured")
            compiled, flat = self.make()
            if not self._is_as_captured():
                return self._give_up("torch's settings were changed while it was compiled")
        holds = self._further_guards()
        if holds is not None:
            compiled, flat = _where(holds, compiled, before), False
        call.become(compiled, flat)
        return None

    def _give_up(self, why: str) -> None:
        logs.emit("perf", f"not compiled in the background: {why}; it runs as captured", self.record.compile_id)

    @contextlib.contextmanager
    def _as_captured(self) -> Iterator[None]:
        """The state of the thread that captured the graph, in this one."""
        record = records.CompileRecord(
            self.record.compile_id, self.record.code_name, self.record.filename, self.record.firstlineno, [self.graph]
        )
        with torch.inference_mode(self.inference), records.recording(record), collect() as phases, timer("backend"):
            for setting, value in zip(SETTINGS, self.state, strict=True):
                if setting.of_thread and setting.now() != value:
                    setting.write(*setting.chosen, value)
            with progress.watch(f"{self.record.code_name} in the background"):
                yield
        for name, seconds in phases.items():
            self.record.phases[name] = self.record.phases.get(name, 0.0) + seconds

    def _is_as_captured(self) -> bool:
        values = zip(SETTINGS, self.state, strict=True)
        return torch.get_num_threads() == self.threads and all(
            setting.now() == value for setting, value in values if not setting.of_thread
        )

    def _further_guards(self) -> Callable[[Sequence[Any]], bool] | None:
        """Whether what the backend relied on about sizes holds for a call's inputs; None if that is nothing."""
        new = self.shapes.env.guards[self.guards :] if self.shapes.active else ()
        trees = [symbols.tree_of(guard.expr) for guard in new if not getattr(guard.expr, "is_number", True)]
        names = tuple(dict.fromkeys(name for tree in trees for name in symbols.names_in(tree)))
        if not trees:
            return None
        if not self.places.keys() >= set(names):
            return lambda inputs: False
        checks = [symbols.function_of(tree, names) for tree in trees]
        places = [self.places[name] for name in names]

        def holds(inputs: Sequence[Any]) -> bool:
            numbers = [inputs[at] if dim is None else inputs[at].shape[dim] for at, dim in places]
            return all(check(*numbers) for check in checks)

        return holds


def _places_of_symbols(examples: Sequence[Any]) -> dict[str, tuple[int, int | None]]:
    """Symbol -> the input that tells its number, and in which dimension if that is a tensor."""
    found: dict[str, tuple[int, int | None]] = {}
    for at, value in enumerate(examples):
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node._expr.is_symbol:
                    found.setdefault(str(size.node._expr), (at, dim))
        elif isinstance(value, torch.SymInt) and value.node._expr.is_symbol:
            found.setdefault(str(value.node._expr), (at, None))
    return found


def _where(
    holds: Callable[[Sequence[Any]], bool], compiled: Callable[..., Any], otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        return compiled(*inputs) if holds(inputs) else otherwise(*inputs)

    return call


def possible(shapes: Shapes) -> bool:
    """Whether what was captured depends on nothing that only the calling thread has: levels of transforms, and numbers
    that only the running program knows, about which the backend's promises are checked by the emitted code."""
    return not shapes.unknowns and torch._C._functorch.peek_interpreter_stack() is None


def _work() -> None:
    """The thread's: compiles what waits, and ends when nothing does, or the program has ended."""
    while True:
        with _changed:
            if not threading.main_thread().is_alive():
                _waiting.clear()
            if not _waiting:
                _state["running"] = False
                _changed.notify_all()
                return
            job = _waiting[0]
        try:
            job.run()
        except BaseException as error:
            _fail(job, error)
        with _changed:
            if _waiting and _waiting[0] is job:
                _waiting.popleft()
        del job


def _fail(job: BackgroundCompile, error: BaseException) -> None:
    with _changed:
        _failures.append(error)
    with contextlib.suppress(Warning):  # made an error by a filter of the program's: `wait` raises one anyway
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(
            f"dynajit: {job.record.code_name} ({job.record.filename}:{job.record.firstlineno}) could not be compiled "
            f"in the background and runs as captured: {first}. dynajit.wait() raises the error",
            stacklevel=1,
        )


def wait(timeout: float | None = None) -> None:
    """Wait until everything that calls have put in the background so far is compiled, and used by the next calls.

    Args:
        timeout: seconds; None: as long as it takes.

    Raises:
        BackendCompilerFailed: what a backend raised in the background, each error at one `wait`.
        TimeoutError: it takes longer.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with _changed:
        while _waiting or _state["running"]:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{len(_waiting)} graphs are still to be compiled after {timeout} seconds")
            _changed.wait(left)
        if _failures:
            raise _failures.pop(0)


@on_fork
def _forked() -> None:
    """The thread is the parent's: the child's graphs run as captured."""
    global _changed
    _changed = threading.Condition()
    _waiting.clear()
    _state["running"] = False
