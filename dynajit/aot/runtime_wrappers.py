"""What has to happen around a compiled graph at each call; nothing at all for most inference graphs.

In:  the captured graph, the positions of the inputs that it mutates, and the compiled callable.
Out: a callable with the same inputs and outputs, a `_C.RuntimeCall` where there is something to do. Add what a call has
to see to there: no Python runs between a call and its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit import _C, torch_compat

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
