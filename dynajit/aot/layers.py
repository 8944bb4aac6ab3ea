"""Equal layers of a captured graph: runs of nodes that do the same, one after the other, with other inputs.

In:  a torch-level graph. Out: its layers, or None. They are found by what their nodes do: a period in the sequence of
nodes, cut where the fewest values go across. Nothing is asked of where they come from: modules, functions or a loop. A
layer that differs in anything is no layer. No graph that changes torch's state or has symbolic sizes has any, nor one
that writes tensors, save where that is asked for.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dynajit.graph.meta import memory, notes, value_of
from dynajit.op_facts import CONSTANT_TYPES, facts

_MIN_NODES = 8  # of a layer that is worth it
MIN_LAYERS = 3
_PERIODS = 4  # the most common distances that are tried
_CUTS = 4  # places to cut at that are tried, those across which the fewest values go first
# for which a number is but a number: nothing of what they or their gradients do depends on its value
_ARITHMETIC = frozenset(
    {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div}
    | {torch.full, torch.full_like, torch.where, torch.masked_fill}
    | {"add", "sub", "mul", "div", "new_full", "where", "masked_fill"}
)
# methods that are no operators by their names
_CONVERSIONS = frozenset({"bfloat16", "bool", "double", "float", "half", "int", "long"})


@dataclasses.dataclass
class Layer:
    """One layer: its nodes in order, and the values that it reads, in the order in which it does first. between: what
    the graph computes between the first and the last of its nodes, of nothing that the layer makes."""

    nodes: list[Node]
    inputs: list[Node]
    between: list[Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Layers:
    """Equal layers. results: which of a layer's nodes are read outside of it, of one layer or another."""

    layers: list[Layer]
    results: list[int]

    def count_nodes(self) -> int:
        """How many nodes they have in all."""
        return sum(len(layer.nodes) for layer in self.layers)

    def numbers(self) -> list[tuple[int, int]]:
        """Where layers compute with other numbers than others: the node, and which of its arguments it is."""
        return [
            (at, place)
            for at, alike in enumerate(zip(*(layer.nodes for layer in self.layers), strict=True))
            for place, value in enumerate(alike[0].args)
            if type(value) in (int, float) and len({repr(node.args[place]) for node in alike}) > 1
        ]


def equal_layers(
    gm: GraphModule,
    fits: Callable[[Layers], bool] = lambda layers: True,
    new: bool = True,
    loose: bool = False,
    numbers: bool = False,
) -> Layers | None:
    """The layers of a graph, three or more, if there are. `fits`: whether they are cut where it does no harm. `new`:
    whether what they give must be new tensors. `loose`: whether other nodes may lie between those of a layer, as where
    each step of a loop reads another part of one tensor, and the graph may write what no layer has to do with.
    `numbers`: whether each may add, subtract, multiply or divide by, or fill tensors with, numbers of its own."""
    nodes = [node for node in gm.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    odd = {node for node in nodes if not _is_understood(node)}
    if len(nodes) < MIN_LAYERS * _MIN_NODES or not (all(map(_only_writes, odd)) if loose else not odd):
        return None
    known: dict[Node, Any] = {}
    number_of: dict[Any, int] = {}  # looks are compared many times
    looks: dict[Node, int] = {}
    reads: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node in nodes:
        look = object() if node in odd else _look(node, known, numbers, reads[node])
        looks[node] = number_of.setdefault(look, len(number_of))
    form = functools.partial(_form, known, looks, reads)
    search = functools.partial(
        _most_layers, nodes, looks, form, new, lambda found: _untouched(found, nodes) and fits(found)
    )
    best = search(nodes)
    if loose and (best is None or 2 * best.count_nodes() < len(nodes)):
        parts = _parts(looks)
        other = search([node for node in nodes if node not in parts]) if parts else None
        if other is not None and (best is None or other.count_nodes() > best.count_nodes()):
            return other
    return best


def _most_layers(
    every: list[Node],
    look_of_node: dict[Node, Any],
    form: Callable[[Layer], Any],
    new: bool,
    fits: Callable[[Layers], bool],
    nodes: list[Node],
) -> Layers | None:
    """The layers that have the most of `nodes`, which are some of `every` node of a graph."""
    looks = [look_of_node[node] for node in nodes]
    place = {node: at for at, node in enumerate(nodes)}
    place_of_all = {node: at for at, node in enumerate(every)}
    last = [max((place.get(user, len(nodes)) for user in node.users), default=-1) for node in nodes]
    best: Layers | None = None
    for period in _periods(looks):
        begin, end = _longest(looks, period)
        if end - begin < MIN_LAYERS * period or (best is not None and end - begin <= best.count_nodes()):
            continue
        offsets = sorted(range(period), key=lambda at: _crossing(last, begin, begin + at + period))
        for offset in offsets[:_CUTS]:
            starts = _like(looks, looks[begin + offset : begin + offset + period])
            layers = [_layer(every, place_of_all, nodes[start : start + period]) for start in starts]
            found = _equal([layer for layer in layers if layer is not None], new, form)
            if found is not None and (best is None or found.count_nodes() > best.count_nodes()) and fits(found):
                best = found
                break
    return best


def _parts(looks: dict[Node, Any]) -> set[Node]:
    """Views that take another part of one value in each layer: there are more parts of it than layers that take the
    same one of theirs."""
    parts = {node: node.all_input_nodes[0] for node in looks if _is_part(node)}
    taken: collections.defaultdict[Any, set[Any]] = collections.defaultdict(set)
    for node, source in parts.items():
        taken[node.target, source].add(looks[node])
    times = collections.Counter(looks.values())
    return {node for node, source in parts.items() if len(taken[node.target, source]) > times[looks[node]]}


def _is_part(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value._is_view() and len(node.all_input_nodes) == 1


def _is_understood(node: Node) -> bool:
    """Whether all that an operation does is to compute what it gives, maybe of random numbers."""
    if node.op not in ("call_function", "call_method") or notes(node).writes:
        return False
    known = facts(node.target)
    understood = known.known or (known.pure and not known.communicates)
    return (understood and not known.writes) or (node.op == "call_method" and node.target in _CONVERSIONS)


def _only_writes(node: Node) -> bool:
    """Whether an operation is known to do nothing but write tensors, and which."""
    written = notes(node).writes
    return (
        node.op in ("call_function", "call_method")
        and facts(node.target).known
        and bool(written)
        and None not in written
    )


def _untouched(found: Layers, nodes: list[Node]) -> bool:
    """Whether nothing that the layers read or make is written from where the first of them begins. Eager mode has
    saved it by then, and may refuse."""
    since = itertools.dropwhile(lambda node: node is not found.layers[0].nodes[0], nodes)
    written = {one for node in since for one in notes(node).writes}
    return not written or written.isdisjoint(
        memory(node) for layer in found.layers for node in itertools.chain(layer.inputs, layer.nodes)
    )


def _look(node: Node, known: dict[Node, Any], numbers: bool, reads: list[Node]) -> Any:
    """What has to be the same of two nodes, but for where their arguments come from. `known`: looks of values so far.
    Adds to `reads` the nodes in the arguments, in their order there."""

    def ref(read: Node) -> Any:
        reads.append(read)
        return _look_of_value(known, read)

    try:
        arguments = arguments_key((_args(node, numbers), node.kwargs), ref)
        return (node.op, node.target, arguments, _look_of_value(known, node))
    except NotCompared:
        return object()


def _args(node: Node, numbers: bool) -> tuple[Any, ...]:
    """The arguments, with any number for those that may differ."""
    if not numbers or node.target not in _ARITHMETIC:
        return node.args
    return tuple(f"any {type(arg).__name__}" if type(arg) in (int, float) else arg for arg in node.args)


class NotCompared(Exception):
    """Something that is equal to nothing."""


def _look_of_value(known: dict[Node, Any], node: Node) -> Any:
    found = known.get(node)
    if found is None:
        found = known[node] = look_of(value_of(node))
    return found


def arguments_key(value: Any, ref: Callable[[Node], Any] = lambda node: look_of(value_of(node))) -> Any:
    """Something that is equal for equal arguments alone; `ref` says what stands for a node. As text, floats tell 0.0
    from -0.0. Raises NotCompared."""
    if isinstance(value, Node):
        return (Node, ref(value))
    if isinstance(value, (tuple, list)):
        return (type(value), *(arguments_key(item, ref) for item in value))
    if isinstance(value, dict):
        return (dict, *((name, arguments_key(item, ref)) for name, item in value.items()))
    if isinstance(value, slice):
        return (slice, arguments_key((value.start, value.stop, value.step), ref))
    if type(value) in CONSTANT_TYPES or value is Ellipsis:
        return (type(value), repr(value) if isinstance(value, (float, complex)) else value)
    raise NotCompared


def look_of(value: Any) -> Any:
    """The metadata of a fake value."""
    if isinstance(value, torch.Tensor):
        if value._has_symbolic_sizes_strides or value.layout is not torch.strided:  # type: ignore[attr-defined]
            raise NotCompared
        keys = torch._C._dispatch_keys(value).raw_repr()
        return (tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad, keys)
    if isinstance(value, (tuple, list)):
        return (type(value), *map(look_of, value))
    return arguments_key(value)


def _periods(looks: Sequence[Any]) -> list[int]:
    """The distances at which nodes alike follow each other most often, alone or with those that come next: what repeats
    inside of a layer hides its length."""
    runs = [tuple(looks[at : at + _MIN_NODES]) for at in range(len(looks))]
    return list(dict.fromkeys((*_gaps(looks), *_gaps(runs))))


def _gaps(looks: Sequence[Any]) -> list[int]:
    seen: dict[Any, int] = {}
    gaps: collections.Counter[int] = collections.Counter()
    for at, look in enumerate(looks):
        if look in seen:
            gap = at - seen[look]
            gaps[gap * -(-_MIN_NODES // gap)] += 1  # several steps of a short loop are a layer
        seen[look] = at
    return [gap for gap, _ in gaps.most_common(_PERIODS)]


def _longest(looks: Sequence[Any], period: int) -> tuple[int, int]:
    """The longest stretch in which each node is like the one a period later."""
    best = (0, 0)
    begin = 0
    for at in range(len(looks) - period + 1):
        if at == len(looks) - period or looks[at] != looks[at + period]:
            if at - begin > best[1] - best[0]:
                best = (begin, at)
            begin = at + 1
    return best[0], best[1] + period


def _like(looks: Sequence[Any], wanted: Sequence[Any]) -> Iterator[int]:
    """Where nodes begin that are like the wanted ones, without any that is among those before."""
    at = 0
    while at <= len(looks) - len(wanted):
        if looks[at] == wanted[0] and looks[at : at + len(wanted)] == wanted:
            yield at
            at += len(wanted)
        else:
            at += 1


def _crossing(last: Sequence[int], begin: int, end: int) -> int:
    """How many values of the nodes between are read at `end` or later."""
    return sum(last[at] >= end for at in range(begin, end))


def _layer(every: list[Node], place: dict[Node, int], nodes: list[Node]) -> Layer | None:
    """The layer of these nodes; None if what is between them reads what they give. `place`: of `every` node."""
    own = set(nodes)
    between = [node for node in every[place[nodes[0]] : place[nodes[-1]]] if node not in own]
    if any(part in own for node in between for part in node.all_input_nodes):
        return None
    read = dict.fromkeys(part for node in nodes for part in node.all_input_nodes)
    return Layer(nodes, [node for node in read if node not in own], between)


def _equal(layers: list[Layer], new: bool, form_of: Callable[[Layer], Any]) -> Layers | None:
    """Those that are like most of them, if what they give are new tensors, where it has to be `new`."""
    if not layers:
        return None
    forms = [form_of(layer) for layer in layers]
    form, _ = max(collections.Counter(forms).items(), key=operator.itemgetter(1))
    equal = [layer for layer, own in zip(layers, forms, strict=True) if own == form]
    if len(equal) < MIN_LAYERS:
        return None
    inside = [set(layer.nodes) for layer in equal]
    results = [
        at
        for at in range(len(equal[0].nodes))
        if any(not own.issuperset(layer.nodes[at].users) for own, layer in zip(inside, equal, strict=True))
    ]
    return Layers(equal, results) if not new or all(_are_new(layer, results) for layer in equal) else None


def _form(known: dict[Node, Any], looks: dict[Node, int], reads: dict[Node, list[Node]], layer: Layer) -> Any:
    """What is the same of equal layers. `known`: looks of values so far; `looks`, `reads`: of each node, its own and
    the nodes that it reads."""
    place = {node: at for at, node in enumerate((*layer.inputs, *layer.nodes))}.__getitem__
    if any(node.op == "get_attr" for node in layer.inputs):
        return object()
    try:
        inputs = tuple(_look_of_value(known, node) for node in layer.inputs)
    except NotCompared:
        return object()
    return inputs, tuple((looks[node], *map(place, reads[node])) for node in layer.nodes)


def _are_new(layer: Layer, results: list[int]) -> bool:
    """Whether what a layer gives are tensors with memory of their own."""
    values = [value_of(layer.nodes[at]) for at in results]
    if not all(isinstance(value, torch.Tensor) and not value._is_view() for value in values):
        return False
    memories = [memory(layer.nodes[at]) for at in results]
    return len(set(memories)) == len(memories) and not {*memories} & {memory(node) for node in layer.inputs}


def items_of(node: Node) -> Iterator[tuple[Node, int]]:
    """The nodes that take one item of what a node gives, and which."""
    for user in list(node.users):
        assert user.target is operator.getitem
        yield user, user.args[1]  # type: ignore[misc]
