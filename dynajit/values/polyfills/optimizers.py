"""Updates of torch's optimizers that count steps in tensors: of counts as exact as the numbers that eager takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def of_exact_steps(
    update: Callable[..., None], before: Sequence[Any], steps: Sequence[torch.Tensor], *after: Any, **options: Any
) -> None:
    """`update(*before, steps, *after, **options)`, which adds 1 to each of `steps` and computes with it."""
    exact = [step.to(torch.float64) for step in steps]
    update(*before, exact, *after, **options)
    for step, counted in zip(steps, exact, strict=True):
        step.copy_(counted)
