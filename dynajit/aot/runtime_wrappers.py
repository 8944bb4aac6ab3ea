"""What has to happen around a compiled graph at each call; nothing at all for most inference graphs.

In:  the captured graph, the positions of the inputs that it mutates, and the compiled callable.
Out: a callable with the same inputs and outputs, a `_C.RuntimeCall` where there is something to do. Add what a call has
to see to there: no Python runs between a call and its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dynajit import _C, torch_compat
from dynajit.aot.legality import GraphFacts, cast_weights
from dynajit.aot.rewrite import results_of
from dynajit.graph.meta import value_of

Compiled = Callable[..., Any]


def wrap_inference(
    inputs: Sequence[torch.Tensor], mutated: Sequence[int], eager: Compiled, compiled: Compiled
) -> Compiled:
    """`compiled`, the run of a graph that the short road traced, with what its calls need around them."""
    return eager_on_overlap(inputs, mutated, eager, without_autocast(compiled))


def without_autocast(compiled: Compiled, autocast: bool | None = None) -> Compiled:
    """Autocast's casts are in the graph already; operators called from compiled code must not cast again. `autocast`:
    whether it was on where the graph was traced, if that is not now."""
    on = torch_compat.any_autocast_enabled() if autocast is None else autocast
    return _C.RuntimeCall(compiled, no_autocast=True) if on else compiled


def with_casts_of_autocast(graph: GraphFacts, compiled: Compiled) -> Compiled:
    """`compiled`, or the captured graph where autocast goes on with casts of weights that it made before they were
    written, or without gradients: it keeps them until the outermost region ends, which the call may be a part of."""
    weights = cast_weights(graph) if graph.autocast_goes_on else []
    as_captured = getattr(compiled, "__self__", None) is graph.gm
    eager = compiled if as_captured else torch_compat.forward_of(graph.gm)
    return _C.RuntimeCall(compiled, eager, casts=weights) if weights else compiled


def with_autocast(run: Compiled) -> Compiled:
    """`run`, a captured graph on CPUs, under autocast as it is now, wherever it is called."""
    if not torch.is_autocast_enabled("cpu"):
        return run
    dtype = torch.get_autocast_dtype("cpu")

    def call(*inputs: Any) -> Any:
        with torch.autocast("cpu", dtype=dtype):
            return run(*inputs)

    return call


def eager_on_overlap(inputs: Sequence[Any], mutated: Sequence[int], eager: Compiled, compiled: Compiled) -> Compiled:
    """Run `eager` where the memory of a mutated input overlaps another input's.

    A functional graph has no notion of that, and no guard looks at it. Strided tensors count as the range from their
    first to their last element, so interleaved ones run eagerly without need, and correctly.
    """
    if not mutated or len(inputs) < 2:
        return compiled
    return _C.RuntimeCall(compiled, eager, mutated)


def with_creation_metas(gm: torch.fx.GraphModule, compiled: Compiled) -> Compiled:
    """`compiled`, whose results know the grad mode, or the operation, that made them views in the captured graph: by
    that autograd refuses to write them with a history. A compiled graph makes its views in the mode of the call."""
    if torch.is_inference_mode_enabled():
        return compiled
    metas = torch._C._autograd.CreationMeta
    usual = metas.DEFAULT if torch.is_grad_enabled() else metas.NO_GRAD_MODE
    made = {
        at: meta
        for at, node in enumerate(results_of(gm))
        if (meta := _creation_meta(node)) is not None and meta != usual
    }
    if not made:
        return compiled

    def call(*inputs: Any) -> Any:
        results = list(compiled(*inputs))
        for at, meta in made.items():
            if not results[at]._is_view():
                with torch.no_grad():
                    results[at] = results[at].view_as(results[at])
            torch._C._autograd._set_creation_meta(results[at], meta)
        return results

    return call


def _creation_meta(node: Any) -> Any:
    """What autograd keeps of how a view without a history was made; None of other results."""
    value = value_of(node)
    if type(value) is not FakeTensor or node.op == "placeholder" or value.requires_grad or not value._is_view():
        return None
    return torch._C._autograd._get_creation_meta(value)
