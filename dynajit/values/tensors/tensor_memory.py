"""What a program asks of a tensor's memory: its size, how often it was written, and of which tensor it is a view.

In: a tensor's model. Out: numbers that are guarded where the memory came from outside, models of tensors that the
graph has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynajit import torch_compat
from dynajit.graph.meta import gives_data
from dynajit.guards.source import AttrSource, CallSource
from dynajit.report import breaks
from dynajit.values.core.bound_methods import BoundMethod
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.lookup import lookup_type
from dynajit.values.scalars.constant import ConstVal


class StorageVal(Value):
    """`tensor.untyped_storage()`."""

    kind = torch.UntypedStorage
    child_names = ("tensor",)

    def __init__(self, tensor: Value) -> None:
        self.tensor = tensor

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "device":
            return tx.getattr(self.tensor, name)
        if not callable(lookup_type(self.kind, name)[0]):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"the attribute {name!r} of a tensor's storage")
        return BoundMethod(self, name)

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if name not in ("size", "nbytes", "__len__") or args or kwargs:
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{name}() of a tensor's storage")
        return self.length(tx)

    def length(self, tx: Tracer) -> Value:
        """In bytes."""
        memory = torch_compat.memory_of(self.tensor.fake)
        if memory is None or self.tensor.fake.device.type == "meta":
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "the size of a storage that is none")
        for entry in tx.graph.inputs:
            if entry.symbol is None and torch_compat.memory_of(entry.fake) == memory:
                read = CallSource(entry.source, _bytes_of, "the bytes of {}")
                return tx.wrap(_bytes_of(entry.real), read)
        size: Any = self.tensor.fake.untyped_storage().nbytes()
        if type(size) is not int:
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "the size of a storage whose tensor has sizes that vary")
        return ConstVal(size)

    def rebuild(self, out: Any) -> None:
        out.call_on(torch.Tensor.untyped_storage, self.tensor)


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def version_of(tx: Tracer, tensor: Any) -> Value:
    """`tensor._version`: counted while tracing for what the graph makes, else read where the graph begins."""
    fake, shown = tensor.fake, "the attribute '_version' of a tensor that may share it"
    if tensor.replacement is not None or fake.is_inference():
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, shown)
    memory = torch_compat.memory_of(fake)
    shared = [entry for entry in tx.graph.inputs if torch_compat.memory_of(entry.fake) == memory]
    if not shared and not any(gives_data(node) and memory in _memories(node) for node in tx.graph.graph.nodes):
        return ConstVal(fake._version)
    if tensor.source is None or len(shared) != 1 or any(entry in shared for entry in tx.graph.written()):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, shown)
    return tx.wrap(tensor.real_tensor._version, AttrSource(tensor.source, "_version"))


def base_of(tx: Tracer, tensor: Any) -> Value:
    """`tensor._base`, where that is a tensor which the graph knows to be no view itself."""
    if tensor.replacement is None and not tensor.fake.is_inference():
        if tensor.source is None and tensor.fake._is_view():
            found = tx.tensors.get(id(tensor.fake._base))
            if found is not None and not found.call_method(tx, "_is_view", [], {}).const():
                return found  # type: ignore[no-any-return]
        elif not tensor.call_method(tx, "_is_view", [], {}).const():
            return ConstVal(None)
    raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "the attribute '_base' of a tensor")


def _memories(node: torch.fx.Node) -> set[int | None]:
    return {torch_compat.memory_of(node.meta.get("example_value"))}
