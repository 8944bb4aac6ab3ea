"""Graphs that update weights and then differentiate: an optimizer's step, and after it the next forward pass.

In:  a torch-level graph. Out: a callable that runs the updates, compiled by themselves without gradients, and then the
rest. As one graph autograd would take the writes for writes of what the rest keeps. None where no updates come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.aot.legality import GraphFacts, grad_modes, is_plain
from dynajit.aot.rewrite import without
from dynajit.aot.training.pieces import CompilePiece, Node, PartitionedCall, cut_in_two
from dynajit.graph.meta import memory, value_of, written_by
from dynajit.nested import leaves_in


def split_after_optimizer_step(
    graph: GraphFacts, example_inputs: Sequence[Any], compile_piece: CompilePiece
) -> Callable[..., Any] | None:
    """The graph cut after its updates, or None."""
    calls, count = graph.calls, _updates(graph) if torch.is_grad_enabled() else 0
    first = [node for node in calls[:count] if node.target is not torch._C._set_grad_enabled]
    if not first:
        return None
    steps = cut_in_two(graph, first, calls[count:])
    if steps is None:
        return None
    updates, rest = steps
    # tracing the updates counts them as writes of what the rest has kept
    rest.compile(graph, example_inputs, compile_piece)
    with torch.no_grad():
        updates.compile(graph, example_inputs, lambda *piece: torch.no_grad()(compile_piece(*piece)))
    return PartitionedCall(graph.gm, steps)


def _updates(graph: GraphFacts) -> int:
    """How many calls come first of which none has gradients and some write weights that the others differentiate by."""
    calls, written, found = graph.calls, set[int | None](), 0
    for number, node in enumerate(calls):
        if node.target is torch._C._set_grad_enabled:
            found = number + 1 if written and node.args[0] is not False else found
        elif not is_plain(node) or (node not in graph.in_no_grad and (node in graph.writes or is_differentiated(node))):
            break
        elif node in graph.writes:
            written.update(map(memory, filter(has_gradients, graph.writes[node])))
    rest = calls[found:]
    read = {memory(part) for node in rest for part in node.all_input_nodes}
    return found if not read.isdisjoint(written - {None}) and any(map(is_differentiated, rest)) else 0


def _is_autograds(graph: GraphFacts, node: Node) -> bool:
    """Whether autograd has a part in a call."""
    written = () if node in graph.in_no_grad else graph.writes.get(node, ())
    return is_differentiated(node) or any(map(has_gradients, written))


def is_differentiated(node: Node) -> bool:
    """Whether a call computes what has gradients."""
    return node.op.startswith("call") and not written_by(node) and has_gradients(node)


def has_gradients(node: Node) -> bool:
    """Whether one of the tensors that the node gives requires grad."""
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves_in(value_of(node)))


def without_gradients(
    graph: GraphFacts, example_inputs: Sequence[Any], compile_piece: CompilePiece
) -> Callable[..., Any] | None:
    """The graph compiled without gradients, though they are on. None if one of its calls computes or writes what has
    any."""
    modes = grad_modes(graph.gm)
    if any(_is_autograds(graph, node) for node in graph.calls) or (modes and modes[-1].args[0] is not True):
        return None
    with torch.no_grad():
        return torch.no_grad()(compile_piece(without(graph.gm, modes), list(example_inputs)))  # type: ignore[no-any-return]
