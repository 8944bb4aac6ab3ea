"""Operations whose results no one needs and that may raise: they are run all the same.

In:  a captured graph, in which such operations are marked. Out: a graph that also returns what they give, and a
callable that drops it again. Functional graphs are made of what results need: an index out of bounds would be no error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dynajit.aot.rewrite import with_results
from dynajit.graph.meta import memory, notes, value_of


def with_unused(gm: GraphModule) -> GraphModule | None:
    """The graph with further results: of each unused operation that raises for some values. None: it has none."""
    if not any(notes(node).may_raise for node in gm.graph.nodes):
        return None
    unused = _unused(gm)
    return with_results(gm, unused, _detached) if unused else None


def _detached(node: Node) -> Node:
    made = node.graph.call_method("detach", (node,))
    made.meta["example_value"] = value_of(node).detach()
    return made


def _unused(gm: GraphModule) -> list[Node]:
    """What marked operations give, or write, that leads to no result and to no write of what is seen outside."""
    end = gm.graph.output_node()
    seen = {memory(node) for node in gm.graph.find_nodes(op="placeholder")}
    seen |= {memory(node) for node in end.all_input_nodes}
    used = {end}
    for node in reversed(gm.graph.nodes):
        if not seen.isdisjoint(notes(node).writes):
            used.add(node)
        if node in used:
            used.update(node.all_input_nodes)
            seen |= {memory(source) for source in node.all_input_nodes}
    given = [_written(node) or node for node in gm.graph.nodes if notes(node).may_raise and node not in used]
    return [
        node for node in dict.fromkeys(given) if isinstance(value_of(node), torch.Tensor) and node.op != "placeholder"
    ]


def _written(node: Node) -> Node | None:
    """What an operation writes in place."""
    return next((part for part in node.all_input_nodes if memory(part) in notes(node).writes), None)


def without_unused(count: int, compiled: Callable[..., Sequence[Any]], *inputs: Any) -> Sequence[Any]:
    """The first `count` results."""
    return compiled(*inputs)[:count]
