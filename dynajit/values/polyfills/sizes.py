"""Sizes of what is broadcast, in plain Python, so that sizes may vary.

In: the sizes that torch.distributions has of its parameters. Out: those of both together, or torch's error.
"""

from __future__ import annotations

import torch


def broadcast_size(left: torch.Size, right: torch.Size, /) -> torch.Size:
    """`torch._C._infer_size`, which goes from the last dimension to the first."""
    for number, given in enumerate((left, right), 1):
        if type(given) is not torch.Size:
            raise RuntimeError(f"expected a torch.Size as argument {number}")
    count = max(len(left), len(right))
    sizes = []
    for place in range(-1, -count - 1, -1):
        mine = left[place] if -place <= len(left) else 1
        other = right[place] if -place <= len(right) else 1
        if mine != other and mine != 1 and other != 1:
            raise RuntimeError(
                f"The size of tensor a ({mine}) must match the size of tensor b ({other}) "
                f"at non-singleton dimension {count + place}"
            )
        sizes.append(other if mine == 1 else mine)
    return torch.Size(reversed(sizes))
