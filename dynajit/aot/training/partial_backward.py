"""Backward graphs of some of a graph's results.

In:  the backward graph of all results, and which of their gradients there are. Out: the graph for these gradients alone
(`partial_backward`), compiled when it is first needed (`PartialBackwardCache`).

A backward graph is linear in the gradients of the results, so what is made only of gradients that there are not is
zero, and is left out: also where a derivative is infinite, and zero times it would be NaN. Autograd does the same by
not going there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dynajit import _C
from dynajit.aot.modes import one_at_a_time
from dynajit.aot.rewrite import Copy, ancestors, descendants, same_numbers
from dynajit.aot.runtime_wrappers import without_autocast
from dynajit.aot.training.reachability import BackwardReachability
from dynajit.graph.meta import value_of
from dynajit.op_facts import only_acts
from dynajit.symbols import has_symbols

aten = torch.ops.aten


class PartialBackwardCache(dict[bytes, "Callable[..., Any] | None"]):
    """The compiled backward graphs of one graph, for the gradients that there may be: by a byte for each, 0 where there
    is none, a backward that takes the others. None: it has to be the one of all. Each is compiled when asked for. After
    these bytes there may be one for each input, 0 where it gets no gradient.

    Attributes:
        graph: gives the backward graph of all results, or None where it is gone.
        reach: what is asked of it: which inputs each result is computed from, and where most backward passes start.
        autocast: whether autocast was on where the graph was traced.
    """

    def __init__(
        self,
        graph: Callable[[], GraphModule | None],
        reach: BackwardReachability,
        compile: Callable[[GraphModule], Callable[..., Any]],
        autocast: bool,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.reach = reach
        self.autocast = autocast
        self._compile = compile
        self._unneeded: dict[bytes, frozenset[int]] = {}

    @property
    def _all(self) -> bytes:
        return b"\1" * len(self.reach.inputs)

    def compile_usual(self) -> None:
        """Compile what most backward passes take: the one from results that no other was computed from."""
        if self[bytes(number in self.reach.ends for number in range(len(self.reach.inputs)))] is None:
            self[self._all]

    def put(self, defined: bytes, compiled: Callable[..., Any] | None, unneeded: Iterable[int]) -> None:
        """Have the backward of these gradients, which makes no use of the parameters `unneeded`."""
        self._unneeded[defined] = frozenset(unneeded)
        self[defined] = compiled

    def of_all(self, *arguments: Any) -> Any:
        """The backward of all results, for torch's own wrapper."""
        backward = self[self._all]
        assert backward is not None
        given = list(arguments)
        del arguments  # what was saved dies as the graph goes
        return _C.call_giving(backward, given)

    def needs(self, defined: bytes, place: int) -> bool:
        """Whether the backward of these gradients makes use of its parameter number `place`."""
        return place not in self._unneeded[defined]

    def unneeded(self, defined: bytes) -> frozenset[int]:
        """The parameters that the backward of these gradients makes no use of."""
        self[defined]
        return self._unneeded[defined]

    def __missing__(self, defined: bytes) -> Callable[..., Any] | None:
        with one_at_a_time():
            if defined not in self:  # else another thread was faster
                whole = self.graph()
                count = len(self.reach.inputs)
                results, asked = defined[:count], defined[count:]
                reached = [places for places, there in zip(self.reach.inputs, results, strict=True) if there]
                wanted = frozenset().union(*reached)
                if asked:
                    wanted = wanted.intersection(place for place, is_asked in enumerate(asked) if is_asked)
                graph = whole if whole is None or all(defined) else partial_backward(whole, results, wanted)
                parameters = graph.graph.find_nodes(op="placeholder") if graph is not None else []
                compiled = None if graph is None else without_autocast(self._compile(graph), self.autocast)
                self.put(defined, compiled, [at for at, node in enumerate(parameters) if not node.users])
            return self[defined]


def partial_backward(backward: GraphModule, defined: Sequence[int], wanted: frozenset[int]) -> GraphModule | None:
    """The backward graph without the gradients that are not defined.

    Args:
        backward: takes what forward saved, then a gradient for each result.
        defined: of these gradients, in order; 0 for those that are not.
        wanted: positions of the inputs that get a gradient; the others' places in the result hold None.

    Returns:
        The graph, which takes the defined gradients only; None where zeros are needed whose sizes it does not know.
    """
    parameters = backward.graph.find_nodes(op="placeholder")
    gradients = parameters[len(parameters) - len(defined) :]
    missing = {node for node, there in zip(gradients, defined, strict=True) if not there}
    touched = descendants(gradients)  # made of gradients
    alive = descendants(set(gradients) - missing)  # of at least one that is there
    copy = Copy(backward)
    graph, copies = copy.graph, copy.of
    zeros = _Zeros(graph)
    for node in backward.graph.nodes:
        if node.op == "output":
            results = [value if place in wanted else None for place, value in enumerate(node.args[0])]
            absent = {value for value in results if isinstance(value, Node) and value not in copies}
            if not all(zeros.can_make(value) for value in absent):
                return None
            copies.update({value: zeros.like(value) for value in absent})
            graph.output([copies[value] if isinstance(value, Node) else value for value in results])
        elif node not in touched or node in alive:
            absent = {source for source in node.all_input_nodes if source not in copies}
            rest = _other_summand(node, absent)
            if rest is not None:
                copies[node] = copies[rest]
                continue
            if not all(zeros.can_make(source) for source in absent):
                return None
            there = {**copies, **{source: zeros.like(source) for source in absent}} if absent else copies
            copies[node] = graph.node_copy(node, there.__getitem__)
    _drop_checks(graph)
    graph.eliminate_dead_code()
    return copy.module()


def _drop_checks(graph: Graph) -> None:
    """Erase checks of one of several results of operations of which nothing else is needed: to autograd they were part
    of those."""
    read = ancestors([graph.output_node()])
    for node in reversed(graph.nodes):
        checked = {part.all_input_nodes[0] for part in node.all_input_nodes if part.target is operator.getitem}
        if only_acts(node.target) and checked and checked.isdisjoint(read):
            graph.erase_node(node)


def _other_summand(node: Node, absent: set[Node]) -> Node | None:
    """Of a sum with one summand that is zero: the other, if that is the sum itself."""
    if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs or len(absent) != 1:
        return None
    others = [summand for summand in node.args if summand not in absent]
    if len(others) != 1 or not isinstance(others[0], Node):
        return None
    whole, part = value_of(node), value_of(others[0])
    if not isinstance(whole, torch.Tensor) or not isinstance(part, torch.Tensor):
        return None
    same = part.dtype == whole.dtype and part.device == whole.device
    return others[0] if same and same_numbers(part.shape, whole.shape) else None


class _Zeros:
    """Zeros in the place of nodes that are left out."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def can_make(self, node: Node) -> bool:
        value = value_of(node)
        return isinstance(value, torch.Tensor) and value.layout is torch.strided and not has_symbols(value)

    def like(self, node: Node) -> Node:
        value: Any = node.meta["val"]
        options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        made = self.graph.call_function(aten.full.default, (list(value.shape), 0), options)
        made.meta = dict(node.meta)
        return made
