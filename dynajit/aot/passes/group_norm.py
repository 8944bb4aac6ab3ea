"""Group norm in terms of sums over channels: of large groups on GPUs, of few neighbouring channels on CPUs.

In:  nothing. Out: `RULES`, a table operator -> decomposition, for GPUs; `group_norm_of_channels`, one for CPUs.
On GPUs groups are few, and one that is too large for a program would be read twice for its statistics and once more.
Here the sums of each channel are found first, all in one pass and by as many programs as there are channels at least,
in either layout; those of a group are sums of few of them. Both are of distances to the group's first element, which
lies among the others, so that no digits cancel out.
On CPUs loops over a few neighbouring channels of each pixel fill no vector, those over all of them do: each channel has
its moments first, and the result is a multiple of the input and a number for each channel, as eager mode has it there.
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
# Fewer neighbouring channels than this fill no vector of a CPU's.
VECTOR = 16


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


def group_norm_of_channels(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> Any:
    """The decomposition of aten.native_group_norm for CPUs."""
    sizes = (*x.shape, batch, channels, places)
    known = all(type(size) is int for size in sizes) and batch * places > 0 and x.dtype != torch.float64
    if not known or channels // groups >= VECTOR or channels < VECTOR or not _lies_by_channels(x):
        return _from_torch()(x, weight, bias, batch, channels, places, groups, eps)
    wide = x.to(compute_dtype(x.dtype))
    dims, by_group = list(range(2, x.dim())), (batch, groups, channels // groups)
    around = aten.var.correction(wide, dims, correction=0, keepdim=True).view(by_group)
    total = aten.sum.dim_IntList(wide, dims, True, dtype=torch.float64)
    middle = (total / places).to(wide.dtype).view(by_group)
    mean = middle.mean([2], keepdim=True)
    distance = middle - mean
    std = ((around + distance * distance).mean([2], keepdim=True) + eps).sqrt()
    # by divisions, which are dear enough to be stored: loops over all channels read no number of a group's
    each = [batch, channels] + [1] * (x.dim() - 2)
    numerator = weight if weight is not None else torch.ones(channels, dtype=std.dtype, device=std.device)
    scale = numerator.view(1, groups, -1) / std
    shift = -mean * numerator.view(1, groups, -1) / std
    if bias is not None:
        shift = shift + bias.view(1, groups, -1)
    y = wide * scale.reshape(each) + shift.reshape(each)
    return y.to(x.dtype), mean.view(batch, groups).to(x.dtype), (1 / std).view(batch, groups).to(x.dtype)


def _lies_by_channels(x: torch.Tensor) -> bool:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous()


def _from_torch() -> Callable[..., Any]:
    from torch._decomp import decomposition_table

    return decomposition_table[aten.native_group_norm.default]


RULES: dict[Any, Callable[..., Any]] = {aten.native_group_norm.default: _group_norm}
