"""Equal layers of a graph that trains go through AOTAutograd once: each is one operation of the graph that it traces.

In:  a torch-level graph. Out: one in which each layer is a call, and a function that puts, into the joint graph that
AOTAutograd makes of it, the joint graph of the layer in place of each. What is then partitioned is the graph that
AOTAutograd would have made of all. Where a layer's part is not what it would be inside the whole (gradients that come
in another layout, a result without a gradient), NotShared is raised: the graph goes through as it is.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node

from dynajit.aot.layers import Layers, equal_layers, items_of
from dynajit.aot.rewrite import Copy, cut, results_of
from dynajit.graph.meta import value_of

# A graph, its fake inputs, what is to be done with the joint graph.
Trace = Callable[[GraphModule, list[Any], Callable[..., Any]], Any]

_library = torch.library.Library("dynajit", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("layer(Tensor[] inputs, int layer) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.define("layer_backward(Tensor[] tangents, int layer) -> Tensor[]")  # type: ignore[no-untyped-call]
_FORWARD, _BACKWARD = torch.ops.dynajit.layer.default, torch.ops.dynajit.layer_backward.default


class NotShared(Exception):
    """The layers of a graph can't be made one by one."""


class _Traced(Exception):
    """The joint graph of a layer is there; what AOTAutograd would go on with is not wanted."""


class SharedLayers:
    """The layers of a graph, and the joint graph of each.

    module: the graph, in which each layer is a call.
    """

    def __init__(self, gm: GraphModule, found: Layers, mode: FakeTensorMode, trace: Trace) -> None:
        self.mode = mode
        self.found = found
        values = [value_of(found.layers[0].nodes[at]) for at in found.results]
        self.differentiable = [value.requires_grad for value in values]
        if not any(self.differentiable):
            raise NotShared("the layers have no gradients")
        self.joint = self._joint(gm, trace)
        graph = self.joint.graph
        placeholders = graph.find_nodes(op="placeholder")
        count = len(found.layers[0].inputs)
        self.primals, self.tangents = placeholders[:count], placeholders[count:]
        returned = results_of(self.joint)
        self.results: list[Any] = list(returned[: len(found.results)])
        self.gradients: list[Any] = list(returned[len(found.results) :])
        self._check(values)
        inside = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
        later = next((at for at, node in enumerate(inside) if self._is_backward(node)), len(inside))
        self.forward, self.backward = inside[:later], inside[later:]
        self.module = self._with_calls(gm)
        self.refused: NotShared | None = None

    def _joint(self, gm: GraphModule, trace: Trace) -> GraphModule:
        first = self.found.layers[0]
        part = cut(gm, first.nodes, first.inputs, [first.nodes[at] for at in self.found.results])
        inputs = [_leaf(self.mode, value_of(node)) for node in first.inputs]
        joints: list[GraphModule] = []

        def keep(joint: GraphModule, *args: Any, num_fwd_outputs: int, **kwargs: Any) -> Any:
            if num_fwd_outputs == len(self.found.results):
                joints.append(joint)
            raise _Traced

        with suppress(_Traced):
            trace(part, inputs, keep)
        if not joints:
            raise NotShared("a layer has no joint graph of its own")
        return joints[0]

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
        return node.meta.get("partitioner_tag") == "is_backward" or any(part in self.tangents for part in reads)

    def _with_calls(self, gm: GraphModule) -> GraphModule:
        copy = Copy(gm)
        last = {layer.nodes[-1]: at for at, layer in enumerate(self.found.layers)}
        inside = {node for layer in self.found.layers for node in layer.nodes}
        for node in gm.graph.nodes:
            if node in last:
                layer = self.found.layers[last[node]]
                call = copy.graph.call_function(_call, (last[node], *(copy.of[part] for part in layer.inputs)))
                for at, place in enumerate(self.found.results):
                    result = layer.nodes[place]
                    copy.of[result] = made = copy.graph.call_function(operator.getitem, (call, at))
                    made.meta.update(result.meta)
            elif node not in inside and node.op != "output":
                copy.take(node)
        return copy.finish()

    # -- while AOTAutograd traces the graph of calls

    @contextmanager
    def running(self) -> Iterator[None]:
        """The calls in the body are those of this graph's layers."""
        _running.append(self)
        try:
            yield
        finally:
            _running.pop()

    def call(self, layer: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a layer gives."""
        return torch.ops.dynajit.layer(list(inputs), layer)  # type: ignore[no-any-return]

    def call_backward(self, layer: int, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients of a layer's inputs."""
        given = [one for one, wanted in zip(tangents, self.differentiable, strict=True) if wanted]
        for at, (one, node) in enumerate(zip(given, self.tangents, strict=True)):
            if one is None or _layout(one) != _layout(value_of(node)):
                # not raised here: autograd would warn, and show the program where the forward was
                self.refused = NotShared("a layer's result has a gradient of another kind")
                (given[at],) = self.fakes([node])
        made = iter(torch.ops.dynajit.layer_backward(given, layer))
        return [None if gradient is None else next(made) for gradient in self.gradients]

    def fakes(self, nodes: Sequence[Any]) -> list[torch.Tensor]:
        """New tensors like those that nodes of the layer's joint graph give."""
        values = [value_of(node) for node in nodes if node is not None]
        return [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device) for one in values]

    # -- afterwards

    def put_into(self, joint: GraphModule) -> GraphModule:
        """The joint graph of all, with the layers' in place of the calls. Raises NotShared."""
        if self.refused is not None:
            raise self.refused
        made: dict[int, tuple[dict[Node, Any], dict[int, Any]]] = collections.defaultdict(lambda: ({}, {}))
        for node in list(joint.graph.nodes):
            if node.target is _FORWARD:
                inputs, layer = node.args
                self._put(joint, node, made[layer], dict(zip(self.primals, inputs, strict=True)), self.results)
            elif node.target is _BACKWARD:
                tangents, layer = node.args
                gradients = [node for node in self.gradients if node is not None]
                self._put(joint, node, made[layer], dict(zip(self.tangents, tangents, strict=True)), gradients)
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
        for inner, outer in given.items():
            memories[value_of(inner).untyped_storage()._cdata] = value_of(outer).untyped_storage()
        with joint.graph.inserting_before(call):
            for node in self.forward if call.target is _FORWARD else self.backward:
                of[node] = copy = joint.graph.node_copy(node, of.__getitem__)
                if node.op == "get_attr":
                    copy.target = _held(joint, getattr(self.joint, str(node.target)))
                copy.meta["val"] = _map_fakes(node.meta.get("val"), lambda one: _fake_like(self.mode, one, memories))
        for item, at in items_of(call):
            item.replace_all_uses_with(of[results[at]])
            joint.graph.erase_node(item)
        joint.graph.erase_node(call)


def share_layers(gm: GraphModule, mode: FakeTensorMode, trace: Trace) -> SharedLayers | None:
    """The graph's layers, if it has some that are equal. Raises NotShared."""
    found = equal_layers(gm, _added_as_before)
    return None if found is None else SharedLayers(gm, found, mode, trace)


def _added_as_before(found: Layers) -> bool:
    """Whether gradients are added up in the same order: not where a layer reads more than once what others read too."""
    return not any(
        value_of(node).requires_grad and sum(user in own for user in node.users) > 1 and not own.issuperset(node.users)
        for layer in found.layers
        for own in (set(layer.nodes),)
        for node in layer.inputs
    )


def _leaf(mode: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    """A fake of the same metadata without history."""
    with mode, torch.no_grad():
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


def _layout(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), value.stride(), value.dtype, value.device


def _held(gm: GraphModule, value: torch.Tensor) -> str:
    """The name of a tensor that a graph is to hold."""
    name = next(name for at in itertools.count() if not hasattr(gm, name := f"_tensor_constant{at}"))
    setattr(gm, name, value)
    return name


def _fake_like(mode: FakeTensorMode, like: torch.Tensor, memories: dict[int, Any]) -> torch.Tensor:
    """A new fake of the same metadata, without history, in memory of its own. `memories`: storages by the identity of
    those that they stand for; fakes that shared memory have copies that do."""
    old = like.untyped_storage()
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        storage = memories.get(old._cdata)
        if storage is None:
            storage = memories[old._cdata] = torch.UntypedStorage(old.nbytes(), device="meta")  # type: ignore[no-untyped-call]
        meta = torch.empty(0, dtype=like.dtype, device="meta")
        meta.set_(storage, like.storage_offset(), like.size(), like.stride())
        return FakeTensor(mode, meta, like.device)


def _map_fakes(value: Any, change: Callable[[FakeTensor], Any]) -> Any:
    """A node's fake value with other fakes in place of its own."""
    if isinstance(value, FakeTensor):
        return change(value)
    return type(value)(_map_fakes(item, change) for item in value) if isinstance(value, (tuple, list)) else value


_running: list[SharedLayers] = []


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


def _call(layer: int, *inputs: torch.Tensor) -> Any:
    return _LayerCall.apply(layer, *inputs)  # type: ignore[no-untyped-call]


@torch.library.register_fake("dynajit::layer", lib=_library)  # type: ignore[untyped-decorator]
def _layer(inputs: list[torch.Tensor], layer: int) -> list[torch.Tensor]:
    return _running[-1].fakes(_running[-1].results)


@torch.library.register_fake("dynajit::layer_backward", lib=_library)  # type: ignore[untyped-decorator]
def _layer_backward(tangents: list[torch.Tensor], layer: int) -> list[torch.Tensor]:
    return _running[-1].fakes(_running[-1].gradients)
