"""Models of what torch.distributed.tensor adds to operations: layouts of DTensors, and changes between them.

In: `DTensor.redistribute`, `to_local`, `full_tensor`, `from_local` and what a DTensor says of its mesh and placements.
Out: a node of the graph that calls torch's own function, with the mesh and placements as constants; answers from the
fake. DTensors themselves are wrapper subclasses like others.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from dynajit.graph.collective import arrived
from dynajit.guards.source import AttrSource, ConstSource
from dynajit.report import breaks
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.registry import models_of_named, pure
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.tensors.collectives import real_of
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.wrapper_subclass import WrapperVal

_API = "torch.distributed.tensor._api"


def is_placement(kind: type) -> bool:
    """Whether instances say how a DTensor lies on a dimension of its mesh."""
    return any(
        base.__name__ == "Placement" and base.__module__.startswith(("torch.distributed.", "torch._C._distributed"))
        for base in kind.__mro__
    )


# what a placement is asked; those that torch has in C
pure(
    *(
        found.__func__
        for kind in ("Placement", "Shard", "StridedShard", "Replicate", "Partial")
        for name, found in vars(getattr(getattr(torch._C, "_distributed", None), kind, object)).items()
        if name in ("is_partial", "is_replicate", "is_shard")
    )
)


class LayoutChange:
    """What a node calls: torch's function, with what is known of its arguments."""

    communicates = True

    def __init__(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.call = functools.partial(function, **kwargs)
        self.args = args
        self.__name__ = self.__qualname__ = function.__name__

    def __call__(self, tensor: Any) -> Any:
        return arrived(self.call(tensor, *self.args))


@models_of_named(_API, "DTensor.redistribute", "DTensor.to_local", "DTensor.full_tensor", "DTensor.from_local")
def _change(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    tensor, *rest = args
    if not isinstance(tensor, (TensorVal, WrapperVal)):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{function.__qualname__} of {tensor.describe()}")
    known = [_real(tx, arg) for arg in rest]
    named = {name: _real(tx, arg) for name, arg in kwargs.items()}
    return tx.torch_op("call_function", LayoutChange(function, known, named), [tensor], {})


def _real(tx: Tracer, value: Value) -> Any:
    """The object that an argument is, or a list or tuple of them."""
    if isinstance(value, (ListVal, TupleVal)):
        parts = [_real(tx, part) for part in value.values(tx)]
        return parts if isinstance(value, ListVal) else tuple(parts)
    return real_of(tx, value) if value.real_object is not None else value.real()


@models_of_named(_API, "DTensor.placements")
def _placements(function: types.FunctionType, tx: Tracer, tensor: Value) -> Value:
    return tx.from_real(_fake(tensor).placements)


@models_of_named(_API, "DTensor.device_mesh")
def _mesh(function: types.FunctionType, tx: Tracer, tensor: Value) -> Value:
    mesh = _fake(tensor).device_mesh
    if tensor.source is None:
        return tx.wrap(mesh, ConstSource(mesh, "a device mesh"))
    return tx.wrap(mesh, AttrSource(tensor.source, "device_mesh"))


def _fake(tensor: Value) -> Any:
    if not isinstance(tensor, WrapperVal):
        raise GraphBreak(breaks.SKIPPED_CALL, f"the layout of {tensor.describe()}")
    return tensor.fake
