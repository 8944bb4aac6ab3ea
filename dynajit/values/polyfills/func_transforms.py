"""What torch.func's transforms call that is not to be traced as it stands, in plain Python.

In: what the real functions take. Out: what they return.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


@contextlib.contextmanager
def no_context(*args: Any) -> Iterator[None]:
    """A context manager that does nothing to what is computed; it is a decorator, too, as those that it stands for."""
    yield


def wraps(function: Callable[..., Any]) -> Any:
    """`functools.wraps`; torch leaves out what its own compiler writes on functions."""
    return functools.wraps(function)


def autograd_grad(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor] | None = None,
    retain_graph: bool = False,
    create_graph: bool = True,
) -> tuple[torch.Tensor, ...]:
    """`torch.autograd.grad`, with zeros where an output does not depend on an input."""
    grads: Sequence[Any] = [None] * len(outputs) if grad_outputs is None else grad_outputs
    pairs = [(out, grad) for out, grad in zip(outputs, grads) if out.requires_grad]
    if not pairs:
        return tuple([torch.zeros_like(tensor) for tensor in inputs])
    found = torch.autograd.grad(
        tuple([out for out, _ in pairs]),
        tuple(inputs),
        None if grad_outputs is None else tuple([grad for _, grad in pairs]),
        retain_graph=retain_graph,
        create_graph=create_graph,
        allow_unused=True,
    )
    return tuple([torch.zeros_like(tensor) if grad is None else grad for grad, tensor in zip(found, inputs)])
