"""Copies of ATen graphs, to be rewritten: the one that was given stays as it is.

In:  a graph module. Out: `copied`, another one with the same nodes, notes on them and attributes.
"""

from __future__ import annotations

from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module


def copied(gm: GraphModule) -> GraphModule:
    """A copy whose Python is generated when someone calls it: most backends never do."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta.update(gm.graph.output_node().meta)
    with _use_lazy_graph_module(True):
        made = _make_graph_module(gm, graph)
    made.meta.update(gm.meta)
    return made
