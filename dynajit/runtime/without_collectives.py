"""A dispatch mode in which no collective is made: other ranks have no part in what this one runs for its error alone.

In: operators. Out: zeros where a collective would give something, and from there on nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dynajit.op_facts import facts


class NotWritten(Exception):
    """What the graph would write now is made of zeros."""


class WithoutCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises `NotWritten` at the first write after a collective was left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left_out = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if facts(func).communicates:
            self.left_out = True
            return _zeros(func, args, kwargs or {})
        if self.left_out and facts(func).writes:
            raise NotWritten
        return func(*args, **(kwargs or {}))


def _zeros(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Zeros like what the operator gives, as its meta kernel says."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    on_meta = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (tuple(args), dict(kwargs)))
    found = func(*on_meta[0], **on_meta[1])
    return pytree.tree_map_only(torch.Tensor, lambda like: torch.zeros_like(like, device=tensors[0].device), found)
