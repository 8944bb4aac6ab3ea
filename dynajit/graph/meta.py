"""What dynajit notes on a graph's nodes and on graphs: one typed record each, under one key of torch.fx's `meta`.

In:  a node or a graph module. Out: `notes(node)`, `graph_notes(gm)`; `note` and `note_graph` change them. The front
notes what only capture knows, the back reads it; passes of the back note for later ones. One more note: a field, with
who sets it and who reads it. torch's own keys (`example_value`, `val`, `stack_trace`, `recompute`, ...) stay torch's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from dynajit.op_facts import written_arguments
from dynajit.torch_compat import memory_of

if TYPE_CHECKING:
    from dynajit.graph.backward_state import BackwardState

_KEY = "dynajit"


@dataclasses.dataclass(frozen=True)
class NodeMeta:
    """Notes on one node.

    Of inputs, set by `graph/builder.py`:
    source: where the program has it from, as text; read by `aot/inference/freezing.py`.
    grad_fn: autograd's node of it before the graph writes it; read by `graph/builder.py`, `interp/machine.py` and aot,
        which sets it where it cuts graphs.
    version: how often it had been written by then, None of inference tensors; read by
        `aot/passes/version_exempt_writes.py`.
    waited_for: a leaf with hooks that are told of its gradient; read by `aot/autograd.py`.

    Of operations, set by `graph/builder.py` and `values/tensors/ops.py`:
    part: made by the capture, no operation of the program's; goes where nothing uses it.
    changes: does something beside giving its result; read by `resume/rerun.py` and `graph/builder.py`.
    writes: the memory, as `memory_of` names it, that it writes, counted by autograd or not; read by `graph/builder.py`
        and `aot/passes/unused.py`.
    may_raise: raises for some values of its tensors; read by `graph/builder.py` and `aot/legality.py`.
    reaches: it calls Python code that reaches tensors which it isn't given; read by `aot/joint.py`, `aot/legality.py`
        and `aot/training/pieces.py`.
    undo: if it may raise: the inputs written before that have to be put back then, None where that does not do.
    undoes_own: `undo` holds what it writes itself, too, of which a part may be written when it raises.
    asks_policy: a checkpointed region whose policy sees each operation; set by `values/tensors/checkpointing.py`, read
        by `aot/training/pieces.py`.

    Of nodes in ATen graphs, set by passes of aot:
    version_exempt: a copy into an input that autograd does not count as a write; read by `loopir/lower_graph.py`.
    takes_first: may write its result over its first argument; read by `loopir/lower_graph.py`.
    of_forward, read_by_backward: `aot/training/hidden_writes.py`'s own, which tell the halves of a joint graph apart.
    """

    source: str = ""
    grad_fn: Any = None
    version: int | None = None
    waited_for: bool = False
    part: bool = False
    changes: bool = False
    writes: tuple[int | None, ...] = ()
    may_raise: bool = False
    reaches: bool = False
    undo: tuple[str, ...] | None = None
    undoes_own: bool = False
    asks_policy: bool = False
    version_exempt: bool = False
    takes_first: bool = False
    of_forward: bool = False
    read_by_backward: bool = False


@dataclasses.dataclass(frozen=True)
class Repeated:
    """How a graph goes on that has the first few of many equal layers, each of which reads what the one before gives.

    kept, layers: how many layers it has, and is to have. inputs: the names of all inputs, in order.
    series: an input of one layer only -> its layer, and the names of the same input of all layers.
    results: what the whole graph gives: a place among the graph's results, the name of an input, or the places at
        which its layers have the same result, and the layer whose it is.
    whole: the whole graph, where it is of ATen operations.
    """

    kept: int
    layers: int
    inputs: tuple[str, ...]
    series: dict[str, tuple[int, tuple[str, ...]]]
    results: tuple[int | str | tuple[tuple[int, ...], int], ...]
    whole: fx.GraphModule | None = None


class NotRepeated(Exception):
    """What was made of a few layers does not tell what the others are; the text says why."""


@dataclasses.dataclass(frozen=True)
class GraphMeta:
    """Notes on one graph.

    differentiated_inside: the program may ask for gradients of what the graph computes on its way; versions_read: it
        may ask how often tensors were written. Set by `capture/capture.py`, read by aot.
    backward_state: what backward reads of Python's state. Set by `capture/capture.py`, read by `aot/autograd.py`.
    returns: so many of a forward graph's results are the program's; set by `aot/autograd.py`, read by
        `loopir/lower_graph.py`.
    waited_for: places of a backward graph's results of which somebody is told when they are there; set by
        `aot/autograd.py`, read by `loopir/lower_graph.py`.
    original: the captured graph that runs where a kernel refuses a value; set by `aot/joint.py`, read by
        `backends/codegen.py`.
    repeated: the graph is the beginning of a longer one, of which the backend makes a callable; set by `aot/joint.py`
        or `backends/codegen.py`, which reads it.
    late_views: names of nodes that are views of its results, which the program gets beside these, taken once more;
        set by `aot/training/late_views.py`, read by `aot/autograd.py`.
    """

    differentiated_inside: bool = False
    versions_read: bool = False
    backward_state: BackwardState | None = None
    returns: int | None = None
    waited_for: frozenset[int] = frozenset()
    original: Callable[..., Any] | None = None
    repeated: Repeated | None = None
    late_views: tuple[str, ...] = ()


_NODE, _GRAPH = NodeMeta(), GraphMeta()


def notes(node: fx.Node) -> NodeMeta:
    """The notes on a node. Copies of the node share them until one has others."""
    return node.meta.get(_KEY, _NODE)  # type: ignore[no-any-return]


def note(node: fx.Node, **fields: Any) -> None:
    """Set fields of a node's `NodeMeta`."""
    node.meta[_KEY] = dataclasses.replace(notes(node), **fields)


def graph_notes(gm: fx.GraphModule) -> GraphMeta:
    """The notes on a graph."""
    return gm.meta.get(_KEY, _GRAPH)  # type: ignore[no-any-return]


def note_graph(gm: fx.GraphModule, **fields: Any) -> None:
    """Set fields of a graph's `GraphMeta`."""
    gm.meta[_KEY] = dataclasses.replace(graph_notes(gm), **fields)


def value_of(node: object) -> Any:
    """The fake value of what a node gives, as captured graphs or ATen graphs have it; None if there is none."""
    if not isinstance(node, fx.Node):
        return None
    return node.meta["val"] if "val" in node.meta else node.meta.get("example_value")


def memory(node: object) -> int | None:
    """The memory of the tensor that a node gives, as `memory_of` names it."""
    return memory_of(value_of(node))


def history_of(value: Any) -> Any:
    """The autograd node that a value is of; None: of none, or it is one of several views and another was written."""
    try:
        return getattr(value, "grad_fn", None)
    except RuntimeError:
        return None


def is_view(node: fx.Node) -> bool:
    """Whether a node gives a tensor with the memory of its first argument, which it is not."""
    whole = value_of(node.args[0]) if node.args else None
    return value_of(node) is not whole and memory(node) is not None and memory(node) == memory_of(whole)


def gives_data(node: fx.Node) -> bool:
    """Whether the node is `tensor.data`."""
    return node.target is getattr and node.args[1:] == ("data",)


def data_views(graph: fx.Graph) -> set[fx.Node]:
    """`tensor.data`, its views, and itself as the result of what writes it."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        base = node.args[0] if node.args else None
        if gives_data(node) or (base in found and memory(base) == memory(node)):
            found.add(node)
    return found


def written_by(node: fx.Node) -> list[fx.Node]:
    """The nodes whose tensors an operation writes in place, by what is known of it. Not those given as `out=`."""
    if not node.op.startswith("call"):
        return []
    kwargs = {name: value for name, value in node.kwargs.items() if name != "out"}
    found = written_arguments(node.target, node.args, kwargs)
    members = [member for one in found for member in (one if isinstance(one, (list, tuple)) else (one,))]
    return [member for member in members if isinstance(member, torch.fx.Node)]
