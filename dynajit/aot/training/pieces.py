"""Graphs that train, in pieces: what lies between calls that are better made as captured.

In:  a torch-level graph with long recurrent networks, which would be thousands of operations if they were traced, with
regions of activation checkpointing, of which backward is to keep the inputs alone, with a Function of the user's whose
backward sees which of its results have gradients, with operators whose backward looks at values, or that give nothing
and are called for their effects, or whose kernels read or write tensors that they aren't given: these are there before
the graph, and written after it.
Out: a callable that runs what is compiled of the rest, and the calls themselves between, as eager does; autograd goes
through all of them. The bodies of regions are compiled, save where the program's policy has to see each of their
operations. None where the graph does what has to be seen as a whole, as writing tensors or changing torch's
state.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from dynajit import _C, torch_compat
from dynajit.aot.legality import REGION, GraphFacts, is_drawn, name_of
from dynajit.aot.passes.recurrent import MAX_STEPS_TRAINED, is_long
from dynajit.aot.passes.unused import gives_nothing
from dynajit.aot.rewrite import cut
from dynajit.aot.training.double_backward import is_of_the_cpu
from dynajit.aot.training.reachability import asked_in_part, autograd_graph_of, is_function, saved_by
from dynajit.graph.meta import graph_notes, history_of, memory, notes, value_of
from dynajit.nested import reached
from dynajit.symbols import is_symbolic
from dynajit.torch_compat import memory_of

Node = torch.fx.Node
# A graph and its example inputs -> the callable of it.
CompilePiece = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]
_REFUSING_GRADIENTS = frozenset({"LinalgEigBackward0", "LinalgEighBackward0", "LinalgSvdBackward0"})


@dataclasses.dataclass
class Step:
    """A call that is made as captured (one node), or what is compiled of the nodes between two of them."""

    nodes: list[Node]
    inputs: list[Node]
    outputs: list[Node]
    compiled: Callable[..., Sequence[Any]] | None = None
    dying: tuple[Node, ...] = ()  # values that nothing needs after this
    # of regions and what is not compiled: what gives the results once more, for compiled graphs after, which need not
    # keep them then; and whether it draws random numbers
    again: Callable[..., Sequence[Any]] | None = None
    draws: bool = False

    def module(self, gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """The graph of the nodes, which are some of `gm`'s."""
        return cut(gm, self.nodes, self.inputs, self.outputs)

    def compile(self, graph: GraphFacts, example_inputs: Sequence[Any], compile_piece: CompilePiece) -> None:
        """Compile what the step has of the graph, for these inputs of the whole."""
        given = dict(zip(graph.inputs, example_inputs, strict=True))
        self.compiled = compile_piece(self.module(graph.gm), examples(self.inputs, given))


def in_pieces(
    graph: GraphFacts, example_inputs: Sequence[Any], compile_piece: CompilePiece
) -> Callable[..., Any] | None:
    """The graph cut at such calls, or None."""
    gm, regions = graph.gm, regions_of(graph.gm)
    apart = set(filter(_is_apart, graph.calls))
    cuts = {*regions, *_long(gm), *apart, *_functions_asked_in_part(graph), *filter(checks_gradients, graph.calls)}
    if not cuts or graph.has_effects(beside=apart):
        return None
    given = dict(zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True))
    numbers = [node for node, value in given.items() if is_symbolic(value)]
    steps = list(_cut(gm, cuts, numbers))
    pieces = [step for step in steps if not _is_cut(step.nodes[0], cuts)]
    if not all(_can_be_handed_on(node) for step in pieces for node in (*step.inputs, *step.outputs)):
        return None

    run = PartitionedCall(gm, steps)
    kept = {memory(node) for node in _held(gm, regions)}
    autocast = torch_compat.any_autocast_enabled()  # it may be off when something runs again
    for step in pieces:
        piece = step.module(gm)
        if regions and not _memories(step.inputs) <= kept | _saved_in(step):
            step.compiled = piece.forward  # compiled, it would keep for backward what eager's operations don't
            step.again = None if autocast or any(map(is_drawn, step.nodes)) else piece.forward
        else:
            step.compiled = compile_piece(piece, examples(step.inputs, given))
    for step in steps:
        (node, *more) = step.nodes
        if node in regions and not more:
            body: Any = node.args[0]
            module = run.constants[body]
            drawn = list(filter(is_drawn, module.graph.nodes))
            if not notes(node).asks_policy:
                module.meta.update(gm.meta)
                run.constants[body] = compile_piece(module, examples(node.args[1:], given))
            if all(map(is_of_the_cpu, drawn)) and not autocast:
                step.again, step.draws = run.constants[body], bool(drawn)
    return run


def _is_apart(node: Node) -> bool:
    return gives_nothing(node) or notes(node).reaches


def checks_gradients(node: Node) -> bool:
    """Whether its backward refuses some gradients by their values, which it does not look at in fake tensors: those of
    complex eigenvectors and singular vectors that depend on their phase."""
    parts = value_of(node) if isinstance(value_of(node), tuple) else ()
    return any(
        isinstance(part, torch.Tensor)
        and part.is_complex()
        and (history := history_of(part)) is not None
        and history.name() in _REFUSING_GRADIENTS
        for part in parts
    )


def _long(gm: torch.fx.GraphModule) -> Iterator[Node]:
    """The long recurrent networks."""
    return (node for node in gm.graph.nodes if node.op == "call_function" and is_long(node, MAX_STEPS_TRAINED))


def _functions_asked_in_part(graph: GraphFacts) -> Iterator[Node]:
    """The calls of Functions whose backward may be given gradients for some of the results alone."""
    several = [node for node in graph.calls if isinstance(value_of(node), tuple)]
    made = {node: list(map(history_of, value_of(node))) for node in several}
    history = autograd_graph_of(graph.gm) if any(map(is_function, chain(*made.values()))) else None
    asked = asked_in_part(history) if history is not None else set()
    return (node for node, its in made.items() if not asked.isdisjoint(its))


def _held(gm: torch.fx.GraphModule, regions: Sequence[Node]) -> Iterator[Node]:
    """What is kept in any case: the graph's inputs and results, and what regions are given."""
    yield from gm.graph.find_nodes(op="placeholder")
    yield from gm.graph.output_node().all_input_nodes
    for region in regions:
        yield from region.all_input_nodes


def _memories(nodes: Sequence[Node]) -> set[int | None]:
    return {memory(node) for node in nodes}


def _saved_in(step: Step) -> set[int | None]:
    """The memory of what autograd's nodes of the calls keep, as eager has them."""
    ends: set[Any]
    starts: set[Any]
    ends, starts = (
        {getattr(value_of(node), "grad_fn", None) for node in nodes} for nodes in (step.inputs, step.outputs)
    )
    ends.add(None)
    nodes = reached(starts - ends, lambda node: {following for following, _ in node.next_functions} - ends)
    try:
        return {memory_of(tensor) for node in nodes for tensor in saved_by(node)}
    except RuntimeError:  # written since, by a region: eager's backward fails, and so does that of the calls
        return set()


def regions_of(gm: torch.fx.GraphModule) -> list[Node]:
    """The regions of activation checkpointing."""
    return [node for node in gm.graph.nodes if node.op == "call_function" and name_of(node) == REGION]


def _is_cut(node: Node, cuts: set[Node]) -> bool:
    """Whether the node is a call that is made as captured, or takes one of its results."""
    return node in cuts or (node.target is operator.getitem and node.args[0] in cuts)


def _cut(gm: torch.fx.GraphModule, cuts: set[Node], numbers: Sequence[Node]) -> Iterator[Step]:
    """The calls with their results, and the nodes between, in an order in which they can run."""
    called: list[Node] = []
    between: list[Node] = []
    for node in gm.graph.nodes:
        if node in cuts or node.op == "output":
            yield from (Step([each], each.all_input_nodes, [each]) for each in called)
            if between:
                yield piece_of(between, numbers)
            called, between = [], []
        if _is_cut(node, cuts):
            called.append(node)
        elif node.op.startswith("call"):
            between.append(node)


def piece_of(nodes: list[Node], more: Sequence[Node]) -> Step:
    """What is to be compiled of the nodes. `more`: further inputs."""
    own = set(nodes)
    read = dict.fromkeys((*more, *(part for node in nodes for part in node.all_input_nodes)))
    inputs = [node for node in read if node not in own and node.op != "get_attr"]
    return Step(nodes, inputs, [node for node in nodes if not own.issuperset(node.users)])


def _can_be_handed_on(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) or is_symbolic(value)


def cut_in_two(graph: GraphFacts, first: list[Node], rest: list[Node]) -> list[Step] | None:
    """Both parts; None where one would hand on something else than tensors, or the graph has to be seen as a whole."""
    if graph.outs or graph.has_levels or graph_notes(graph.gm).versions_read:
        return None
    numbers = [node for node in graph.inputs if not isinstance(value_of(node), torch.Tensor)]
    steps = [piece_of(nodes, numbers) for nodes in (first, rest)]
    handed_on = {*steps[0].outputs, *steps[1].inputs}.difference(graph.inputs)
    return steps if all(isinstance(value_of(node), torch.Tensor) for node in handed_on) else None


def examples(inputs: Iterable[Any], given: Mapping[Node, Any]) -> list[Any]:
    """What a piece is compiled for: the graph's inputs as `given`, fakes of what other pieces compute, without their
    history."""

    def example(node: Node) -> Any:
        value = given[node] if node in given else value_of(node)
        return value if node in given or is_symbolic(value) else value.detach().requires_grad_(value.requires_grad)

    return [example(node) for node in inputs]


class PartitionedCall:
    """Runs the steps one after the other."""

    def __init__(self, gm: torch.fx.GraphModule, steps: list[Step]) -> None:
        self.inputs = gm.graph.find_nodes(op="placeholder")
        attributes = gm.graph.find_nodes(op="get_attr")
        self.constants = {node: operator.attrgetter(str(node.target))(gm) for node in attributes}
        self.results: Any = gm.graph.output_node().args[0]
        self.steps = steps
        kept = {*gm.graph.output_node().all_input_nodes, *self.constants}
        for step in reversed(steps):
            step.dying = tuple(node for node in {*step.inputs, *step.outputs} if node not in kept)
            kept.update(step.dying)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = {**self.constants, **dict(zip(self.inputs, inputs, strict=True))}
        for step in self.steps:
            if step.compiled is not None:
                given = [values[node] for node in step.inputs]
                found = step.compiled(*given)
                values.update(zip(step.outputs, found, strict=True))
                if step.again is not None:
                    _C.runs_again(step.again, tuple(given), tuple(found), None, False)
                del given, found
            else:
                _call(step, values)
            for node in step.dying:
                del values[node]
        return tuple(torch.fx.map_arg(self.results, values.__getitem__))


def _call(step: Step, values: dict[Node, Any]) -> None:
    """Make the call that the step is."""
    (call,) = step.nodes
    args, kwargs = torch.fx.map_arg((call.args, call.kwargs), values.__getitem__)
    random = torch.get_rng_state() if step.draws else None
    found = values[call] = call.target(*args, **kwargs)  # type: ignore[operator]
    if step.again is not None:
        # backward keeps what the region was given
        _C.runs_again(step.again, args[1:], tuple(found), random, True)
