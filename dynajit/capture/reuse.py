"""Graphs that variants of a part of a function have in common.

A part (a loop's body, the rest of a function after a break) is often captured again for a reason that is not in its
graph: a counter that decides whether a loop goes on, an object that only Python looks at. In: a graph, its inputs, and
what they are like. Out: the key under which what the backend made of it is found again; None where that is not sure to
do the same, as with symbolic sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from dynajit import _C
from dynajit.config import config
from dynajit.graph.builder import GraphInput

_PLAIN = (int, bool, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout, torch.memory_format)
Key = tuple[Any, ...]


class _Unknown(Exception):
    """Something that two graphs can't be compared by."""


def graph_key(module: fx.GraphModule, inputs: Sequence[GraphInput]) -> Key | None:
    """What two graphs that compute the same have in common, torch's modes and dynajit's settings included."""
    try:
        places: dict[fx.Node, int] = {}
        nodes = [_node(module, node, places) for node in module.graph.nodes]
        storages: dict[int, int] = {}
        tensors = [_tensor(entry, storages) for entry in inputs]
    except _Unknown:
        return None
    state = _C.GlobalState()
    settings = repr(dataclasses.astuple(config))
    return (*nodes, *tensors, tuple(state.values.values()), tuple(state.modes), settings)


def _node(module: fx.GraphModule, node: fx.Node, places: dict[fx.Node, int]) -> Key:
    places[node] = len(places)
    if node.op == "placeholder":
        return (node.op,)
    if node.op == "get_attr":
        found = getattr(module, str(node.target), None)
        if not isinstance(found, torch.Tensor):
            raise _Unknown
        return node.op, _ByIdentity(found)
    target = node.target if isinstance(node.target, str) else _ByIdentity(node.target)
    return node.op, target, _argument(node.args, places), _argument(node.kwargs, places)


class _ByIdentity:
    """An object, equal to itself alone."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.obj is self.obj

    def __hash__(self) -> int:
        return id(self.obj)


def _argument(value: Any, places: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return "node", places[value]
    if type(value) in (tuple, list) or isinstance(value, (fx.immutable_collections.immutable_list, torch.Size)):
        return "sequence", isinstance(value, tuple), *(_argument(item, places) for item in value)
    if isinstance(value, dict):
        return "mapping", *((key, _argument(item, places)) for key, item in value.items())
    if isinstance(value, slice):
        return "slice", *(_argument(part, places) for part in (value.start, value.stop, value.step))
    if type(value) in (float, complex):
        return type(value), repr(value)  # tells the zeros apart, and takes NaN for itself
    if type(value) in _PLAIN:
        return type(value), value
    raise _Unknown


def _tensor(entry: GraphInput, storages: dict[int, int]) -> Key:
    real = entry.real
    if entry.symbol is not None or not isinstance(real, torch.Tensor) or type(real) not in (_PLAIN_TENSORS):
        raise _Unknown
    if any(size is None for size in (*(entry.sizes or ()), *(entry.strides or ()))):
        raise _Unknown
    storage = real.untyped_storage()._cdata
    return (
        type(real),
        real.dtype,
        real.device,
        tuple(real.shape),
        real.stride(),
        real.storage_offset(),
        real.requires_grad,
        real.is_leaf,
        torch._C._dispatch_keys(real).raw_repr(),
        storages.setdefault(storage, len(storages)),
        entry.mutated,
    )


_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
