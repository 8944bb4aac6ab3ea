"""`backend="cudagraphs"`: as `codegen` in mode reduce-overhead.

In:  a torch-level graph. Out: a callable that runs its plans as CUDA graphs where they can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.backends.codegen import codegen
from dynajit.backends.registry import register_backend


@register_backend(name="cudagraphs")
def cudagraphs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Generate code, record it."""
    return codegen(gm, example_inputs, **{**options, "mode": "reduce-overhead"})
