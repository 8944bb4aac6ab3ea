"""Operations of a joint graph that are the same function of the same arguments are one.

In:  a joint graph, before it is parted. Out: the same graph without the later of two equal nodes. The partitioner can
do that, too, but imports Inductor for it (half a second), takes 0.0 and -0.0 for equal, and would merge collectives.
Left alone is what the program gets (two results are two tensors), what draws, and what nothing is known of. After an
operation that writes, nothing is what it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from dynajit.graph.meta import memory
from dynajit.op_facts import CONSTANT_TYPES, facts

aten = torch.ops.aten


class _NotCompared(Exception):
    """An argument of a kind that is not compared."""


def merge_equal(joint: GraphModule) -> GraphModule:
    """The graph itself, changed."""
    graph = joint.graph
    graph.eliminate_dead_code()
    kept = {memory(node) for node in graph.output_node().all_input_nodes} - {None}
    first: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        known = facts(node.target)
        if known.writes or not (known.known or known.pure):
            first.clear()
        elif known.known and known.pure and memory(node) not in kept and not _makes_its_own(node):
            try:
                same = first.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
            except _NotCompared:
                continue
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)
    return joint


def _makes_its_own(node: Node) -> bool:
    """Memory that is not filled, or a symbol for a number that only values tell."""
    return node.target is aten.empty.memory_format or "unbacked_bindings" in node.meta


def _key(value: Any) -> Any:
    """Equal for equal arguments alone. As text, floats tell 0.0 from -0.0."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(part)) for name, part in value.items())
    if isinstance(value, slice):
        return (slice, _key(value.start), _key(value.stop), _key(value.step))
    if type(value) in CONSTANT_TYPES:
        return (type(value), repr(value) if isinstance(value, (float, complex)) else value)
    raise _NotCompared
