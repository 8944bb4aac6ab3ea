"""The order in memory of tensors that the program can't see: chosen from what makes and what reads them.

In:  a graph of ATen operations, of inference or a joint one. Out: the graph, or a copy in which tensors have other
strides: results, written inputs and what operations of others are given keep those that they had.

An order names a tensor's dimensions from the one with the largest steps to that whose elements are neighbours. On the
way back through the graph each tensor learns which orders its readers want, and what another one costs them in bytes
moved; on the way forth each operation that computes elements one by one takes the order that costs least, and
convolutions are given their channels last. A conversion is a `clone`, which is fused with what computes or reads it.
One more operator that takes tensors in any order: a target in `_FOLLOW`; what it wants: `_Wants._tell`.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from dynajit.aot.rewrite import call, compute, copied
from dynajit.graph.meta import is_view, value_of
from dynajit.op_facts import LOW_PRECISION, facts
from dynajit.report import costs, logs
from dynajit.symbols import SYMBOLIC_TYPES, has_symbols

aten = torch.ops.aten
Order = tuple[int, ...]
# what one reader takes without a price, and the price in bytes
Wanted = dict[frozenset[Order], float]

# In sizes of a tensor: a copy in another order; a kernel that reads it in another order than it writes; rows that a
# normalisation has to read across memory, over and over.
COPY, ACROSS, ROWS = 2.0, 0.5, 3.0
# The largest weight that a CPU reorders for a convolution, in sizes of what that is given and gives.
MAX_WEIGHT = 2
# The fewest channels, of what is given or made, that a GPU's convolution takes channels last for.
MIN_CHANNELS = 16
# The fewest of a float32 image that a convolution is faster for with them last (patches of pictures: 0.6 to 1.0 times
# as fast on an H100, and rounded to TF32, which cuDNN does not do with the order that they have).
MIN_FLOAT32_CHANNELS = 4
# By type of device: how many dimensions convolutions have that want their channels last, and whether they do in
# training, too: on GPUs steps of classifiers take 0.56 to 0.98 of the time (`benchmarks/results/zoo_sized.md`).
RANKS = {"cpu": (4,), "cuda": (4,)}
IN_TRAINING = {"cpu": False, "cuda": True}
# Whether operations that compute elements one by one choose their order, or keep that of what they are given.
CHOOSES = {"cpu": False, "cuda": True}
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)

_VIEWS = frozenset(
    {
        *(aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.transpose.int, aten.t.default),
        *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.alias.default),
        *(aten.detach.default, aten.expand.default, aten.slice.Tensor, aten.select.int, aten.split.Tensor),
        *(aten.split_with_sizes.default, aten.unbind.int),
    }
)
_PLANES = frozenset(
    {
        *(aten.max_pool2d_with_indices.default, aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default),
        *(aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.default),
        *(aten.upsample_bilinear2d.vec, aten.constant_pad_nd.default, aten.cat.default),
        *(aten.max_pool2d_with_indices_backward.default, aten.avg_pool2d_backward.default),
        *(aten._adaptive_avg_pool2d_backward.default, aten.upsample_nearest2d_backward.default),
    }
)
_REDUCTIONS = frozenset(
    {
        *(aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.var_mean.correction),
        *(aten.var.correction, aten.sum.default, aten.mean.default, aten.any.dim, aten.all.dim),
    }
)
_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
_FOLLOW = frozenset(
    {
        *(operator.getitem, aten.native_layer_norm.default, aten._softmax.default, aten._log_softmax.default),
        *(aten._softmax_backward_data.default, aten._to_copy.default, aten.clone.default, aten.copy.default),
        *(aten.hardswish.default, aten.hardswish_backward.default, torch.ops.prims.convert_element_type.default),
        *_VIEWS,
        *_PLANES,
        *_REDUCTIONS,
        *_PRODUCTS,
    }
)


def with_layouts(gm: GraphModule, training: bool = False) -> GraphModule:
    """`gm`, or a rewritten copy."""
    convolutions = _convolutions(gm.graph, training)
    if not (convolutions or _is_mixed(gm.graph)) or not _is_static(gm):
        return gm
    made = copied(gm)
    rewrite = _Rewrite(made.graph, _convolutions(made.graph, training))
    try:
        changed = rewrite.run()
    except _SeesStrides as error:
        logs.emit("aot_graphs", f"layouts: as they were, for {error}")
        return gm
    if not changed:
        return gm
    logs.emit("aot_graphs", "\n".join(rewrite.log_lines()))
    return made


class _SeesStrides(Exception):
    """Something needs strides to be what they were."""


# ---- orders


def order_of(value: Any) -> Order | None:
    """The dimensions longer than 1 of a tensor, from the slowest to the fastest; None where there are gaps."""
    if not isinstance(value, torch.Tensor):
        return None
    shape, stride = value.shape, value.stride()
    dims = sorted((dim for dim, size in enumerate(shape) if size != 1), key=lambda dim: -stride[dim])
    expected = 1
    for dim in reversed(dims):
        if stride[dim] != expected:
            return None
        expected *= shape[dim]
    return tuple(dims)


def _last_order(value: torch.Tensor) -> Order:
    """That with the channels last."""
    dims = (0, *range(2, value.dim()), 1)
    return tuple(dim for dim in dims if value.shape[dim] != 1)


def _complete(order: Order, rank: int) -> list[int]:
    """All dimensions, those of size 1 first."""
    return [*(dim for dim in range(rank) if dim not in order), *order]


def _strides(shape: torch.Size, order: Order) -> list[int]:
    strides, step = [1] * len(shape), 1
    for dim in reversed(_complete(order, len(shape))):
        strides[dim], step = step, step * shape[dim]
    return strides


def _order_before(view: Node, order: Order) -> Order | None:
    """The order of a view's base that gives the view this one, if there is one."""
    args: Any = view.args
    base, value = value_of(args[0]), value_of(view)
    seen = torch.empty_strided(value.shape, _strides(value.shape, order), device="meta")
    if view.target is aten.permute.default:
        dims = [dim % value.dim() for dim in args[1]]
        return order_of(seen.permute([dims.index(dim) for dim in range(len(dims))]))
    if view.target is aten.transpose.int:
        return order_of(seen.transpose(args[1], args[2]))
    if view.target is aten.t.default:
        return order_of(seen.t())
    if view.target in (aten.slice.Tensor, aten.expand.default):
        return order if value.dim() == base.dim() and value.numel() > 1 else None
    if view.target is aten.select.int:
        at = args[1] % base.dim()
        return (at, *(dim + (dim >= at) for dim in order))
    if value.numel() != base.numel():
        return None
    try:
        return order_of(seen.view(base.shape))
    except (RuntimeError, ValueError):  # no strides give it; fake tensors of torch 2.11 say so by a ValueError
        return None


# ---- which operations


def _convolutions(graph: Graph, training: bool) -> frozenset[Node]:
    """Those that are to have their channels last."""
    every = [node for target in _CONVOLUTIONS for node in graph.find_nodes(op="call_function", target=target)]
    found = [node for node in every if _is_of_images(node, training)]
    gpu = [node for node in found if _device(node) == "cuda"]
    if all(_is_narrow(node) for node in gpu):
        found = [node for node in found if node not in gpu]
    if training and len(gpu) < sum(_device(node) == "cuda" for node in every):
        found = [node for node in found if node not in gpu]  # turning images back for the others, both ways, costs more
    if len(gpu) == 1 and order_of(value_of(_images(gpu[0])[0])) != _last_order(value_of(_images(gpu[0])[0])):
        found = [node for node in found if node is not gpu[0]]  # what it saves is what the copies around it cost
    return frozenset(node for node in found if _device(node) == "cuda" or _pays_on_cpu(node))


def _device(node: Node) -> str:
    values = [value for value in pytree.tree_leaves(value_of(node)) if isinstance(value, torch.Tensor)]
    return values[0].device.type if values else ""


def _images(node: Node) -> list[Any]:
    """What a convolution, or its backward, is given besides the weight: the images last."""
    args: Any = node.args
    return list(args[:2]) if node.target is aten.convolution_backward.default else [args[0]]


def _weight(node: Node) -> Any:
    args: Any = node.args
    return args[len(_images(node))]


def _is_of_images(node: Node, training: bool) -> bool:
    """Whether it is a convolution of which the library has a fast kernel with channels last."""
    values = [value_of(arg) for arg in (*_images(node), _weight(node))]
    device = _device(node)
    if device not in RANKS or (training and not IN_TRAINING[device]):
        return False
    if not all(isinstance(value, torch.Tensor) and value.device.type == device for value in values):
        return False
    images, weight = values[-2:]
    if images.dim() not in RANKS[device] or images.numel() == 0:
        return False
    if device == "cpu":
        dtypes = (torch.float32, torch.bfloat16)
        return torch.backends.mkldnn.is_available() and images.dtype in dtypes and weight.dtype in dtypes  # type: ignore[no-untyped-call]
    groups: Any = node.args[-1] if node.target is aten.convolution.default else node.args[-2]
    fast = images.dtype in LOW_PRECISION or (images.dtype is torch.float32 and torch.backends.cudnn.allow_tf32)
    # Depthwise ones have a kernel of their own, but for images smaller than theirs: one launch for each channel.
    whole = all(size >= kernel for size, kernel in zip(images.shape[2:], weight.shape[2:], strict=True))
    grouped = groups != 1 and not (weight.shape[1] == 1 and whole)
    enough = max(weight.shape[:2]) >= MIN_CHANNELS
    return bool(torch.backends.cudnn.enabled and fast and not grouped and enough)


def _is_narrow(node: Node) -> bool:
    """Whether a GPU's convolution gains nothing by channels last, alone."""
    images = value_of(_images(node)[-1])
    return images.dtype is torch.float32 and images.shape[1] < MIN_FLOAT32_CHANNELS


def _pays_on_cpu(node: Node) -> bool:
    """Whether reordering the weight costs less than reordering what is read and written, as oneDNN does otherwise."""
    if node.target is not aten.convolution.default:
        return False
    given, weight = value_of(node.args[0]), value_of(_weight(node))
    return bool(
        weight.is_contiguous(memory_format=torch.channels_last)
        or weight.numel() <= MAX_WEIGHT * (given.numel() + value_of(node).numel())
    )


def _is_pointwise(node: Node) -> bool:
    """Whether each element is computed from those at its place, in whichever order."""
    if node.op != "call_function" or not isinstance(value_of(node), torch.Tensor):
        return False
    return (facts(node.target).pointwise and facts(node.target).pure) or node.target in (
        aten._to_copy.default,
        aten.copy.default,
        aten.hardswish.default,
        torch.ops.prims.convert_element_type.default,
    )


def _keeps_order(node: Node) -> bool:
    """Whether the operation gives the order of what it is given: no one asked for another one."""
    return node.kwargs.get("memory_format") in (None, torch.preserve_format)


def _is_mixed(graph: Graph) -> bool:
    """Whether there are elements computed one by one in another order than that of rows."""
    return any(
        _is_pointwise(node) and CHOOSES.get(_device(node), False) and _is_turned(order_of(value_of(node)))
        for node in graph.nodes
    )


def _is_turned(order: Order | None) -> bool:
    return order is not None and list(order) != sorted(order)


def _is_static(gm: GraphModule) -> bool:
    values = (value for node in gm.graph.nodes for value in pytree.tree_leaves(value_of(node)))
    return not any(isinstance(value, SYMBOLIC_TYPES) or has_symbols(value) for value in values)


def _same_shape(node: Node) -> Iterator[Node]:
    """The arguments, each once, that have an element for each of the result's."""
    for arg in node.all_input_nodes:
        value = value_of(arg)
        if isinstance(value, torch.Tensor) and value.shape == value_of(node).shape:
            yield arg


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.dtype.itemsize


# ---- what readers want


class _Wants:
    """For each node the orders that what reads it wants, found backwards through the graph."""

    def __init__(self, graph: Graph, convolutions: frozenset[Node]) -> None:
        self.convolutions = convolutions
        self.of: dict[Node, Wanted] = defaultdict(lambda: defaultdict(float))
        for node in reversed(graph.nodes):
            if node.op in ("call_function", "output"):
                self._tell(node)

    def _want(self, node: Any, orders: Iterable[Order | None], price: float) -> None:
        value, found = value_of(node), frozenset(order for order in orders if order is not None)
        if isinstance(value, torch.Tensor) and found and value.dim() > 1:
            self.of[node][found] += price * _bytes(value)

    def _pass_on(self, source: Any, node: Node, change: Callable[[Order], Order | None] = lambda order: order) -> None:
        """What is wanted of a node is wanted of what it is made of, as much as that is smaller."""
        if node not in self.of:
            return
        part = value_of(source).numel() / max(value_of(node).numel(), 1)
        for orders, price in self.of[node].items():
            found = frozenset(order for order in map(change, orders) if order is not None)
            if found:
                self.of[source][found] += price * min(part, 1)

    def _tell(self, node: Node) -> None:
        args: Any = node.args
        if node in self.convolutions:
            for images in _images(node):
                self._want(images, [_last_order(value_of(images))], COPY)
        elif _is_pointwise(node) and _keeps_order(node):
            for source in _same_shape(node):
                self._pass_on(source, node)
        elif node.target in _PLANES:
            self._planes(node)
        elif node.target in _VIEWS:
            if isinstance(value_of(node), torch.Tensor):
                self._pass_on(args[0], node, lambda order: _order_before(node, order))
        elif node.target is aten.native_layer_norm.default:
            self._want(args[0], [tuple(dim for dim, n in enumerate(value_of(args[0]).shape) if n != 1)], ROWS)
        elif node.target in _REDUCTIONS:
            self._reduction(node)
        elif node.target in _PRODUCTS:
            for source in node.all_input_nodes:
                kept = [dim for dim, size in enumerate(value_of(source).shape) if size != 1]
                self._want(source, [tuple(kept), (*kept[:-2], *reversed(kept[-2:]))], COPY)
        elif node.target not in _FOLLOW:
            for source in node.all_input_nodes:
                self._want(source, [order_of(value_of(source))], COPY)

    def _planes(self, node: Node) -> None:
        value = value_of(node)
        first = node if isinstance(value, torch.Tensor) else _first_part(node)
        for source in node.all_input_nodes if first is not None else ():
            given = value_of(source)
            if isinstance(given, torch.Tensor) and given.dim() == value_of(first).dim():
                self._pass_on(source, first)  # type: ignore[arg-type]

    def _reduction(self, node: Node) -> None:
        """Rows whose elements are neighbours are read once for all that is done with them."""
        args: Any = node.args
        value, dims = value_of(args[0]), args[1] if len(args) > 1 else None
        if dims is None or isinstance(dims, int) or not dims or not value.dim():
            return
        gone = sorted(dim % value.dim() for dim in dims)
        if gone == list(range(value.dim() - len(gone), value.dim())):
            self._want(args[0], [tuple(dim for dim, size in enumerate(value.shape) if size != 1)], ACROSS)


def _first_part(node: Node) -> Node | None:
    return next((user for user in node.users if user.target is operator.getitem and user.args[1] == 0), None)


# ---- the rewriting


class _Rewrite:
    def __init__(self, graph: Graph, convolutions: frozenset[Node]) -> None:
        self.graph = graph
        self.convolutions = convolutions
        self.wants = _Wants(graph, convolutions)
        self.seen = _seen_through_views(graph)
        self.changed: dict[Node, Any] = {}  # node whose strides are others than before -> what it gave before
        self.made: dict[tuple[Node, Order], Node] = {}  # copies in another order
        self.lines: list[str] = []

    def run(self) -> bool:
        """Whether anything changed. Raises _SeesStrides."""
        for node in list(self.graph.nodes):
            if node.op == "output":
                self._results(node)
            elif node.op == "call_function":
                self._call(node)
                if node in self.seen and node in self.changed:
                    self._replace(node, order_of(self.changed[node]), "its views are results")
        return bool(self.made or self.lines)

    def log_lines(self) -> list[str]:
        """Lines for the log."""
        moved = sum(2 * _bytes(copy.meta["val"]) for copy in self.made.values())
        head = f"layouts: {len(self.convolutions)} convolutions with channels last; {len(self.made)} copies of "
        return [f"{head}{costs.size(moved)} moved, before fusion", *self.lines]

    def _call(self, node: Node) -> None:
        touched = not self.changed.keys().isdisjoint(node.all_input_nodes)
        if node in self.convolutions:
            self._convolution(node)
        elif _is_pointwise(node) or node.target is aten.cat.default:
            if touched:
                self._again(node)
            if node not in self.seen and _keeps_order(node) and CHOOSES.get(_device(node), False):
                self._choose(node)
        elif touched and node.target in _FOLLOW:
            self._follow(node)
        elif touched:
            self._restore(node)

    # ---- operations

    def _convolution(self, node: Node) -> None:
        images, weight = _images(node), _weight(node)
        given = [self._in_order(each, _last_order(value_of(each)), node) for each in images]
        if not _is_of_patches(node):
            weight = self._in_order(weight, _last_order(value_of(weight)), node)
        if [*given, weight] != [*images, _weight(node)] or not self.changed.keys().isdisjoint(images):
            node.args = (*given, weight, *node.args[len(given) + 1 :])
            self._again(node)

    def _again(self, node: Node) -> None:
        """Find the strides of what the node gives anew."""
        before, found = node.meta["val"], compute(node)
        if node in self.convolutions:
            found = _as_library_gives(node, found)
        node.meta["val"] = found
        pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(before), strict=True)
        if any(isinstance(new, torch.Tensor) and new.stride() != old.stride() for new, old in pairs):
            self.changed[node] = before

    def _follow(self, node: Node) -> None:
        try:
            self._again(node)
        except (RuntimeError, ValueError):  # such as a view that these strides have none for

            def by_rows(arg: Node) -> Node:
                if arg not in self.changed:
                    return arg
                value = value_of(arg)
                return self._in_order(arg, tuple(dim for dim in range(value.dim()) if value.shape[dim] != 1), node)

            node.args, node.kwargs = torch.fx.map_arg((node.args, node.kwargs), by_rows)
            self._again(node)

    def _restore(self, node: Node) -> None:
        """Give the operation what it was given, in the order that that had."""
        exact = node.target is aten.as_strided.default or getattr(node.target, "namespace", "") != "aten"

        def as_before(arg: Node) -> Node:
            if arg not in self.changed:
                return arg
            before = self.changed[arg]
            order = order_of(before)
            if order is None and exact:
                raise _SeesStrides(f"{node.name} takes a tensor with gaps")
            if order is None:
                return self._in_order(arg, tuple(dim for dim, n in enumerate(before.shape) if n != 1), node)
            made = self._in_order(arg, order, node)
            made.meta["val"] = _with_strides(made.meta["val"], before)
            return made

        gaps = any(arg in self.changed and order_of(self.changed[arg]) is None for arg in node.all_input_nodes)
        node.args, node.kwargs = torch.fx.map_arg((node.args, node.kwargs), as_before)
        if gaps:
            self._again(node)

    def _choose(self, node: Node) -> None:
        """Have what the node gives in the order that costs least."""
        value, wanted = value_of(node), self.wants.of.get(node)
        natural = order_of(value)
        if wanted is None or natural is None:
            return
        given = [order for source in _same_shape(node) if (order := order_of(value_of(source))) is not None]

        def cost(order: Order) -> float:
            across = sum(ACROSS * _bytes(value) for other in given if other != order)
            return across + sum(price for orders, price in wanted.items() if order not in orders)

        among = dict.fromkeys((natural, *given, *(order for orders in wanted for order in sorted(orders))))
        best = min(among, key=cost)
        saved = cost(natural) - cost(best)
        if best != natural and saved >= _bytes(value):
            self._replace(node, best, f"{costs.size(round(saved))} less to move")

    def _results(self, output: Node) -> None:
        """Give the graph's results the strides that they had."""
        given: Any = output.args[0]
        made: dict[Node, Node] = {}
        for node in (node for node in dict.fromkeys(given) if node in self.changed):
            before = self.changed[node]
            order = order_of(before)
            if order is None:
                raise _SeesStrides(f"the result {node.name} has gaps")
            made[node] = copy = self._in_order(node, order, output)
            copy.meta["val"] = _with_strides(copy.meta["val"], before)
        output.args = (type(given)([made.get(node, node) for node in given]),)

    # ---- copies

    def _in_order(self, node: Node, order: Order, before: Node) -> Node:
        """The tensor, or a copy in that order."""
        if order_of(value_of(node)) == order:
            return node
        if (node, order) not in self.made:
            with self.graph.inserting_before(before):
                self.made[node, order] = _copy(node, order)
        return self.made[node, order]

    def _replace(self, node: Node, order: Order | None, why: str) -> None:
        """Have all that reads the node read a copy in that order, which is the only one in memory."""
        if order is None:
            raise _SeesStrides(f"{node.name} had gaps")
        before = self.changed.get(node, node.meta["val"])
        users = list(node.users)
        with self.graph.inserting_after(node):
            copy = self.made[node, order] = _copy(node, order)
        for user in users:
            user.replace_input_with(node, copy)
        if copy.meta["val"].stride() != before.stride():
            self.changed[copy] = before
        if node in self.wants.of:
            self.wants.of[copy] = self.wants.of[node]
        shape, was = tuple(before.shape), order_of(value_of(node))
        self.lines.append(f"  {node.name} {shape}: order {order} instead of {was}, {why}")


def _copy(node: Node, order: Order) -> Node:
    """A copy in that order, where the graph inserts."""
    value = value_of(node)
    if list(order) == sorted(order):
        return call(node, aten.clone.default, node, memory_format=torch.contiguous_format)
    if value.dim() in (4, 5) and order == _last_order(value):
        last = torch.channels_last if value.dim() == 4 else torch.channels_last_3d
        return call(node, aten.clone.default, node, memory_format=last)
    dims = _complete(order, value.dim())
    graph = node.graph
    turned = call(node, aten.permute.default, node, dims)
    with graph.inserting_after(turned):
        copy = call(node, aten.clone.default, turned, memory_format=torch.contiguous_format)
    with graph.inserting_after(copy):
        return call(node, aten.permute.default, copy, [dims.index(dim) for dim in range(len(dims))])


def _with_strides(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The fake tensor with the strides of another one: they may differ in dimensions of size 1."""
    if value.stride() == like.stride():
        return value
    return value.as_strided(value.shape, like.stride())


def _seen_through_views(graph: Graph) -> set[Node]:
    """What results of the graph are views of: the program can see that they share memory."""
    found: set[Node] = set()
    for result in graph.output_node().all_input_nodes:
        node = result
        while node.op == "call_function" and is_view(node):
            node = node.args[0]  # type: ignore[assignment]
        if node is not result:
            found.add(node)
    return found


def _is_of_patches(node: Node) -> bool:
    """Whether windows lie side by side: such a convolution may become a product, for which the weight is as it is."""
    if node.target is not aten.convolution.default or _device(node) == "cpu":
        return False
    args: Any = node.args
    return tuple(args[3]) == tuple(value_of(args[1]).shape[2:]) and not any(args[4])


def _as_library_gives(node: Node, found: Any) -> Any:
    """What a convolution gives of images with channels last: a torch without CUDA has fakes that do not know."""
    if _device(node) != "cuda" or torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return found
    rank = value_of(_weight(node)).dim()

    def last(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() != rank:
            return value
        return value.new_empty_strided(value.shape, _strides(value.shape, _last_order(value)))

    return pytree.tree_map(last, found)
