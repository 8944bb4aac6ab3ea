"""fx graphs as data, for what runs operator by operator beside a kept plan: gradients that are differentiated again,
backward passes from other results than most, and the error of an operator whose kernel refused a value.

In:  a bound `forward` of a GraphModule that holds no tensors. Out: `to_data`: its nodes as JSON; `KeptGraph`, a
     callable that does the same. What nodes call is found by name. The nodes are JSON in JSON: most are never needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx.node import map_aggregate

from dynajit.codegen.plan import BufferRef
from dynajit.constants import NotData
from dynajit.graph.meta import value_of
from dynajit.runtime import plan_data
from dynajit.symbols import has_symbols

Data = Any
# gives how another process finds a function
Name = Callable[[Any], Data]
# finds it
Find = Callable[[Data], Any]


def to_data(forward: Callable[..., Any], name: Name) -> Data:
    """The nodes. Raises NotData, or what `name` raises."""
    module = getattr(forward, "__self__", None)
    if not isinstance(module, torch.fx.GraphModule):
        raise NotData(f"a {type(forward).__name__} runs where its graph would operator by operator")
    targets: list[Data] = []
    places: dict[Any, int] = {}
    rows: list[Data] = []
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            raise NotData(f"its graph holds {node.target}, an object of this process")
        target: Any = node.target
        if node.op == "call_function":
            if target not in places:
                places[target] = len(targets)
                is_operator = isinstance(target, torch._ops.OpOverload)
                named = ["operator", plan_data.target_name(target)] if is_operator else ["function", name(target)]
                targets.append(named)
            target = places[target]
        args, kwargs = (plan_data.encode(map_aggregate(part, _reference)) for part in (node.args, node.kwargs))
        rows.append([node.op, node.name, target, args, kwargs])
    return {"targets": targets, "nodes": json.dumps(rows, separators=(",", ":"))}


def values_to_data(nodes: Iterable[torch.fx.Node]) -> str:
    """What the tensors of an ATen graph's nodes are like, for `KeptGraph.module`. Raises NotData for symbolic sizes."""
    kinds: dict[str, int] = {}
    places: list[int | None] = []
    for node in nodes:
        value = value_of(node)
        if has_symbols(value):
            raise NotData("its graph is for many sizes, and has several results with gradients")
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            places.append(None)
            continue
        kind = json.dumps([*map(plan_data.encode, (value.dtype, value.device)), list(value.shape)])
        places.append(kinds.setdefault(kind, len(kinds)))
    return json.dumps([list(map(json.loads, kinds)), places], separators=(",", ":"))


def _reference(value: Any) -> Any:
    return BufferRef(value.name) if isinstance(value, torch.fx.Node) else value


class KeptGraph:
    """The graph that was written, made when it is first called. Raises NotData, or what `find` raises, where something
    of it is not there."""

    def __init__(self, data: Data, find: Find) -> None:
        self.targets = [
            plan_data.target_named(what) if kind == "operator" else find(what) for kind, what in data["targets"]
        ]
        self.rows: str = data["nodes"]
        self._module: torch.fx.GraphModule | None = None

    def __call__(self, *inputs: Any) -> Any:
        return self.module().forward(*inputs)

    def module(self, values: str | None = None) -> torch.fx.GraphModule:
        """The graph; its nodes have values like those that `values_to_data` was given."""
        if self._module is None:
            self._module = self._made()
            kinds, places = ([], []) if values is None else json.loads(values)
            for node, place in zip(self._module.graph.nodes, places, strict=False):
                if place is not None:
                    dtype, device = map(plan_data.Decoder().value, kinds[place][:2])
                    # without memory of its own
                    node.meta["val"] = torch.empty((), dtype=dtype, device=device).expand(kinds[place][2])
        return self._module

    def _made(self) -> torch.fx.GraphModule:
        graph, nodes, decode = torch.fx.Graph(), dict[str, torch.fx.Node](), plan_data.Decoder().value

        def node_of(value: Any) -> Any:
            return nodes[value.name] if isinstance(value, BufferRef) else value

        for op, name, target, *given in json.loads(self.rows):
            args, kwargs = (map_aggregate(decode(part), node_of) for part in given)
            called: Any = self.targets[target] if op == "call_function" else target
            nodes[name] = graph.create_node(op, called, args, kwargs, name)
        return torch.fx.GraphModule({}, graph)
