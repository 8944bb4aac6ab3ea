"""Writes of places that a mask chooses, `x[mask] = values`, in graphs that AOTAutograd traces.

In:  a torch-level graph. Out: it, or a copy in which such writes are calls of `put`. Torch's rule for their backward
reads the chosen places of the gradient by the mask: a result whose size depends on data, for which there is no graph.
How many there are is known, though: forward has put as many rows there, or one for all.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dynajit.aot.rewrite import copied
from dynajit.graph.meta import value_of

_METHODS = frozenset({"index_put", "index_put_"})


def with_masked_writes(gm: GraphModule) -> GraphModule:
    """The graph; where it writes by masks, a copy whose writes have a backward of known sizes."""
    if not any(map(_masks, gm.graph.nodes)):
        return gm
    gm = copied(gm)
    for node in filter(_masks, gm.graph.nodes):
        name = node.target if node.op == "call_method" else "__setitem__"
        node.op, node.target, node.args = "call_function", put, (name, *node.args)
    gm.recompile()
    return gm


def _masks(node: Node) -> bool:
    if node.target is not operator.setitem and (node.op != "call_method" or node.target not in _METHODS):
        return False
    key: Any = node.args[1] if len(node.args) == 3 else None
    parts = key if isinstance(key, Sequence) else (key,)
    return sum(isinstance(part, Node) and _is_mask(value_of(part)) for part in parts) == 1


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype is torch.bool and part.dim() > 0


def put(method: str, x: Tensor, key: Any, values: Any, **given: bool) -> Any:
    """`x`'s method of this name, `__setitem__` or `index_put` or `index_put_`, called with a mask in the key."""
    parts = list(key) if isinstance(key, Sequence) else [key]
    place = next(at for at, part in enumerate(parts) if _is_mask(part))
    mask = parts[place]
    written = _written(x, parts, place)
    if written is None or not _fits(written[0], mask, values):
        return getattr(x, method)(key, values, **given)
    into, first = written
    while values.dim() > into.dim() - mask.dim() + 1:  # as `__setitem__` does, with dimensions of one element
        values = values.squeeze(0)
    made = _MaskedPut.apply(into, mask, values, first, given.get("accumulate", False))  # type: ignore[no-untyped-call]
    if method == "index_put":
        return made
    into.copy_(made)
    return x


def _written(x: Tensor, parts: list[Any], place: int) -> tuple[Tensor, int] | None:
    """The view that the rest of the index takes, and from which of its dimensions on the mask chooses; None where the
    rest chooses by tensors, too."""
    mask = parts[place]
    if any(isinstance(part, (Tensor, Sequence, bool)) for part in parts if part is not mask):
        return None
    before, after = parts[:place], parts[place + 1 :]
    view = x[(*before, *[slice(None)] * mask.dim(), *after)]
    first, last = (sum(part is None or isinstance(part, slice) for part in side) for side in (before, after))
    if ... in before:
        first = view.dim() - mask.dim() - last
    return view, first


def _fits(into: Tensor, mask: Tensor, values: Any) -> bool:
    """Whether the gradient for the values can be made here."""
    return (
        isinstance(values, Tensor)
        and (values.requires_grad or into.requires_grad)
        and values.dtype is into.dtype
        and values.device == into.device == mask.device
    )


class _MaskedPut(torch.autograd.Function):
    """`index_put(into, (..., mask), values)`, the mask for the dimensions from `first` on."""

    @staticmethod
    def forward(ctx: Any, into: Tensor, mask: Tensor, values: Tensor, first: int, accumulate: bool) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.first, ctx.accumulate, ctx.shape = first, accumulate, values.shape
        return torch.ops.aten.index_put.default(into, [*[None] * first, mask], values, accumulate)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        first, last = ctx.first, ctx.first + mask.dim()
        wide = mask.reshape(*mask.shape, *[1] * (gradient.dim() - last))
        into = values = None
        if ctx.needs_input_grad[0]:
            into = gradient if ctx.accumulate else gradient.masked_fill(wide, 0)
        if ctx.needs_input_grad[2]:
            values = _of_values(gradient, mask, wide, first, ctx.shape)
        return into, None, values, None, None


def _of_values(gradient: Tensor, mask: Tensor, wide: Tensor, first: int, shape: torch.Size) -> Tensor:
    last = first + mask.dim()
    counts = len(shape) - (gradient.dim() - last) - 1  # the place, in the values' shape, of how many are chosen
    if counts < 0 or (type(shape[counts]) is int and shape[counts] == 1):
        chosen = torch.where(wide, gradient, 0).flatten(first, last - 1).sum(first, keepdim=True)
    else:
        places = torch.nonzero_static(mask, size=shape[counts])
        chosen = torch.ops.aten.index.Tensor(gradient, [*[None] * first, *places.unbind(1)])
    return chosen.sum_to_size(shape)
