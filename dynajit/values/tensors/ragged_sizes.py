"""Sizes and strides of jagged tensors. One of the sizes is a number equal to itself alone: it is that of one tensor of
offsets, another at each call.

In: the attributes that torch answers `shape`, `size()` and `stride()` from. Out: tuples whose ragged numbers are read
of the tensor again where the program needs them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from dynajit.report import breaks
from dynajit.values.core.value import Tracer, Value
from dynajit.values.objects.opaque import OpaqueVal
from dynajit.values.scalars.constant import ConstVal

SIZES = ("_size", "_strides")


class RaggedNumber(OpaqueVal):
    """A number that is ragged, at its place in an attribute of a tensor's."""

    def __init__(self, tensor: Value, name: str, place: int, number: torch.SymInt) -> None:
        super().__init__(torch.SymInt, None, breaks.UNSUPPORTED_VALUE, "a ragged size")
        self.tensor = tensor
        self.name = name
        self.place = place
        self.number = number

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        """Which inputs of a graph have the same ragged size is guarded."""
        if isinstance(other, RaggedNumber):
            return bool(self.number == other.number)
        if type(other) is ConstVal and type(other.value) is int:
            return bool(self.number == other.value)
        return super().equals(tx, other)

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        if self.name != "_size":
            return super().to_graph(tx)
        of, _ = self.tensor.to_graph(tx)
        size = torch.ops.aten.sym_size.int
        return tx.graph.create("call_function", size, (of, self.place), {}, tx.node_meta(self.number)), self.number

    # -- generated code

    def rebuildable(self) -> bool:
        return True

    def children(self) -> Sequence[Value]:
        return (self.tensor,)

    def rebuild(self, out: Any) -> None:
        out.call_on(functools.partial(_number_at, self.name, self.place), self.tensor)


def _number_at(name: str, place: int, tensor: Any) -> Any:
    return getattr(tensor, name)[place]


def numbers(tx: Tracer, tensor: Value, name: str, fake: Any) -> Value:
    """The model of one of `SIZES`."""
    found = [
        RaggedNumber(tensor, name, place, number) if isinstance(number, torch.SymInt) else tx.from_real(number)
        for place, number in enumerate(getattr(fake, name))
    ]
    return tx.new_tuple(found)
