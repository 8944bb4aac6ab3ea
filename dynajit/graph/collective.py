"""torch.distributed's functional collectives as nodes of a graph.

In: a function's name, its tensors and numbers, the name of the group of processes. Out: the result, waited for.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.utils import _pytree as pytree

MODULE = "torch.distributed._functional_collectives"


def collective(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call the function of that name; tensors that are still on their way are waited for."""
    module = importlib.import_module(MODULE)  # which takes its time, and is there already when this runs
    found = getattr(module, name)(*args, **kwargs)

    def arrived(tensor: Any) -> Any:
        return tensor.wait() if isinstance(tensor, module.AsyncCollectiveTensor) else tensor

    return pytree.tree_map_only(torch.Tensor, arrived, found)


collective.communicates = True  # type: ignore[attr-defined]
