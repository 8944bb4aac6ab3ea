"""`backend="codegen"`, the default: fused C kernels for CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.aot import compile_joint
from dynajit.backends.registry import register_backend


def _compile(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], phase: str) -> Callable[..., Any]:
    return gm.forward


@register_backend(name="codegen")
def codegen(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Functionalise `gm` and generate code for its ATen graphs."""
    return compile_joint(gm, example_inputs, _compile)
