"""What has to happen around a compiled graph at each call; nothing at all for most inference graphs.

In:  the captured graph, the positions of the inputs that it mutates, and the compiled callable.
Out: a callable with the same inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit import torch_compat

Compiled = Callable[..., Any]


def wrap_inference(
    inputs: Sequence[torch.Tensor], mutated: Sequence[int], eager: Compiled, compiled: Compiled
) -> Compiled:
    """`compiled`, the run of a graph that the short road traced, with what its calls need around them."""
    return eager_on_overlap(inputs, mutated, eager, without_autocast(compiled))


def without_autocast(compiled: Compiled) -> Compiled:
    """Autocast's casts are in the graph already; operators called from compiled code must not cast again."""
    if not torch_compat.any_autocast_enabled():
        return compiled

    def call(*inputs: Any) -> Any:
        with torch._C._DisableAutocast():
            return compiled(*inputs)

    return call


def eager_on_overlap(inputs: Sequence[Any], mutated: Sequence[int], eager: Compiled, compiled: Compiled) -> Compiled:
    """Run `eager` where the memory of a mutated input overlaps another input's.

    A functional graph has no notion of that, and no guard looks at it. Strided tensors count as the range from their
    first to their last element, so interleaved ones run eagerly without need, and correctly.
    """
    if not mutated or len(inputs) < 2:
        return compiled
    symbolic = any(isinstance(value, torch.Tensor) and not _is_static(value) for value in inputs)
    extents = [
        (position, 0 if symbolic else _extent(value), position in mutated) for position, value in enumerate(inputs)
    ]
    known = [item for item in extents if item[1]]

    def call(*inputs: Any) -> Any:
        end_of_any = end_of_mutated = 0
        ranges = _ranges_now(inputs, extents) if symbolic else known
        for start, extent, is_mutated in sorted([(inputs[at].data_ptr(), size, flag) for at, size, flag in ranges]):
            if start < end_of_mutated or (is_mutated and start < end_of_any):
                return eager(*inputs)
            end = start + extent
            end_of_any = max(end_of_any, end)
            if is_mutated:
                end_of_mutated = max(end_of_mutated, end)
        return compiled(*inputs)

    return call


def _ranges_now(inputs: Sequence[Any], extents: Sequence[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    """`extents` for the sizes of this call."""
    found = [(at, _extent(inputs[at]), flag) for at, _, flag in extents]
    return [item for item in found if item[1]]


def _is_static(value: torch.Tensor) -> bool:
    return all(type(number) is int for number in (*value.shape, *value.stride()))


def _extent(value: Any) -> int:
    """Bytes from the first to behind the last element; 0 for what holds no element or is no plain tensor."""
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return 0
    elements = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return int(elements) * value.element_size()
