"""How much memory tensors take during a call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch


def most_in_use(call: Callable[..., object], *args: object) -> int:
    """The most bytes of tensors at once, over those from before, as the profiler hears of them."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call(*args)
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
