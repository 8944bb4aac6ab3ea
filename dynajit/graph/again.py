"""Graphs that run as captured, operation by operation, and how their results are computed once more.

In: such a graph. Out: a callable that notes, on autograd's nodes of its results, what gives these again: a compiled
graph that is given one, and whose backward needs less of it, would else keep it for a second differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from dynajit import _C, torch_compat
from dynajit.graph.meta import notes, written_by


def run_again(module: fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """The graph as a callable. Its own `forward` where a second run would write something or give other values."""
    run: Callable[..., Sequence[Any]] = module.forward
    if torch_compat.any_autocast_enabled() or any(
        notes(node).changes or written_by(node) or "out" in node.kwargs for node in module.graph.nodes
    ):
        return run

    def noting(*inputs: Any) -> Sequence[Any]:
        results = run(*inputs)
        _C.runs_again(run, inputs, tuple(results), None, False)
        return results

    return noting
