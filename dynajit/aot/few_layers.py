"""A graph of many equal layers that has only the first few of them, and how it goes on.

In:  a captured graph that is not differentiated, or the forward or backward graph of one that is. Out:
`with_few_layers(gm)`: the same with `KEPT` of its layers, the last of which stands for the last of all, and a
`Repeated`; None where there are no such layers, or they read anything but inputs of their own, what all of them read,
and what the one before gives. A backend compiles the short graph and repeats what it made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dynajit.aot.layers import Layers, equal_layers
from dynajit.aot.rewrite import Copy, results_of
from dynajit.graph.meta import NotRepeated, Repeated, value_of
from dynajit.report import logs

# The first layer differs (it makes what all of them share), so does the last. Two between show what is repeated.
KEPT = 4
_MIN_LAYERS = KEPT + 2


def with_few_layers(gm: GraphModule) -> tuple[GraphModule, Repeated] | None:
    """The short graph of a captured graph, and what is left out of it."""
    found = equal_layers(gm, lambda found: _are_repeated(gm, found), new=False)
    if found is None or len((found := _without_odd_ones(gm, found)).layers) < _MIN_LAYERS:
        return None
    series = _series(found)
    assert series is not None
    inside = {node: at for at, layer in enumerate(found.layers) for node in layer.nodes}
    results = _results(gm, found, inside)
    if results is None:
        return None
    given, taken = results
    of_input = {node: at for column in series for at, node in enumerate(column)}
    if len(of_input) != sum(map(len, series)):
        return None  # an input of more than one layer, or in more than one place
    copy = Copy(gm)
    last, stands_for_it = found.layers[-1].nodes, found.layers[KEPT - 1].nodes
    for node in gm.graph.nodes:
        layer = inside.get(node, of_input.get(node, 0))
        if layer < KEPT and node.op != "output":
            copy.take(node)
        elif node is last[-1]:
            copy.of.update((last[at], copy.of[stands_for_it[at]]) for at in found.results)
    names = tuple(node.name for node in gm.graph.find_nodes(op="placeholder"))
    by_name: dict[str, tuple[int, tuple[str, ...]]] = {}
    for column in series:
        own = tuple(node.name for node in column)
        by_name.update((name, (at, own)) for at, name in enumerate(own))
    short = copy.finish(taken)
    whole = gm if "val" in found.layers[0].nodes[0].meta else None
    return short, Repeated(KEPT, len(found.layers), names, by_name, given, whole)


def compile_few(
    short: GraphModule,
    repeated: Repeated,
    inputs: Sequence[Any],
    compile_short: Callable[[list[Any]], Callable[..., Any]],
) -> Callable[..., Any] | None:
    """The graph by way of its short one, which `compile_short` compiles for some of the inputs; None if it raises
    NotRepeated."""
    given = dict(zip(repeated.inputs, inputs, strict=True))
    try:
        compiled = compile_short([given[node.name] for node in short.graph.find_nodes(op="placeholder")])
    except NotRepeated as error:
        logs.emit("aot_graphs", f"layers are compiled one by one: {error}")
        return None
    logs.emit("aot_graphs", f"{repeated.layers} equal layers are compiled as {repeated.kept}, and their plan repeated")
    return compiled


def _without_odd_ones(gm: GraphModule, found: Layers) -> Layers:
    """The layers without the first few, where these give other results of the graph than those after them: what the
    partitioner saves of two that cost the same may differ from layer to layer."""
    returned = {node for node in results_of(gm) if isinstance(node, Node)}
    given = [[at for at, node in enumerate(layer.nodes) if node in returned] for layer in found.layers]
    middle = len(given) // 2
    odd = [at for at in range(middle) if given[at] != given[middle]]
    return Layers(found.layers[odd[-1] + 1 :], found.results) if odd else found


def _are_repeated(gm: GraphModule, found: Layers) -> bool:
    """Whether each layer reads inputs of its own, what all read, and what the one before gives."""
    return are_adjacent(gm, found) and _series(found) is not None and are_read_in_turn(gm, found)


def are_adjacent(gm: GraphModule, found: Layers) -> bool:
    """Whether nothing is computed between the layers."""
    nodes = (node for node in gm.graph.nodes if node.op not in ("placeholder", "get_attr", "output"))
    place = {node: at for at, node in enumerate(nodes)}
    starts = [place[layer.nodes[0]] for layer in found.layers]
    period = len(found.layers[0].nodes)
    return all(later - earlier == period for earlier, later in itertools.pairwise(starts))


def _series(found: Layers) -> list[Sequence[Node]] | None:
    """The inputs that each layer has of its own. None if layers read what is neither theirs, nor everybody's, nor of
    the layer before."""
    series: list[Sequence[Node]] = []
    for column in zip(*(layer.inputs for layer in found.layers), strict=True):
        if len(set(column)) == 1:
            continue
        if all(node.op == "placeholder" for node in column) and len(set(column)) == len(column):
            series.append(column)
        elif not _is_handed_on(found, column):
            return None
    return series


def _is_handed_on(found: Layers, column: Sequence[Node]) -> bool:
    """Whether each layer but the first reads here the same result of the one before."""
    return any(
        all(node is layer.nodes[at] for layer, node in zip(found.layers, column[1:], strict=False))
        for at in found.results
    ) and not any(column[0] in layer.nodes for layer in found.layers)


def are_read_in_turn(gm: GraphModule, found: Layers) -> bool:
    """Whether only the layer after it and the graph's results read what a layer gives and its own inputs; of the last
    one, anything."""
    whose = {node: at for at, layer in enumerate(found.layers) for node in layer.nodes}
    end = gm.graph.output_node()
    for at, layer in enumerate(found.layers[:-1]):
        for node in layer.nodes:
            if any(user is not end and whose.get(user, -1) not in (at, at + 1) for user in node.users):
                return False
    own = (read for column in _series(found) or () for read in enumerate(column))
    return not any(whose.get(user) != at and user is not end for at, node in own for user in node.users)


def _results(
    gm: GraphModule, found: Layers, inside: dict[Node, int]
) -> tuple[tuple[int | str | tuple[tuple[int, ...], int], ...], tuple[Any, ...]] | None:
    """Where each result of the graph comes from, and the results of the short one."""
    returned = results_of(gm)
    place_in_layer = {node: place for layer in found.layers for place, node in enumerate(layer.nodes)}
    of_layers: dict[int, list[int]] = {}
    for node in dict.fromkeys(returned):
        if node in inside:
            of_layers.setdefault(place_in_layer[node], []).append(inside[node])
    last = len(found.layers) - 1
    if any(sorted(layers) not in ([last], [*range(last + 1)]) for layers in of_layers.values()):
        return None
    taken: list[Any] = []
    at: dict[tuple[int, int], int] = {}  # (place in the layer, layer) -> place among the short graph's results
    own: dict[Any, int] = {}
    for node in dict.fromkeys(returned):
        layer = inside.get(node)
        if isinstance(node, Node) and node.op == "placeholder":
            if not isinstance(value_of(node), torch.Tensor):
                return None
            continue
        if layer is None:
            own[node] = len(taken)
        elif layer < KEPT:
            at[place_in_layer[node], layer] = len(taken)
        elif len(of_layers[place_in_layer[node]]) == 1:
            own[node] = len(taken)
            node = found.layers[KEPT - 1].nodes[place_in_layer[node]]
        else:
            continue
        taken.append(node)
    given: list[int | str | tuple[tuple[int, ...], int]] = []
    for node in returned:
        if node in own:
            given.append(own[node])
        elif node in inside:
            places = tuple(at[place_in_layer[node], layer] for layer in range(KEPT))
            given.append((places, inside[node]))
        else:
            given.append(node.name)
    return tuple(given), tuple(taken)
