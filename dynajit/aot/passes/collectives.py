"""Collectives that are on their way while something else is computed.

In:  a graph of ATen operations with functional collectives, each of which is started by one node and waited for by
another. Out: the same nodes, in an order in which a collective is started as soon as what it sends is there, and waited
for just before its result is read. Collectives keep their order, which all ranks share, and nothing moves across a node
that writes a tensor. What was sent stays as it is until the wait: its `Extern` holds it.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from dynajit.aot.rewrite import copied
from dynajit.op_facts import facts, is_wait, starts_collective

aten = torch.ops.aten


def start_early_wait_late(gm: GraphModule) -> GraphModule:
    """`gm`, or a reordered copy."""
    graph = gm.graph
    sends = any(facts(node.target).communicates for node in graph.nodes if node.op == "call_function")
    if not sends or not graph.find_nodes(op="placeholder"):
        return gm
    made = copied(gm)
    nodes = list(made.graph.nodes)
    late = {node for node in nodes if is_wait(node.target)}
    for node in nodes:  # views of what is waited for, and what takes its values, would be its first readers
        if (_is_view(node) and node.args[0] in late) or (node.target is aten.copy.default and node.args[1] in late):
            late.add(node)
    for node in reversed(nodes):
        if node in late:
            _sink(node)
    for node in nodes:
        _wait_together(node)
    last = max(made.graph.find_nodes(op="placeholder"))
    for node in nodes:
        if node.op == "call_function" and (facts(node.target).communicates or facts(node.target).writes):
            if facts(node.target).communicates:
                _hoist(node, last)
            last = node
    return made


def _sink(node: Node) -> None:
    """Put the node before its first reader, or before what writes a tensor."""
    at = node.next
    while at.op != "output" and at not in node.users and not (at.op == "call_function" and facts(at.target).writes):
        at = at.next
    if node.users:
        at.prepend(node)


def _wait_together(started: Node) -> None:
    """Wait for all results of one collective where the first is waited for: each wait may write all of them, as gloo's
    do of a sum that is scattered, and a kernel may have stored over one by then."""
    waits = sorted(wait for result in started.users for wait in result.users if is_wait(wait.target))
    if starts_collective(started.target) and len(waits) > 1:
        for wait in reversed(waits[1:]):
            waits[0].append(wait)


def _hoist(node: Node, after: Node) -> None:
    """Put the node, and views that it reads, after the last of what they read, and after `after`."""
    for read in node.all_input_nodes:
        if after < read and _is_view(read):
            _hoist(read, after)
        after = max(after, read)
    if after < node:
        after.append(node)


def _is_view(node: Node) -> bool:
    return node.op == "call_function" and facts(node.target).is_view and len(node.all_input_nodes) == 1
