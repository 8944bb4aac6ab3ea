"""Group norm of large groups on GPUs in terms of sums over channels.

In:  nothing. Out: `RULES`, a table operator -> decomposition.
Groups are few, and one that is too large for a program would be read twice for its statistics and once more. Here the
sums of each channel are found first, all in one pass and by as many programs as there are channels at least, in either
layout; those of a group are sums of few of them. Both are of distances to the group's first element, which lies among
the others, so that no digits cancel out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dynajit.aot.passes.batch_norm import affine
from dynajit.op_facts import compute_dtype

aten = torch.ops.aten
# The most elements of a group that one program holds.
ONE_PROGRAM = 16_384


def _group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> Any:
    sizes = (*x.shape, batch, channels, places)
    if any(type(size) is not int for size in sizes) or channels // groups * places <= ONE_PROGRAM or batch == 0:
        return _from_torch()(x, weight, bias, batch, channels, places, groups, eps)
    wide = x.to(compute_dtype(x.dtype))
    each = wide.reshape(batch, groups, channels // groups, places)
    first = each[:, :, :1, :1]
    distance = each - first
    count = channels // groups * places
    offset = distance.sum([3], keepdim=True).sum([2], keepdim=True) / count
    squares = (distance * distance).sum([3], keepdim=True).sum([2], keepdim=True) / count
    rstd = aten.rsqrt.default(aten.clamp_min.default(squares - offset * offset, 0) + eps)
    mean = first + offset
    y = affine(((each - mean) * rstd).view(x.shape), weight, bias, [1, channels] + [1] * (x.dim() - 2))
    return y.to(x.dtype), mean.view(batch, groups).to(x.dtype), rstd.view(batch, groups).to(x.dtype)


def _from_torch() -> Callable[..., Any]:
    from torch._decomp import decomposition_table

    return decomposition_table[aten.native_group_norm.default]


RULES: dict[Any, Callable[..., Any]] = {aten.native_group_norm.default: _group_norm}
