"""What the backward pass of each of a graph's results reaches, and what it uses up.

In:  a captured graph, whose nodes hold the fake tensors that it was traced with: autograd's own graph hangs on them.
Out: `BackwardReachability`. A compiled graph is one node to autograd, in eager mode each operation is: a backward pass
from some of the results gives gradients only to the inputs that those were computed from, and only what it went through
can't be gone through again.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynajit import _C
from dynajit.aot.rewrite import results_of
from dynajit.graph.meta import notes, value_of


@dataclass(frozen=True)
class SavingNodes:
    """Autograd's nodes that keep tensors for their backward, which runs once: those that the same results lead to, and
    that lead to the same inputs, and other results.

    results: the numbers of the results. through: of those that they lead to. inputs: the positions of the inputs. own:
    the results of one such node, where it has any; it stands alone then.
    """

    results: frozenset[int]
    through: frozenset[int]
    inputs: frozenset[int]
    own: frozenset[int]


@dataclass(frozen=True)
class BackwardReachability:
    """Of the results that have a gradient, in order; before them come inputs that the graph writes and autograd hears
    of, which are results too: a later backward pass may start from what is in them now.

    results: their positions among all results, None for a written input. inputs: positions of the graph's inputs that
    each is computed from. saving: what can be gone through once. ends: those that no other result was computed from,
    where most backward passes start. through: the other results that each was computed from, by way of what eager's
    pass from it comes by them; after their numbers come those of `views`: so many views of results are taken after
    the graph.
    """

    results: tuple[int | None, ...]
    inputs: tuple[frozenset[int], ...]
    saving: tuple[SavingNodes, ...]
    ends: frozenset[int]
    through: tuple[frozenset[int], ...] = ()
    views: int = 0

    @property
    def apart(self) -> bool:
        """Whether a backward pass may start from one of the ends, and another one from another end later."""
        return any(not self._used_up_with(number) >= self.ends for number in self.ends)

    def _used_up_with(self, number: int) -> frozenset[int]:
        """The results whose backward fails after that of this one."""
        return frozenset().union(*(nodes.results for nodes in self.saving if number in nodes.results))


@dataclass(frozen=True)
class AutogradGraph:
    """Autograd's nodes between a graph's results and its inputs.

    results: places and fakes of the results that have a gradient, as in `BackwardReachability`. inputs: by what
    autograd's node of an input is known and which of the node's outputs it is, the input's position. nodes: each node
    with the numbers of the results that lead to it, as bits; those of inputs are among them. written: positions of the
    inputs that are results without a place, in order.
    """

    results: list[tuple[int | None, torch.Tensor]]
    written: list[int]
    inputs: Mapping[tuple[Any, int], int]
    nodes: list[tuple[Any, int]]

    @property
    def inside(self) -> Iterator[tuple[Any, int]]:
        """The nodes that are the graph's own."""
        ends = _nodes_among(self.inputs)
        return ((node, mask) for node, mask in self.nodes if _key(node) not in ends)

    @property
    def edges(self) -> dict[tuple[Any, int], int]:
        """Where edges from results and from the graph's own nodes lead, as nodes and outputs of these: the numbers of
        the results that lead there, as bits."""
        edges = [(value.grad_fn, value.output_nr, 1 << number) for number, (_, value) in enumerate(self.results)]
        edges += [(*edge, mask) for node, mask in self.inside for edge in node.next_functions if edge[0] is not None]
        found: dict[tuple[Any, int], int] = {}
        for node, output, mask in edges:
            found[node, output] = found.get((node, output), 0) | mask
        return found

    @property
    def ends(self) -> set[int]:
        """The positions of the inputs that edges lead to."""
        found = (self.inputs.get((_key(node), output)) for node, output in self.edges)
        return {place for place in found if place is not None}


def autograd_graph_of(gm: torch.fx.GraphModule) -> AutogradGraph | None:
    """Autograd's graph of the results. None: no result has a gradient, or it does not lead from the results to the
    inputs and nothing else."""
    values = [value_of(node) for node in results_of(gm)]
    returned = [
        (place, value) for place, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad
    ]
    written = _written_inputs(gm, [value for _, value in returned])
    results: list[tuple[int | None, torch.Tensor]] = [*((None, value) for _, value in written), *returned]
    starts = [value.grad_fn for _, value in results]
    if not starts or None in starts:
        return None
    places = _places_of_inputs(gm)
    if places is None:
        return None
    masks: dict[Any, int] = {}
    for number, start in enumerate(starts):
        masks[start] = masks.get(start, 0) | 1 << number
    ends = _nodes_among(places)
    nodes = _from_results(starts, ends)
    for node in nodes:
        if _key(node) not in ends and not node.next_functions and not _is_of_lost_view(node):
            return None
        for following in _following(node, ends):
            masks[following] = masks.get(following, 0) | masks[node]
    found = AutogradGraph(results, [place for place, _ in written], places, [(node, masks[node]) for node in nodes])
    known = all((_key(end), output) in places for end, output in found.edges if _key(end) in ends)
    return found if known else None


def reachability_of(history: AutogradGraph | None, viewed: AutogradGraph | None) -> BackwardReachability | None:
    """What backward reaches from each of at least two results that have a gradient. None: there are fewer, or nothing
    is known. viewed: the same with views of results after them, which are taken once more for the program."""
    if history is None or len(history.results) < 2:
        return None
    count = len(history.results)
    masks = dict(history.nodes)
    ancestors = _Ancestors(history)
    starts = [value.grad_fn for _, value in history.results]
    viewed = viewed or history
    ends = [
        number
        for number, start in enumerate(starts)
        if masks[start] == sum(1 << other for other, its in enumerate(starts) if its is start)
    ]
    return BackwardReachability(
        tuple(place for place, _ in history.results),
        tuple(_set(ancestors.inputs_of(value.grad_fn, value.output_nr)) for _, value in history.results),
        saving_nodes(history),
        frozenset(ends),
        _results_between(viewed)[:count],
        len(viewed.results) - count,
    )


def saving_nodes(history: AutogradGraph) -> tuple[SavingNodes, ...]:
    """The graph's own nodes that keep tensors."""
    own: dict[Any, int] = {}
    for number, (_, value) in enumerate(history.results):
        own[value.grad_fn] = own.get(value.grad_fn, 0) | 1 << number
    ancestors = _Ancestors(history)
    found = {(mask, *ancestors.of[node], own.get(node, 0)): None for node, mask in history.inside if saves(node)}
    return tuple(SavingNodes(*map(_set, key)) for key in found)


def arrival_of(history: AutogradGraph) -> list[int]:
    """Positions of the inputs, in the order in which eager's pass from all of the results has gradients for them."""
    ends = _nodes_among(history.inputs)
    numbers = {node: number for number, (node, _) in enumerate(history.nodes)}
    following = [[numbers[other] for other in _following(node, ends)] for node in numbers]
    starts = [numbers[value.grad_fn] for _, value in history.results]
    order = _C.engine_order([node._sequence_nr() for node in numbers], following, starts)
    keys = {number: _key(node) for number, (node, _) in enumerate(history.nodes)}
    places: dict[Any, list[int]] = {}
    for (key, _), place in history.inputs.items():
        places.setdefault(key, []).append(place)
    return [place for number in order for place in places.get(keys[number], ())]


class _Ancestors:
    """of: the numbers of the results, and the positions of the inputs, that each of the graph's own nodes leads to, as
    bits."""

    def __init__(self, history: AutogradGraph) -> None:
        self._inputs = history.inputs
        numbers: dict[tuple[Any, int], int] = {}
        for number, (_, value) in enumerate(history.results):
            edge = value.grad_fn, value.output_nr
            numbers[edge] = numbers.get(edge, 0) | 1 << number
        self.of: dict[Any, tuple[int, int]] = {}
        for node, _ in reversed([*history.inside]):
            results = inputs = 0
            for following, output in node.next_functions:
                if following is not None:
                    results |= numbers.get((following, output), 0) | self.of.get(following, (0, 0))[0]
                    inputs |= self.inputs_of(following, output)
            self.of[node] = results, inputs

    def inputs_of(self, node: Any, output: int) -> int:
        """The positions of the inputs that an edge leads to, as bits."""
        place = self._inputs.get((_key(node), output))
        return self.of.get(node, (0, 0))[1] if place is None else 1 << place


def _results_between(history: AutogradGraph) -> tuple[frozenset[int], ...]:
    """Of each result, the others that it was computed from. No written input is among these: its hooks are on the node
    of the write, which is the call's."""
    leading = history.edges
    edges = [(value.grad_fn, value.output_nr) for _, value in history.results]
    found: list[set[int]] = [set() for _ in edges]
    for inner, (place, _) in enumerate(history.results):
        for outer in bits(leading[edges[inner]]) if place is not None else ():
            if edges[outer] != edges[inner]:
                found[outer].add(inner)
    return tuple(map(frozenset, found))


def asked_in_part(history: AutogradGraph) -> set[Any]:
    """The autograd nodes of the user's Functions that some backward passes give gradients for a part of their outputs:
    what such a backward does with zeros, or None, in the place of the others is the user's affair."""
    edges = history.edges
    functions = [(node, mask) for node, mask in history.inside if is_function(node)]
    return {
        node for node, whole in functions if any(mask != whole for (other, _), mask in edges.items() if other is node)
    }


def is_function(node: Any) -> bool:
    """Whether an autograd node is of an `autograd.Function`."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def _inputs_with_gradients(gm: torch.fx.GraphModule) -> Iterator[tuple[int, torch.Tensor, Any]]:
    """Place, tensor, and autograd's node at the graph's start, of each input that requires gradients."""
    for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = value_of(node)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            yield place, value, notes(node).grad_fn


def _written_inputs(gm: torch.fx.GraphModule, results: Sequence[torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
    """Places and fakes of inputs with another node than at the graph's start that are no results themselves."""
    return [
        (place, value)
        for place, value, before in _inputs_with_gradients(gm)
        if value.grad_fn is not before and not any(value is result for result in results)
    ]


def _places_of_inputs(gm: torch.fx.GraphModule) -> dict[tuple[Any, int], int] | None:
    """By autograd's node, and which output of it: the position of an input. None if two inputs are one to autograd."""
    places: dict[tuple[Any, int], int] = {}
    for place, value, before in _inputs_with_gradients(gm):
        # one that the graph writes is another output of another node by now
        key = (id(value), 0) if before is None else (before, 0 if value.grad_fn is not before else value.output_nr)
        if key in places:
            return None
        places[key] = place
    return places


def _is_of_lost_view(node: Any) -> bool:
    """Whether gradients that get to a node are lost: of a view of something with gradients that was made without them,
    which is a leaf then."""
    return hasattr(node, "variable") and node.variable._is_view()


def _nodes_among(places: Mapping[tuple[Any, int], int]) -> set[Any]:
    return {key for key, _ in places}


def _key(node: Any) -> Any:
    return id(node.variable) if hasattr(node, "variable") else node


def _following(node: Any, ends: Collection[Any]) -> list[Any]:
    if _key(node) in ends:
        return []
    return [following for following, _ in node.next_functions if following is not None]


def _from_results(starts: Sequence[Any], ends: Collection[Any]) -> list[Any]:
    """autograd's nodes between results and inputs, each after all those that lead to it."""
    found: list[Any] = []
    seen: set[Any] = set()
    for start in starts:
        path: list[tuple[Any, Iterator[Any]]] = [] if start in seen else [(start, iter(_following(start, ends)))]
        seen.add(start)
        while path:
            node, following = path[-1]
            fresh = next((other for other in following if other not in seen), None)
            if fresh is None:
                found.append(node)
                path.pop()
            else:
                seen.add(fresh)
                path.append((fresh, iter(_following(fresh, ends))))
    found.reverse()
    return found


_STATISTICS = ("_saved_running_mean", "_saved_running_var")


@functools.cache
def _saved_names(kind: type[Any]) -> tuple[str, ...]:
    if hasattr(kind, "saved_tensors"):
        return ("saved_tensors",)
    # numbers have no `_raw_` name; reading a varying one would fix it
    names = {name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_")}
    return tuple(sorted(names.difference(_STATISTICS)))


def saved_by(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that the node keeps for its backward, and lets go of when that has run; not a batch norm's
    statistics, which its kernels update without a word to autograd.

    Raises:
        RuntimeError: one was written since; the backward would fail.
    """
    kind: Any = type(node)
    for name in _saved_names(kind):
        kept = getattr(node, name)
        members = kept if isinstance(kept, (list, tuple)) else (kept,)
        for member in members:
            if isinstance(member, torch.Tensor):
                yield member


def saves(node: Any) -> bool:
    """Whether the node's backward fails when it runs for the second time: it keeps tensors, or, where a view was
    written, the backward of that write."""
    return type(node) is torch._C._functions.CopySlices or any(True for _ in saved_by(node))  # type: ignore[attr-defined]


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    return (number for number in range(mask.bit_length()) if mask >> number & 1)


def _set(mask: int) -> frozenset[int]:
    return frozenset(bits(mask))
