"""Modes of torch that a captured graph enters: inference mode around all of it, levels of forward-mode differentiation.

In:  a torch-level graph. Out: the graph without its inference mode, and the callable inside of it; a level that is left
where tracing fails; and the lock that whoever traces graphs takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dynajit import torch_compat
from dynajit.aot.legality import ENTER_DUAL_LEVEL, ENTER_INFERENCE, EXIT_INFERENCE
from dynajit.aot.rewrite import without
from dynajit.locks import process_lock
from dynajit.process_state import changed

# torch's tracing keeps anomaly mode, functorch's counters and fx's current node for the whole process, and puts methods
# of its own into nn.Module.
_lock = process_lock()
_OF_TRACING = changed(
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (torch.nn.Module, "__call__"),
    (torch.nn.Module, "__getattr__"),
    (torch.fx.traceback, "current_meta"),
    (torch.fx.traceback, "should_preserve_node_meta"),
)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """No other thread traces a graph meanwhile; and what tracing sets is put back, whatever ends it."""
    with _lock, _OF_TRACING:
        yield


@contextlib.contextmanager
def levels_left(gm: torch.fx.GraphModule) -> Iterator[None]:
    """Levels of torch.func's transforms and of forward-mode differentiation that the graph enters do not stay where
    tracing the graph fails."""
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    enters_dual = any(node.target is ENTER_DUAL_LEVEL for node in gm.graph.nodes)
    dual = enters_dual and not torch_compat.in_dual_level()
    try:
        yield
    finally:
        torch_compat.leave_levels(depth, dual)


def without_inference_mode(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, bool] | None:
    """If all operations are inside of one inference mode: the graph without it, and its flag."""
    calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
    if len(calls) < 3 or calls[0].target is not ENTER_INFERENCE or calls[-1].target is not EXIT_INFERENCE:
        return None
    if any(node.target in (ENTER_INFERENCE, EXIT_INFERENCE) for node in calls[1:-1]):
        return None
    return without(gm, (calls[0], calls[-1])), bool(calls[0].args[0])


def in_inference_mode(flag: bool, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, run under the inference mode that was taken out of its graph."""

    def call(*inputs: Any) -> Any:
        with torch.inference_mode(flag):
            return compiled(*inputs)

    return call
