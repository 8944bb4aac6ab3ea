"""Convolutions on CPUs with channels last, which is oneDNN's own order: otherwise it reorders what it reads and writes.

In:  an inference graph of ATen operations. Out: the graph, or a copy in which convolutions are given tensors with their
channels last, and what follows keeps that order; results have the strides that they had.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from dynajit.aot.rewrite import call, compute, copied
from dynajit.graph.meta import value_of

aten = torch.ops.aten
_CONVOLUTION = aten.convolution.default
_DTYPES = (torch.float32, torch.bfloat16)
# The largest weight to be reordered, in sizes of what a convolution is given and gives.
MOST_WEIGHT = 2


def with_channels_last(gm: GraphModule) -> GraphModule:
    """`gm`, or a rewritten copy."""
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not any(map(_pays, gm.graph.nodes)) or not _is_static(gm):
        return gm
    made = copied(gm)
    return made if _Rewrite(made.graph).run() else gm


def _is_of_planes(node: Node) -> bool:
    """Whether it is a convolution of planes that oneDNN computes."""
    if node.target is not _CONVOLUTION:
        return False
    args: Any = node.args
    values = [value_of(arg) for arg in args[:2]]
    return all(
        isinstance(value, torch.Tensor) and value.dim() == 4 and value.device.type == "cpu" and value.dtype in _DTYPES
        for value in values
    )


def _pays(node: Node) -> bool:
    """Whether reordering the weight costs less than reordering what is read and written, as oneDNN does otherwise."""
    if not _is_of_planes(node):
        return False
    args: Any = node.args
    given, weight = (arg.meta["val"] for arg in args[:2])
    return bool(
        weight.is_contiguous(memory_format=torch.channels_last)
        or weight.numel() <= MOST_WEIGHT * (given.numel() + node.meta["val"].numel())
    )


def _is_static(gm: GraphModule) -> bool:
    return all(
        isinstance(value, torch.Tensor) and all(type(size) is int for size in (*value.shape, *value.stride()))
        for node in gm.graph.nodes
        for value in pytree.tree_leaves(value_of(node))
        if value is not None
    )


class _Rewrite:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.changed: dict[Node, Any] = {}  # node whose strides are others than before -> what it gave before
        self.last: dict[Node, Node] = {}  # node -> its copy with channels last

    def run(self) -> bool:
        """False if the graph needs strides to be what they were."""
        for node in list(self.graph.nodes):
            if node.op == "output":
                return self._results(node)
            if node.op != "call_function":
                continue
            if _pays(node):
                node.args = (*(self._with_channels_last(arg, node) for arg in node.args[:2]), *node.args[2:])
                self._again(node)
            elif node.target is not aten.copy_.default and not self.changed.keys().isdisjoint(node.all_input_nodes):
                if getattr(node.target, "namespace", "aten") != "aten" or node.target is aten.as_strided.default:
                    return False
                if _is_of_planes(node):
                    self._of_contiguous(node)
                else:
                    self._follow(node)
        return True

    def _with_channels_last(self, node: Any, before: Node) -> Node:
        if node in self.last:
            return self.last[node]
        value = node.meta["val"]
        copied = node
        if not value.is_contiguous(memory_format=torch.channels_last):
            with self.graph.inserting_before(before):
                copied = call(before, aten.clone.default, node, memory_format=torch.channels_last)
        self.last[node] = copied
        return copied  # type: ignore[no-any-return]

    def _again(self, node: Node) -> None:
        """Find the strides of what the node gives anew."""
        found = compute(node)
        before = node.meta["val"]
        pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(before), strict=True)
        if any(isinstance(new, torch.Tensor) and new.stride() != old.stride() for new, old in pairs):
            self.changed[node] = before
            node.meta["val"] = found

    def _follow(self, node: Node) -> None:
        try:
            self._again(node)
        except (RuntimeError, ValueError):  # such as a view that these strides have none for
            self._of_contiguous(node)

    def _of_contiguous(self, node: Node) -> None:
        """Give the operation contiguous copies of what has other strides than before."""

        def contiguous(arg: Node) -> Node:
            return self._contiguous(arg, node) if arg in self.changed else arg

        node.args, node.kwargs = torch.fx.map_arg((node.args, node.kwargs), contiguous)
        self._again(node)

    def _contiguous(self, node: Node, before: Node) -> Node:
        with self.graph.inserting_before(before):
            return call(node, aten.clone.default, node, memory_format=torch.contiguous_format)

    def _results(self, output: Node) -> bool:
        """Gives the graph's results the strides that they had; False if these were not of contiguous tensors."""
        given: Any = output.args[0]
        if not all(self.changed[node].is_contiguous() for node in given if node in self.changed):
            return False
        made = {node: self._contiguous(node, output) for node in {*given} & self.changed.keys()}
        output.args = (type(given)([made.get(node, node) for node in given]),)
        return True
