"""Tensor subclasses that wrap tensors (`__torch_dispatch__`, `__tensor_flatten__`) while tracing.

In: an instance from outside (`wrap.py`), or what an operation gives (`ops.py`). Out: `WrapperVal`. Its fake is an
instance of the class with fake tensors in it, so that operations on it run the class's own `__torch_dispatch__`; they
are nodes that take the instance. The backend takes it apart (`aot/subclasses.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dynajit.graph.builder import GraphInput
from dynajit.graph.meta import value_of
from dynajit.guards.source import AttrSource, ConstSource, Source
from dynajit.report import breaks
from dynajit.symbols import is_symbolic
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.lookup import is_data_descriptor
from dynajit.values.objects.objects import MISSING, lookup_type
from dynajit.values.scalars.constant import ConstVal, is_literal
from dynajit.values.tensors import overrides
from dynajit.values.tensors.ragged_sizes import SIZES, numbers
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.tensor_subclass import SubTensorVal
from dynajit.wrappers import Expected, Flattened, is_wrapper, is_wrapper_class


class WrapperVal(SubTensorVal):
    """An instance of a wrapper subclass; `payload` is its node, whose fake is an instance too."""

    def generic_getattr(self, tx: Tracer, name: str, fallback: bool = True) -> Value:
        found, _ = lookup_type(self.cls, name)
        if found is MISSING or inspect.ismemberdescriptor(found) or not is_data_descriptor(found):
            part = self._part(tx, name)
            if part is not None:
                return part
        return super().generic_getattr(tx, name, fallback)

    def _part(self, tx: Tracer, name: str) -> Value | None:
        """An attribute of the instance itself: a tensor in it, or of what the graph made, anything."""
        fake: Any = self.fake
        flat = Flattened(fake)
        if name in flat.names:
            return self._inner(tx, name)
        own = _attributes(fake, name)
        if name in SIZES and name in own and fake.is_nested:
            return numbers(tx, self, name, fake)
        if self.real_object is not None or name not in own:
            return None
        value = own[name]
        constants = [*pytree.tree_leaves(flat.context), *flat.objects.values()]
        if all(map(is_literal, pytree.tree_leaves(value))) or any(value is part for part in constants):
            return tx.from_real(value)
        if _is_layout(value):
            return tx.wrap(value, ConstSource(value, f"{name} of a result"))
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{name!r} of {self.describe()}")

    def _inner(self, tx: Tracer, name: str) -> Value:
        real = None if self.real_object is None else getattr(self.real_object, name)
        source = None if self.source is None or real is None else AttrSource(self.source, name)
        if source is not None:
            known = tx.known_object(real, source)
            if known is not None:
                return known
        with overrides.functions_off(tx, overrides.ALL_OFF):
            part = tx.torch_op("call_function", getattr, [self.payload, ConstVal(name)], {})
        if source is not None:
            # it comes from outside, as part of this instance: reached otherwise, it has to be the same one
            part.source = source
            plain = part.payload if isinstance(part, SubTensorVal) else part
            assert isinstance(plain, TensorVal)
            plain.source, plain.real_tensor = source, real
            if isinstance(part, SubTensorVal):
                part.real_object = real
            tx.remember_object(real, part)
        return part

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        if name == "grad" and not overrides.overriding(self.cls):
            return self.payload.setattr(tx, name, value)
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"setting {name!r} of {self.describe()}")

    # -- generated code

    def children(self) -> Sequence[Value]:
        return (self.payload,)

    def rebuild(self, out: Any) -> None:
        out.push(self.payload)


def _attributes(obj: Any, name: str) -> dict[str, Any]:
    """The object's own attributes; of those in slots, the one of this name."""
    in_slot = inspect.ismemberdescriptor(lookup_type(type(obj), name)[0]) and hasattr(obj, name)
    return {name: getattr(obj, name)} if in_slot else getattr(obj, "__dict__", {})


def _is_layout(value: Any) -> bool:
    """Whether it says how a DTensor lies on its mesh, in known numbers."""
    if type(value).__module__ != "torch.distributed.tensor._dtensor_spec":
        return False
    meta = getattr(value, "tensor_meta", None)
    return meta is None or not any(map(is_symbolic, (*meta.shape, *meta.stride)))


def traceable_wrapper(cls: type) -> bool:
    """Whether instances wrap tensors by torch's protocol, and attributes are plain."""
    return (
        is_wrapper_class(cls)
        and cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
        and cls.__getattribute__ is object.__getattribute__
        and cls.__setattr__ is object.__setattr__
        and not issubclass(cls, torch.nn.Parameter)
    )


def guard_wrapper(tx: Tracer, obj: Any, source: Source) -> None:
    """Guard what the fake has taken for granted: the context, and what the inner tensors are like."""
    expected = Expected(obj)
    tx.guard(source, "PREDICATE", expected, f"consists of {', '.join(expected.names)}, with the same context")
    for name in expected.names:
        inner, of_inner = getattr(obj, name), AttrSource(source, name)
        if not isinstance(inner, torch.Tensor):
            tx.guard(of_inner, "ID", inner)
            continue
        tx.guard(of_inner, "TENSOR", inner)
        if is_wrapper(inner):
            guard_wrapper(tx, inner, of_inner)


def guard_ragged(tx: Tracer, entry: GraphInput) -> None:
    """Guard which of the graph's inputs have the ragged size of the new one: those with the very same tensor of
    offsets, or lengths."""
    found = _ragged(entry) if tx.graph.takes_nested else None
    if found is None:
        return
    for other in tx.graph.inputs[:-1]:
        known = _ragged(other) if _is_jagged(entry) | _is_jagged(other) else None
        if known is not None and known[1] != found[1]:
            tx.guard(known[1], "SAME_OBJECT" if known[0] is found[0] else "NOT_ALIASED", found[1])


def shares_ragged(tx: Tracer, obj: Any) -> bool:
    """Whether a jagged input of the graph has the ragged size of this tensor."""
    own = obj._offsets if obj._lengths is None else obj._lengths
    found = [_ragged(entry) for entry in tx.graph.inputs if _is_jagged(entry)]
    return any(known is not None and known[0] is own for known in found)


def ragged_varies(tx: Tracer, obj: Any, source: Source) -> bool:
    """Whether a jagged tensor holds other sizes from call to call: there are no symbols for those, and a graph for
    each would be one too many."""
    varies = [tx.seen.varies(AttrSource(source, name), getattr(obj, name)) for name in Flattened(obj).names]
    return any(varies)


def _is_jagged(entry: GraphInput) -> bool:
    return isinstance(entry.real, torch.Tensor) and entry.real.is_nested


def _ragged(entry: GraphInput) -> tuple[torch.Tensor, Source] | None:
    """The tensor that a ragged size is of, or may become of, and how it is reached."""
    real: Any = entry.real
    if _is_jagged(entry):
        name = "_offsets" if real._lengths is None else "_lengths"
        return getattr(real, name), AttrSource(entry.source, name)
    return (real, entry.source) if isinstance(real, torch.Tensor) and real.dim() == 1 else None


def masks_left(graph: fx.Graph) -> bool:
    """Whether something that this graph makes has its mask still to be used when the graph ends."""
    return any(keeps_mask(value_of(node)) and not node.users for node in graph.nodes)


def keeps_mask(value: Any) -> bool:
    """Whether it is a DTensor that has to be summed up with a mask, which its placement keeps until then, once."""
    placements = getattr(getattr(value, "_spec", None), "placements", ())
    return any(hasattr(placement, "mask_buffer") for placement in placements)


def made_by_graph(node: fx.Node, fake: Any) -> WrapperVal:
    """The model of an instance that a node gives."""
    if not traceable_wrapper(type(fake)):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"an operation that returns a {type(fake).__name__}")
    return WrapperVal(type(fake), TensorVal(node, fake))
