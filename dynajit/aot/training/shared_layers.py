"""Equal layers of a graph that trains go through AOTAutograd once: each is one operation of the graph that it traces.

In:  a torch-level graph. Out: one in which each layer is a call, and a function that puts, into the joint graph that
AOTAutograd makes of it, the joint graph of the layer in place of each. What is then partitioned is the graph that
AOTAutograd would have made of all. Where a layer's part is not what it would be inside the whole (gradients that come
in another layout, a result without a gradient), NotShared is raised: the graph goes through as it is.
"""

from __future__ import annotations

import collections
import copy
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from dynajit.aot.layers import MIN_LAYERS, Layer, Layers, equal_layers, items_of
from dynajit.aot.rewrite import Copy, cut, is_of_backward, results_of
from dynajit.graph.meta import value_of
from dynajit.nested import map_leaves
from dynajit.new_fake import new_fake

# A graph, its fake inputs, what is to be done with the joint graph.
Trace = Callable[[GraphModule, list[Any], Callable[..., Any]], Any]
Layouts = tuple[tuple[Any, ...] | None, ...]  # of tensors, None where there is none

_library = torch.library.Library("dynajit", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("layer(Tensor[] inputs, int layer) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.define("layer_backward(Tensor[] tangents, int layer) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.define("laid_out(Tensor tangent, int[] stride) -> Tensor")  # type: ignore[no-untyped-call]
# of numbers that layers differ in, in two traces
_STAND_INS = {int: 1_000_003, float: 0.6180339887498949}, {int: 1_300_021, float: 0.7071067811865476}
_LAID_OUT = torch.ops.dynajit.laid_out.default
FORWARD, BACKWARD = torch.ops.dynajit.layer.default, torch.ops.dynajit.layer_backward.default


class NotShared(Exception):
    """The layers of a graph can't be made one by one."""


class OddLayers(NotShared):
    """Results of some layers have no gradients, or gradients of another layout. layouts: those of all results that
    are differentiable, by the layer's number."""

    def __init__(self, layouts: dict[int, Layouts]) -> None:
        super().__init__("a layer's result has a gradient of another kind")
        self.layouts = layouts


class _Traced(Exception):
    """The joint graph of a layer is there; what AOTAutograd would go on with is not wanted."""


class SharedLayers:
    """The layers of a graph, and the joint graph of each.

    module: the graph, in which each layer is a call. layouts: those of the gradients of a layer's results that have
    others than AOTAutograd takes for granted.
    """

    def __init__(
        self, gm: GraphModule, found: Layers, mode: FakeTensorMode, trace: Trace, layouts: Layouts = ()
    ) -> None:
        self.gm, self.mode, self.found, self.trace, self.layouts = gm, mode, found, trace, layouts
        values = [value_of(found.layers[0].nodes[at]) for at in found.results]
        self.differentiable = [value.requires_grad for value in values]
        if not any(self.differentiable):
            raise NotShared("the layers have no gradients")
        self.numbers = found.numbers()
        self.joint = self._joint(0)
        if self.numbers:
            self._check_numbers(self._joint(1))
        graph = self.joint.graph
        placeholders = graph.find_nodes(op="placeholder")
        count = len(found.layers[0].inputs)
        self.primals = placeholders[:count]
        self.tangents = [next(_readers(node, _LAID_OUT), node) for node in placeholders[count:]]
        returned = results_of(self.joint)
        self.results: list[Any] = list(returned[: len(found.results)])
        for at, _ in self._laid_out():
            (self.results[at],) = self.results[at].all_input_nodes  # a view that `_LaidOut` makes of it
        self.gradients: list[Any] = list(returned[len(found.results) :])
        self._check(values)
        inside = [
            node for node in graph.nodes if node.op not in ("placeholder", "output") and node not in self.tangents
        ]
        later = next((at for at, node in enumerate(inside) if self._is_backward(node)), len(inside))
        self.forward, self.backward = inside[:later], inside[later:]
        self.module = self._with_calls(gm)
        self.odd: dict[int, Layouts] = {}

    def _joint(self, turn: int) -> GraphModule:
        first = self.found.layers[0]
        part = cut(self.gm, first.nodes, first.inputs, [first.nodes[at] for at in self.found.results])
        nodes = [node for node in part.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
        for (at, place), number in zip(self.numbers, self._stand_ins(turn), strict=True):
            nodes[at].update_arg(place, number)
        self._lay_out_tangents(part)
        inputs = [_leaf(self.mode, value_of(node)) for node in first.inputs]
        joints: list[GraphModule] = []

        def keep(joint: GraphModule, *args: Any, num_fwd_outputs: int, **kwargs: Any) -> Any:
            if num_fwd_outputs == len(self.found.results):
                joints.append(joint)
            raise _Traced

        with suppress(_Traced):
            self.trace(part, inputs, keep)
        if not joints:
            raise NotShared("a layer has no joint graph of its own")
        return joints[0]

    def _stand_ins(self, turn: int) -> list[int | float]:
        """What a layer is traced with in place of the numbers that layers differ in: found nowhere else."""
        nodes = self.found.layers[0].nodes
        base: dict[type, Any] = _STAND_INS[turn]
        return [base[type(nodes[at].args[place])] + step for step, (at, place) in enumerate(self.numbers)]

    def _check_numbers(self, other: GraphModule) -> None:
        """Raise NotShared where the joint graph computes anything of a number while it is made, as tells what it is
        for other ones."""
        looks = [_looks(joint, self._stand_ins(turn)) for turn, joint in enumerate((self.joint, other))]
        if looks[0] != looks[1] or self.joint.graph.find_nodes(op="get_attr"):
            raise NotShared("a layer's joint graph depends on its numbers")

    def _lay_out_tangents(self, part: GraphModule) -> None:
        """Have the part differentiated as if the gradients of its results had the known layouts."""
        (output,) = part.graph.find_nodes(op="output")
        results = list(output.args[0])
        with part.graph.inserting_before(output):
            for at, (_, stride, *_) in self._laid_out():
                results[at] = part.graph.call_function(_LaidOut.apply, (results[at], stride))
                results[at].meta.update(output.args[0][at].meta)
        output.args = (tuple(results),)
        part.recompile()

    def _laid_out(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Which results have gradients of a known layout."""
        differentiable = itertools.compress(range(len(self.found.results)), self.differentiable)
        return ((at, layout) for at, layout in zip(differentiable, self.layouts) if layout is not None)

    def _check(self, values: Sequence[torch.Tensor]) -> None:
        nodes = self.joint.graph.nodes
        if len(self.tangents) != sum(self.differentiable) or len(self.gradients) != len(self.primals):
            raise NotShared("a layer's joint graph has other inputs or results")
        held = [getattr(self.joint, str(node.target), None) for node in self.joint.graph.find_nodes(op="get_attr")]
        if not all(isinstance(value, torch.Tensor) for value in held) or self.joint.graph.find_nodes(op="call_module"):
            raise NotShared("a layer's joint graph holds other graphs")
        if not all(isinstance(node, Node) for node in self.results):
            raise NotShared("a layer gives a constant")
        if any(_layout(value) != _layout(value_of(node)) for value, node in zip(values, self.results, strict=True)):
            raise NotShared("a layer's results have other layouts")
        if any(isinstance(value_of(node), (torch.SymInt, torch.SymFloat, torch.SymBool)) for node in nodes):
            raise NotShared("a layer computes symbolic numbers")

    def _is_backward(self, node: Node) -> bool:
        reads = node.all_input_nodes
        return is_of_backward(node) or any(part in self.tangents for part in reads)

    def _with_calls(self, gm: GraphModule) -> GraphModule:
        taken = Copy(gm)
        last = {layer.nodes[-1]: at for at, layer in enumerate(self.found.layers)}
        inside = {node for layer in self.found.layers for node in layer.nodes}
        for node in gm.graph.nodes:
            if node in last:
                layer = self.found.layers[last[node]]
                call = taken.graph.call_function(call_layer, (last[node], *(taken.of[part] for part in layer.inputs)))
                for at, place in enumerate(self.found.results):
                    result = layer.nodes[place]
                    taken.of[result] = made = taken.graph.call_function(operator.getitem, (call, at))
                    made.meta.update(result.meta)
            elif node not in inside and node.op != "output":
                taken.take(node)
        return taken.finish()

    def are_alike(self) -> bool:
        """Whether all layers have the same joint graph, to the number, and all that was asked of it."""
        return not self.odd and not self.numbers

    def is_read(self, layer: Layer) -> bool:
        """Whether all results of a layer that have gradients are read outside of it."""
        results = itertools.compress(self.found.results, self.differentiable)
        return not any(set(layer.nodes).issuperset(layer.nodes[at].users) for at in results)

    def made_for(self, odd: dict[int, Layouts]) -> SharedLayers:
        """The same for the gradients that most layers' results turned out to have. Raises NotShared."""
        layouts, count = collections.Counter(odd.values()).most_common(1)[0]
        if 2 * count <= len(self.found.layers) or None in layouts or self.layouts:
            return self.without(odd)
        usual = [_layout(value_of(node)) for node in self.tangents]
        other = tuple(None if one == own else one for one, own in zip(layouts, usual, strict=True))
        return SharedLayers(self.gm, self.found, self.mode, self.trace, other)

    def without(self, odd: Collection[int]) -> SharedLayers:
        """The same with some layers as they are. Raises NotShared where few are left."""
        rest = copy.copy(self)
        layers = [layer for at, layer in enumerate(self.found.layers) if at not in odd]
        if len(layers) < MIN_LAYERS:
            raise NotShared("most layers' results have gradients of other kinds")
        rest.found, rest.odd = Layers(layers, self.found.results), {}
        rest.module = rest._with_calls(self.gm)
        return rest

    # -- while AOTAutograd traces the graph of calls

    @contextmanager
    def running(self) -> Iterator[None]:
        """The calls in the body are those of this graph's layers."""
        try:
            _running.append(self)
            yield
        finally:
            _running.pop()

    def call(self, layer: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a layer gives."""
        return torch.ops.dynajit.layer(list(inputs), layer)  # type: ignore[no-any-return]

    def call_backward(self, layer: int, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients of a layer's inputs."""
        given = [one for one, wanted in zip(tangents, self.differentiable, strict=True) if wanted]
        layouts = tuple(None if one is None else _layout(one) for one in given)
        for at, (layout, node) in enumerate(zip(layouts, self.tangents, strict=True)):
            shape, stride, dtype, device = usual = _layout(value_of(node))
            if layout != usual:
                # not raised here: autograd would warn, and show the program where the forward was
                self.odd[layer] = layouts
                given[at] = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        made = iter(torch.ops.dynajit.layer_backward(given, layer))
        return [None if gradient is None else next(made) for gradient in self.gradients]

    def fakes(self, nodes: Sequence[Any]) -> list[torch.Tensor]:
        """New fakes like those that nodes of the layer's joint graph give, but in memory of their own."""
        values = [value_of(node) for node in nodes if node is not None]
        return [new_fake(self.mode, one.device, one.dtype, one.shape, one.stride()) for one in values]

    # -- afterwards

    def put_into(self, joint: GraphModule) -> GraphModule:
        """The joint graph of all, with the layers' in place of the calls. Raises OddLayers."""
        if self.odd:
            raise OddLayers(self.odd)
        made: dict[int, tuple[dict[Node, Any], dict[int, Any]]] = collections.defaultdict(lambda: ({}, {}))
        for node in list(joint.graph.nodes):
            if node.target is FORWARD:
                inputs, layer = node.args
                given = dict(zip(self.primals, inputs, strict=True))
                self._put(joint, node, made[layer], given, self.results)
            elif node.target is BACKWARD:
                tangents, layer = node.args
                gradients = [node for node in self.gradients if node is not None]
                given = dict(zip(self.tangents, tangents, strict=True))
                self._put(joint, node, made[layer], given, gradients)
        joint.recompile()
        return joint

    def _put(
        self,
        joint: GraphModule,
        call: Node,
        made: tuple[dict[Node, Any], dict[int, Any]],
        given: dict[Node, Node],
        results: Sequence[Node],
    ) -> None:
        """The nodes of one half in place of a call; `made`: what there is of the layer so far, nodes and memory."""
        of, memories = made
        of.update(given)
        nodes = self.found.layers[call.args[1]].nodes  # type: ignore[index]
        own = [nodes[at].args[place] for at, place in self.numbers]
        numbers = dict(zip(self._stand_ins(0), own, strict=True))
        for inner, outer in given.items():
            memories[value_of(inner).untyped_storage()._cdata] = value_of(outer).untyped_storage()
        with joint.graph.inserting_before(call):
            for node in self.forward if call.target is FORWARD else self.backward:
                of[node] = made_node = joint.graph.node_copy(node, of.__getitem__)
                if numbers:
                    made_node.args = _with_numbers(made_node.args, numbers)
                if node.op == "get_attr":
                    made_node.target = _held(joint, getattr(self.joint, str(node.target)))
                if "val" in node.meta:  # what checks a value gives nothing
                    made_node.meta["val"] = map_leaves(
                        lambda one: fake_like(self.mode, one, memories), node.meta["val"], FakeTensor
                    )
        for item, at in items_of(call):
            item.replace_all_uses_with(of[results[at]])
            joint.graph.erase_node(item)
        joint.graph.erase_node(call)


def share_layers(gm: GraphModule, mode: FakeTensorMode, trace: Trace) -> SharedLayers | None:
    """The graph's layers, if it has some that are equal. Raises NotShared."""
    found = equal_layers(gm, _added_as_before, loose=True)
    if found is None or 2 * found.count_nodes() < len(gm.graph.nodes):
        other = equal_layers(gm, _added_as_before, loose=True, numbers=True)
        found = found if other is None or (found and other.count_nodes() <= found.count_nodes()) else other
    if found is None:
        return None
    shared = SharedLayers(gm, found, mode, trace)
    unread = {at for at, layer in enumerate(found.layers) if not shared.is_read(layer)}
    return shared.without(unread) if unread else shared


def _added_as_before(found: Layers) -> bool:
    """Whether gradients of few digits are added up in the same order: not where a layer reads more than once what
    others read too, itself or by what is computed between its nodes."""
    return not any(
        value_of(node).requires_grad
        and value_of(node).dtype.itemsize < 4
        and sum(user in read for user in node.users) > 1
        and not own.issuperset(node.users)
        for layer in found.layers
        for own in (set(layer.nodes),)
        for read in (own.union(layer.between),)
        for node in layer.inputs
    )


def _leaf(mode: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    """A fake of the same metadata without history."""
    with mode, torch.no_grad():
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


def _with_numbers(args: Any, numbers: dict[Any, Any]) -> Any:
    """A node's arguments with others in place of some numbers."""
    return map_aggregate(args, lambda one: numbers.get(one, one) if type(one) in (int, float) else one)


def _looks(joint: GraphModule, numbers: Sequence[int | float]) -> list[Any]:
    """What the nodes of a graph do. The numbers are shown by their places."""
    names: dict[Any, Any] = {number: f"number {at}" for at, number in enumerate(numbers)}
    names |= {node: f"node {at}" for at, node in enumerate(joint.graph.nodes)}

    def shown(one: Any) -> Any:
        return names[one] if isinstance(one, Node) or (type(one) in (int, float) and one in names) else repr(one)

    return [
        (node.op, node.target, map_aggregate(node.args, shown), map_aggregate(node.kwargs, repr))
        for node in joint.graph.nodes
    ]


def _readers(node: Node, target: Any) -> Iterator[Node]:
    return (user for user in node.users if user.target is target)


def _layout(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), value.stride(), value.dtype, value.device


def _held(gm: GraphModule, value: torch.Tensor) -> str:
    """The name of a tensor that a graph is to hold."""
    name = next(name for at in itertools.count() if not hasattr(gm, name := f"_tensor_constant{at}"))
    setattr(gm, name, value)
    return name


def fake_like(mode: FakeTensorMode, like: torch.Tensor, memories: dict[int, Any]) -> torch.Tensor:
    """A new fake of the same metadata, without history, in memory of its own. `memories`: storages by the identity of
    those that they stand for; fakes that shared memory have copies that do."""
    old = like.untyped_storage()
    storage = memories.get(old._cdata)
    if storage is None:
        storage = memories[old._cdata] = torch.UntypedStorage(old.nbytes(), device="meta")  # type: ignore[no-untyped-call]
    return new_fake(mode, like.device, like.dtype, like.size(), like.stride(), like.storage_offset(), storage)


_running: list[SharedLayers] = []


class _LaidOut(torch.autograd.Function):
    """Its result; the gradient that it is given has another layout."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
        ctx.stride = stride
        return result

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:  # type: ignore[override]
        return torch.ops.dynajit.laid_out(tangent, ctx.stride), None


class _LayerCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: int, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shared = _running[-1]
        made = shared.call(layer, inputs)
        ctx.layer = layer
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(one for one, has in zip(made, shared.differentiable, strict=True) if not has))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return (None, *_running[-1].call_backward(ctx.layer, tangents))


def call_layer(layer: int, *inputs: torch.Tensor) -> Any:
    """What a layer gives, in the graph that AOTAutograd traces."""
    return _LayerCall.apply(layer, *inputs)  # type: ignore[no-untyped-call]


@torch.library.register_fake("dynajit::laid_out", lib=_library)  # type: ignore[untyped-decorator]
def _laid_out(tangent: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    return torch.empty_strided(tangent.shape, stride, dtype=tangent.dtype, device=tangent.device)


@torch.library.register_fake("dynajit::layer", lib=_library)  # type: ignore[untyped-decorator]
def _layer(inputs: list[torch.Tensor], layer: int) -> list[torch.Tensor]:
    return _running[-1].fakes(_running[-1].results)


@torch.library.register_fake("dynajit::layer_backward", lib=_library)  # type: ignore[untyped-decorator]
def _layer_backward(tangents: list[torch.Tensor], layer: int) -> list[torch.Tensor]:
    return _running[-1].fakes(_running[-1].gradients)
