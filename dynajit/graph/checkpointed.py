"""The operation of a graph that is a region of activation checkpointing.

In: what torch's `checkpoint` is told. Out: a function of the region's body, a module of the graph or compiled, and of
the tensors and numbers that the body uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.utils.checkpoint

# The back knows such an operation by its name, as `aot/legality.py` has it.
NAME = "checkpointed_region"


def region(count: int, options: Mapping[str, Any]) -> Callable[..., Sequence[Any]]:
    """A function that calls a body by way of torch's `checkpoint`: autograd keeps what that keeps.

    Args:
        count: how many of the inputs, the first ones, are arguments of the program's call. Backward fails if these were
            written since; the others are the function's own, and read as they are then.
        options: of `checkpoint`, by name.
    """

    def call(body: Callable[..., Sequence[Any]], *inputs: Any) -> Sequence[Any]:
        own = inputs[count:]

        def function(*given: Any) -> Sequence[Any]:
            return body(*given, *own)

        return torch.utils.checkpoint.checkpoint(function, *inputs[:count], **options)  # type: ignore[no-any-return]

    call.__name__ = call.__qualname__ = NAME
    vars(call)["refuses_grad"] = options.get("use_reentrant") is True  # raises in `torch.autograd.grad`
    return call
