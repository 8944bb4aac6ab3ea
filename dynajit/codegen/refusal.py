"""What a graph keeps for the case that a kernel refuses a value, as an index outside of its tensor.

In:  a graph of ATen operators, and whether it is a backward graph. Out: `needed(...)`: the inputs that have to be there
until the last kernel that may refuse; `rerun(...)`: a function of the inputs, None for those that are gone, that raises
eager's error by running the graph operator by operator.

A backward graph lets go of what forward saved as it goes. What it refuses depends on indices and sizes alone: for other
tensors that are gone zeros stand in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch.fx import GraphModule, Node

# sizes, dtype and device of a tensor
Like = tuple[list[int], torch.dtype, torch.device]


def needed(gm: GraphModule, backward: bool) -> Set[str]:
    """Names of the inputs that have to be kept."""
    inputs = gm.graph.find_nodes(op="placeholder")
    if not backward:
        return {node.name for node in inputs}
    deciding: set[Node] = set()
    for node in reversed(gm.graph.nodes):
        if node.op != "output" and (node in deciding or not _is_other(node)):
            deciding.update((node, *node.all_input_nodes))
    return {node.name for node in inputs if node in deciding}


def rerun(gm: GraphModule, backward: bool) -> Callable[..., Any]:
    """Runs the graph for its error."""
    if not backward:
        return gm.forward
    return BackwardRerun(gm.forward, [_like(node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")])


class BackwardRerun:
    """Runs a backward graph for its error.

    Attributes:
        forward: the graph, operator by operator.
        likes: of each input sizes, dtype and device; None if it is no tensor.
    """

    def __init__(self, forward: Callable[..., Any], likes: Sequence[Like | None]) -> None:
        self.forward = forward
        self.likes = likes

    def __call__(self, *inputs: Any) -> Any:
        there = [_zeros(like) if given is None else given for given, like in zip(inputs, self.likes, strict=True)]
        return self.forward(*there)


def _is_other(node: Node) -> bool:
    """Does it give only tensors that cannot be an index?"""
    values = node.meta.get("val")
    return all(
        isinstance(value, torch.Tensor)
        and (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
        for value in (values if isinstance(values, (tuple, list)) else (values,))
        if value is not None  # a gradient that was not asked for
    )


def _like(value: Any) -> Like | None:
    if not isinstance(value, torch.Tensor):
        return None
    return [size if type(size) is int else 1 for size in value.shape], value.dtype, value.device


def _zeros(like: Like | None) -> Any:
    return None if like is None else torch.zeros(like[0], dtype=like[1], device=like[2])
