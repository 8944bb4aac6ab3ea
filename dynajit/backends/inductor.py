"""`backend="inductor"`: hands the graph to torch's Inductor. The only file that imports it, and only when used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.aot.legality import makes_leaves
from dynajit.aot.subclasses import has_ragged_sizes
from dynajit.backends.registry import register_backend


@register_backend(name="inductor")
def inductor(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile `gm` with Inductor; `mode` and `options` mean what they mean to torch.compile."""
    if makes_leaves(gm) or has_ragged_sizes(gm):
        return gm.forward  # its graphs are one node to autograd, and have symbols for ragged sizes
    from torch._dynamo.backends.inductor import inductor as torch_backend

    return torch_backend(gm, list(example_inputs), **options)
