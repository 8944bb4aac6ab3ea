"""Operations whose results no one needs and that may raise, have effects, or draw random numbers: they are run all the
same.

In:  a captured graph, in which operations that may raise are marked. Out: a graph that also returns what they give, and
a callable that drops it again. Functional graphs are made of what results need: an index out of bounds would be no
error, and the generator would not have moved on. Operators that others have registered may print, count, or raise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dynajit.aot.legality import GraphFacts, is_drawn, runs_anyway, unused_calls, values_read
from dynajit.aot.rewrite import with_results
from dynajit.graph.meta import memory, notes, value_of, written_by
from dynajit.nested import reached
from dynajit.op_facts import facts


def with_unused(gm: GraphModule) -> GraphModule:
    """The graph with further results: of each unused operation that raises for some values, or is an operator that
    others have registered. Itself if it has none."""
    if not any(map(runs_anyway, gm.graph.nodes)):
        return gm
    unused = _unused(gm)
    return with_results(gm, unused, _detached) if unused else gm


def gives_nothing(node: Node) -> bool:
    """Whether the node calls an operator that others have registered for its effects alone: functional graphs have no
    place for it."""
    called = node.op == "call_function" and facts(node.target)
    return bool(called and called.foreign and not called.writes and not _tensors_of(value_of(node)))


def _tensors_of(value: Any) -> list[int]:
    """The places of tensors in what an operation gives; 0 of a tensor itself."""
    if isinstance(value, (tuple, list)):
        return [at for at, part in enumerate(value) if isinstance(part, torch.Tensor)]
    return [0] if isinstance(value, torch.Tensor) else []


def _detached(node: Node) -> Node:
    value = value_of(node)
    if isinstance(value, (tuple, list)):
        at = _tensors_of(value)[0]
        with node.graph.inserting_after(node):
            node, value = node.graph.call_function(operator.getitem, (node, at)), value[at]
        node.meta["example_value"] = value
    with node.graph.inserting_after(node):  # in the piece that the operation is in, if the graph is cut
        made = node.graph.call_method("detach", (node,))
    if value is not None:  # a graph that was not captured may have no values
        made.meta["example_value"] = value.detach()
    return made


def _unused(gm: GraphModule) -> list[Node]:
    """What marked operations give, or write, that leads to no result and to no write of what is seen outside."""
    in_levels = GraphFacts(gm).in_levels  # a graph that drops some of these runs as it was captured
    given = [_written(node) or node for node in unused_calls(gm, runs_anyway) if node not in in_levels]
    return [node for node in dict.fromkeys(given) if _tensors_of(value_of(node)) and node.op != "placeholder"]


def _written(node: Node) -> Node | None:
    """What an operation writes in place."""
    return next((part for part in node.all_input_nodes if memory(part) in notes(node).writes), None)


def with_unused_draws(gm: GraphModule) -> GraphModule:
    """`gm`, or a copy that also returns the random numbers that nothing uses."""
    used = {*reached([gm.graph.output_node()], values_read)}
    unused = [node for node in gm.graph.nodes if node not in used and is_drawn(node)]
    return with_results(gm, unused, lambda node: (_none_of if written_by(node) else _detached)(node)) if unused else gm


def _none_of(node: Node) -> Node:
    """No element of a tensor that is written in place, in memory of its own: the tensor may be written again, and
    it may be an input, which AOTAutograd does not always return as the result that it is."""
    for name, *args in (("detach",), ("unsqueeze", 0), ("narrow", 0, 0, 0), ("clone",)):
        node = node.graph.call_method(name, (node, *args))
    return node


def first_results(count: int, compiled: Callable[..., Sequence[Any]], *inputs: Any) -> Sequence[Any]:
    """The first `count` results."""
    return compiled(*inputs)[:count]
