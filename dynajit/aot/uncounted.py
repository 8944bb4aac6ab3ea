"""Writes that autograd does not count: batch norms' kernels update the running statistics without a word to it.

In:  a torch-level graph. Out: its compile function, which finds the copies into such statistics marked. If these were
counted, the backward of an evaluation that ran before, which keeps the statistics, would fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
_BATCH_NORMS = {
    F.batch_norm,
    torch.batch_norm,
    torch.native_batch_norm,
    aten.batch_norm.default,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._batch_norm_with_update.default,
}


def marking_uncounted(gm: torch.fx.GraphModule, compile_fn: Callable[..., Any]) -> Callable[..., Any]:
    """`compile_fn`, or one that first marks the copies to inputs of `gm` whose writes are not counted."""
    uncounted = {
        place
        for place, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if any(user.target in _BATCH_NORMS for user in node.users) and _version_stays(node)
    }
    if not uncounted:
        return compile_fn

    def compile_marked(graph: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Any:
        if phase != "backward":
            placeholders = graph.graph.find_nodes(op="placeholder")
            into = {placeholders[place] for place in uncounted}
            for node in graph.graph.find_nodes(op="call_function", target=aten.copy_.default):
                if node.args[0] in into:
                    node.meta["uncounted"] = True
        return compile_fn(graph, inputs, phase)

    return compile_marked


def _version_stays(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and not value.is_inference() and value._version == node.meta.get("version")
