"""What generated code does when the graph's call raises: put torch's state back, and run the original frame.

In: the exception, and the frame's parameters and cells as generated code was given them. Out: what the original gives
or raises. A graph is called before any effect of the frame; if it changed nothing itself, running the original is what
the user asked for: the effects of the lines before the one that raises happen, and the exception has eager's words.
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable
from typing import Any

import torch

from dynajit import _C
from dynajit.bytecode import build_copy, decode
from dynajit.exc import DynajitError
from dynajit.report.counters import counters
from dynajit.values.builtins.torch_state import SETTINGS, EntryState

_LAYERS: Any = torch._C._functorch
_NOT_THE_PROGRAMS = (RecursionError, MemoryError, DynajitError)


class Rerun:
    """Called in place of the rest of the generated code.

    Attributes:
        pure: the graph changes nothing, so that the frame can be run again from its start.
        trusted: the backend is one of dynajit's: if the original raises nothing, its result stands. Else what the
            backend raises by itself is for the user to see.
    """

    def __init__(
        self, code: types.CodeType, globals_: dict[str, Any], graph: torch.fx.Graph, pure: bool, trusted: bool
    ) -> None:
        self.code = code
        self.globals = globals_
        self.pure = pure
        self.trusted = trusted
        self.state = EntryState()
        targets = {node.target for node in graph.nodes if node.op == "call_function"}
        self.settings = [
            (setter, (*chosen, value))
            for (setter, _, chosen), value in zip(SETTINGS, self.state.values, strict=True)
            if setter in targets
        ]
        self.nests = any("nesting" in getattr(target, "__name__", "") for target in targets)
        self.depth = _LAYERS.get_dynamic_layer_stack_depth()
        self._function: Callable[..., Any] | None = None

    def needed(self) -> bool:
        """Whether there is anything to do when the graph raises."""
        return self.pure or bool(self.settings) or self.nests

    def __call__(self, error: BaseException, *args: Any) -> Any:
        self._put_back()
        if not self.pure or not isinstance(error, Exception) or isinstance(error, _NOT_THE_PROGRAMS):
            raise error
        if self._function is None:
            code = build_copy(decode(self.code))
            _C.mark_ours(code)
            self._function = types.FunctionType(code, self.globals, self.code.co_name)
        result = _C.call_eager(self._function, args)
        if not self.trusted and not _raised_by_operation(error):
            raise error
        # the program caught the exception itself, or the backend raised where eager does not
        counters["reruns"][type(error).__name__] += 1
        return result

    def _put_back(self) -> None:
        """torch's state as it was at the frame's start, where the graph may have left it in between."""
        if _LAYERS.get_dynamic_layer_stack_depth() > self.depth:
            _LAYERS.pop_dynamic_layer_stack_and_undo_to_depth(self.depth)
        for setter, args in self.settings:
            setter(*args)
        if self.nests:
            self.state.restore()


def drawing_again(graph: Callable[..., Any]) -> Callable[..., Any]:
    """`graph`, which puts back the generator it drew from if it raises."""

    def call(*inputs: Any) -> Any:
        state = torch.get_rng_state()
        try:
            return graph(*inputs)
        except Exception:
            torch.set_rng_state(state)
            raise

    return call


def _raised_by_operation(error: BaseException) -> bool:
    """Whether the exception came through the code of an fx graph: what an operation raises, not the backend."""
    return any(
        frame.f_code.co_filename.startswith("<eval_with_key") for frame, _ in traceback.walk_tb(error.__traceback__)
    )
