"""The item of a tensor that tensors of one integer choose, without a number read from them.

In: a tensor, and for each of its first dimensions the tensor of one integer that chooses along it, or None. Out: a copy
of the item, where torch's indexing gives a view: for graphs in which nothing tells the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def item_at(tensor: torch.Tensor, places: Sequence[torch.Tensor | None], told: bool) -> Any:
    """`tensor[places]`, copied. `told`: an error names the dimension that eager's does."""
    return torch.ops.aten.index.Tensor(tensor, places)


def put_at(tensor: torch.Tensor, places: Sequence[torch.Tensor | None], value: torch.Tensor, told: bool) -> Any:
    """`tensor[places] = value`. Gives the tensor."""
    return torch.ops.aten.index_put_.default(tensor, places, value)
