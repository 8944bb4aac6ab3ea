"""Graphs that write tensors with a history and compute on with what they wrote.

In:  a torch-level graph. Out: a callable that runs what there is up to the last write of such an input, and then the
rest, each compiled by itself. Eager's passes from the results come by the tensor that was written: its hooks are
called, `retain_grad` keeps its gradient, and `torch.autograd.grad(loss, x)` has an answer. From one node for all of the
graph they would go past it. None where nothing that may have gradients is computed of what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dynajit.aot.legality import GraphFacts, is_plain
from dynajit.aot.rewrite import copied
from dynajit.aot.training.optimizer_step import has_gradients
from dynajit.aot.training.pieces import CompilePiece, Node, PartitionedCall, cut_in_two, examples
from dynajit.graph.meta import history_of, memory, note, notes, value_of
from dynajit.nested import reached


def split_after_writes(
    graph: GraphFacts, example_inputs: Sequence[Any], compile_piece: CompilePiece
) -> Callable[..., Any] | None:
    """The graph cut after the last write of the first input that is read with its new history, or None."""
    written = _written(graph)
    if not written:
        return None
    memories = [memory(node) for node in graph.inputs]
    if any(memories.count(memory(node)) > 1 for node in written):
        return None  # inputs that share memory have one history, which the first piece would not give back to all
    if not all(map(is_plain, graph.calls)):
        return None
    gm = _with_inputs_for_results(graph, written)
    graph = GraphFacts(gm)
    written = _written(graph)
    places = (_place(graph, node) for node in written)
    place = min((place for place in places if place is not None), default=None)
    if place is None:
        return None
    steps = cut_in_two(graph, graph.calls[:place], graph.calls[place:])
    if steps is None:
        return None
    first, rest = steps
    module = rest.module(gm)
    for node in module.graph.find_nodes(op="placeholder"):  # in the rest nothing is written any more
        note(node, grad_fn=history_of(value_of(node)))
    first.compile(graph, example_inputs, compile_piece)
    kept = {node: value for node, value in zip(graph.inputs, example_inputs, strict=True) if node not in written}
    rest.compiled = compile_piece(module, examples(rest.inputs, kept))
    return PartitionedCall(gm, steps)


def _written(graph: GraphFacts) -> list[Node]:
    """The inputs that the graph writes so that autograd has them as results of other operations than before."""
    memories = {each for node in graph.calls for each in notes(node).writes}
    return [node for node in graph.inputs if memory(node) in memories and has_new_history(node)]


def has_new_history(node: Node) -> bool:
    """Whether autograd has an input as the result of another operation than at the graph's start."""
    value = value_of(node)
    has = isinstance(value, torch.Tensor) and value.requires_grad
    return has and history_of(value) not in (None, notes(node).grad_fn)


def _with_inputs_for_results(graph: GraphFacts, written: Sequence[Node]) -> torch.fx.GraphModule:
    """The graph with these inputs where operations in place have given them back."""
    same = {id(value_of(node)): node.name for node in written}
    gm = copied(graph.gm)
    inputs = {node.name: node for node in gm.graph.find_nodes(op="placeholder")}
    for node in gm.graph.nodes:
        name = same.get(id(value_of(node)))
        if name is not None and node.op != "placeholder":
            node.replace_all_uses_with(inputs[name])
    gm.recompile()
    return gm


def _place(graph: GraphFacts, written: Node) -> int | None:
    """How many calls there are up to the last write of the input; None if no result with gradients is computed of what
    it holds then."""
    own = memory(written)
    last = max(at for at, node in enumerate(graph.calls) if own in notes(node).writes)
    later = set(filter(has_gradients, graph.calls[last + 1 :]))

    def made_of(node: Node) -> Iterator[Node]:
        yield from later.intersection(node.users)
        places = {memory(part) for part in graph.writes.get(node, ())} - {own}
        yield from (each for each in graph.calls if memory(each) in places)

    of_it = {*reached([written], made_of)}
    read = any(node in of_it for node in graph.returned if node is not written)
    return last + 1 if read else None
