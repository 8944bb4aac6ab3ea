"""What `autograd.Function.apply` and the backward pass call, in plain Python, so that what they rely on can be traced.

In: the user's static methods and the arguments. Out: nothing that is used: the real `apply` computes the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Context:
    """Stands for the `ctx` of forward and backward."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


def autograd_function(
    forward: Callable[..., Any],
    setup_context: Callable[..., Any] | None,
    backward: Callable[..., Any] | None,
    needs_input_grad: tuple[bool, ...],
    *args: Any,
    **kwargs: Any,
) -> int:
    """One forward, and the backward with gradients of ones; None: what comes before it. Gives how many gradients."""
    context = Context(needs_input_grad)
    with torch.no_grad():
        if setup_context is None:
            result = forward(context, *args, **kwargs)
        else:
            result = forward(*args, **kwargs)
            setup_context(context, args, result)
    return _backward_of_ones(backward, context, result)


def operator_autograd(
    operator: Callable[..., Any],
    setup_context: Callable[..., Any] | None,
    backward: Callable[..., Any] | None,
    needs_input_grad: tuple[bool, ...],
    *args: Any,
    **kwargs: Any,
) -> int:
    """One call of an operator that `register_autograd` made differentiable, and the backward with ones, as above."""
    context = Context(needs_input_grad)
    with torch.no_grad():
        result = operator(*args, **kwargs)
        if setup_context is not None:
            named = {"keyword_only_inputs": kwargs} if kwargs else {}
            setup_context(ctx=context, inputs=args, output=result, **named)
    return _backward_of_ones(backward, context, result)


def _backward_of_ones(backward: Callable[..., Any] | None, context: Context, result: Any) -> int:
    gradients = [_ones_like(part) for part in (result if isinstance(result, tuple) else (result,))]
    if backward is not None:
        with torch.no_grad():
            backward(context, *gradients)
    lists = [part if type(part) is list else [part] for part in gradients]
    return sum(each is not None for part in lists for each in part)


def _ones_like(part: Any) -> Any:
    if type(part) is list:
        return [_ones_like(each) for each in part]
    return torch.ones_like(part) if isinstance(part, torch.Tensor) else None


class _WithData(torch.autograd.Function):
    """A tensor's history with other data, as `tensor.data = data` makes it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        return data.detach()  # no view, which a Function's results may not be when `data` is written

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient, None


def history_with_data(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """What a tensor that requires gradients is in the graph after `tensor.data = data`."""
    with torch.enable_grad():
        return _WithData.apply(tensor, data)  # type: ignore[no-any-return, no-untyped-call]
