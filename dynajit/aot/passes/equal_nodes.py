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

from dynajit.aot.layers import NotCompared, arguments_key
from dynajit.graph.meta import memory
from dynajit.op_facts import facts

aten = torch.ops.aten


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
                key = (node.target, arguments_key((node.args, node.kwargs), _itself))
            except NotCompared:
                continue
            same = first.setdefault(key, node)
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)
    return joint


def _makes_its_own(node: Node) -> bool:
    """Memory that is not filled, or a symbol for a number that only values tell."""
    return node.target is aten.empty.memory_format or "unbacked_bindings" in node.meta


def _itself(node: Node) -> Node:
    return node
