"""Cutting nodes out of the graph being built, to be the body of a higher-order operator.

In: the nodes that were added since a mark, and what they result in. Out: `CutNodes`: the nodes outside that they use,
and `build`, the GraphModule that takes given nodes as inputs. The nodes are gone from the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from dynajit import torch_compat
from dynajit.graph.meta import notes


class CutNodes:
    """Nodes on their way from the graph to a module of their own."""

    def __init__(self, nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> None:
        self.results = list(results)
        inside = set(nodes)
        used = [arg for node in nodes for arg in node.all_input_nodes] + self.results
        #: nodes outside that the body uses, each once
        self.free = list(dict.fromkeys(node for node in used if node not in inside))
        #: what a node that stands for them all says of what it does
        self.effects = _effects(nodes)
        self._copies: dict[fx.Node, fx.Node] = {}
        self._body = fx.Graph()
        for node in self.free:
            self._copies[node] = _placeholder(self._body, node)
        for node in nodes:
            self._copies[node] = self._body.node_copy(node, self._copies.__getitem__)

    def build(self, inputs: Sequence[fx.Node], name: str, single: bool = False) -> fx.GraphModule:
        """The module that takes the values of `inputs`, in this order, among them all of `free`."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            made = _placeholder(graph, node)
            if node in self._copies:
                copies[self._copies[node]] = made
        for node in self._body.nodes:
            if node.op != "placeholder":
                copies[node] = graph.node_copy(node, copies.__getitem__)
        outputs = [copies[self._copies[node]] for node in self.results]
        graph.output(outputs[0] if single else tuple(outputs))
        graph.eliminate_dead_code(lambda node: not notes(node).part)
        return torch_compat.graph_module(torch.nn.Module(), graph, name)


def _placeholder(graph: fx.Graph, node: fx.Node) -> fx.Node:
    made = graph.placeholder(node.name)
    made.meta.update(example_value=node.meta.get("example_value"))
    return made


def _effects(nodes: Sequence[fx.Node]) -> dict[str, Any]:
    each = [notes(node) for node in nodes]
    raising = [one for one in each if one.may_raise]
    return {
        "may_raise": bool(raising),
        "undo": raising[-1].undo if raising else None,
        "undoes_own": bool(raising) and raising[-1].undoes_own,
        "changes": any(one.changes for one in each),
        "writes": tuple(place for one in each for place in one.writes),
    }
