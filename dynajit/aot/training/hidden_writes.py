"""Inputs that the program may write between forward and backward, through `.data`, where autograd does not hear of it.

In:  the joint graph of forward and backward, before it is parted (`part_reads`), and what the partitioner made of it
(`join_reads`). Eager's backward reads the inputs that it saved: what they hold then. What it computed in forward and
saved is as it was. So in the joint graph what backward itself computes reads inputs through nodes of its own, lest it
be taken for an equal value of forward's; and what the partitioner has backward compute once more of forward reads
copies of small inputs, and is kept where it reads large ones, as eager keeps it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from dynajit.aot.rewrite import halves_of, is_tangent
from dynajit.aot.training.saved_copies import copy_of, is_small
from dynajit.graph.meta import memory, note, notes

aten = torch.ops.aten


def part_reads(joint: GraphModule, n_results: int) -> set[str]:
    """Have what backward computes read inputs through nodes of its own. Returns the inputs' names."""
    inputs = [node for node in joint.graph.find_nodes(op="placeholder") if not is_tangent(node)]
    memories = set(map(memory, inputs)) - {None}
    forward, backward = halves_of(joint, n_results)
    own = backward - forward
    for node in forward:
        note(node, of_forward=True)
    for source in [node for node in joint.graph.nodes if node in forward and memory(node) in memories]:
        readers = [user for user in source.users if user in own]
        if not readers:
            continue
        if not is_small(source):
            for user in source.users:
                if user in forward and memory(user) not in memories:
                    user.meta["recompute"] = CheckpointPolicy.MUST_SAVE
                    user.meta["partitioner_tag"] = "must_be_in_forward"
        with joint.graph.inserting_before(min(readers)):
            read = joint.graph.call_function(aten.alias.default, (source,))
        read.meta = dict(source.meta)
        note(read, read_by_backward=True)
        read.meta["partitioner_tag"] = "must_be_in_backward"
        for reader in readers:
            reader.replace_input_with(source, read)
    return {node.name for node in inputs}


def join_reads(forward: GraphModule, backward: GraphModule, n_results: int, names: Collection[str]) -> None:
    """Take these nodes out again. Forward gets copies to keep, of the inputs of these names, where backward computes
    something of it once more."""
    end = forward.graph.output_node()
    results: Any = end.args[0]
    # Backward takes the sizes first, forward returns them last: what belongs together has one name.
    held = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    made: list[Any] = []
    for result in results[n_results:]:
        node = result.all_input_nodes[0] if _is_read(result) else result
        made.append(node)
        place = held.get(result.name) if isinstance(node, Node) and node.name in names and is_small(node) else None
        if place is not None and _is_recomputed_from(place):
            copy = copy_of(node)
            if copy is not None:
                made.append(copy)
                _read_copy(backward, place, copy)
    end.args = ((*results[:n_results], *made),)
    for graph in (forward, backward):
        for node in reversed(graph.graph.nodes):
            if _is_read(node) and node.op != "placeholder":
                node.replace_all_uses_with(node.all_input_nodes[0])
                graph.graph.erase_node(node)
        graph.recompile()


def _is_read(node: Any) -> bool:
    return isinstance(node, Node) and notes(node).read_by_backward


def _is_recomputed_from(node: Node) -> bool:
    return any(
        _is_recomputed_from(user) if memory(user) == memory(node) else True
        for user in node.users
        if not _is_read(user) and notes(user).of_forward
    )


def _read_copy(backward: GraphModule, node: Node, copy: Node) -> None:
    """Have what is computed once more read the copy where it reads the input."""
    with backward.graph.inserting_after(node):
        place = backward.graph.placeholder(copy.name)
    place.meta = dict(copy.meta)
    waiting = [(node, place)]
    while waiting:
        old, new = waiting.pop()
        for user in [user for user in old.users if not _is_read(user) and notes(user).of_forward]:
            if memory(user) != memory(old):
                user.replace_input_with(old, new)
                continue
            with backward.graph.inserting_after(user):
                view = backward.graph.node_copy(user)
            view.replace_input_with(old, new)
            waiting.append((user, view))
