"""NumPy's functions as nodes of a graph.

In: the name of one of NumPy's functions ("fft.fft" with its module, if that is inside of NumPy's), or of a method or
attribute of its arrays, and tensors in place of arrays. Out: what NumPy gives for them, with tensors in place of
arrays. While a graph is traced further, on tensors that stand for others, it is `torch._numpy` that computes: NumPy's
interface in torch's operations.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

_METHOD = "ndarray."
_FFT = "fft."


def numpy_call(name: str, *args: Any, **kwargs: Any) -> Any:
    """`numpy.<name>(*args, **kwargs)`; `ndarray.<name>` is a method or attribute of the first argument."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    real = all(map(_is_real, tensors))
    if name.startswith(_FFT) and not real:
        return _transform(name[len(_FFT) :], *args, **kwargs)
    module = numpy if real else _torch_numpy()
    to_array, to_tensor = (torch.Tensor.numpy, _from_numpy) if real else (module.ndarray, _from_torch_numpy)
    args, kwargs = pytree.tree_map_only(torch.Tensor, to_array, (args, kwargs))
    if name.startswith(_METHOD):
        found = getattr(args[0], name[len(_METHOD) :])
        found = found(*args[1:], **kwargs) if callable(found) else found
    else:
        found = operator.attrgetter(name)(module)(*args, **kwargs)
    found = pytree.tree_map(to_tensor, found)
    # rows of elements, which an index with other strides would not give
    return found if real or not name.endswith("take") else found.clone(memory_format=torch.contiguous_format)


def _transform(name: str, array: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A function of numpy.fft in the precision of its argument, as NumPy 2 computes it; `torch._numpy` has one."""
    torch_names = {"axis": "dim", "axes": "dim"}
    named = {torch_names.get(key, key): value for key, value in kwargs.items()}
    shifts = name.endswith("shift")
    exact = array.is_floating_point() or array.is_complex() or shifts
    found: Any = getattr(torch.fft, name)(array if exact else array.double(), *args, **named)
    # what torch lays out otherwise its fake kernels don't always tell
    return found if shifts else found.clone(memory_format=torch.contiguous_format)


def is_known(name: str) -> bool:
    """Whether torch computes what goes by that name."""
    module = _torch_numpy()
    if name.startswith(_METHOD):
        return hasattr(module.ndarray, name[len(_METHOD) :])
    *inner, last = name.split(".")
    return hasattr(getattr(module, inner[0], None) if inner else module, last)


def _is_real(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._is_functional_tensor(tensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _torch_numpy() -> Any:
    import torch._numpy  # which most programs don't need

    return torch._numpy


def _from_numpy(found: Any) -> Any:
    return torch.from_numpy(numpy.asarray(found)) if isinstance(found, (numpy.ndarray, numpy.generic)) else found


def _from_torch_numpy(found: Any) -> Any:
    return found.tensor if isinstance(found, _torch_numpy().ndarray) else found


def array_as_tensor(array: Any) -> torch.Tensor:
    """A tensor in an array's memory. Raises TypeError for what is no plain array that torch could write."""
    if type(array) is not numpy.ndarray or not array.flags.writeable or array.flags.writebackifcopy:
        raise TypeError("no array that can be written")
    with torch._C._DisableFuncTorch():  # a transform that is being traced would wrap it
        return torch.from_numpy(array)
