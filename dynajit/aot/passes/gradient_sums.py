"""Gradients of a weight that is used several times, added up where the first of them lies.

In:  a backward graph, `x + embedding_dense_backward(...)` in it. Out: the same graph with `index_put(x, ...)`, which
adds rows to x: no tensor of zeros, no addition of all that is zero; and where nothing else needs x, the node's
`takes_first` says that its memory may be written. One more operator that gives zeros but in some places: a rule in
`_ONTO`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dynajit.aot.rewrite import call, copied, same_numbers
from dynajit.graph.meta import note, value_of

aten = torch.ops.aten

# Whose results are nobody else's memory.
_FRESH = (aten.mm.default, aten.addmm.default, aten.index_put.default)
_VIEWS = (aten.t.default, aten.view.default, aten.detach.default)


def added_in_place(gm: GraphModule) -> GraphModule:
    """`gm`, or a rewritten copy."""
    if not any(gm.graph.find_nodes(op="call_function", target=target) for target in _ONTO):
        return gm
    made = copied(gm)
    graph = made.graph
    for node in list(graph.find_nodes(op="call_function", target=aten.add.Tensor)):
        if node.kwargs or len(node.args) != 2:
            continue
        for whole, part in (node.args, node.args[::-1]):
            if _may_be_added(node, whole, part):
                _rewrite(graph, node, whole, part)
                break
    return made


def _may_be_added(node: Node, whole: object, part: object) -> bool:
    if not isinstance(whole, Node) or not isinstance(part, Node) or part.target not in _ONTO or len(part.users) != 1:
        return False
    if whole is part or whole.target in _ONTO or part.args[-1] is not False:
        return False
    values: list[Any] = [value_of(each) for each in (node, whole, part)]
    if not all(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in values):
        return False
    one = values[0]
    return one.dtype in (torch.float32, torch.float64) and all(
        value.dtype is one.dtype and same_numbers(value.shape, one.shape) for value in values
    )


def _rewrite(graph: Graph, node: Node, whole: Node, part: Node) -> None:
    dies = _dies_here(whole)
    with graph.inserting_before(node):
        put = _ONTO[part.target](graph, part, whole)
    put.meta = dict(node.meta)
    note(put, takes_first=dies)
    node.replace_all_uses_with(put)
    graph.erase_node(node)
    graph.erase_node(part)


def _dies_here(whole: Node) -> bool:
    """Whether this is the only use of a tensor that the graph made."""
    while len(whole.users) == 1 and whole.target in _VIEWS:
        whole = whole.args[0]  # type: ignore[assignment]
    return len(whole.users) == 1 and whole.target in _FRESH


def _embedding(graph: Graph, part: Node, whole: Node) -> Node:
    """What `embedding_dense_backward(gradient, indices, ...)` adds to zeros, added to `whole`."""
    gradient, indices, _, padding, _ = part.args
    assert isinstance(gradient, Node) and isinstance(indices, Node) and isinstance(padding, int)
    if padding >= 0:
        outside = call(part, aten.eq.Scalar, indices, padding)
        gradient = call(part, aten.masked_fill.Scalar, gradient, call(part, aten.unsqueeze.default, outside, -1), 0)
    return graph.call_function(aten.index_put.default, (whole, [indices], gradient, True))


_ONTO: dict[Any, Callable[[Graph, Node, Node], Node]] = {aten.embedding_dense_backward.default: _embedding}
