"""Gradients that a Function, or a hook, makes of nothing: constants, or what zeros for unused results give.

In:  a graph with several results, of which a backward pass may start from some. Out: RuntimeError where such a gradient
is in its joint graph. Eager runs a Function where a gradient gets to it; in the backward graph nothing tells which
results' gradients such a constant goes with, and its sum with one that there is not is taken for zero. While
AOTAutograd traces (`marking`, `with_marked_hooks`) what Functions and hooks give goes through an operator that marks
it; `without_marks` looks at these in the joint graph, and drops them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.fx import GraphModule

from dynajit import torch_compat
from dynajit.aot.legality import HOOK, name_of
from dynajit.aot.rewrite import copied, descendants, is_tangent
from dynajit.aot.training.reachability import AutogradGraph, is_function
from dynajit.wrappers import Flattened, is_wrapper

_library = torch.library.Library("dynajit", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("given_by_program(Tensor gradient) -> Tensor")  # type: ignore[no-untyped-call]
_MARK = torch.ops.dynajit.given_by_program.default


@torch.library.register_fake("dynajit::given_by_program", lib=_library)  # type: ignore[untyped-decorator]
def _given_by_program(gradient: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(gradient.shape, gradient.stride(), dtype=gradient.dtype, device=gradient.device)


def marking(history: AutogradGraph | None) -> contextlib.AbstractContextManager[None]:
    """Inside, in this thread, gradients that Functions give are marked, if there are several results."""
    if history is None or len(history.results) < 2 or not any(is_function(node) for node, _ in history.inside):
        return contextlib.nullcontext()
    return torch_compat.gradients_of_functions(_marked)


def with_marked_hooks(gm: GraphModule) -> GraphModule:
    """The graph; where it registers hooks on gradients, with marks of what they give."""
    if not any(name_of(node) == HOOK for node in gm.graph.nodes):
        return gm
    gm = copied(gm)
    for node in [node for node in gm.graph.nodes if name_of(node) == HOOK]:
        with gm.graph.inserting_after(node):
            gm.graph.call_function(_mark_gradient, (node.args[0],))
    gm.recompile()
    return gm


def without_marks(joint: GraphModule) -> GraphModule:
    """The joint graph. Raises RuntimeError where a marked gradient is not made of the results' gradients."""
    made = descendants(filter(is_tangent, joint.graph.find_nodes(op="placeholder")))
    for node in joint.graph.find_nodes(op="call_function", target=_MARK):
        (given,) = node.args
        if node.users and given not in made:
            raise RuntimeError("a Function or a hook gives a constant gradient, which goes with those of some results")
        node.replace_all_uses_with(given)
        joint.graph.erase_node(node)
    return joint


def _marked(gradients: Any) -> Any:
    if isinstance(gradients, tuple):
        return tuple(map(_marked, gradients))
    if is_wrapper(gradients):  # of whose class the operator is not known: what it is made of is marked
        flat = Flattened(gradients)
        return flat.again(*(_marked(getattr(gradients, name)) for name in flat.names))
    return _MARK(gradients) if isinstance(gradients, torch.Tensor) else gradients


def _mark_gradient(tensor: torch.Tensor) -> None:
    """A hook after those that the program registered before."""
    if tensor.requires_grad:
        tensor.register_hook(_marked)  # type: ignore[no-untyped-call]
