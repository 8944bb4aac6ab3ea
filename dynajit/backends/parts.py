"""ATen graphs in parts: those that another engine runs, and what stays with torch.

In:  a functional ATen graph, and an `Engine`: which operators and dtypes it takes, and how it builds a part.
Out: `run_in_parts(engine, gm, inputs, phase)`: a callable with the graph's inputs and outputs. A part that the engine
     refuses after all runs operator by operator; which and why is told in the log `perf` and counted.
One more engine: an object with these methods, see `onnxrt.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from dynajit.nested import reached
from dynajit.op_facts import facts
from dynajit.report import logs
from dynajit.report.counters import counters
from dynajit.torch_compat import at_hand

_BY_PLACE = {torch.ops.aten.as_strided, torch.ops.aten.as_strided_copy, torch.ops.aten.as_strided_scatter}

Part = Callable[..., Sequence[torch.Tensor]]


class PartRefused(Exception):
    """The engine can't run the part; the text says why."""


class Engine(Protocol):
    """What runs parts of a graph.

    Attributes:
        name: for messages.
        dtypes: of all tensors in its parts.
    """

    name: str
    dtypes: frozenset[torch.dtype]

    def takes(self, target: torch._ops.OpOverload) -> bool:
        """Whether it may know the operator."""

    def build(self, part: torch.fx.GraphModule, examples: Sequence[Any]) -> Part:
        """A callable of the part's inputs (tensors of the dtypes, on the CPU, contiguous; whole numbers) that returns
        its outputs, contiguous; `examples` are fake inputs. Raises PartRefused."""


def run_in_parts(
    engine: Engine, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], phase: str
) -> Callable[..., Any]:
    """The graph, in which parts are the engine's."""
    partitioner = CapabilityBasedPartitioner(gm, _Support(engine, _torchs_own(gm)), allows_single_node_partition=True)
    partitions = [part for part in partitioner.propose_partitions() if any(map(_computes, part.nodes))]
    if not partitions:
        _tell(engine, f"no operator of the {phase} graph is for it")
        return gm.forward
    fused = partitioner.fuse_partitions(partitions)
    for node in fused.graph.nodes:
        if node.op != "call_module":
            continue
        part = fused.get_submodule(node.target)
        assert isinstance(part, torch.fx.GraphModule)
        examples = [argument.meta["val"] for argument in node.args]
        expected = _results(part)
        try:
            built = engine.build(part, examples)
        except PartRefused as why:
            counters.count(engine.name, "parts refused")
            _tell(engine, f"a part of the {phase} graph runs operator by operator: {why}")
            continue
        counters.count(engine.name, "parts")
        setattr(fused, node.target, _Called(built, expected, _is_single(part)))
    fused.recompile()
    return fused.forward


class _Support(OperatorSupportBase):
    """Which nodes may be in a part: functions of CPU tensors of the engine's dtypes that draw, write and do nothing."""

    def __init__(self, engine: Engine, torchs_own: set[torch.fx.Node]) -> None:
        self.engine = engine
        self.torchs_own = torchs_own

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        """The node's operator is known, and all tensors are of a kind that is."""
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or node in self.torchs_own:
            return False
        known = facts(target)
        if known.draws or known.writes or not self.engine.takes(target):
            return False
        return all(map(self._is_plain, [node, *node.all_input_nodes]))

    def _is_plain(self, node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        if isinstance(value, (int, torch.SymInt)):
            return not isinstance(value, bool)
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.device.type != "cpu":
            return False
        return value.dtype in self.engine.dtypes and not (value.is_conj() or value.is_neg())


def _torchs_own(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """What no engine may do, since its results share no memory, and have no gaps: views by which a result of the graph
    shares memory with others or with inputs, and what is read by places in memory."""
    by_place = [node for node in gm.graph.nodes if getattr(node.target, "overloadpacket", None) in _BY_PLACE]
    read = [source for node in by_place for source in node.all_input_nodes]
    seen = filter(_is_view, [*gm.graph.output_node().all_input_nodes, *read])
    return {*reached(seen, lambda node: filter(_is_view, node.all_input_nodes)), *by_place, *read}


def _is_view(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and bool(facts(node.target).is_view)


def _computes(node: torch.fx.Node) -> bool:
    return not facts(node.target).is_view


class _Called(torch.nn.Module):
    """A built part: what goes in is made contiguous, what comes out gets the layout that the graph says."""

    def __init__(self, built: Part, expected: Sequence[torch.Tensor], single: bool) -> None:
        super().__init__()
        self.built = built
        self.layouts = [_layout(value) for value in expected]
        self.single = single

    def forward(self, *inputs: Any) -> Any:
        given = [value.detach().contiguous() if isinstance(value, torch.Tensor) else value for value in inputs]
        results = [layout.of(result) for result, layout in zip(self.built(*given), self.layouts, strict=True)]
        return results[0] if self.single else results


def _results(part: torch.fx.GraphModule) -> list[torch.Tensor]:
    (found,) = part.graph.output_node().args
    nodes = found if isinstance(found, (tuple, list)) else (found,)
    return [node.meta["val"] for node in nodes]  # type: ignore[union-attr]


def _is_single(part: torch.fx.GraphModule) -> bool:
    return not isinstance(part.graph.output_node().args[0], (tuple, list))


class _Layout(NamedTuple):
    """How a tensor lies in memory, up to gaps: what torch computes of it gets its layout from that.

    order: dimensions from the slowest to the fastest. expanded: those in which one element stands for all.
    """

    order: list[int]
    expanded: list[int]

    def of(self, result: torch.Tensor) -> torch.Tensor:
        """The contiguous result in this layout."""
        shape = result.shape
        for place in self.expanded:
            result = result.narrow(place, 0, min(1, shape[place]))
        if self.order != sorted(self.order):
            back = sorted(range(len(self.order)), key=self.order.__getitem__)
            result = result.permute(self.order).contiguous().permute(back)
        return result.expand(shape) if self.expanded else result


def _layout(value: torch.Tensor) -> _Layout:
    steps = [at_hand(step) for step in value.stride()]
    sizes = [at_hand(size) for size in value.shape]
    places = range(value.dim())
    if None in steps or None in sizes:
        return _Layout([*places], [])
    expanded = [place for place in places if steps[place] == 0 and sizes[place] != 1]
    moving = sorted((p for p in places if p not in expanded), key=lambda place: -steps[place])  # type: ignore[operator]
    rest = iter(moving)
    return _Layout([place if place in expanded else next(rest) for place in places], expanded)


def _tell(engine: Engine, message: str) -> None:
    logs.emit("perf", f"{engine.name}: {message}")
