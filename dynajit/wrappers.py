"""Tensor subclasses that wrap other tensors, by torch's protocol: `__tensor_flatten__` and `__tensor_unflatten__`.

In: a class, or an instance with real or fake tensors in it. Out: what it consists of: tensors, objects that the class
names beside them (a device mesh), and the context that it gives.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, is_traceable_wrapper_subclass_type

from dynajit import _C

is_wrapper = is_traceable_wrapper_subclass
is_wrapper_class = is_traceable_wrapper_subclass_type


def is_on_its_way(value: Any) -> bool:
    """Whether it is of the class of what functional collectives give in eager mode, waited for or not."""
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    return isinstance(value, getattr(collectives, "AsyncCollectiveTensor", ()))


class Flattened:
    """An instance taken apart.

    names: of the attributes that hold tensors. objects: other attributes that its class lists with these, and what they
    hold. context: what the class gives beside.
    """

    def __init__(self, wrapper: Any) -> None:
        names, self.context = wrapper.__tensor_flatten__()
        parts = {name: getattr(wrapper, name) for name in names}
        self.names = tuple(name for name, part in parts.items() if isinstance(part, torch.Tensor))
        self.objects = {name: part for name, part in parts.items() if name not in self.names}
        self.cls: Any = type(wrapper)
        self.size, self.stride = wrapper.size(), wrapper.stride()

    def again(self, *inner: torch.Tensor) -> Any:
        """An instance of these tensors, with all else as it was."""
        parts = {**self.objects, **dict(zip(self.names, inner, strict=True))}
        return self.cls.__tensor_unflatten__(parts, self.context, self.size, self.stride)


def leaves_of(value: Any) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor consists of: itself, if it wraps none."""
    if is_wrapper(value):
        for name in Flattened(value).names:
            yield from leaves_of(getattr(value, name))
    elif isinstance(value, torch.Tensor):
        yield value


class Expected:
    """The context that an instance of the class has to have, for guards; what it names has guards of its own.

    Raises, when made, what the class or the context's parts raise: contexts are copied, and compared by `==`.
    """

    def __init__(self, wrapper: Any) -> None:
        names, context = wrapper.__tensor_flatten__()
        self.names = tuple(names)
        self.context = copy.deepcopy(context)
        self.compare = getattr(type(wrapper), "__metadata_guard__", None)
        if not self(wrapper):
            raise ValueError("its context is not equal to a copy of itself")

    def __call__(self, wrapper: Any) -> bool:
        return _C.call_eager(self._fits, (wrapper,))  # guards are nothing to compile

    def _fits(self, wrapper: Any) -> bool:
        names, context = wrapper.__tensor_flatten__()
        if tuple(names) != self.names:
            return False
        same = self.context == context if self.compare is None else self.compare(self.context, context)
        return bool(same)
