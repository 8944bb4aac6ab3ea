"""What backward keeps of a graph: no tensor that the program can write, save those that eager keeps too.

In:  the joint graph of forward and backward, before it is parted, and what the partitioner made of it. Out: marks on
nodes that may not be computed again (`keep_results`), and copies in the place of tensors that are kept (`copy_kept`).
A large result of the graph is copied only if somebody writes to it (`dynajit::kept`): the program has it as well.

The partitioner keeps inputs of the graph gladly, which cost no memory, and computes from them once more what autograd
would have kept. Backward fails if a tensor that was kept has been written since; so a program that writes one that
eager does not keep, such as a bias, would fail only when it is compiled.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from dynajit.aot.rewrite import halves_of, results_of
from dynajit.graph.meta import memory, value_of

aten = torch.ops.aten

#: A tensor of no more elements is copied; of a larger one what is computed from it is kept, as eager does.
SMALL = 1 << 16


def keep_results(joint: GraphModule, n_results: int) -> set[int]:
    """Mark what may not be computed again in backward. Returns the memory, as `memory_of` names it, of the inputs and
    results that eager does not keep. Not for graphs with regions of `torch.utils.checkpoint`, which keep inputs."""
    results = results_of(joint)[:n_results]
    forward, backward = halves_of(joint, n_results)
    parameters = joint.graph.find_nodes(op="placeholder")
    seen: dict[int | None, Node] = {memory(node): node for node in (*parameters, *results) if memory(node) is not None}
    for node in backward - forward:
        for source in node.all_input_nodes:
            if memory(source) != memory(node):
                seen.pop(memory(source), None)
    given = {memory(node) for node in parameters}
    large = {place for place, node in seen.items() if not is_small(node) and not _is_copied_late(node, given)}
    for node in forward:
        if any(memory(source) in large and memory(source) != memory(node) for source in node.all_input_nodes):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return {place for place in seen if place is not None}


def copy_kept(forward: GraphModule, n_results: int, memories: set[int]) -> None:
    """Have the forward graph keep a copy of what lies in these memories."""
    end = forward.graph.output_node()
    outputs: Any = end.args[0]
    copies: dict[Node, Node] = {}
    given = {memory(node) for node in forward.graph.find_nodes(op="placeholder")}
    for node in dict.fromkeys(outputs[n_results:]):
        if not isinstance(node, Node) or memory(node) not in memories:
            continue
        late = not is_small(node) and _is_copied_late(node, given)
        copy = copy_of(node, torch.ops.dynajit.kept.default if late else aten.clone.default)
        if copy is not None:
            copies[node] = copy
    if copies:
        kept = [copies.get(node, node) if isinstance(node, Node) else node for node in outputs[n_results:]]
        end.args = ((*outputs[:n_results], *kept),)
        forward.recompile()


def copy_of(node: Node, target: Any = aten.clone.default) -> Node | None:
    """A copy of what the node gives, right after it; None if it would have other strides, which backward was not made
    for. `target`: what copies."""
    value, graph = node.meta["val"], node.graph
    copy = value.clone()
    if copy.stride() != value.stride():
        return None
    with graph.inserting_after(graph.find_nodes(op="placeholder")[-1] if node.op == "placeholder" else node):
        made = graph.call_function(target, (node,))
    made.meta = {"val": copy}
    return made


def separate_results(forward: GraphModule) -> GraphModule:
    """Give results of equal operations memory of their own again. The partitioner makes one of equal operations, save
    where they give results; in one with several results it doesn't see which those are."""
    seen: dict[Any, set[int | None]] = {}
    for part in forward.graph.find_nodes(op="call_function", target=operator.getitem):
        value = value_of(part)
        memories = seen.setdefault(part.args, {memory(part)})
        if isinstance(value, torch.Tensor) and memory(part) not in memories:
            memories.add(memory(part))
            with forward.graph.inserting_after(part):
                copy = forward.graph.call_function(torch.ops.aten.clone.default, (part,))
            copy.meta = dict(part.meta)
            part.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
    forward.recompile()
    return forward


def _is_copied_late(node: Node, given: set[int | None]) -> bool:
    """Whether it can share memory until one of the two is written to: made by the graph, on a CPU. On a GPU a tensor
    that other streams use would not be known to its allocator any more."""
    value = node.meta["val"]
    return memory(node) not in given and value.device.type == "cpu" and value.layout is torch.strided


def is_small(node: Node) -> bool:
    """Whether a copy of what the node gives costs next to nothing: a tensor of known size, of few elements."""
    value = node.meta["val"]
    known = isinstance(value, torch.Tensor) and all(type(size) is int for size in value.shape)
    return known and value.numel() <= SMALL
