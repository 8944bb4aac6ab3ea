"""Convolutions of few channels on CPUs, and their gradients, which oneDNN finds by blocks of 16 channels.

In:  an ATen graph. Out: the same graph, or a copy in which such a convolution is given tensors whose channels come
last: of those it fills no blocks. Gradients of one to four channels to as many take half to a third of the time so,
copies included, and a quarter of the memory. Forward gains no time, so only a single channel is, which needs no copies.
What is made of the results has the strides that it had.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dynajit.aot.passes.depthwise import images_of
from dynajit.aot.rewrite import call, compute, copied
from dynajit.graph.meta import value_of

aten = torch.ops.aten
_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default
MAX_CHANNELS = 4


def channels_last_where_few(gm: GraphModule) -> GraphModule:
    """`gm`, or a rewritten copy."""
    if not list(_found(gm)):
        return gm
    made = copied(gm)
    for node in _found(made):
        _turn(node)
    return made


def _found(gm: GraphModule) -> Iterator[Node]:
    for node in gm.graph.find_nodes(op="call_function", target=_BACKWARD):
        if _pays(node.args[:3], *node.args[7:10:2]) and node.args[10][0]:
            yield node
    for node in gm.graph.find_nodes(op="call_function", target=_FORWARD):
        if _pays((node, *node.args[:2]), *node.args[6:9:2]) and value_of(node.args[0]).shape[1] == 1:
            yield node


def _pays(tensors: Sequence[Any], transposed: Any, groups: Any) -> bool:
    """`tensors`: the result or its gradient, what is given, the weight."""
    images = images_of(tensors)
    if images is None or images[1].dtype is not torch.float32:
        return False
    made, channels = (image.shape[1] for image in images[:2])
    few = channels <= MAX_CHANNELS and made <= MAX_CHANNELS and (channels > 1 or made == 1)
    contiguous = all(image.is_contiguous() for image in images)
    return not transposed and groups == 1 and few and contiguous


def _turn(node: Node) -> None:
    backward = node.target is _BACKWARD
    tensors: Any = node.args[:3] if backward else node.args[:2]
    # a single channel is first and last: the weight's strides say which
    turned = tensors if value_of(tensors[-2]).shape[1] > 1 else tensors[-1:]
    with node.graph.inserting_before(node):
        copies = {arg: call(arg, aten.clone.default, arg, memory_format=torch.channels_last) for arg in turned}
    node.args = tuple(copies.get(arg, arg) if isinstance(arg, Node) else arg for arg in node.args)
    made = node.meta["val"] = compute(node)
    parts = [part for part in node.users if part.target is operator.getitem] if backward else [node]
    for part in parts:
        if backward:
            part.meta["val"] = made[part.args[1]]
        if part.meta["val"] is not None:
            with node.graph.inserting_after(part):
                back = call(part, aten.clone.default, part, memory_format=torch.contiguous_format)
            part.replace_all_uses_with(back)
            back.update_arg(0, part)
