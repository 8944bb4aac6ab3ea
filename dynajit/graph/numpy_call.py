"""NumPy's functions as nodes of a graph.

In: the name of one of NumPy's functions, or of a method of its arrays, and tensors in place of arrays. Out: what
`torch._numpy`, NumPy's interface in torch's operations, gives for them, with tensors in place of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def numpy_call(name: str, *args: Any, **kwargs: Any) -> Any:
    """`numpy.<name>(*args, **kwargs)`; `ndarray.<name>` is a method of the first argument."""
    ndarray: Any = function_of("ndarray")

    def to_array(leaf: Any) -> Any:
        return ndarray(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def to_tensor(leaf: Any) -> Any:
        return leaf.tensor if isinstance(leaf, ndarray) else leaf

    found = function_of(name)(*pytree.tree_map(to_array, args), **pytree.tree_map(to_array, kwargs))
    return pytree.tree_map(to_tensor, found)


def function_of(name: str) -> Callable[..., Any]:
    """The function of `torch._numpy`; AttributeError if it has none of that name."""
    import torch._numpy  # which most programs don't need

    found: Any = torch._numpy
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def array_as_tensor(array: Any) -> torch.Tensor:
    """A tensor in an array's memory. Raises TypeError for what is no plain array that torch could write."""
    import numpy

    if type(array) is not numpy.ndarray or not array.flags.writeable or array.flags.writebackifcopy:
        raise TypeError("no array that can be written")
    return torch.from_numpy(array)


__all__ = ["array_as_tensor", "function_of", "numpy_call"]
