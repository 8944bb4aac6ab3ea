"""What generated code does when the graph's call raises: put torch's state back, and run the original frame.

In: the exception, and the frame's parameters and cells as generated code was given them. Out: what the original gives
or raises. A graph is called before any effect of the frame; if it has changed nothing itself, running the original is
what the user asked for: the effects of the lines before the one that raises happen, and the exception has eager's words
and context. A graph that changes something has not done so yet where the operation that raised, known by the line of
the graph's code in the traceback, comes before the first that does. Behind it, what was changed is put back first where
the graph's call keeps it (`Undoing`).
"""

from __future__ import annotations

import ctypes
import re
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from dynajit import _C, torch_compat
from dynajit.bytecode import Part, copy_of
from dynajit.exc import DynajitError
from dynajit.graph.meta import memory, notes
from dynajit.op_facts import starts_collective
from dynajit.report import ranks
from dynajit.report.counters import counters
from dynajit.values.tensors.torch_state import SETTINGS, EntryState

# operations that find a bad index only when they have written some items, and would add to these a second time
_BY_ITEMS = re.compile("index_|scatter|put_")
_BAD_INDEX = re.compile("out of (bounds|range)|device-side")
# those that may have changed some of their tensors when they raise, whatever they raise
_BY_TENSORS = re.compile("foreach")
# those that write all of a tensor, as any that computes elements, though they may raise
_BY_ELEMENTS = re.compile("div|mod|remainder")
# what entering a level of forward-mode differentiation raises in one that the program entered outside
_NESTED = "Nested forward mode AD"
_NOT_THE_PROGRAMS = (RecursionError, MemoryError, DynajitError)


class InputsOverlap(RuntimeError):
    """A graph was not run: an input that it writes shares memory with another one, and of the program only the frame is
    left, which runs as it is then. No program sees it."""


class Rerun:
    """Called in place of the rest of the generated code.

    Attributes:
        pure: the graph changes nothing, so that the frame can be run again from its start.
        spared: lines of the graph's code at which nothing has been changed yet.
        items: those of them at which some items have been, if what the line raises is about an index.
        trusted: the backend is one of dynajit's: if the original raises nothing, its result stands. Else what the
            backend raises by itself is for the user to see.
        writes_last: what comes out of the compiled graph, of no line of its code, came before all writes.
        communicates: the graph holds collectives. Other ranks have their part in those that were made: they are not
            made again.
        handled: which argument is the exception (or None) that was being handled before the handlers that the frame
            starts in; generated code ends these after the graph.
        restored: the same before those of them that the program ends before the graph's operations.
    """

    def __init__(
        self,
        code: types.CodeType,
        part: Part | None,
        globals_: dict[str, Any],
        module: torch.fx.GraphModule | None,
        pure: bool,
        trusted: bool,
        restored: int | None = None,
        settles: bool = False,
        communicates: bool = False,
    ) -> None:
        nodes = module.graph.nodes if module is not None else ()  # without it, of a graph that changes nothing
        self.code = code
        self.part = part
        self.globals = globals_
        calls = [node for node in nodes if node.op == "call_function"]
        self.communicates = communicates or any(starts_collective(node.target) for node in calls)
        self.pure = pure = pure and not self.communicates
        self.spared, self.items = frozenset[int](), frozenset[int]()
        self.writes_last = False
        if module is not None and not pure:
            given = _memory_of_inputs(module)
            self.spared, self.items = _lines_before_changes(module, given)
            self.writes_last = trusted and settles and _writes_last(module, given)
        self.module = module
        self.trusted = trusted
        self.state = EntryState()
        targets = {node.target for node in calls}
        self.settings = [
            (setter, (*chosen, value))
            for (setter, _, chosen, _), value in zip(SETTINGS, self.state.values, strict=True)
            if setter in targets
        ]
        self.inference = torch.autograd.grad_mode._enter_inference_mode in targets
        self.enters_dual = torch._C._enter_dual_level in targets
        self.nests = self.enters_dual or any("nesting" in getattr(target, "__name__", "") for target in targets)
        self.handled = None if part is None else part.handled
        self.restored = restored
        self.depth = torch._C._functorch.get_dynamic_layer_stack_depth()
        self._function: Callable[..., Any] | None = None

    def needed(self) -> bool:
        """Whether there is anything to do when the graph raises."""
        changes_state = bool(self.settings) or self.nests or self.inference or self.handled is not None
        return self.pure or self.communicates or bool(self.spared) or changes_state

    def only_runs_again(self) -> bool:
        """Whether all there is to do is to run the frame again from where it starts: the graph has no part in it."""
        plain = self.trusted and not self.writes_last and self.handled is None and self.restored is None
        return plain and not (self.settings or self.inference or self.nests)

    def __call__(self, error: BaseException, *args: Any) -> Any:
        self._put_back(error)
        if self.communicates:
            ranks.failed(error)
        final = not isinstance(error, Exception) or isinstance(error, _NOT_THE_PROGRAMS) or _raised_by_hook(error)
        if final or not self._unchanged(error):
            self._leave(error, args)
        if self._function is None:
            code = copy_of(self.code, self.part)
            _C.mark_ours(code)
            self._function = types.FunctionType(code, self.globals, self.code.co_name)
        stands = self.trusted or _raised_by_operation(error)
        # the caller's frame holds the error, which holds the frame: what the program lets go of would wait for the
        # collector
        trace, error.__traceback__ = error.__traceback__, None
        result = _C.call_eager(self._function, args)
        if not stands:
            raise error.with_traceback(trace)
        # the program caught the exception itself, or the backend raised where eager does not
        counters["reruns"][type(error).__name__] += 1
        return result

    def _leave(self, error: BaseException, args: Sequence[Any]) -> NoReturn:
        """Raise what the graph raised out of the frame, and out of the handlers that the frame starts in."""
        if self.handled is None:
            raise error
        context = error.__context__
        if self.restored is not None and context is sys.exception():
            context = args[self.restored]
        ctypes.pythonapi.PyErr_SetHandledException(ctypes.py_object(args[self.handled]))
        try:
            raise error
        except BaseException:
            error.__context__ = context  # which `raise` made what is handled outside
            raise

    def _unchanged(self, error: BaseException) -> bool:
        """Whether the graph has changed nothing of the program's before it raised."""
        if self.pure or isinstance(error, InputsOverlap) or not self.spared:
            return self.pure or isinstance(error, InputsOverlap)
        file = torch_compat.file_of(self.module) if self.module is not None else ""
        lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
        if not lines and self.writes_last:
            return True  # it came out of a compiled graph
        if len(lines) != 1 or lines[0] not in self.spared:
            return False
        return lines[0] not in self.items or _BAD_INDEX.search(str(error)) is None

    def _put_back(self, error: BaseException) -> None:
        """torch's state as it was at the frame's start, where the graph may have left it in between."""
        if self.inference:
            _leave_inference_modes(error)
        torch_compat.leave_levels(self.depth, self.enters_dual and not str(error).startswith(_NESTED))
        for setter, args in self.settings:
            setter(*args)
        if self.nests:
            self.state.restore()


def _leave_inference_modes(error: BaseException) -> None:
    """Close the blocks of inference mode that the graph was in: an fx graph's code has them in its variables."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename.startswith("<eval_with_key"):
            for opened in reversed(frame.f_locals.values()):
                if isinstance(opened, torch._C._InferenceMode):
                    opened.__exit__(None, None, None)


def _lines_before_changes(
    module: torch.fx.GraphModule, given: frozenset[int | None]
) -> tuple[frozenset[int], frozenset[int]]:
    """Lines of the module's code up to that of the first operation that changes something, which is one of them unless
    it may have done so in part when it raises; and those of them where that holds for a bad index only. `given`: the
    memory of inputs."""
    nodes = list(module.graph.nodes)
    # what changes before these is put back
    undone = max(
        (index + notes(node).undoes_own for index, node in enumerate(nodes) if notes(node).undo is not None), default=0
    )
    sent = [node.op == "call_function" and starts_collective(node.target) for node in nodes]
    ends = (at for at, node in enumerate(nodes) if sent[at] or (at >= undone and _changes(node, given)))
    first = next(ends, len(nodes) - 1)
    target = str(nodes[first].target)
    last = first - 1 if sent[first] or _BY_TENSORS.search(target) else first
    lines = {
        line + module._prologue_start: index
        for line, index in (module._lineno_map or {}).items()
        if index is not None and index <= last
    }
    items = (line for line, index in lines.items() if index == first and _BY_ITEMS.search(target))
    return frozenset(lines), frozenset(items)


def _writes_last(module: torch.fx.GraphModule, given: frozenset[int | None]) -> bool:
    """Whether dynajit's backends write no input before all that may raise has run: not where an operation may raise
    half way through items of an input that it writes, unless that is put back."""
    raising = [node for node in module.graph.nodes if notes(node).may_raise]
    writing = [node for node in raising if not given.isdisjoint(notes(node).writes) and not notes(node).undoes_own]
    return bool(raising) and all(_BY_ELEMENTS.search(str(node.target)) for node in writing)


def _changes(node: torch.fx.Node, given: frozenset[int | None]) -> bool:
    """Whether an operation does more than give its result and write tensors that the graph has made."""
    noted = notes(node)
    return noted.changes and (not noted.writes or not given.isdisjoint(noted.writes))


def _memory_of_inputs(module: torch.fx.GraphModule) -> frozenset[int | None]:
    """What `notes` may name of it; a tensor without memory of its own may be in an input's."""
    return frozenset([None, *(memory(node) for node in module.graph.nodes if node.op in ("placeholder", "get_attr"))])


def kept_for_undo(module: torch.fx.GraphModule) -> list[int]:
    """Which inputs the graph writes before an operation that may raise, as far as they can be put back."""
    kept = {name for node in module.graph.nodes for name in notes(node).undo or ()}
    inputs = module.graph.find_nodes(op="placeholder")
    return [place for place, node in enumerate(inputs) if node.name in kept]


class Undoing:
    """`graph`, which puts back what the inputs at `written` held, and the generator if it `draws`, if it raises."""

    def __init__(self, graph: Callable[..., Any], written: Sequence[int], draws: bool) -> None:
        self.graph = graph
        self.written = list(written)
        self.draws = draws

    def __call__(self, *inputs: Any) -> Any:
        state = torch.get_rng_state() if self.draws else None
        held = [inputs[place].detach().clone() for place in self.written]
        try:
            return self.graph(*inputs)
        except Exception:
            if state is not None:
                torch.set_rng_state(state)
            with torch.no_grad():
                for place, values in zip(self.written, held, strict=True):
                    inputs[place].copy_(values)
            raise


def _raised_by_hook(error: BaseException) -> bool:
    """Whether a hook on saved tensors raised, which counts what it is given: checkpoint's does, where all is computed
    again that backward needs."""
    hook, _ = torch._C._autograd._top_saved_tensors_default_hooks(True) or (None, None)
    code = getattr(hook, "__code__", getattr(type(hook).__call__, "__code__", None))
    return code is not None and any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def _raised_by_operation(error: BaseException) -> bool:
    """Whether the exception came through the code of an fx graph: what an operation raises, not the backend."""
    return any(
        frame.f_code.co_filename.startswith("<eval_with_key") for frame, _ in traceback.walk_tb(error.__traceback__)
    )
