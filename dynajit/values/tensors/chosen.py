"""The item that tensors of one integer choose of a tensor, `x[t]`: an operation that loads it, and no number is read.

Its result is a copy, and eager's a view. To the trace it is the view: its fake shares the tensor's memory, so that what
autograd keeps, `_base` and versions are eager's. Whether the program can tell the difference shows in the whole graph.
In: a tensor's model, and the tensors that choose. Out: the item's model, and after the trace whether a copy will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from dynajit.graph.builder import GraphBuilder
from dynajit.graph.meta import notes, value_of
from dynajit.nested import leaves_in
from dynajit.torch_compat import memory_of
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.value import Tracer
from dynajit.values.polyfills.chosen import item_at, put_at
from dynajit.values.scalars.constant import ConstVal

_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
# of which the memory around a tensor, or the tensor itself, is read or exchanged, or the program's code is called
_BY_MEMORY = ("as_strided", "set_", "swap_", "resize", "_reshape_alias", "data_ptr", "_cdata", "apply")
_ALONE = ("torch", "_operator", "builtins")


def can_be_loaded(tx: Tracer, tensor: Any, parts: Iterable[Any]) -> bool:
    """Whether the operation gives what eager does for the tensor and these, whatever the trace goes on with."""
    fake = tensor.fake
    if tx.seen.choices_are_views or tx.runs_elsewhere or tx.open_levels or tx.overrides.modes:
        return False
    on_cpu = fake.device.type == "cpu"
    if not on_cpu and not tx.graph.shapes.captures_scalars:
        return False  # a kernel there can't raise
    return (
        tensor.kind in (torch.Tensor, torch.nn.Parameter)
        and fake.layout is torch.strided
        and fake.dtype in _DTYPES
        and not (fake.is_conj() or fake.is_neg())
        and all(part.fake.device == fake.device and not part.fake.requires_grad for part in parts)
    )


def load(tx: Tracer, tensor: Any, chosen: Sequence[tuple[int, Any]], told: bool) -> Any | None:
    """The model of the item along these dimensions; None where its layout as a copy is another one."""
    with tx.graph.running_fake():
        view = tensor.fake
        for dim, _ in reversed(chosen):
            view = view.select(dim, 0)
        alike = view.is_contiguous() and (view.dim() < 2 or tensor.fake.is_contiguous())
    if not alike:
        return None
    made: Any = tx.torch_op("call_function", item_at, [tensor, _places(chosen), ConstVal(told)], {})
    made.node.meta.update(tx.node_meta(view))
    item = type(made)(made.node, view)
    tx.remember_tensor(item)
    return item


def put(tx: Tracer, tensor: Any, chosen: Sequence[tuple[int, Any]], told: bool, value: Any) -> bool:
    """`tensor[…] = value` with tensors that choose along these dimensions. Whether it was done."""
    fake = tensor.fake
    rank = fake.dim() - len(chosen)
    if value.py_type() in (bool, int, float) and value.is_const():
        like = {"dtype": tx.from_real(fake.dtype), "device": tx.from_real(fake.device)}
        value = tx.torch_op("call_function", torch.full, [TupleVal([]), value], like)
    elif value.py_type() is not torch.Tensor or not _fits(value.fake, fake, rank):
        return False
    elif memory_of(value.fake) == memory_of(fake):
        value = value.call_method(tx, "clone", [], {})
    tx.torch_op("call_function", put_at, [tensor, _places(chosen), value, ConstVal(told)], {})
    return True


def _fits(given: torch.Tensor, whole: torch.Tensor, rank: int) -> bool:
    return given.dtype is whole.dtype and given.device == whole.device and given.dim() <= rank


def _places(chosen: Sequence[tuple[int, Any]]) -> TupleVal:
    by_dim = dict(chosen)
    return TupleVal([by_dim.get(dim, ConstVal(None)) for dim in range(max(by_dim) + 1)])


def is_told(whole: Any, tensor: Any, chosen: Sequence[tuple[int, Any]]) -> bool:
    """Whether the operation's error for an index out of range is eager's: it counts the dimensions that are chosen
    along, eager's the tensor's."""
    return whole is tensor and [dim for dim, _ in chosen] == list(range(len(chosen)))


def may_lie_anywhere(graph: fx.Graph, tensor: torch.Tensor) -> bool:
    """Whether the fake tensor may be a part of a loaded item: where it begins in the memory depends on values."""
    memory = memory_of(tensor)
    return any(node.target is item_at and memory_of(value_of(node)) == memory for node in graph.nodes)


# -- after the trace


def need_views(built: GraphBuilder, results: Iterable[fx.Node]) -> bool:
    """Whether a copy would not do for an item of this graph: what gives another answer than the view, or may."""
    nodes = list(built.graph.nodes)
    # a graph that changes nothing raises what the frame does when it is run again
    changes = built.impure or built.has_written()
    if changes and any(node.target in (item_at, put_at) and node.args[-1] is False for node in nodes):
        return True
    order = {node: place for place, node in enumerate(nodes)}
    writers = [node for node in nodes if notes(node).writes]
    returned = set(results)
    return any(_tells(node, order, writers, returned) for node in nodes if node.target is item_at)


def _tells(item: fx.Node, order: dict[fx.Node, int], writers: list[fx.Node], results: set[fx.Node]) -> bool:
    """Whether the program sees that an item is no view: by what it returns, writes, or asks of the memory."""
    memory = memory_of(value_of(item))
    views, readers = {item: None}, set()
    for view in (todo := [item]):
        for user in view.users:
            readers.add(user)
            if user not in views and any(memory_of(each) == memory for each in leaves_in([value_of(user)])):
                views[user] = None
                todo.append(user)
    writes = [order[node] for node in writers if order[node] > order[item] and memory in notes(node).writes]
    if writes and (value_of(item).requires_grad or any(order[node] >= writes[0] for node in readers)):
        return True
    return not views.keys().isdisjoint(results) or not all(map(_by_values, readers))


def _by_values(node: fx.Node) -> bool:
    """Whether an operation depends on its tensors' values and layouts alone, as far as its name tells."""
    if node.op == "call_method":
        name, home = str(node.target), "torch"
    else:
        name = getattr(node.target, "__name__", "")
        home = str(getattr(node.target, "__module__", None) or "torch")
    if node.op not in ("call_function", "call_method") or home.startswith("torch.ops.higher_order"):
        return False
    known = home.partition(".")[0] in _ALONE or node.target in (item_at, put_at)
    return known and not name.startswith(_BY_MEMORY)
