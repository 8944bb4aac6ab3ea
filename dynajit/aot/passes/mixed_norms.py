"""Norms on CPUs of bfloat16 or float16 with weights of float32: as those of float32.

In:  nothing. Out: `rules()`, a table operator -> decomposition.
Eager keeps the statistics of such a norm in float32 for its backward. Torch's rules, and its fakes, round them to the
input's dtype, and the gradients of weights were a thousand times further off than eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

from dynajit.aot.passes.group_norm import group_norm_of_channels
from dynajit.op_facts import LOW_PRECISION

aten = torch.ops.aten


def rules() -> dict[Any, Callable[..., Any]]:
    """The table. What else these operators are called with has torch's own rule, where `decompositions` names it."""
    return {
        aten.native_layer_norm.default: _widened(aten.native_layer_norm.default, 1, _unchanged),
        aten.native_layer_norm_backward.default: _by_torch(aten.native_layer_norm_backward.default, 2),
        aten._native_batch_norm_legit.no_stats: _by_torch(aten._native_batch_norm_legit.no_stats, 1),
        aten.native_group_norm.default: _widened(aten.native_group_norm.default, 1, group_norm_of_channels),
        aten.native_group_norm_backward.default: _by_torch(aten.native_group_norm_backward.default, 2),
    }


def _by_torch(operator: Any, low: int) -> Callable[..., Any]:
    return _widened(operator, low, decomposition_table[operator])


def _widened(operator: Any, low: int, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of an operator whose first `low` arguments have the input's dtype, as its first result has."""

    def rule(*args: Any) -> Any:
        dtype, others = args[low - 1].dtype, {getattr(arg, "dtype", None) for arg in args[low:]}
        if dtype not in LOW_PRECISION or torch.float32 not in others:
            return otherwise(*args)
        first, *rest = operator(*(arg.to(torch.float32) for arg in args[:low]), *args[low:])
        return (None if first is None else first.to(dtype), *rest)

    return rule


def _unchanged(*_: Any) -> Any:
    return NotImplemented
