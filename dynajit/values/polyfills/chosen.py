"""The item of a tensor that tensors of one integer choose, without a number read from them.

In: a tensor, and for each of its first dimensions the tensor of one integer that chooses along it, or None. Out: a copy
of the item, where torch's indexing gives a view: for graphs in which nothing tells the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_Told = Sequence[int | None] | None


def item_at(tensor: torch.Tensor, places: Sequence[torch.Tensor | None], told: _Told) -> Any:
    """`tensor[places]`, copied. `told`: which place of an index an error names. Laid out as eager's view where
    operations run one by one: they add up in the order of the memory."""
    try:
        item = torch.ops.aten.index.Tensor(tensor, places)
    except IndexError:
        _complain(tensor, places, told)
        raise
    if type(item) is not torch.Tensor:
        return item
    view = tensor
    for dim in reversed(range(len(places))):
        if (place := places[dim]) is not None:
            view = view.narrow(dim, 0, len(place)) if place.dim() else view.select(dim, 0)
    return item if view.stride() == item.stride() else item.new_empty_strided(view.shape, view.stride()).copy_(item)


def put_at(tensor: torch.Tensor, places: Sequence[torch.Tensor | None], value: torch.Tensor, told: _Told) -> Any:
    """`tensor[places] = value`. Gives the tensor."""
    try:
        return torch.ops.aten.index_put_.default(tensor, places, value)
    except IndexError:
        _complain(tensor, places, told)
        raise


def _complain(tensor: torch.Tensor, places: Sequence[torch.Tensor | None], told: _Told) -> None:
    """Raise what eager's indexing does."""
    for dim, (place, named) in enumerate(zip(places, told or (), strict=False)):
        size = tensor.shape[dim]
        if place is not None and not -size <= int(place) < size:
            raise IndexError(f"index {int(place)} is out of bounds for dimension {named} with size {size}") from None


def number_in(place: torch.Tensor) -> torch.Tensor:
    """A tensor with the number that this holds now."""
    return place.clone()


def places_from(start: torch.Tensor, length: int, size: int) -> torch.Tensor:
    """The places of so many items from one on, along a dimension of this size; such as there are not where `narrow`
    raises."""
    first = torch.where(start < 0, start + size, start).long()
    return torch.where(first < 0, size, first) + torch.arange(length, device=start.device)
