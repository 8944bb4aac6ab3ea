"""The item that tensors of one integer choose of a tensor, `x[t]`: an operation that loads it, and no number is read.

Its result is a copy, and eager's a view. To the trace it is the view: its fake shares the tensor's memory, so that what
autograd keeps, `_base` and versions are eager's. What is written into an item is put where it was loaded from at once.
Whether the program can tell the difference shows in the whole graph.
In: a tensor's model, and the tensors that choose. Out: the item's model, and after the trace whether a copy will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch._prims_common import make_contiguous_strides_for

from dynajit.graph.builder import GraphBuilder, run_target
from dynajit.graph.meta import notes, value_of, written_by
from dynajit.nested import leaves_in
from dynajit.torch_compat import innermost, is_batched, memory_below
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.value import Tracer, Value
from dynajit.values.polyfills.chosen import item_at, number_in, places_from, put_at
from dynajit.values.scalars.constant import ConstVal

_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
# of which the memory around a tensor, or the tensor itself, is read or exchanged, or the program's code is called
_BY_MEMORY = ("as_strided", "set_", "swap_", "resize", "_reshape_alias", "data_ptr", "_cdata", "apply")
_ALONE = ("torch", "_operator", "builtins")
_COPIED = 1 << 16  # bytes


def can_be_loaded(tx: Tracer, tensor: Any, parts: Iterable[Any]) -> bool:
    """Whether the operation gives what eager does for the tensor and these, whatever the trace goes on with."""
    fake = tensor.fake
    if tx.seen.choices_are_views or tx.runs_elsewhere or tx.overrides.modes:
        return False
    parts = [*parts]
    if tx.open_levels and (torch.is_inference_mode_enabled() or any(is_batched(part.fake) for part in parts)):
        return False
    if fake.device.type != "cpu" and not tx.graph.shapes.asked_for_scalars:
        return False  # a kernel there can't raise
    return _has_plain_elements(tensor) and not any(
        part.fake.device != fake.device or part.fake.requires_grad for part in parts
    )


def _has_plain_elements(tensor: Any) -> bool:
    """Whether a kernel can copy the elements as they are in memory."""
    fake = tensor.fake
    usual = tensor.kind in (torch.Tensor, torch.nn.Parameter) and fake.layout is torch.strided
    return usual and fake.dtype in _DTYPES and not (fake.is_conj() or fake.is_neg())


def load(tx: Tracer, tensor: Any, chosen: Sequence[tuple[int, Any]], told: Sequence[int] | None) -> Any | None:
    """The model of the item along these dimensions; None where a copy would not be laid out in one piece. `told`: the
    places of what chooses in the program's index, which its error names; None of what is no index."""
    chosen = _kept(tx, chosen, tensor)
    with tx.graph.running_fake():
        view = tensor.fake
        for dim, _ in reversed(chosen):
            view = view.select(dim, 0)
    return _loaded(tx, tensor, view, _places(chosen), _told(chosen, told))


def _loaded(tx: Tracer, tensor: Any, view: torch.Tensor, places: TupleVal, told: Value) -> Any | None:
    with tx.graph.running_fake():
        if tx.open_levels:  # a copy with the strides of a view can't be made below levels
            ordered = innermost(tensor.fake).is_contiguous() and _is_plain(innermost(view))
        else:
            ordered = _is_ordered(tensor.fake) or (view.is_contiguous() and view.dim() < 2)
    if not ordered:
        return None
    made: Any = tx.torch_op("call_function", item_at, [tensor, places, told], {})
    made.node.meta.update(tx.node_meta(view))
    item = type(made)(made.node, view)
    tx.remember_tensor(item)
    return item


def _is_ordered(fake: torch.Tensor) -> bool:
    """Whether the dimensions are in the order of the memory, so that a copy of a part of it is contiguous."""
    steps = fake.stride()
    known = all(type(step) is int and step > 0 for step in steps)
    return fake.is_contiguous() or (known and list(steps) == sorted(steps, reverse=True))


def choose(tx: Tracer, name: str, tensor: Any, given: dict[str, Any], place: Any) -> Any | None:
    """What `select` and `narrow` give where a tensor of one integer says which it is, or where it begins; None if no
    kernel may load it."""
    numbers = [given.get("dim"), given.get("length", ConstVal(1))]
    if not all(part is not None and part.is_const() and part.py_type() is int for part in numbers):
        return None
    along, count = (part.const() for part in numbers if part is not None)
    rank = tensor.fake.dim()
    if not (-rank <= along < rank and count > 0 and can_be_loaded(tx, tensor, [place])):
        return None
    along %= rank
    if name == "select":
        return load(tx, tensor, [(along, place)], None)
    size = tensor.fake.shape[along]
    if type(size) is not int or count > size:
        return None
    with tx.graph.running_fake():
        view = tensor.fake.narrow(along, 0, count)
    where = tx.torch_op("call_function", places_from, [place, ConstVal(count), ConstVal(size)], {})
    return _loaded(tx, tensor, view, _places([(along, where)]), ConstVal(None))


def put(tx: Tracer, tensor: Any, chosen: Sequence[tuple[int, Any]], told: Sequence[int], value: Any) -> bool:
    """`tensor[…] = value` with tensors that choose along these dimensions. Whether it was done."""
    fake = tensor.fake
    rank = fake.dim() - len(chosen)
    if _overlaps(fake) or tx.open_levels:
        return False
    chosen = _kept(tx, chosen, tensor, value)
    if value.py_type() in (bool, int, float) and value.is_const():
        like = {"dtype": tx.from_real(fake.dtype), "device": tx.from_real(fake.device)}
        value = tx.torch_op("call_function", torch.full, [TupleVal([]), value], like)
    elif value.py_type() is not torch.Tensor or not _fits(value.fake, fake, rank):
        return False
    elif memory_below(value.fake) == memory_below(fake):
        if _is_item(value, tensor, chosen):
            return True  # as `x[t] += 1` ends: what was written is there
        if value.fake.numel() != 1 and not _is_like(value.node, tensor.node, [dim for dim, _ in chosen]):
            return False
        value = value.call_method(tx, "clone", [], {})
    is_probed = _is_input(tx, fake) and _probe(tx, tensor, chosen, told)
    named = ConstVal(None) if is_probed else _told(chosen, told)
    tx.torch_op("call_function", put_at, [tensor, _places(chosen), value, named], {})
    return True


def _is_input(tx: Tracer, fake: torch.Tensor) -> bool:
    return memory_below(fake) in {memory_below(entry.fake) for entry in tx.graph.inputs}


def _probe(tx: Tracer, tensor: Any, chosen: Sequence[tuple[int, Any]], told: Sequence[int]) -> bool:
    """Load one number from where the graph is going to write an input, if an index out of range were told in another
    way by what writes: what loads it raises eager's error, before anything is changed. Whether it does."""
    sizes = tensor.fake.shape
    if [*told] == [*range(len(told))] or not all(type(size) is int and size > 0 for size in sizes):
        return False
    along = [dim for dim, _ in chosen]
    for dim in reversed(range(len(sizes))):
        if dim not in along:
            tensor = tx.torch_op("call_method", "select", [tensor, ConstVal(dim), ConstVal(0)], {})
    return load(tx, tensor, [(at, part) for at, (_, part) in enumerate(chosen)], told) is not None


def _kept(tx: Tracer, chosen: Sequence[tuple[int, Any]], *values: Any) -> list[tuple[int, Any]]:
    """What chooses; copies where backward keeps it: the program may write it until then, and eager has read it."""
    fakes = [getattr(value, "fake", None) for value in values]
    if not torch.is_grad_enabled() or not any(fake is not None and fake.requires_grad for fake in fakes):
        return [*chosen]
    return [(dim, _copied(tx, part)) for dim, part in chosen]


def _copied(tx: Tracer, part: Any) -> Any:
    for user in part.node.users:
        if user.target is number_in and not _written_since(user, [part.node]):
            return tx.tensors[id(value_of(user))]
    return tx.torch_op("call_function", number_in, [part], {})


def _overlaps(fake: torch.Tensor) -> bool:
    return any(type(step) is int and step == 0 for step in fake.stride())


def _is_item(value: Any, tensor: Any, chosen: Sequence[tuple[int, Any]]) -> bool:
    """Whether a model is what was loaded of the tensor by the same tensors."""
    item = _item_of(value.node)
    if item is None or value_of(value.node) is not value_of(item) or item.args[0] is not tensor.node:
        return False
    by_dim = {dim: part.node for dim, part in chosen}
    places: Any = item.args[1]
    same = [by_dim.get(dim) for dim in range(max(by_dim) + 1)] == list(places)
    return same and not _written_since(item, by_dim.values())


def _item_of(node: fx.Node) -> fx.Node | None:
    """The item of which this is a view."""
    memory = memory_below(value_of(node))
    while node.target is not item_at:
        whole = next((part for part in node.all_input_nodes if memory_below(value_of(part)) == memory), None)
        if memory is None or whole is None:
            return None
        node = whole
    return node


def _written(node: fx.Node) -> list[Any]:
    return [node.args[0]] if node.target is put_at else [*written_by(node)]


def _written_since(item: fx.Node, places: Iterable[fx.Node]) -> bool:
    """Whether one of the tensors that choose an item was written after that."""
    memories = {memory_below(value_of(place)) for place in places}
    node = item
    while (node := node.next).op != "root":
        if not memories.isdisjoint(notes(node).writes):
            return True
    return False


def put_back(tx: Tracer, node: fx.Node) -> None:
    """Where this operation writes into an item, have what it leaves there in the item's tensor."""
    for written in _written(node):
        item = _item_of(written)
        if item is None:
            continue
        whole = item.args[0]
        places: Any = item.args[1]
        tensor, kept = (tx.tensors.get(id(value_of(part))) for part in (whole, item))
        chosen = [(dim, tx.tensors.get(id(value_of(place)))) for dim, place in enumerate(places) if place is not None]
        if tensor is None or kept is None or any(model is None for _, model in chosen):
            continue
        if _overlaps(tensor.fake) or _written_since(item, filter(None, places)):
            continue  # what it holds then is no copy of what is there
        with tx.graph.running_fake(), torch.no_grad():
            copy = torch.empty_like(value_of(item))
        value = type(kept)(item, copy)
        tx.torch_op("call_function", put_at, [tensor, _places(chosen), value, ConstVal(None)], {})


def _fits(given: torch.Tensor, whole: torch.Tensor, rank: int) -> bool:
    return given.dtype is whole.dtype and given.device == whole.device and given.dim() <= rank


def _places(chosen: Sequence[tuple[int, Any]]) -> TupleVal:
    by_dim = dict(chosen)
    return TupleVal([by_dim.get(dim, ConstVal(None)) for dim in range(max(by_dim) + 1)])


def _told(chosen: Sequence[tuple[int, Any]], told: Sequence[int] | None) -> Value:
    if told is None:
        return ConstVal(None)
    return _places([(dim, ConstVal(place)) for (dim, _), place in zip(chosen, told, strict=True)])


def may_lie_anywhere(graph: fx.Graph, tensor: torch.Tensor) -> bool:
    """Whether the fake tensor may be a part of a loaded item: where it begins in the memory depends on values."""
    memory = memory_below(tensor)
    return any(node.target is item_at and memory_below(value_of(node)) == memory for node in graph.nodes)


# -- after the trace


def need_views(built: GraphBuilder, results: Iterable[fx.Node]) -> bool:
    """Whether a copy would not do for an item of this graph: what gives another answer than the view, or may."""
    nodes = list(built.graph.nodes)
    # a graph that changes nothing raises what the frame does when it is run again
    if (built.impure or built.has_written()) and not all(map(_raises_as_eager, nodes)):
        return True
    read = {memory_below(value_of(node)) for node in nodes if node.target is item_at}
    written = [value_of(node) for node in nodes if node.target is put_at and memory_below(value_of(node)) in read]
    if any(map(_loses_its_place, nodes)) or any(map(_is_long_to_copy, written)):
        return True
    order = {node: place for place, node in enumerate(nodes)}
    writers = [node for node in nodes if notes(node).writes]
    items, returned = [node for node in nodes if node.target is item_at], set(results)
    if items and any(None in notes(node).writes for node in writers):
        return True  # what a level of torch.func's wraps: which memory it is in is not noted
    return any(_tells(node, order, writers, returned) for node in items) or _lies_elsewhere(built, returned)


def _is_long_to_copy(fake: torch.Tensor) -> bool:
    """Whether a copy takes longer than a break: kernels that read and write items make one of the whole tensor."""
    sizes = [size for size in fake.shape if type(size) is int]
    return len(sizes) < fake.dim() or math.prod(sizes) * fake.itemsize > _COPIED


def _raises_as_eager(node: fx.Node) -> bool:
    """Whether an index out of range is told as eager does, too, by a graph that changes something. Kernels that load
    have the captured graph run for its error, unless gradients are computed; torch's operations count the indices."""
    if node.target not in (item_at, put_at):
        return True
    told: Any = node.args[-1]
    if told is None:
        return node.target is put_at  # what is there has been loaded before
    counted = [place for place in told if place is not None]
    loads = node.target is item_at and not value_of(node).is_complex()
    return counted == [*range(len(counted))] or (loads and not _computes_gradients(node.graph))


def _loses_its_place(node: fx.Node) -> bool:
    """Whether backward finds that a tensor which chose has been written since, where eager kept the number."""
    if node.target not in (item_at, put_at) or not value_of(node).requires_grad:
        return False
    places: Any = node.args[1]
    return _written_since(node, filter(None, places))


def _computes_gradients(graph: fx.Graph) -> bool:
    given = (value_of(node) for node in graph.find_nodes(op="placeholder"))
    return any(memory_below(value) is not None and value.requires_grad for value in given)


def _tells(item: fx.Node, order: dict[fx.Node, int], writers: list[fx.Node], results: set[fx.Node]) -> bool:
    """Whether the program sees that an item is no view: by what it returns, writes, or asks of the memory."""
    memory = memory_below(value_of(item))
    views, readers = {item: None}, set()
    for view in (todo := [item]):
        for user in view.users:
            readers.add(user)
            if user not in views and any(memory_below(each) == memory for each in leaves_in([value_of(user)])):
                views[user] = None
                todo.append(user)
    own, stale, last = set(), len(order), -1
    for node in writers:
        if order[node] > order[item] and memory in notes(node).writes:
            last = order[node]
            if node in own:
                continue
            put_back = _put_back_by(node, item)
            if put_back and not views.keys().isdisjoint(_written(node)):
                own |= {node, *put_back}
                if _reads_across(node, item):
                    return True
            else:
                stale = min(stale, last + _writes_alike(node, item))
    if any(order[node] >= stale for node in readers):
        return True
    if value_of(item).requires_grad and any(
        order[node] < last and node.target != "clone" for node in readers - own - views.keys()
    ):
        return True  # what is kept of it for backward has been written since, which eager finds
    return not views.keys().isdisjoint(results) or not all(map(_by_values, readers))


def _put_back_by(node: fx.Node, item: fx.Node) -> list[fx.Node]:
    """The operations after a write that put an item where it was loaded from; none if it is not put there."""
    found = []
    while (node := node.next).target is put_at:
        value: Any = node.args[2]
        if value.target is not item_at or value.args[:2] != node.args[:2]:
            break
        found.append(node)
        if value is item:
            return found
    return []


def _writes_alike(node: fx.Node, item: fx.Node) -> bool:
    """Whether an operation writes what is the same as an item, or has nothing in common with it."""
    dims: Any = _dims(item)
    whole: Any = item.args[0]
    return bool(_written(node)) and dims is not None and all(_is_like(part, whole, dims) for part in _written(node))


def _reads_across(node: fx.Node, item: fx.Node) -> bool:
    """Whether an operation that writes an item reads what may have a part in common with it: eager's operations find
    there what they have written."""
    memory, written = memory_below(value_of(item)), [value_of(part) for part in _written(node)]
    dims: Any = _dims(item)
    whole: Any = item.args[0]
    others = (
        part
        for part in node.all_input_nodes
        if memory_below(value_of(part)) == memory and not any(value_of(part) is one for one in written)
    )
    return any(dims is None or not _is_like(part, whole, dims) for part in others)


def _is_like(part: fx.Node, whole: fx.Node, dims: list[int]) -> bool:
    """Whether this is an item of a tensor along such dimensions, whichever: any two are the same one or lie apart."""
    view, tensor, item = value_of(part), value_of(whole), _item_of(part)
    kept = [dim for dim in range(tensor.dim()) if dim not in dims]
    layout = [(tensor.shape[dim], tensor.stride(dim)) for dim in kept]
    if str(layout) != str([*zip(view.shape, view.stride(), strict=True)]):
        return False
    if item is not None:
        return item.args[0] is whole and _dims(item) == dims and view.storage_offset() == tensor.storage_offset()
    step = tensor.stride(dims[0])
    numbers = (view.storage_offset(), tensor.storage_offset(), step)
    return len(dims) == 1 and all(type(one) is int for one in numbers) and (numbers[0] - numbers[1]) % step == 0


def _dims(item: fx.Node) -> list[int] | None:
    places: Any = item.args[1]
    if any(place is not None and value_of(place).dim() for place in places):
        return None
    return [dim for dim, place in enumerate(places) if place is not None]


def _lies_elsewhere(built: GraphBuilder, results: set[fx.Node]) -> bool:
    """Whether it shows that an item is contiguous as a copy and not as a view: in how what is computed of it is laid
    out, or in what shares memory."""
    nodes: list[fx.Node] = list(built.graph.nodes)
    if all(_is_plain(innermost(value_of(node))) for node in nodes if node.target is item_at):
        return False
    if any(_is_wrapped(node) for node in nodes):
        return True  # where levels are open can't be run here
    laid: dict[fx.Node, Any] = {}
    shared: set[int | None] = set()
    with built.running_fake(), torch.no_grad():
        for node in nodes:
            if node.target is item_at:
                laid[node] = torch.empty_like(value_of(node), memory_format=torch.contiguous_format)
            elif node.target is put_at or laid.keys().isdisjoint(node.all_input_nodes):
                continue
            elif notes(node).writes:  # it gives what it writes, if that
                laid.update((node, laid[part]) for part in written_by(node) if part in laid)
            elif not _lay(node, laid, shared):
                return True
    written = {memory for node in nodes for memory in notes(node).writes}
    return not shared.isdisjoint(written | {memory_below(value_of(node)) for node in results})


def _is_wrapped(node: fx.Node) -> bool:
    return any(torch._C._functorch.is_functorch_wrapped_tensor(each) for each in leaves_in([value_of(node)]))


def _is_plain(view: torch.Tensor) -> bool:
    """Whether a copy that is contiguous has the same strides, those of single items too."""
    plain = make_contiguous_strides_for(view.shape)  # type: ignore[no-untyped-call]
    return str(tuple(view.stride())) == str(tuple(plain))


def _lay(node: fx.Node, laid: dict[fx.Node, Any], shared: set[int | None]) -> bool:
    """Whether an operation gives the same with contiguous items as far as layouts tell. Adds what it gives where that
    lies in them, and to the memory that is only then theirs."""
    before = [*leaves_in([value_of(node)])]
    if "unbacked_bindings" in node.meta:
        return False
    if all(memory_below(one) is None for one in before):
        return True
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda part: laid.get(part, value_of(part)))
    found = run_target(node.op, node.target, args, kwargs)
    parts = [part for part in node.all_input_nodes if part in laid]
    items, views = (
        {memory_below(one) for one in leaves_in(trees)} for trees in ([*map(laid.get, parts)], [*map(value_of, parts)])
    )
    for was, now in zip(before, leaves_in([found]), strict=True):
        inside = memory_below(now) in items and memory_below(now) is not None
        if inside:
            laid[node] = found
        if memory_below(was) not in views:
            if str((was.shape, was.stride())) != str((now.shape, now.stride())):
                return False
            if inside:
                shared.add(memory_below(was))
        elif not inside:
            return False
    return True


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
