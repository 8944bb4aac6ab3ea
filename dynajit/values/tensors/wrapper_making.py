"""Making instances of tensor subclasses that wrap tensors, inside of the graph.

In: a call of the class, whose `__new__` and `__init__` are traced (`library/construct.py`). Out: an instance whose node
makes it of the tensors that it wraps, by `__tensor_unflatten__`. Until it has been given all its attributes it is a
`RawWrapperVal`, of which no operation knows anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dynajit.report import breaks
from dynajit.symbols import is_symbolic
from dynajit.values.core.registry import builtin
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.objects import MISSING
from dynajit.values.scalars.constant import is_literal
from dynajit.values.tensors import overrides
from dynajit.values.tensors.ops import run_fake
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.tensor_subclass import SubTensorVal
from dynajit.values.tensors.wrapper_subclass import WrapperVal, traceable_wrapper
from dynajit.wrappers import Flattened


class RawTensorVal(TensorVal):
    """The tensor of an instance that has no node yet."""

    @property
    def node(self) -> Any:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "an operation on a tensor subclass that is being made")


class RawWrapperVal(WrapperVal):
    """An instance that is being made. `attributes`: what it has been given, which its fake has been given too."""

    def __init__(self, cls: type, fake: torch.Tensor) -> None:
        super().__init__(cls, RawTensorVal(None, fake))  # type: ignore[arg-type]
        self.attributes: dict[str, Value] = {}
        self.finished = False

    def _part(self, tx: Tracer, name: str) -> Value | None:
        return super()._part(tx, name) if self.finished else self.attributes.get(name)

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        if self.finished or hasattr(torch.Tensor, name):
            return super().setattr(tx, name, value)
        real = value.real() if value.is_const() else value.to_graph(tx)[1]
        if isinstance(value, RawWrapperVal) and not value.finished:
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "a tensor subclass that holds one that is being made")
        object.__setattr__(self.fake, name, real)
        tx.journal.set_item(self.attributes, name, value)
        return None


class WrapperMaker:
    """What an instance's node calls: makes it of the tensors that it wraps."""

    def __init__(self, flat: Flattened) -> None:
        self.flat = flat
        self.__name__ = self.__qualname__ = f"make_{flat.cls.__name__}"

    def __call__(self, *inner: torch.Tensor) -> Any:
        return self.flat.again(*inner)


@builtin(torch.Tensor._make_wrapper_subclass)  # type: ignore[attr-defined]
def make_wrapper_subclass(tx: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    kind = cls.real()
    if not traceable_wrapper(kind) or not tx.making_wrapper:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making a {kind.__name__}")
    given = [arg.to_graph(tx)[1] for arg in args]
    named = {name: arg.to_graph(tx)[1] for name, arg in kwargs.items()}
    make: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
    fake = run_fake(tx.graph, "call_function", make, [kind, *given], named)
    return RawWrapperVal(kind, fake)


def finish_wrapper(tx: Tracer, made: Value) -> None:
    """Give an instance, which has all its attributes now, its node."""
    if not isinstance(made, RawWrapperVal) or made.finished:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making {made.describe()}")
    raw: Any = made.fake
    with ending_graph(breaks.UNSUPPORTED_TENSOR, "its class raises", Exception):  # whatever code of the class does
        flat = Flattened(raw)
    known = pytree.tree_leaves((flat.context, flat.size, flat.stride))
    inner = [made.attributes[name] for name in flat.names if _is_tensor(made.attributes.get(name))]
    if any(isinstance(part, torch.Tensor) or is_symbolic(part) for part in known) or len(inner) < len(flat.names):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making {made.describe()} of what it does not name")
    with overrides.functions_off(tx, overrides.ALL_OFF):
        again: Any = tx.torch_op("call_function", WrapperMaker(flat), inner, {})
    if type(again) is not WrapperVal or again.cls is not made.cls or not _alike(raw, again.fake, made.attributes):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making {made.describe()}, whose class makes another of its parts")
    tx.journal.set_attr(made, "payload", again.payload)
    tx.journal.set_attr(made, "finished", True)
    tx.remember_tensor(made)


def _is_tensor(value: object) -> bool:
    return isinstance(value, (TensorVal, SubTensorVal))


def _alike(one: Any, other: Any, names: Sequence[str] | dict[str, Value]) -> bool:
    """Whether instances have the same attributes and metadata."""
    if one.requires_grad != other.requires_grad or one.dtype != other.dtype:
        return False
    for name in names:
        left, right = getattr(one, name), getattr(other, name, MISSING)
        if left is right:
            continue
        parts = pytree.tree_leaves((left, right))
        if not all(is_literal(part) for part in parts) or type(left) is not type(right) or left != right:
            return False
    return True
