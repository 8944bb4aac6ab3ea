"""`tensor.data = other` where gradients are computed: what has to be in the memory that a graph keeps for backward.

Autograd keeps the tensor objects that operations read, not their memory: backward reads what is in such a tensor then.
In: the graph. Out: whether a line that sets a tensor's data has to run between two graphs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from dynajit import torch_compat
from dynajit.graph.meta import value_of
from dynajit.values.core.value import Tracer
from dynajit.values.polyfills.autograd import history_with_data


def is_differentiated(node: fx.Node) -> bool:
    """Whether an operation whose gradient may be asked for reads it."""
    return any(_requires_grad(user) and not _takes_history(user, node) for user in node.users)


def needs_old_data(tx: Tracer) -> bool:
    """Whether backward reads memory that a tensor from outside had before the program set its data."""
    given = {entry.node: entry.fake for entry in tx.graph.inputs if entry.symbol is None}
    changed = [effect for effect in tx.journal.dirty.values() if "data" in getattr(effect, "attrs", ())]
    memories = {torch_compat.memory_of(given[value.placeholder]) for value in changed}
    if not memories:
        return False
    return any(
        isinstance(found := value_of(part), torch.Tensor)
        and torch_compat.memory_of(found) in memories
        and not _takes_history(node, part)
        for node in tx.graph.graph.nodes
        if _requires_grad(node)
        for part in node.all_input_nodes
    )


def _takes_history(user: fx.Node, node: fx.Node) -> bool:
    """Whether it takes no more than the history of the tensor, or is not used itself."""
    if user.target is not history_with_data:
        return False
    return user.args[1] is not node or not is_differentiated(user)


def _requires_grad(node: fx.Node) -> bool:
    """Whether it gives what requires grad; not if it writes leaves that the graph was given, which have no history."""
    found: Any = value_of(node)
    parts: Iterable[Any] = found if isinstance(found, (tuple, list)) else (found,)
    given = {id(value_of(each)) for each in node.all_input_nodes if each.op == "placeholder"}
    return any(
        isinstance(part, torch.Tensor) and part.requires_grad and not (id(part) in given and part.grad_fn is None)
        for part in parts
    )
