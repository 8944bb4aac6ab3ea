"""Gradients of the parts of a tensor, put together where eager adds up tensors that are zero but for one part each.

In:  an ATen graph, `select_backward(a, [2, 3], 0, 0) + select_backward(b, [2, 3], 0, 1)` in it, as autograd makes it of
a loop over `x[0]` and `x[1]`. Out: `sums_of_parts(gm)`: the same graph, with `stack([a, b])`. A loop of n steps costs n
parts then, not n tensors of n parts. Where parts overlap, and where other tensors are added, there are several
tensors to be added up, as many as there are for any one element, and each element is added up in the order of before.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dynajit.aot.rewrite import call, copied, same_numbers
from dynajit.aot.trace import eliminate_dead_code
from dynajit.graph.meta import value_of

aten = torch.ops.aten

_SELECTED = aten.select_backward.default
_SLICED = aten.slice_backward.default


@dataclass(frozen=True, slots=True)
class _Part:
    """What `node` adds from `start` to `end` along the dimension. gradient: what lies there, None if it is `node`."""

    start: int
    end: int
    node: Node
    gradient: Node | None = None


def sums_of_parts(gm: GraphModule) -> GraphModule:
    """`gm`, or a rewritten copy."""
    if sum(len(gm.graph.find_nodes(op="call_function", target=target)) for target in (_SELECTED, _SLICED)) < 2:
        return gm
    made = copied(gm)
    now: dict[Node, Node] = {}
    for node, terms in _sums(made.graph):
        total = _put_together(node, [now.get(term, term) for term in terms])
        if total is not None:
            now[node] = total
            node.replace_all_uses_with(total)
    if not now:
        return gm
    eliminate_dead_code(made.graph)
    return made


def _sums(graph: Graph) -> list[tuple[Node, list[Node]]]:
    """Additions one after the other whose results nothing else reads: the last node of each, and what is added up."""
    terms: dict[Any, list[Node]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if not _is_sum(node):
            continue
        one, other = node.args
        if other in terms and one not in terms:
            one, other = other, one
        before = terms.pop(one) if one in terms and one is not other and len(one.users) == 1 else [one]
        before.append(other)
        terms[node] = before
    return list(terms.items())


def _is_sum(node: Node) -> bool:
    """Is it a sum of two tensors of its own shape and dtype?"""
    if node.kwargs or len(node.args) != 2 or not all(isinstance(arg, Node) for arg in node.args):
        return False
    value: Any = value_of(node)
    return all(
        isinstance(each, torch.Tensor)
        and each.dtype is value.dtype
        and each.device == value.device
        and same_numbers(each.shape, value.shape)
        for each in map(value_of, node.all_input_nodes)
    )


def _put_together(node: Node, terms: list[Node]) -> Node | None:
    """The sum as one of fewer tensors; None where it can't be, or has other strides."""
    dim = next((each.args[2] for each in terms if each.target in (_SELECTED, _SLICED)), None)
    value = value_of(node)
    if not isinstance(dim, int) or not isinstance(size := value.shape[dim], int):
        return None
    dim %= value.dim()
    layers: list[list[_Part]] = []
    for term in terms:
        _add(layers, _part(term, dim, size))
    if len(layers) == len(terms):
        return None
    with node.graph.inserting_before(node):
        total = _joined(node, layers[0], dim, size)
        for layer in layers[1:]:
            total = call(node, aten.add.Tensor, total, _joined(node, layer, dim, size))
    return total if same_numbers(value_of(total).stride(), value.stride()) else None


def _part(term: Node, dim: int, size: int) -> _Part:
    """Which part of the sum this tensor adds to: where it cannot be said, all of it."""
    whole = _Part(0, size, term)
    if term.target not in (_SELECTED, _SLICED) or len(term.users) > 1:
        return whole
    gradient, _, *numbers = term.args
    if not isinstance(gradient, Node) or not all(isinstance(number, int) for number in numbers):
        return whole
    along, start, *more = (int(number) for number in numbers)  # type: ignore[arg-type]
    if along % value_of(term).dim() != dim:
        return whole
    if term.target is _SELECTED:
        start %= size
        return _Part(start, start + 1, term, gradient)
    start, end, step = slice(start, *more).indices(size)
    return _Part(start, end, term, gradient) if step == 1 and start < end else whole


def _add(layers: list[list[_Part]], part: _Part) -> None:
    """Puts the part into the first layer after all those with parts that it overlaps, so that each element is added up
    in the order in which the parts come."""
    found = None
    for layer in reversed(layers):
        at = bisect.bisect(layer, part.start, key=lambda each: each.start)
        if (at and layer[at - 1].end > part.start) or (at < len(layer) and layer[at].start < part.end):
            break
        found = layer, at
    if found is None:
        layers.append([part])
    else:
        found[0].insert(found[1], part)


def _joined(like: Node, layer: list[_Part], dim: int, size: int) -> Node:
    """The parts of a layer as one tensor, zeros where there are none."""
    if len(layer) == 1:
        return layer[0].node
    selected = [part.gradient for part in layer if part.node.target is _SELECTED]
    if len(selected) == size:
        return call(like, aten.stack.default, selected, dim)
    pieces: list[Any] = []
    end = 0
    for part in layer:
        if part.start > end:
            pieces.append(_zeros(layer[0], dim, part.start - end))
        one = part.node.target is _SELECTED
        pieces.append(call(like, aten.unsqueeze.default, part.gradient, dim) if one else part.gradient)
        end = part.end
    if end < size:
        pieces.append(_zeros(layer[0], dim, size - end))
    return call(like, aten.cat.default, pieces, dim)


def _zeros(part: _Part, dim: int, length: int) -> Node:
    """Zeros for so much of the dimension."""
    sizes: Any = part.node.args[1]
    value = value_of(part.node)
    sizes = [length if at == dim else number for at, number in enumerate(sizes)]
    return call(part.node, aten.full.default, sizes, 0, dtype=value.dtype, layout=value.layout, device=value.device)
