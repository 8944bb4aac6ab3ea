"""Tensors of a graph that no input has a part in: what they hold.

In:  a node of a functional ATen graph. Out: `constant_of(node)`: its tensor, on the CPU; None where it depends on an
     input, on random numbers or on sizes known later only, or is large.
     `put_on_device(gm)`: small constants that the graph would carry from the CPU to a device at each call, which waits
     for both, lie there from the start.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from dynajit.aot.rewrite import ancestors
from dynajit.graph.meta import value_of
from dynajit.op_facts import facts

# What torch's tracer, and ours, call a tensor that the program makes of numbers. What can change is an input, or has
# another name.
LITERAL = "_tensor_constant"
MAX_ELEMENTS = 1 << 22
# What eager makes anew at each call and does not keep is kept up to this size.
MAX_BYTES = 1 << 12
_DEEPEST = 40


def constant_of(node: Node) -> torch.Tensor | None:
    """The tensor that the node always gives, if that can be told."""
    order: dict[Node, None] = {}
    if not _collect(node, order):
        return None
    values: dict[Node, Any] = {}
    with torch.no_grad(), _disable_current_modes():
        for made in order:
            if made.op == "get_attr":
                values[made] = operator.attrgetter(str(made.target))(made.graph.owning_module).cpu()
                continue
            args: Any = map_aggregate(made.args, lambda arg: _value(arg, values))
            kwargs: Any = map_aggregate(made.kwargs, lambda arg: _value(arg, values))
            values[made] = made.target(*args, **kwargs)  # type: ignore[operator]
    found = values[node]
    return found if isinstance(found, torch.Tensor) else None


def _collect(node: Node, order: dict[Node, None]) -> bool:
    """The node and what it is made of, what is read first; False where it is no constant."""
    if node in order:
        return True
    if not _is_plain(node) or len(order) > _DEEPEST or not all(_collect(arg, order) for arg in node.all_input_nodes):
        return False
    order[node] = None
    return True


def _is_plain(node: Node) -> bool:
    target, fake = node.target, value_of(node)
    if node.op == "get_attr":
        return isinstance(fake, torch.Tensor) and str(target).startswith(LITERAL)
    return (
        node.op == "call_function"
        and isinstance(target, torch._ops.OpOverload)
        and facts(target).known
        and facts(target).pure
        and "empty" not in target.__name__
        and isinstance(fake, torch.Tensor)
        and all(isinstance(size, int) for size in fake.shape)
        and fake.numel() <= MAX_ELEMENTS
    )


def _value(arg: Any, values: dict[Node, Any]) -> Any:
    if isinstance(arg, Node):
        return values[arg]
    return torch.device("cpu") if isinstance(arg, torch.device) else arg


# ---- constants on a device

aten = torch.ops.aten
# They take places on the CPU, and carry them to the tensor's device.
_INDEXED = frozenset(
    {aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten._unsafe_index_put.default}
)


def put_on_device(gm: GraphModule) -> None:
    """Have constants of up to `MAX_BYTES` where the graph wants them: those of one value are filled in by kernels, of
    others the graph holds a tensor on the device. The graph is changed in place."""
    held: dict[tuple[Node, torch.device], Node] = {}
    replaced = []
    for node, reader in [*_copied_to_a_device(gm), *_indices(gm)]:
        value, device = constant_of(node), value_of(reader).device
        if value is None:
            continue
        with torch.no_grad(), _disable_current_modes():
            number = _one_number(value) if node is reader else None
            if number is None and (node, device) not in held:
                held[node, device] = _held(gm, value, device, value_of(node).fake_mode)
        if node is reader:  # what may be a result is made anew at each call
            with gm.graph.inserting_before(node):
                if number is None:
                    made = gm.graph.call_function(aten.clone.default, (held[node, device],))
                else:
                    like = {"dtype": value.dtype, "device": device}
                    made = gm.graph.call_function(aten.full.default, (list(value.shape), number), like)
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
        else:
            reader.replace_input_with(node, held[node, device])
        replaced.append(node)
    if replaced:
        unread = ancestors(replaced)
        for node in reversed(gm.graph.nodes):
            if node in unread and not node.users:
                gm.graph.erase_node(node)
        gm.recompile()


def _held(gm: GraphModule, value: torch.Tensor, device: torch.device, mode: FakeTensorMode) -> Node:
    """A node for a copy of the tensor on the device, which the graph holds from now on."""
    value = value.to(device)
    name = next(name for name in map("_device_constant{}".format, itertools.count()) if not hasattr(gm, name))
    setattr(gm, name, value)
    with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
        node = gm.graph.create_node("get_attr", name)
    node.meta["val"] = mode.from_tensor(value, static_shapes=True)
    return node


def _copied_to_a_device(gm: GraphModule) -> Iterator[tuple[Node, Node]]:
    """Small tensors that are copied from the CPU, each twice: what it is and what makes it are one node."""
    for node in gm.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        if _is_on_cpu(node.args[0]) and not _is_on_cpu(node) and _is_small(value_of(node)):
            yield node, node


def _indices(gm: GraphModule) -> Iterator[tuple[Node, Node]]:
    """Small tensors on the CPU that are places in tensors on a device, and who reads them."""
    for target in _INDEXED:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            if not _is_on_cpu(node):
                indices = [index for index in dict.fromkeys(node.args[1]) if isinstance(index, Node)]  # type: ignore[arg-type]
                yield from ((index, node) for index in indices if _is_on_cpu(index) and _is_small(value_of(index)))


def _is_small(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return all(type(size) is int for size in value.shape) and value.numel() * value.element_size() <= MAX_BYTES


def _is_on_cpu(node: Any) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _one_number(value: torch.Tensor) -> bool | int | float | None:
    """The number that all elements of a contiguous tensor are, if kernels have it as text without loss."""
    if not value.numel() or value.is_complex() or not value.is_contiguous():
        return None
    first: bool | int | float = value.flatten()[0].item()
    plain = math.isfinite(first) and (first != 0 or math.copysign(1, first) > 0)
    return first if plain and bool((value == first).all()) else None
