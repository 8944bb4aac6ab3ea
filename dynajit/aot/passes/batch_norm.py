"""Batch norm in training in terms of `var_mean`, for GPUs: its statistics in one pass over the input.

In:  nothing. Out: `RULES`, a table operator -> decomposition; `CPU_RULES`, that of CPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from dynajit.op_facts import LOW_PRECISION, compute_dtype

aten = torch.ops.aten


def _train(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    wide = x.to(compute_dtype(x.dtype))
    dims = [dim for dim in range(x.dim()) if dim != 1]
    variance, mean = aten.var_mean.correction(wide, dims, correction=0, keepdim=True)
    channels = x.shape[1]
    shape = [1, channels] + [1] * (x.dim() - 2)
    rstd = aten.rsqrt.default(variance + eps)
    y = affine((wide - mean) * rstd, weight, bias, shape)
    flat, flat_variance = mean.view(channels), variance.view(channels)
    count = x.numel() // channels
    unbiased = flat_variance * (count / max(count - 1, 1))
    new_mean = flat * momentum + running_mean * (1 - momentum)
    new_var = unbiased * momentum + running_var * (1 - momentum)
    stored = (new_mean.to(running_mean.dtype), new_var.to(running_var.dtype))
    return (y.to(x.dtype), flat, rstd.view(channels), *stored)


def affine(y: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, shape: list[int]) -> torch.Tensor:
    """`y` times the weight plus the bias, of its channels, if there are any; `shape` spreads them over it."""
    if weight is not None:
        y = y * weight.to(y.dtype).view(shape)
    return y if bias is None else y + bias.to(y.dtype).view(shape)


def _functional(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if not training or x.numel() == 0:
        return NotImplemented
    return _train(x, weight, bias, mean, var, momentum, eps)


def _with_update(x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    if x.numel() == 0:
        return NotImplemented
    out, saved_mean, rstd, new_mean, new_var = _train(x, weight, bias, mean, var, momentum, eps)
    reserve = torch.empty((0,), dtype=torch.uint8, device=x.device)
    return out, saved_mean, rstd, reserve, new_mean, new_var


def _cudnn(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, factor: float, eps: float
) -> Any:
    """In inference, where nothing is kept."""
    if training or mean is None or var is None:
        return NotImplemented
    wide = compute_dtype(x.dtype)
    shape = [1, x.shape[1]] + [1] * (x.dim() - 2)
    y = (x.to(wide) - mean.to(wide).view(shape)) * aten.rsqrt.default(var.to(wide) + eps).view(shape)
    y = affine(y, weight, bias, shape)
    nothing = torch.empty((0,), dtype=wide, device=x.device)
    return y.to(x.dtype), nothing, nothing, torch.empty((0,), dtype=torch.uint8, device=x.device)


def _low_precision(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Of bfloat16 and float16 on a CPU: in float32, and statistics in it where parameters are. There torch's fake
    implementation has another dtype than its real one, so that they would be rounded on the way to the gradient."""
    if not training or x.numel() == 0 or x.dtype not in LOW_PRECISION or mean is None or var is None:
        return NotImplemented
    parameters = [None if each is None else each.to(torch.float32) for each in (weight, bias, mean, var)]
    functional = aten._native_batch_norm_legit_functional.default
    out, *statistics, new_mean, new_var = functional(x.to(torch.float32), *parameters, training, momentum, eps)
    given = {each.dtype for each in (weight, bias, mean, var) if each is not None}
    kept = [each.to(torch.float32 if torch.float32 in given else x.dtype) for each in statistics]
    return out.to(x.dtype), *kept, new_mean.to(mean.dtype), new_var.to(var.dtype)


def in_its_format(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a batch norm, with its result in one of torch's memory formats as the CPU's kernels have it."""

    @functools.wraps(rule)
    def formatted(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        y, *statistics = rule(x, *args, **kwargs)
        return y.contiguous(memory_format=suggest_memory_format(x)), *statistics

    return formatted


CPU_RULES: dict[Any, Callable[..., Any]] = {aten._native_batch_norm_legit_functional.default: _low_precision}
RULES: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_functional.default: _functional,
    aten.cudnn_batch_norm.default: _cudnn,
}
if hasattr(aten, "_batch_norm_with_update_functional"):
    RULES[aten._batch_norm_with_update_functional.default] = _with_update


def drop_statistics(joint: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The backward of a batch norm in training reads no running statistics: they are not to be kept for it."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.native_batch_norm_backward.default):
        if node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])
    return joint
