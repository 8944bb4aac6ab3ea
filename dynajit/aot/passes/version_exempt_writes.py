"""Writes that autograd does not count: through `tensor.data`, batch norms' kernels into their running statistics, and
steps of optimizers that are one operator.

In:  a torch-level graph. Out: its compile function, which finds the copies into such inputs marked. If these were
counted, a backward would fail that eager's does not: that of an evaluation before, which keeps the statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F

from dynajit.graph.meta import data_views, gives_data, memory, note, notes, value_of, written_by
from dynajit.op_facts import facts

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


def marking_version_exempt(gm: torch.fx.GraphModule, compile_fn: Callable[..., Any]) -> Callable[..., Any]:
    """`compile_fn`, or one that first marks the copies to inputs of `gm` whose writes are not counted."""
    into = _version_exempt(gm)
    places = [place for place, node in enumerate(gm.graph.find_nodes(op="placeholder")) if memory(node) in into]
    return marking(places, compile_fn)


def marking(version_exempt: Collection[int], compile_fn: Callable[..., Any]) -> Callable[..., Any]:
    """`compile_fn`, or one that first marks the copies to the inputs at these places."""
    if not version_exempt:
        return compile_fn

    def compile_marked(graph: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Any:
        if phase != "backward":
            placeholders = graph.graph.find_nodes(op="placeholder")
            into = {placeholders[place] for place in version_exempt}
            for node in graph.graph.find_nodes(op="call_function", target=aten.copy_.default):
                if node.args[0] in into:
                    note(node, version_exempt=True)
        return compile_fn(graph, inputs, phase)

    return compile_marked


def _version_exempt(gm: torch.fx.GraphModule) -> set[int | None]:
    """The memory of the inputs whose writes are not counted, any of them."""
    data = {memory(node) for node in gm.graph.nodes if gives_data(node)}
    statistics = {
        memory(node)
        for node in gm.graph.find_nodes(op="placeholder")
        if any(user.target in _BATCH_NORMS for user in node.users) and _version_stays(node)
    }
    steps = [node for node in gm.graph.nodes if node.op == "call_function" and facts(node.target).counts_no_writes]
    updated = {memory(part) for node in steps for part in written_by(node)}
    if not data and not statistics and not updated:
        return set()
    hidden = data_views(gm.graph)
    counting = (node for node in gm.graph.nodes if node not in steps)
    counted = {memory(part) for call in counting for part in written_by(call) if part not in hidden}
    return (data | statistics | updated) - counted - {None}


def _version_stays(node: torch.fx.Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and not value.is_inference() and value._version == notes(node).version
