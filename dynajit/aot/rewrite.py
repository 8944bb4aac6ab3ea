"""Copies and cuts of graphs: whoever copies a graph, all of it or a part, does it here.

In:  a graph module, torch-level or of ATen operations, which stays as it is. Out: another one with the same attributes
and notes: `copied` has the same nodes, `without` all but some, `with_results` gives more, `cut` is a part of them.
`Copy` is for rewriting node by node, `call` for new nodes in a graph of ATen operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _make_graph_module
from torch.fx.node import map_arg

from dynajit import torch_compat
from dynajit.graph.meta import history_of, memory, note, note_graph, notes, value_of, written_by
from dynajit.nested import reached


class Copy:
    """A graph that is made of the nodes of another one, in order.

    of: what there is in place of a node of the other graph: a node of the new one, or a number.
    """

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.graph = Graph()
        self.of: dict[Node, Any] = {}

    def take(self, node: Node, **meta: Any) -> Node:
        """The node, computed of what there is in place of its arguments; `meta`: what differs in torch.fx's `meta`."""
        made = self.of[node] = self.graph.node_copy(node, self.of.__getitem__)
        made.meta.update(meta)
        return made

    def take_all(self, nodes: Iterable[Node]) -> None:
        """All these nodes, but for the output, which `finish` makes."""
        for node in nodes:
            if node.op != "output":
                self.take(node)

    def finish(self, results: Sequence[Any] | None = None, more: Sequence[Node] = ()) -> GraphModule:
        """The module.

        Args:
            results: nodes of the other graph whose counterparts it returns; by default those that that one returns.
            more: nodes of the new graph that it returns after them.
        """
        end = self.gm.graph.output_node()
        wanted: Any = end.args[0] if results is None else results
        found = map_arg(wanted, self.of.__getitem__)
        self.graph.output(type(found)((*found, *more)) if more else found)
        if results is None and not more:
            self.graph.output_node().meta.update(end.meta)
        return self.module()

    def module(self) -> GraphModule:
        """The module of the graph, which has its output. Its Python is generated when someone calls it, which of ATen
        graphs most backends never do."""
        if any("val" in node.meta for node in self.graph.find_nodes(op="placeholder")):
            with torch_compat.lazy_graphs():
                made = _make_graph_module(self.gm, self.graph)
        else:
            made = torch_compat.graph_module(self.gm, self.graph)
        made.meta.update(self.gm.meta)
        return made


def compute(node: Node) -> Any:
    """What the node gives, of the fake values of its arguments, which rewriting may have changed. Where none of them is
    a tensor, its own value tells the fake mode."""
    args, kwargs = map_arg((node.args, node.kwargs), value_of)
    modes = (value.fake_mode for value in map(value_of, (node, *node.all_input_nodes)) if isinstance(value, FakeTensor))
    with next(modes, None) or nullcontext(), torch.no_grad():
        return run(node, args, kwargs)


def run(node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the node's function or method gives of these arguments."""
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    function: Any = node.target
    return function(*args, **kwargs)


def call(like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node with its fake value where its graph inserts; `like`: what it is of in the program."""
    made = like.graph.call_function(target, args, kwargs)
    made.meta = dict(like.meta)
    made.meta["val"] = compute(made)
    return made


def fake_inputs(gm: GraphModule) -> list[Any]:
    """What stands for the inputs of an ATen graph."""
    return [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]


def is_tangent(node: Node) -> bool:
    """Whether an input of a joint graph is the gradient of a result."""
    return "tangents" in str(node.target)


def is_of_backward(node: Node) -> bool:
    """Whether a node of a joint graph was traced in the backward pass."""
    return node.meta.get("partitioner_tag") == "is_backward"


def halves_of(joint: GraphModule, n_results: int) -> tuple[set[Node], set[Node]]:
    """What a joint graph computes in forward, be it for backward alone, as a Function may; and what for gradients."""
    outputs = results_of(joint)
    backward = ancestors(outputs[n_results:])
    early = {node for node in backward if node.meta.get("partitioner_tag") == "is_forward"}
    return ancestors(outputs[:n_results]) | early, backward


def results_of(gm: GraphModule) -> tuple[Any, ...]:
    """What a graph returns: nodes and constants."""
    results: Any = gm.graph.output_node().args[0]
    return tuple(results)


def ancestors(ends: Iterable[object]) -> set[Node]:
    """The nodes among `ends`, and all that they are computed from."""
    return {*reached((end for end in ends if isinstance(end, Node)), lambda node: node.all_input_nodes)}


def descendants(starts: Iterable[Node]) -> set[Node]:
    """The nodes `starts`, and all that is computed of them."""
    return {*reached(starts, lambda node: node.users)}


def same_numbers(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Whether sizes or strides are the same. As text: to compare symbols would be to decide something of them."""
    return [str(number) for number in one] == [str(number) for number in other]


def copied(gm: GraphModule) -> GraphModule:
    """The same graph, to be changed."""
    return without(gm, ())


def without(gm: GraphModule, nodes: Collection[Node]) -> GraphModule:
    """The graph without nodes that nothing uses."""
    copy = Copy(gm)
    copy.take_all(node for node in gm.graph.nodes if node not in nodes)
    return copy.finish()


def with_results(gm: GraphModule, nodes: Iterable[Node], of: Callable[[Node], Node]) -> GraphModule:
    """The graph with further results after its own: what `of` makes, in the new graph, of the copies of these."""
    copy = Copy(gm)
    copy.take_all(gm.graph.nodes)
    return copy.finish(more=[of(copy.of[node]) for node in nodes])


def cut(gm: GraphModule, nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node]) -> GraphModule:
    """A graph of some of the nodes, in order, which takes the values of `inputs` and returns those of `outputs`."""
    copy = Copy(gm)
    # by Functions, of which a tensor that they mark dirty has its history by now
    dirty = {own for node in nodes for own in notes(node).writes}.difference(
        memory(part) for node in nodes for part in written_by(node)
    )
    for node in inputs:
        copy.of[node] = made = copy.graph.placeholder(node.name)
        made.meta.update(node.meta)
        if node.op != "placeholder" and memory(node) not in dirty:
            note(made, grad_fn=history_of(value_of(node)))
    read = {part for node in nodes for part in node.all_input_nodes if part.op == "get_attr"}
    copy.take_all(node for node in gm.graph.find_nodes(op="get_attr") if node in read)
    copy.take_all(nodes)
    part = copy.finish(tuple(outputs))
    note_graph(part, late_views=())
    return part
