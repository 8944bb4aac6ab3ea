"""Convolutions on GPUs without their bias: torch's functions add it in a kernel of their own, after the library's.

In:  nothing. Out: `RULES`, a table operator -> decomposition. The sum is fused with what follows, and the bias's
gradient, which is a sum, with what computes what it is the sum of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def _forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *how: Any) -> Any:
    if bias is None or not x.dtype.is_floating_point:
        return NotImplemented
    apart = aten.convolution.default(x, weight, None, *how)
    return apart + bias.view([-1] + [1] * (weight.dim() - 2))


def _backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    *how: Any,
) -> Gradients | Any:
    (of_x, of_weight, of_bias), how = how[-1], how[:-1]
    if not of_bias or not x.dtype.is_floating_point:
        return NotImplemented
    dims = [dim for dim in range(gradient.dim()) if dim != 1]
    found = aten.sum.dim_IntList(gradient, dims)
    if not (of_x or of_weight):
        return None, None, found
    others = aten.convolution_backward.default(gradient, x, weight, bias_sizes, *how, [of_x, of_weight, False])
    return others[0], others[1], found


RULES: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: _forward,
    aten.convolution_backward.default: _backward,
}
