"""Weights that are normed, `w = v * g / |v|`, on GPUs: torch reads the columns of the last dimension one by one.

In:  `_weight_norm_interface` and its backward, for tables of decompositions. Out: operators that fuse, in float32 where
the weights are of lower precision, as torch's kernels compute; the norms are kept in it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import get_computation_dtype

aten = torch.ops.aten


def _others(v: Tensor, dim: int) -> list[int]:
    return [place for place in range(v.dim()) if place != dim]


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    wide = get_computation_dtype(v.dtype)
    whole = v.to(wide)
    norm = (whole * whole).sum(_others(v, dim), keepdim=True).sqrt()
    return (whole * (g.to(wide) / norm)).to(v.dtype), norm


def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    wide = get_computation_dtype(v.dtype)
    whole, grads, norms = v.to(wide), grad.to(wide), norm.to(wide)
    along = (grads * whole).sum(_others(v, dim), keepdim=True)  # of the gradient, along v
    grad_v = g.to(wide) / norms * (grads - whole * (along / (norms * norms)))
    return grad_v.to(v.dtype), (along / norms).to(g.dtype)


RULES: dict[Any, Callable[..., Any]] = {
    aten._weight_norm_interface.default: _weight_norm,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
}
