"""Instances of tensor subclasses with a `__torch_function__` while tracing: an object with attributes, and a tensor.

In: an instance from outside (`wrap.py`), or a tensor that an operation makes one of (`as_subclass`). Out:
`SubTensorVal`. Methods and attributes that the class does not define itself go the way of torch's: its
`__torch_function__` is asked (`overrides.py`), and what that hands on is an operation on the plain tensor within.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynajit.guards.source import Source
from dynajit.report import breaks
from dynajit.values.containers.identity import object_key
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.objects import MISSING, ObjVal, lookup_type
from dynajit.values.tensors import overrides
from dynajit.values.tensors.tensor import TensorMethod, TensorVal

_UNINITIALIZED: type = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]


class SubTensorVal(ObjVal):
    """An instance of a tensor subclass; `payload` is the tensor that operations compute on."""

    payload: TensorVal
    # torch's classes that an attribute makes it an instance of
    marks = ((torch.nn.Parameter, "_is_param"), (torch.nn.Buffer, "_is_buffer"))

    def __init__(self, cls: type, payload: TensorVal, real: Any = None, source: Source | None = None) -> None:
        super().__init__(cls, real, source, payload)

    @property
    def fake(self) -> torch.Tensor:
        return self.payload.fake

    @property
    def replacement(self) -> TensorVal | None:
        return self.payload.replacement

    def describe(self) -> str:
        return f"a {self.cls.__name__} of shape {tuple(self.fake.shape)} and dtype {self.fake.dtype}"

    def hash_key(self, tx: Tracer) -> object:
        return object_key(tx, self)

    # -- attributes

    def generic_getattr(self, tx: Tracer, name: str, fallback: bool = True) -> Value:
        found, where = lookup_type(self.cls, name)
        if not overrides.is_of_tensor(where) or name in ("__dict__", "__class__"):
            return super().generic_getattr(tx, name, fallback)
        if callable(found):
            return TensorMethod(self, name)
        if isinstance(found, (classmethod, staticmethod)):
            return tx.class_attribute(self, self.cls, name)
        answer = overrides.attribute(tx, self, name)
        if answer is not None:
            return answer
        if name in ("grad_fn", "_base") or (name == "grad" and overrides.overriding(self.cls)):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{name!r} of {self.describe()}")
        return self.payload.getattr(tx, name)

    def special(self, tx: Tracer, name: str) -> Value | None:
        _, where = lookup_type(self.cls, name)
        return TensorMethod(self, name) if overrides.is_of_tensor(where) else super().special(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        _, where = lookup_type(self.cls, name)
        if not overrides.is_of_tensor(where):
            return super().call_method(tx, name, args, kwargs)
        unchanged = name == "requires_grad_" and self.payload.requires_as_said(args, kwargs)
        if name == "requires_grad_" and self.real_object is None and not unchanged:
            # gradients would be collected by the tensor within, not by the instance that is made of it
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{name!r} of {self.describe()} that the program made")
        answer = overrides.dispatch(tx, "call_method", name, [self, *args], kwargs)
        return self.payload.call_method(tx, name, args, kwargs) if answer is None else answer

    def has_operator(self, method: str) -> bool:
        """Whether the class itself defines a special method."""
        found, where = lookup_type(self.cls, method)
        return found is not MISSING and not overrides.is_of_tensor(where)

    # -- generated code

    def children(self) -> Sequence[Value]:
        return (self.payload,) if self.real_object is None else ()

    def rebuild(self, out: Any) -> None:
        out.call_on(instance_of, self.payload, self.cls)
        out.later(self, self._fill)


def instance_of(tensor: torch.Tensor, cls: type) -> Any:
    """The tensor as an instance of the class; in generated code."""
    with torch._C.DisableTorchFunction():
        return torch.Tensor.as_subclass(tensor, cls)


def traceable(cls: type) -> bool:
    """Whether instances can be followed: what computes is `__torch_function__`, and attributes are plain."""
    return (
        issubclass(cls, torch.Tensor)
        and overrides.overriding(cls)
        and cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
        and cls.__getattribute__ is object.__getattribute__
        and cls.__setattr__ is object.__setattr__
        and not issubclass(cls, (_UNINITIALIZED, torch.nn.Parameter))
    )


def as_subclass(tx: Tracer, tensor: Value, cls: type, op: Any = torch.ops.aten.alias.default) -> Value:
    """A new object of the class that shares the tensor's memory; `op` makes the plain tensor of it."""
    plain = tensor.payload if isinstance(tensor, SubTensorVal) else tensor
    if not isinstance(plain, TensorVal) or (cls is not torch.Tensor and not traceable(cls)):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making a {cls.__name__} of {tensor.describe()}")
    with overrides.functions_off(tx, overrides.ALL_OFF):
        made = tx.torch_op("call_function", op, [plain], {})
    if cls is torch.Tensor:
        return made
    assert isinstance(made, TensorVal)
    instance = SubTensorVal(cls, made)
    tx.remember_tensor(instance)
    return instance
