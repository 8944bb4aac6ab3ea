"""What is written into a part of a tensor, where no kernel computes it: fewer calls.

In:  a functional graph with `slice_scatter(base, copy(slice(base), x))` of complex numbers: a spectrum of which some
places are filled, the gradient of what was read of one. Out: `pad_what_is_placed(gm)`: the same module, with
`constant_pad_nd(x)` there where the base is zeros, else with `slice_scatter(base, x)`. A kernel stores `x` where it
belongs; of complex numbers there are none, and each of these calls makes a tensor, `copy` one as large as the base.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from dynajit.aot.rewrite import call
from dynajit.aot.trace import eliminate_dead_code
from dynajit.graph.meta import value_of

aten = torch.ops.aten
_ZEROS = (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)
# What is around a tensor in zeros, before and after it, in each dimension.
Around = list[tuple[int, int]]


def pad_what_is_placed(gm: GraphModule) -> GraphModule:
    """`gm`, changed in place."""
    changed = False
    for node in reversed(gm.graph.find_nodes(op="call_function", target=aten.slice_scatter.default)):
        if value_of(node).dtype.is_complex and node.users:
            changed = _pad(node) or _without_copy(node) or changed
            eliminate_dead_code(gm.graph)
    if changed:
        gm.recompile()
    return gm


def _pad(node: Node) -> bool:
    found = _placed(node)
    if found is None:
        return False
    inner, around = found
    with node.graph.inserting_before(node):
        padded = call(node, aten.constant_pad_nd.default, inner, [n for pair in reversed(around) for n in pair])
    fits: bool = padded.meta["val"].stride() == value_of(node).stride()
    if fits:
        node.replace_all_uses_with(padded)
    return fits


def _without_copy(node: Node) -> bool:
    given: Any = node.args[1]
    copied = _copied(given)
    node.update_arg(1, copied)
    return copied is not given


def _copied(part: Node) -> Node:
    """What the part is a copy of, else itself."""
    source: Any = part.args[1] if part.target is aten.copy.default else part
    return source if _alike(part, source) and value_of(part).shape == value_of(source).shape else part


def _placed(node: Node) -> tuple[Node, Around] | None:
    """What lies in zeros; None if it is anything else that the node gives."""
    args: Any = [*node.args, *(0, None, None, 1)[len(node.args) - 2 :]]
    base, part, dim, start, end, step = args
    value: Any = value_of(node)
    numbers = (*value.shape, dim, *(place for place in (start, end) if place is not None))
    if step != 1 or not all(type(number) is int for number in numbers) or not _is_zero(base):
        return None
    nested = _placed(part) if part.target is aten.slice_scatter.default else None
    inner, around = nested or (_copied(part), [(0, 0)] * value.dim())
    if not _alike(inner, node):
        return None
    first, last, _ = slice(start, end).indices(value.shape[dim])
    around[dim] = (first, value.shape[dim] - max(first, last))
    return inner, around


def _alike(one: Node, other: Node) -> bool:
    here, there = value_of(one), value_of(other)
    return here.dtype is there.dtype and bool(here.device == there.device)


def _is_zero(node: Any) -> bool:
    while node.target is aten.slice.Tensor:
        node = node.args[0]
    return node.target in _ZEROS or (node.target is aten.full.default and node.args[1] == 0)
