"""What a graph for a GPU computes on the CPU, of the CPU's tensors alone, as a graph of its own.

In:  a functional ATen graph with tensors on both, as of a model that draws a number on the CPU or returns a tensor that
     lies there.
Out: `split(gm, in_kernels)`: a `SplitGraph`, whose host graph runs first; None where there is nothing to take apart.
What is recorded as a CUDA graph has no place for the host's work; the results of that are inputs like others.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dynajit.aot.rewrite import cut, results_of
from dynajit.graph.meta import graph_notes, note_graph, value_of
from dynajit.nested import leaves_in, tensors_in
from dynajit.op_facts import facts
from dynajit.symbols import has_symbols, is_symbolic

Compiled = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class SplitGraph:
    """The two graphs of one.

    of_host, of_device: places, among the graph's inputs, of what each takes.
    handed: so many of the host graph's results, its first, the device graph takes after its inputs.
    results: where each of the graph's results is found: among its inputs, the host graph's results, the device graph's
        or `constants` (0 to 3), and its place there.
    """

    host: GraphModule
    device: GraphModule
    of_host: tuple[int, ...]
    of_device: tuple[int, ...]
    handed: int
    results: tuple[tuple[int, int], ...]
    constants: tuple[Any, ...]

    def join(self, host: Compiled, device: Compiled) -> Compiled:
        """What takes and gives what the whole graph does, of the two compiled."""

        def call(*inputs: Any) -> tuple[Any, ...]:
            hosted = host(*[inputs[at] for at in self.of_host])
            made = device(*[inputs[at] for at in self.of_device], *hosted[: self.handed])
            found = (inputs, hosted, made, self.constants)
            return tuple([found[where][at] for where, at in self.results])

        return call


def split(gm: GraphModule, in_kernels: Collection[Node], above: int | None = None) -> SplitGraph | None:
    """The graph in two.

    Args:
        in_kernels: calls on the CPU that kernels of the device compute of numbers which they are given.
        above: only if the host's calls make more elements than that.
    """
    results = results_of(gm)
    inputs = list(gm.graph.find_nodes(op="placeholder"))
    calls = [node for node in gm.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    host = _of_host(gm, in_kernels, above)
    device = dict.fromkeys(node for node in calls if node not in host)
    if not host or not device or any(isinstance(one, Node) and one.op == "get_attr" for one in results):
        return None
    read_by_host, read_by_device = _read(inputs, host), _read(inputs, device)
    handed = [node for node in host if not device.keys().isdisjoint(node.users)]
    if not _symbols(device) <= _symbols([*read_by_device, *handed]):
        return None  # a size that only the host's tensors tell
    hosted = list(dict.fromkeys([*handed, *(one for one in results if one in host)]))
    made = list(dict.fromkeys(one for one in results if one in device))
    constants = tuple(one for one in results if not isinstance(one, Node))
    places = tuple(_places(results, (inputs, hosted, made)))
    of_host = cut(gm, list(host), read_by_host, hosted)
    of_device = cut(gm, list(device), [*read_by_device, *handed], made)
    noted = graph_notes(gm)
    shown = None if noted.returns is None else len({at for where, at in places[: noted.returns] if where == 2})
    waited_for = frozenset(at for where, at in map(places.__getitem__, noted.waited_for) if where == 2)
    note_graph(of_host, returns=None, original=None, waited_for=frozenset())
    note_graph(of_device, returns=shown, original=None, waited_for=waited_for)
    taken = tuple(map(inputs.index, read_by_host)), tuple(map(inputs.index, read_by_device))
    return SplitGraph(of_host, of_device, *taken, len(handed), places, constants)


def _work(nodes: Iterable[Node]) -> int:
    """How many elements the calls make, as far as their number is known."""
    counts = [value.numel() for value in map(value_of, nodes) if isinstance(value, torch.Tensor)]
    return sum(count for count in counts if type(count) is int)


def _places(results: Sequence[Any], parts: Sequence[list[Node]]) -> Iterator[tuple[int, int]]:
    """As `SplitGraph.results` says."""
    found = {node: (where, at) for where, part in enumerate(parts) for at, node in enumerate(part)}
    numbers = itertools.count()
    for one in results:
        yield found[one] if isinstance(one, Node) else (len(parts), next(numbers))


def _read(inputs: list[Node], by: dict[Node, None]) -> list[Node]:
    """The inputs that these calls read, and all numbers."""
    return [node for node in inputs if is_symbolic(value_of(node)) or not by.keys().isdisjoint(node.users)]


def _of_host(gm: GraphModule, in_kernels: Collection[Node], above: int | None) -> dict[Node, None]:
    """The calls that only the CPU has to do with and that can be made first, in order; none where they make no more
    elements than `above`."""
    possible: set[Node] = set()
    wanted: set[Node] = set()
    drawn = False  # what can't be made first has drawn from the CPU's generator
    for node in gm.graph.nodes:
        its = _on_cpu(value_of(node)) or _is_carried(node)
        if possible.issuperset(node.all_input_nodes) and its and _can_be_first(node, drawn):
            possible.add(node)
        elif node.op == "call_function":
            drawn |= facts(node.target).draws and not any(map(_on_device, map(value_of, (node, *node.all_input_nodes))))
    for node in reversed(gm.graph.nodes):
        mine = node.op == "call_function" and node in possible
        by_itself = not is_symbolic(value_of(node)) and node not in in_kernels
        if mine and (by_itself or not wanted.isdisjoint(node.users)):
            wanted.add(node)
    found = dict.fromkeys(node for node in gm.graph.nodes if node in wanted)
    return found if above is None or _work(found) > above else {}


def _can_be_first(node: Node, drawn: bool) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr")
    known = facts(node.target)
    return node.target is operator.getitem or known.pure or (known.draws and not known.writes and not drawn)


def _is_carried(node: Node) -> bool:
    """Whether it copies a tensor of the CPU's to a device, which waits for the host."""
    return node.target is torch.ops.aten._to_copy.default and _on_cpu(value_of(node.args[0]))  # type: ignore[arg-type]


def _on_cpu(value: Any) -> bool:
    """Whether it is the host's: a number, or tensors on the CPU."""
    return all(_is_cpus(leaf) if isinstance(leaf, torch.Tensor) else is_symbolic(leaf) for leaf in leaves_in(value))


def _is_cpus(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _on_device(value: Any) -> bool:
    """Whether one of its tensors is not the CPU's."""
    return not all(map(_is_cpus, tensors_in(value)))


def _symbols(nodes: Iterable[Node]) -> set[Any]:
    leaves = (leaf for node in nodes for leaf in leaves_in(value_of(node)))
    sized = [leaf for leaf in leaves if has_symbols(leaf)]
    if not sized:
        return set()
    # Imported here because it imports sympy, which takes 0.2 s.
    from torch.fx.experimental.symbolic_shapes import free_symbols

    return {symbol for leaf in sized for symbol in free_symbols(leaf)}
