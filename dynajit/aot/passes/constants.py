"""Tensors of a graph that no input has a part in: what they hold.

In:  a node of a functional ATen graph. Out: `constant_of(node)`: its tensor, on the CPU; None where it depends on an
     input, on random numbers or on sizes known later only, or is large.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from dynajit.graph.meta import value_of
from dynajit.op_facts import facts

MAX_ELEMENTS = 1 << 22
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
    if node.op == "get_attr":  # made of numbers in the program: whatever can change is an input
        return isinstance(fake, torch.Tensor) and fake.dim() == 0
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
