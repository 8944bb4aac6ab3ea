"""torch.distributed's functional collectives as nodes of a graph.

In: a function's name, its tensors and numbers, the name of the group of processes. Out: the result, waited for.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dynajit.wrappers import is_on_its_way

MODULE = "torch.distributed._functional_collectives"


def collective(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call the function of that name; tensors that are still on their way are waited for."""
    module = importlib.import_module(MODULE)  # which takes its time, and is there already when this runs
    found = getattr(module, name)(*args, **kwargs)

    return pytree.tree_map_only(torch.Tensor, arrived, found)


def arrived(tensor: Any) -> Any:
    """The tensor, waited for, with its history: a tensor that is on its way is of another class, whose `wait` gives
    what is inside, of which autograd knows nothing."""
    if not is_on_its_way(tensor):
        return tensor
    return _Waited.apply(tensor) if tensor.requires_grad else tensor.wait()  # type: ignore[no-untyped-call]


class _Waited(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any) -> torch.Tensor:
        result: torch.Tensor = tensor.wait().detach()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


collective.communicates = True  # type: ignore[attr-defined]
