"""Results that are views of inputs: they are taken before the graph, by torch itself.

In:  a torch-level graph. Out: a callable that takes these views, and runs what is compiled of the rest, to which they
are inputs. Each has autograd's node of the view then, as in eager mode, and passes from what was computed of it come by
it. With one node for all that the graph gives, passes would come to every input, also to those that a result is a
detached view of, and call their hooks with None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from dynajit.aot.legality import GraphFacts, is_plain
from dynajit.aot.training.late_views import way_to
from dynajit.aot.training.pieces import CompilePiece, Node, PartitionedCall, cut_in_two
from dynajit.graph.meta import graph_notes, memory, value_of


def with_early_views(
    graph: GraphFacts, example_inputs: Sequence[Any], compile_piece: CompilePiece
) -> Callable[..., Any] | None:
    """The graph with such views taken first; None where it returns none that can be."""
    if graph_notes(graph.gm).differentiated_inside:
        return None
    first = _ways(graph)
    # what gives several views is called once
    first |= {user for node in first if isinstance(value_of(node), (tuple, list)) for user in node.users}
    taken = [node for node in graph.calls if node in first]
    rest = [node for node in graph.calls if node not in first]
    if not taken or not all(is_plain(user) for node in taken for user in node.users if user.op != "output"):
        return None
    steps = cut_in_two(graph, taken, rest)
    if steps is None:
        return None
    early, main = steps
    early.compiled = early.module(graph.gm).forward
    if not rest:
        return PartitionedCall(graph.gm, [early])
    main.compile(graph, example_inputs, compile_piece)
    return PartitionedCall(graph.gm, steps)


def _ways(graph: GraphFacts) -> set[Node]:
    """The calls that give results which are views of inputs, of these alone, by calls that autograd sees."""
    outside = {*graph.inputs, *graph.gm.graph.find_nodes(op="get_attr")}
    # calls that only compute, made while gradients are on, as they are at the call
    seen = {node for node in graph.calls if node not in graph.in_no_grad and is_plain(node)}
    found: set[Node] = set()
    for node in graph.returned:
        own = memory(node)
        if node.op == "placeholder" or type(value_of(node)) is not FakeTensor or own not in graph.given - graph.written:
            continue
        way = set(way_to(node, graph.given))
        if way <= seen and all(part in outside or part in way for each in way for part in each.all_input_nodes):
            found |= way
    return found
