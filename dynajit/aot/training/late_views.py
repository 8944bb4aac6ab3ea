"""Results that are views which what is compiled can't give: they are taken after the graph, by torch itself.

In:  a torch-level graph. Out: a callable that runs what is compiled of it, and takes these views of what that returns.
A graph's results are views of nothing, so that a write would be allowed that eager refuses: of one of the several views
that `unbind`, `split` or `chunk` make. A write of a part of one that overlaps itself, as what `expand` gives, would be
differentiated as if of a whole that overlaps itself. One of several results that share memory, as `loss` and
`loss.detach()`, would need torch's wrapper, in which no result has a node of its own. And where sizes vary a view of an
input that the graph writes is given by places in memory, of which AOTAutograd knows those in what was computed to be
copied there, not those in the input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from dynajit import _C
from dynajit.aot.legality import GraphFacts, detaches, grad_modes, overlaps_itself, relaid
from dynajit.aot.rewrite import ancestors
from dynajit.aot.training.pieces import CompilePiece, Node, PartitionedCall, Step
from dynajit.graph.meta import history_of, memory, note_graph, value_of
from dynajit.nested import reached
from dynajit.symbols import has_symbols, is_symbolic
from dynajit.torch_compat import memory_of

_ONE_OF_SEVERAL = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE


def with_late_views(
    graph: GraphFacts, example_inputs: Sequence[Any], compile_piece: CompilePiece
) -> Callable[..., Any] | None:
    """The graph with such views taken late; None where it returns none, or they can't be told apart from the rest."""
    gm, calls = graph.gm, graph.calls
    views = _late_views(graph)
    if not views or graph.has_levels or grad_modes(gm):
        return None
    ways = [list(way_to(view, graph.given)) for view in views]
    late = {node for way in ways for node in way}
    if not late.isdisjoint(graph.writes) or not relaid(graph).isdisjoint(map(memory, late)):
        return None  # what they were taken of, or they themselves, may be laid out otherwise by the end
    taken = [node for node in calls if node in late]
    read = dict.fromkeys(part for node in taken for part in node.all_input_nodes if part not in late)
    if any(is_symbolic(value_of(part)) and _is_of_data(value_of(part)) for part in read):
        return None  # a graph gives such a number beside a tensor that shows it: one of these views
    needed = [
        node for node in dict.fromkeys((*graph.returned, *read)) if node.op.startswith("call") and node not in views
    ]
    tail = Step(taken, list(read), views)
    tail.compiled = tail.module(gm).forward
    if not needed and late.issuperset(calls):
        return PartitionedCall(gm, [tail])
    main = Step(calls, gm.graph.find_nodes(op="placeholder"), needed)
    module = main.module(gm)
    heard = _heard(views, late, read)
    note_graph(module, late_views=tuple(view.name for view in heard))
    main.compiled = compile_piece(module, list(example_inputs))
    link = Step([], [*needed, *heard], [], functools.partial(_link, len(needed)))
    return PartitionedCall(gm, [main, tail, link] if heard else [main, tail])


def _is_of_data(number: Any) -> bool:
    # Imported here because it imports sympy, which takes 0.2 s; where numbers are symbolic it is there.
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(number))


def _link(count: int, *tensors: torch.Tensor) -> tuple[()]:
    """Have backward passes from the first `count` tensors, results of a graph, come by those of the others, which are
    views of them, that each was computed from."""
    _C.link_views(tensors[:count], tensors[count:])
    return ()


def _late_views(graph: GraphFacts) -> list[Node]:
    shared = set(_sharing(graph))
    return [
        node
        for node in graph.returned
        if _is_one_of_several(value_of(node))
        or loses_its_place(graph, node)
        or node in shared
        or (memory(node) not in graph.given and _overlaps(value_of(node)))
    ]


def _heard(views: Sequence[Node], late: Collection[Node], bases: Iterable[Node]) -> list[Node]:
    """The views that a backward pass from other results can come by. Not those that a base was computed from: its node
    is there before theirs."""
    before = ancestors(bases)
    return [view for view in views if view not in before and _is_read_inside(view, late)]


def _is_read_inside(view: Node, late: Collection[Node]) -> bool:
    """Whether what is computed of the view has a gradient to give it."""
    later = reached([view], lambda node: node.users if node in late else ())
    return history_of(value_of(view)) is not None and any(node not in late and node.op != "output" for node in later)


def _sharing(graph: GraphFacts) -> Iterator[Node]:
    """The results that are views of another one, or detached, or views of a tensor of which several are, where one of
    these has gradients."""
    by_memory: dict[int | None, list[Node]] = {}
    for node in graph.returned:
        if isinstance(value_of(node), torch.Tensor):
            by_memory.setdefault(memory(node), []).append(node)
    for own, nodes in by_memory.items():
        views = [node for node in nodes if value_of(node)._is_view() or detaches(node)]
        is_several = own is not None and len(nodes) > 1 and len(views) >= len(nodes) - 1
        if is_several and own not in graph.given and any(history_of(value_of(node)) is not None for node in nodes):
            yield from views


def loses_its_place(graph: GraphFacts, node: Node) -> bool:
    """Whether it is a view of an input that the graph writes, with sizes that vary on the way to it."""
    own = memory(node)
    if node.op == "placeholder" or own not in graph.given or own not in graph.written:
        return False
    return any(_varies(value_of(part)) for part in (*graph.inputs, *graph.calls) if memory(part) == own)


def _varies(value: torch.Tensor) -> bool:
    return has_symbols(value) or type(value.storage_offset()) is not int


def _is_one_of_several(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.requires_grad
        and value._is_view()
        and torch._C._autograd._get_creation_meta(value) == _ONE_OF_SEVERAL
    )


def _overlaps(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value._is_view() and overlaps_itself(value)


def way_to(view: Node, given: Collection[int | None]) -> Iterator[Node]:
    """The calls from a tensor that is no view, or from an input, to the view: each takes the memory of the former.
    `given`: the memory of inputs."""
    own = memory(view)
    waiting = [view]
    while waiting:
        node = waiting.pop()
        if node.op.startswith("call") and _is_of(value_of(node), own, own in given or detaches(node)):
            yield node
            waiting.extend(node.all_input_nodes)


def _is_of(value: Any, own: int | None, given: bool) -> bool:
    """Whether it is a view of this memory, or several of them. `given`: the call did not make the memory."""
    parts = value if isinstance(value, (tuple, list)) else [value]
    return bool(parts) and all(memory_of(part) == own and (given or part._is_view()) for part in parts)
