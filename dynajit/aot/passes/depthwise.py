"""Gradients of depthwise weights on CPUs, where oneDNN needs much memory for them.

In:  a backward graph. Out: the same graph, or a copy in which gradients of such a weight are found from contiguous
copies. For tensors whose channels come last and kernels of more than 3x3, oneDNN takes each channel for a group of 16
by 16: for 384 channels and 7x7 that is 18 MB. On small planes the way over contiguous tensors takes about as long.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dynajit.aot.rewrite import call, copied

aten = torch.ops.aten
_BACKWARD = aten.convolution_backward.default
# The most elements of a plane of the result, and of a kernel for which oneDNN has a way of its own.
MAX_PLACES, OWN_WAY = 196, 9


def contiguous_where_small(gm: GraphModule) -> GraphModule:
    """`gm`, or a rewritten copy."""
    if not any(map(_pays, gm.graph.find_nodes(op="call_function", target=_BACKWARD))):
        return gm
    made = copied(gm)
    for node in filter(_pays, made.graph.find_nodes(op="call_function", target=_BACKWARD)):
        _split(made.graph, node)
    return made


def images_of(tensors: Sequence[Any]) -> Any:
    """The values of a convolution's tensors; None unless they are images on a CPU, of known sizes."""
    values = [getattr(tensor, "meta", {}).get("val") for tensor in tensors]
    known = (
        isinstance(value, torch.Tensor)
        and value.dim() == 4
        and value.device.type == "cpu"
        and all(type(size) is int for size in value.shape)
        for value in values
    )
    return values if all(known) else None


def _pays(node: Node) -> bool:
    args: Any = node.args
    images = images_of(args[:3])
    if images is None:
        return False
    gradient, given, weight = images
    groups, (_, of_weight, _) = args[9:11]
    depthwise = groups == given.shape[1] == weight.shape[0] and weight.shape[1] == 1 < groups
    places, kernel = gradient.shape[2] * gradient.shape[3], weight.shape[2] * weight.shape[3]
    last = not (given.is_contiguous() and gradient.is_contiguous())
    return bool(of_weight) and depthwise and last and places <= MAX_PLACES and kernel > OWN_WAY


def _split(graph: Graph, node: Node) -> None:
    """The gradient of what the convolution was given as before; those of weight and bias from contiguous copies."""
    args: Any = node.args
    of_given, *of_others = args[10]
    values: Any = node.meta["val"]
    with graph.inserting_before(node):
        copies = [call(node, aten.clone.default, arg, memory_format=torch.contiguous_format) for arg in args[:2]]
        others = graph.call_function(_BACKWARD, (*copies, *args[2:10], [False, *of_others]))
        others.meta.update(node.meta, val=(None, *values[1:]))
    for item in list(node.users):
        if item.target is operator.getitem and item.args[1] != 0:
            item.args = (others, item.args[1])
    if of_given:
        node.args = (*args[:10], [True, False, False])
        node.meta["val"] = (values[0], None, None)
    else:
        graph.erase_node(node)
