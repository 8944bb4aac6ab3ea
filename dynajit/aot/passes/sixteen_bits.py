"""Operators of which eager's kernels for CPUs round bfloat16 and float16 after each operation, not at the end alone.

In:  torch's own rules for them, which compute in float32. Out: `with_rounding`: rules that give eager's bits.
One more: a function here of tensors of one such dtype, in the order of eager's kernel, that gives NotImplemented for
what it is not for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dynajit.torch_compat import at_hand

Rule = Callable[..., Any]
aten = torch.ops.aten
_SUM, _MEAN = 2, 1


def _mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _reduced((x - target) * (x - target), reduction)


def _soft_margin_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _reduced((-x * target).exp().log1p(), reduction)


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss.mean() if reduction == _MEAN else loss.sum() if reduction == _SUM else loss


def _mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Any:
    count = at_hand(x.numel())
    if not count:
        return NotImplemented
    factor = aten.full.default((), 2.0 / count if reduction == _MEAN else 2.0, dtype=x.dtype, device=x.device)
    return (x - target) * factor * grad


def _xlogy(x: Tensor, y: Tensor) -> Tensor:
    return _zero_of_zero(x, y, x * y.log())


def _xlog1py(x: Tensor, y: Tensor) -> Tensor:
    return _zero_of_zero(x, y, x * y.log1p())


def _zero_of_zero(x: Tensor, y: Tensor, product: Tensor) -> Tensor:
    found: Tensor = aten.where.self(y.isnan(), y, aten.masked_fill.Scalar(product, x == 0, 0))
    return found


_RULES: dict[Any, Rule] = {
    aten.mse_loss.default: _mse_loss,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.mse_loss_backward.default: _mse_loss_backward,
    aten.xlogy.Tensor: _xlogy,
    aten.special_xlog1py.default: _xlog1py,
}


def with_rounding(rules: dict[Any, Rule]) -> dict[Any, Rule]:
    """These rules, and for tensors of 16 bits those here."""
    return {**rules, **{at: _of_two(_RULES[at], rule) for at, rule in rules.items() if at in _RULES}}


def _of_two(rounding: Rule, rule: Rule) -> Rule:
    @functools.wraps(rule)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        dtypes = {arg.dtype for arg in args if isinstance(arg, Tensor)}
        fits = dtypes in ({torch.bfloat16}, {torch.float16})
        result = rounding(*args, **kwargs) if fits else NotImplemented
        return rule(*args, **kwargs) if result is NotImplemented else result

    return chosen
