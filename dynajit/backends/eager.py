"""`backend="eager"`: runs the captured graph as it is, for debugging capture and measuring the front alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.backends.registry import register_backend
from dynajit.backends.tape import tape_of


@register_backend(name="eager", tags=("debug",))
def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The graph's own calls, torch call by torch call."""
    tape = tape_of(gm)
    if tape is not None:
        return tape
    # `forward` rather than the module: nn.Module.__call__ would look for hooks on every call.
    return gm.forward
