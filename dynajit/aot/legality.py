"""Which captured graphs can't be traced again to ATen operations, or not differentiated as one, and why.

In:  a torch-level graph. Out: `GraphFacts`, what it writes, sees and changes, found in one pass; `why_not_traceable`
and `why_not_differentiable`, the first of the reasons in `NOT_TRACEABLE` and `NOT_DIFFERENTIABLE` that holds. Such
graphs run as they were captured. One more reason: a row, and its smallest program in `tests/aot/test_legality.py`.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.grad_mode
from torch._subclasses.fake_tensor import FakeTensor

from dynajit import torch_compat
from dynajit.aot.rewrite import ancestors, descendants
from dynajit.graph.meta import gives_data, graph_notes, memory, notes, value_of, written_by
from dynajit.nested import reached
from dynajit.op_facts import LOW_PRECISION, draws, facts, functional_twin, overloads_of
from dynajit.symbols import has_symbols
from dynajit.torch_compat import memory_of

Node = torch.fx.Node

ENTER_DUAL_LEVEL: Any = torch._C._enter_dual_level
ENTER_INFERENCE: Any = torch.autograd.grad_mode._enter_inference_mode
EXIT_INFERENCE: Any = torch.autograd.grad_mode._exit_inference_mode
# the name of what registers a hook on a gradient, in the graphs that are captured
HOOK = "hook_gradient"
# the name of a region of activation checkpointing there; its first argument is its body, a module
REGION = "checkpointed_region"
# What changes the layout of the tensor that it is called on.
_RELAYS = {"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"}
# Views of so many elements are compared place by place.
_MAX_PLACES = 1 << 16


def name_of(node: Node) -> str:
    """A call's name, by torch's and Python's names; empty where it has none."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


# what draws into a tensor, or fills it: of the first argument only the shape matters
_FILLS = frozenset({"uniform", "normal_functional", "exponential", "random", "fill", "zero"})


def values_read(node: Node) -> list[Node]:
    """The inputs of a node whose elements its result depends on: not those that only say which size or dtype it has."""
    packet = getattr(node.target, "overloadpacket", None)
    name = name_of(node) if packet is None else packet.__name__
    if not facts(node.target).known:
        return node.all_input_nodes
    if name.startswith("new_") or name.endswith("_like") or name in _FILLS:
        return [part for part in node.all_input_nodes if part not in node.args[:1] or part in node.args[1:]]
    if name.endswith("_as") or name == "to":
        return [part for part in node.args[:1] if isinstance(part, Node)]
    return node.all_input_nodes


def grad_modes(gm: torch.fx.GraphModule) -> list[Node]:
    """The nodes that turn gradients on or off, in order."""
    return gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)


def first_of(node: Node) -> list[Node]:
    """The first argument, or the members of the list that it is."""
    return _nodes_in(node.args[0] if node.args else None)


def runs_anyway(node: Node) -> bool:
    """Whether an operation does something though nothing needs what it gives: it may raise, or others than torch have
    registered it."""
    return notes(node).may_raise or (node.op == "call_function" and facts(node.target).foreign)


def unused_calls(gm: torch.fx.GraphModule, runs: Callable[[Node], bool]) -> list[Node]:
    """The operations that `runs` names which lead to no result and to no write of what is seen outside."""
    end = gm.graph.output_node()
    seen = {memory(node) for node in gm.graph.find_nodes(op="placeholder")}
    seen |= {memory(node) for node in end.all_input_nodes}
    used = {end}
    for node in reversed(gm.graph.nodes):
        if not seen.isdisjoint(notes(node).writes):
            used.add(node)
        if node in used:
            used.update(node.all_input_nodes)
            seen |= {memory(source) for source in node.all_input_nodes}
    return [node for node in gm.graph.nodes if node not in used and runs(node)]


def is_plain(node: Node) -> bool:
    """Whether a call only computes or writes tensors."""
    return (
        not isinstance(node.target, torch._ops.HigherOrderOperator)
        and name_of(node) not in (HOOK, "getattr")
        and "autocast" not in name_of(node)
        and (bool(written_by(node)) or value_of(node) is not None)
    )


def is_drawn(node: Node) -> bool:
    """Whether the node draws random numbers."""
    return node.op.startswith("call") and draws(node.target, node.args, node.kwargs)


class GraphFacts:
    """What a captured graph does.

    calls, inputs, returned: its nodes by kind; returned once each. writes: the calls that write in place, in order,
    with the nodes that they write. outs: those that are given `out=`, with these. written: the memory of what `writes`
    has, as `memory_of` names it. given: that of the inputs. in_no_grad, in_autocast, in_levels: the calls made after
    gradients were turned off, while autocast is on, and inside of torch.func's transforms. has_levels: whether such
    transforms, or a level of forward-mode differentiation, are in the graph.
    """

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self.gm = gm
        self.calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
        self.inputs = gm.graph.find_nodes(op="placeholder")
        self.returned = gm.graph.output_node().all_input_nodes
        self.writes = {node: parts for node in self.calls if (parts := written_by(node))}
        self.outs = {node: parts for node in self.calls if (parts := _nodes_in(node.kwargs.get("out")))}
        self.written = {memory(part) for parts in self.writes.values() for part in parts}
        self.given = {memory(node) for node in self.inputs} - {None}
        self.in_no_grad: set[Node] = set()
        self.in_autocast: set[Node] = set()
        self.in_levels: set[Node] = set()
        self.has_levels = any(node.target is ENTER_DUAL_LEVEL for node in self.calls)
        at_start = torch_compat.any_autocast_enabled()
        autocast, levels, off = int(at_start), 0, False
        for node in self.calls:
            if node.target is torch._C._set_grad_enabled:
                off = node.args[0] is False
            elif off:
                self.in_no_grad.add(node)
            name = name_of(node)
            step = name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")
            if step and "autocast" in name:
                autocast += step
                continue
            levels += step
            self.has_levels |= step > 0
            if autocast > 0:
                self.in_autocast.add(node)
            if levels > 0:
                self.in_levels.add(node)
        self.autocast_goes_on = at_start or autocast > 0

    @functools.cached_property
    def ones_of_many(self) -> tuple[set[Node], bool]:
        """See `_ones_of_many`."""
        return _ones_of_many(self)

    @property
    def turns_gradients_on(self) -> bool:
        """Whether a part of the graph may have gradients though the mode at the call is off."""
        return any(node.args[0] is not False for node in grad_modes(self.gm))

    def has_effects(self, beside: Collection[Node] = ()) -> bool:
        """Whether operations write tensors, change torch's state or have bodies: what gives no tensor or number.
        `beside`: operations that are not looked at."""
        noted = graph_notes(self.gm)
        return bool(
            self.outs or self.writes or self.has_levels or noted.differentiated_inside or noted.versions_read
        ) or not all(is_plain(node) for node in self.calls if node not in beside)

    def written_values(self) -> Iterator[Any]:
        """The examples of what operations write in place."""
        return (value_of(part) for parts in self.writes.values() for part in parts)


@dataclass(frozen=True)
class Reason:
    """Why a graph runs as it was captured. name: identifies it; text: the rest of "it ..." or a sentence, for logs."""

    name: str
    text: str
    holds: Callable[[GraphFacts], bool]


def why_not_traceable(graph: GraphFacts) -> Reason | None:
    """Why tracing the graph to ATen operations would lose something, or None."""
    return next((reason for reason in NOT_TRACEABLE if reason.holds(graph)), None)


def why_not_differentiable(graph: GraphFacts) -> Reason | None:
    """Why one node of autograd can't be the graph, whose results may have gradients, or None."""
    return next((reason for reason in NOT_DIFFERENTIABLE if reason.holds(graph)), None)


# ---- modes of torch


def _mixes_autocast_dtypes(graph: GraphFacts) -> bool:
    """Weights that were cast before the dtype changes inside of autocast keep theirs, until the outermost context ends:
    torch's cache of them does not look at the dtype."""
    return any(node.target is torch.set_autocast_dtype for node in graph.in_autocast)


def cast_weights(graph: GraphFacts) -> list[int]:
    """The places of the inputs that are leaves with gradients and that autocast makes narrower, and keeps so: those of
    operations, or of bodies, that give what is narrower."""
    users = {
        node
        for node in graph.in_autocast
        if isinstance(node.target, torch._ops.HigherOrderOperator) or _is_narrow(value_of(node))
    }
    return [
        place
        for place, node in enumerate(graph.inputs)
        if getattr(value_of(node), "dtype", None) is torch.float32
        and value_of(node).requires_grad
        and value_of(node).is_leaf
        and not users.isdisjoint(node.users)
    ]


def _is_narrow(value: Any) -> bool:
    dtypes = [getattr(part, "dtype", None) for part in (value if isinstance(value, (tuple, list)) else (value,))]
    return not LOW_PRECISION.isdisjoint(dtypes)


def _writes_cast_weights(graph: GraphFacts) -> bool:
    kept = {memory(node) for node in graph.inputs if getattr(value_of(node), "requires_grad", False)}
    return any(memory(part) in kept for node in graph.in_autocast for part in graph.writes.get(node, ()))


def _drops_of_bodies(graph: GraphFacts) -> bool:
    """Whether a body, other than that of a checkpointed region, has an operation that runs though nothing needs it, or
    one that reaches tensors by itself."""
    calls = (node for node in graph.calls if isinstance(node.target, torch._ops.HigherOrderOperator))
    names = {str(part.target) for node in calls for part in node.all_input_nodes if part.op == "get_attr"}
    return any(_has_unused(body) for name, body in graph.gm.named_modules() if name in names)


def _has_unused(body: Any) -> bool:
    if not isinstance(body, torch.fx.GraphModule) or not any(map(runs_anyway, body.graph.nodes)):
        return False
    if any(notes(node).reaches for node in body.graph.nodes):
        return True
    used = ancestors([body.graph.output_node()])
    return any(runs_anyway(node) and node not in used for node in body.graph.nodes)


def _drops_of_levels(graph: GraphFacts) -> bool:
    """Whether an operation inside of torch.func's transforms runs though nothing needs it: what it gives ends with its
    transform, so no graph can return it."""

    def runs(node: Node) -> bool:
        return node in graph.in_levels and (runs_anyway(node) or is_drawn(node))

    return any(map(runs, graph.in_levels)) and bool(unused_calls(graph.gm, runs))


def _calls(*targets: Any) -> Callable[[GraphFacts], bool]:
    return lambda graph: any(node.target in targets for node in graph.calls)


# ---- what autograd or the program sees beside the results


def _backward(fact: str) -> Callable[[GraphFacts], bool]:
    """Whether it is so of the backward of a Function; see `values/tensors/autograd.py`."""
    return lambda graph: any(getattr(node.target, fact, False) for node in graph.calls)


# what gives its first argument, or both, a gradient in memory that nobody else has
_GIVES_OWN_GRADIENT = frozenset(
    {
        *("matmul", "mm", "bmm", "mul", "linear", "conv1d", "conv2d", "conv3d"),
        *("relu", "gelu", "silu", "tanh", "sigmoid", "sin", "cos", "exp", "softmax", "log_softmax"),
    }
)


def _writes_shared_gradients(graph: GraphFacts) -> bool:
    """Whether backward of a Function writes a gradient that it is given, where others may have the same memory: such as
    the caller, or the other summand. A product's gradients, as in tensor parallel layers, are nobody else's."""
    for node in graph.calls:
        if getattr(node.target, "backward_writes_gradients", False):
            for result in [each for each in node.users if each.target is operator.getitem] or [node]:
                users = [*result.users]
                if len(users) != 1 or name_of(users[0]) not in _GIVES_OWN_GRADIENT or result not in users[0].args[:2]:
                    return True
    return False


def _returns_what_it_computes_with(graph: GraphFacts) -> bool:
    """Whether a result that may have gradients is computed from another one, in a program that may ask for gradients of
    what is computed on the way."""
    if not graph_notes(graph.gm).differentiated_inside:
        return False
    returned = {
        node
        for node in graph.returned
        if node.op.startswith("call") and getattr(value_of(node), "requires_grad", False)
    }
    return not returned.isdisjoint(descendants(user for node in returned for user in node.users))


def _writes_where_versions_are_read(graph: GraphFacts) -> bool:
    return graph_notes(graph.gm).versions_read and bool(graph.writes)


def _hooks_results(graph: GraphFacts) -> bool:
    """Whether a hook is registered on a tensor that the graph returns: its gradient, asked for outside, is what the
    hook makes of it, and hooks registered there come after it."""
    return any(name_of(node) == HOOK and node.args[0] in graph.returned for node in graph.calls)


def _returns_views_without_gradients(graph: GraphFacts) -> bool:
    """Whether a result is a view, made after gradients were turned off, of a tensor that has gradients."""
    if not torch.is_grad_enabled():
        return False
    memories: set[int | None] = set()
    views = {node for node in graph.returned if node in graph.in_no_grad and not detaches(node)}
    for node in graph.gm.graph.nodes:
        value = value_of(node)
        if node in views and memory_of(value) in memories - {None}:
            return True
        if isinstance(value, torch.Tensor) and value.requires_grad:
            memories.add(memory_of(value))
    return False


def _returns_views_with_gradients_on(graph: GraphFacts) -> bool:
    """Whether gradients are turned on, and a result shares memory with an input and is not that input, or is one of the
    views with a history that one call made."""
    if not graph.turns_gradients_on:
        return False
    many, _ = graph.ones_of_many
    views = [node for node in graph.returned if node not in graph.inputs and not detaches(node)]
    return any(memory(node) in graph.given or (node in many and value_of(node).requires_grad) for node in views)


def detaches(node: Node) -> bool:
    """Whether the node is a tensor's `detach`, which is no view to autograd."""
    return name_of(node) == "detach"


def makes_leaves(gm: torch.fx.GraphModule) -> bool:
    """Whether an operation gives a leaf of the autograd graph: a factory with `requires_grad=True`, in a body too. A
    graph that is one node to autograd has none inside. The leaves of torch.func's transforms are its own."""
    modules = (module for module in gm.modules() if isinstance(module, torch.fx.GraphModule))
    return any(map(_has_leaves, map(GraphFacts, modules)))


def _has_leaves(graph: GraphFacts) -> bool:
    given = {id(value_of(node)) for node in graph.inputs}
    for node in graph.calls:
        made: Any = value_of(node)
        if node not in graph.in_levels and (name_of(node) == "requires_grad_" or node.target is torch.nn.Parameter):
            return True
        if any(_is_leaf(each) and id(each) not in given for each in (made if type(made) in (tuple, list) else (made,))):
            return True
    return False


def _is_leaf(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or torch._C._functorch.is_functorch_wrapped_tensor(value):
        return False
    # a view's history can't be asked for where a write has made it ambiguous; one is a leaf by `requires_grad_` alone
    return value.requires_grad and not value._is_view() and value.grad_fn is None


# ---- memory: layouts and overlaps that a functional graph does not have


def _views_memory_it_wrote(graph: GraphFacts) -> bool:
    """Whether `as_strided` takes elements by their place in memory that an operation wrote and a functional graph may
    lay out otherwise: where each write is of all of it, and its functional twin keeps the layout, the places hold."""
    strided = {memory(part) for node in graph.calls if name_of(node) == "as_strided" for part in first_of(node)}
    outs = {memory(part) for parts in graph.outs.values() for part in parts}
    if not strided.isdisjoint(outs):
        return True
    if any(name_of(node) in _RELAYS for node in graph.calls):
        return not strided.isdisjoint(graph.written)
    seen = ((node, parts) for node, parts in graph.writes.items() if not strided.isdisjoint(map(memory, parts)))
    return any(list(parts) != list(node.args[:1]) or not _keeps_all_in_place(node) for node, parts in seen)


def _keeps_all_in_place(write: Node) -> bool:
    """Whether an operation writes all of a memory in place, and what gives the same has it in the same places."""
    (written,) = first_of(write)
    value = value_of(written)
    if not isinstance(value, FakeTensor) or overlaps_itself(value):
        return False
    if not all(value_of(base).is_contiguous() for base in _viewed(written) if base is not written):
        return False  # what the inverse of a view gives need not be laid out as its base
    whole = value.storage_offset() == 0 and value.numel() * value.element_size() == value.untyped_storage().nbytes()
    return whole and _strides_of_twin(write, value) == value.stride()


def _draws_in_an_order_that_writes_change(graph: GraphFacts) -> bool:
    """Whether random numbers are drawn for a tensor that is not contiguous, in the order of its memory, after a write
    whose functional twin gives another order."""
    if not any(facts(node.target).draws for node in graph.calls):
        return False
    if any(name_of(node) in _RELAYS for node in graph.calls):
        return True  # what the writes before it were given is not known any more
    anew: set[int | None] = set()
    for node in graph.calls:
        if anew and facts(node.target).draws and any(memory(part) in anew for part in node.all_input_nodes):
            return True
        if node in graph.writes and _lays_out_anew(node):
            anew.update(map(memory, graph.writes[node]))
    return False


def _lays_out_anew(write: Node) -> bool:
    """Whether the operation that gives what a write leaves gives it other strides."""
    value = value_of(write.args[0] if write.args else None)
    if not isinstance(value, FakeTensor) or value.is_contiguous():
        return False
    return _strides_of_twin(write, value) not in (None, value.stride())


def _strides_of_twin(write: Node, value: FakeTensor) -> tuple[int, ...] | None:
    """The strides of what the functional twin of an in-place operation on `value` gives; None if there is none, it has
    another shape, or sizes vary."""
    function = functional_twin(write.target)
    if function is None or has_symbols(value):
        return None
    args, kwargs = torch.fx.node.map_arg((write.args, write.kwargs), value_of)
    with value.fake_mode, torch.no_grad():
        twin = function(*args, **kwargs)
    return twin.stride() if isinstance(twin, torch.Tensor) and twin.shape == value.shape else None


def _writes_detached_views_of_leaves(graph: GraphFacts) -> bool:
    """Whether an input that is a view of a leaf with gradients is written through `detach`: eager allows what it would
    refuse without, and an updated input is copied back to the view itself."""
    views = {
        memory_of(value)
        for value in map(value_of, graph.inputs)
        if isinstance(value, torch.Tensor) and value.requires_grad and value._base is not None and value._base.is_leaf
    } - {None}
    return any(memory_of(value) in views and not value.requires_grad for value in graph.written_values())


def _writes_over_operands(graph: GraphFacts) -> bool:
    """Whether an operation writes memory in place of which it reads another view: what it reads may be what it has
    written already, as it goes along."""
    return any(
        memory(part) is not None and memory(part) == memory(other) and _overlap(value_of(part), value_of(other))
        for node, parts in graph.writes.items()
        for other in node.all_input_nodes
        if other not in parts
        for part in parts
    )


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether views of the same memory have elements in common, and not just the same ones in the same places."""
    layouts = [(*each.shape, *each.stride(), each.storage_offset()) for each in (one, other)]
    if not all(type(number) is int for layout in layouts for number in layout):
        return True
    if layouts[0] == layouts[1] or 0 in (*one.shape, *other.shape):
        return False
    ranges = []
    for each in (one, other):
        start = each.storage_offset() * each.element_size()
        last = sum((size - 1) * stride for size, stride in zip(each.shape, each.stride(), strict=True))
        ranges.append((start, start + (last + 1) * each.element_size()))
    if ranges[0][1] <= ranges[1][0] or ranges[1][1] <= ranges[0][0]:
        return False
    if one.dtype != other.dtype or max(one.numel(), other.numel()) > _MAX_PLACES:
        return True
    return not _places(one).isdisjoint(_places(other))


def _places(view: torch.Tensor) -> set[int]:
    places = {int(view.storage_offset())}
    for size, stride in zip(view.shape, view.stride(), strict=True):
        places = {place + at * stride for place in places for at in range(size)}
    return places


def _writes_through_overlaps(graph: GraphFacts) -> bool:
    """Whether a tensor with elements that lie in one another's place, or a view of one, is written: the write is seen
    in all of them, and the values of all of them can't be copied back."""
    written = (part for parts in graph.writes.values() for part in parts)
    return any(overlaps_itself(value_of(view)) for part in written for view in _viewed(part))


def _viewed(node: Node) -> Iterator[Node]:
    """The node, and those that it is a view of."""
    own = memory(node)
    return reached([node], lambda view: (one for one in view.all_input_nodes if own is not None and memory(one) == own))


def overlaps_itself(value: Any) -> bool:
    """Whether elements of a tensor lie in one another's place, as far as its sizes and strides are known numbers."""
    if memory_of(value) is None:
        return False
    steps = [(stride, size) for size, stride in zip(value.shape, value.stride(), strict=True)]
    if any(type(step) is int and step == 0 and not (type(size) is int and size <= 1) for step, size in steps):
        return True
    if not all(type(number) is int for step in steps for number in step):
        return False  # strides of sizes that vary; to compare them would decide something of them
    last = 0
    for stride, size in sorted((stride, size) for stride, size in steps if size > 1):
        if stride <= last:
            return True
        last += (size - 1) * stride
    return False


def _gives_data(graph: GraphFacts) -> bool:
    """Whether a result is the `.data` of an input or of another result, or a view of it."""
    returned = collections.Counter(map(memory, graph.returned))
    named = (node for node in graph.calls if node.target is getattr and node.args[1] == "data")
    data = {memory(node) for node in named} - {None}
    return any(own in graph.given or returned[own] > 1 for own in data.intersection(returned))


def _relays_inputs(graph: GraphFacts) -> bool:
    relays = (node for node in graph.calls if name_of(node) in _RELAYS)
    return any(part in graph.inputs for node in relays for part in first_of(node))


def relaid(graph: GraphFacts) -> set[int | None]:
    """The memory of the tensors that are given another layout in place."""
    return {memory(part) for node in graph.calls if name_of(node) in _RELAYS for part in first_of(node)}


def _writes_out_over(graph: GraphFacts) -> bool:
    """Whether `out=` is a view of an input, which eager may give another size, or overlaps an operand."""
    for node, outs in graph.outs.items():
        for out in outs:
            own = memory(out)
            if own in graph.given and out not in graph.inputs:
                return True
            if own is not None and any(memory(part) == own for part in node.all_input_nodes if part is not out):
                return True
    return False


def _computes_as_out(graph: GraphFacts) -> bool:
    """Whether what eager computes depends on what `out=` is like: sums are added up in its dtype, random numbers drawn
    in the order of its memory. Pointwise operations compute alike and convert what they store."""
    return any(is_drawn(node) or _is_of_own_dtype(node, outs) for node, outs in graph.outs.items())


def _is_of_own_dtype(node: Node, outs: Sequence[Node]) -> bool:
    if facts(node.target).pointwise:
        return False
    given = {getattr(value_of(part), "dtype", None) for part in node.all_input_nodes if part not in outs}
    dtypes = {value_of(out).dtype for out in outs} - given
    # integers wrap around alike, whenever they are made narrower
    return any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)


# ---- what only eager's own nodes of autograd do


def writes_past_autograd(graph: GraphFacts) -> bool:
    """Whether memory that `tensor.data` gave is written from then on, or a step of an optimizer writes its lists:
    autograd does not hear of it, and uses what is there then."""
    if any(facts(node.target).counts_no_writes for node in graph.writes):
        return True
    hidden: set[int | None] = set()
    for node in graph.calls:
        if any(memory(part) in hidden for part in graph.writes.get(node, ())):
            return True
        if gives_data(node):
            hidden.add(memory(node))
    return False


def _writes_detached(graph: GraphFacts) -> bool:
    """Whether a detached tensor gets a history by a write, and its memory is an input's or of several results, which do
    not get it: AOTAutograd has one history for memory."""
    results = collections.Counter(map(memory, graph.returned))
    return any(
        detaches(node)
        and getattr(value_of(node), "requires_grad", False)
        and (memory(node) in graph.given or results[memory(node)] > 1)
        for node in graph.calls
    )


def _has_no_gradient(graph: GraphFacts) -> bool:
    """Whether an operator that has no kernel for autograd is given tensors with gradients: autograd sees what its own
    kernel calls, which is not what fake tensors went through."""
    operators = [node for node in graph.calls if node.op == "call_function" and facts(node.target).foreign]
    return any(
        not any(map(_is_differentiated, overloads_of(node.target)))
        and any(getattr(value_of(part), "requires_grad", False) for part in node.all_input_nodes)
        for node in operators
    )


def _is_differentiated(overload: torch._ops.OpOverload) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
    return not overload._schema.returns or any(has(overload._schema.name, key) for key in keys)


def _ones_of_many(graph: GraphFacts) -> tuple[set[Node], bool]:
    """The views that came with others of one call (`unbind`, `split`), and views of them; and whether one is written,
    or read, also by the caller, after its memory was: autograd refuses that, functionalisation does not."""
    many: set[Node] = set()
    by_memory: collections.defaultdict[int, list[Node]] = collections.defaultdict(list)
    stale: set[Node] = set()
    for node in graph.calls:
        parts = graph.writes.get(node, ())
        if not stale.isdisjoint(node.all_input_nodes) or not many.isdisjoint(parts):
            return many, True
        for written in by_memory.keys() & {memory(part) for part in parts}:
            stale.update(one for one in by_memory[written] if value_of(one).requires_grad)
        own = memory(node)
        sources = first_of(node)
        if own is None or not sources:
            continue
        whole = value_of(sources[0])
        if isinstance(whole, (tuple, list)):
            is_one = node.target is operator.getitem and own in map(memory, first_of(sources[0]))
        else:
            is_one = sources[0] in many and memory_of(whole) == own
        if is_one:
            many.add(node)
            by_memory[own].append(node)
    return many, not stale.isdisjoint(graph.returned)


def _writes_one_of_many(graph: GraphFacts) -> bool:
    return graph.ones_of_many[1]


def _returns_one_of_many(graph: GraphFacts) -> bool:
    """Whether a result is such a view of an input or of another result, of which AOTAutograd makes one that may be
    written. Not of what the graph alone has: models often return parts of what they computed, and nobody writes
    those."""
    many, _ = graph.ones_of_many
    known = graph.given | {memory(node) for node in graph.returned if node not in many} - {None}
    return any(node in many and memory(node) in known for node in graph.returned)


def _nodes_in(value: Any) -> list[Node]:
    members: Iterable[Any] = value if isinstance(value, (list, tuple)) else (value,)
    return [part for part in members if isinstance(part, Node)]


NOT_TRACEABLE: Sequence[Reason] = (
    Reason(
        "autocast_dtypes",
        "it nests autocast contexts of different dtypes, whose casts of weights are shared",
        _mixes_autocast_dtypes,
    ),
    Reason(
        "writes_cast_weights",
        "it writes weights inside of autocast, which goes on with its casts of them",
        _writes_cast_weights,
    ),
    Reason(
        "differentiated_inside",
        "a result may be differentiated by another one, which takes autograd's own nodes between them",
        _returns_what_it_computes_with,
    ),
    Reason(
        "versions_read",
        "the program reads how often tensors were written, and functional graphs write other tensors",
        _writes_where_versions_are_read,
    ),
    Reason(
        "strided_memory",
        "it looks at memory by strides that it has written, and functional graphs lay out anew what is written",
        _views_memory_it_wrote,
    ),
    Reason(
        "random_order",
        "it draws random numbers in the order of memory that it wrote, and functional graphs lay that out anew",
        _draws_in_an_order_that_writes_change,
    ),
    Reason("unused_in_body", "a body has operations that do more than give what is needed", _drops_of_bodies),
    Reason("unused_in_level", "a transform has operations that do more than give what is needed", _drops_of_levels),
    Reason("detached_leaf", "it writes, by detach, a view of a leaf", _writes_detached_views_of_leaves),
    Reason("operand_overlap", "an operation writes memory of which it reads another view", _writes_over_operands),
    Reason("self_overlap", "it writes a tensor whose elements share memory with one another", _writes_through_overlaps),
    Reason("data", "a result is the .data of a tensor seen outside, where writes to it are not counted", _gives_data),
    Reason("relaid_input", "it gives an input another layout", _relays_inputs),
    Reason("out_view", "it writes its result, by out=, to a view of an input or over an operand", _writes_out_over),
    Reason("out_dtype", "an operation computes in the dtype, or draws in the order, of its out=", _computes_as_out),
    Reason("hooked_result", "a result has a hook on its gradient, whose outcome the program may see", _hooks_results),
    Reason(
        "views_without_gradients",
        "it returns views that were made without gradients, which know the mode that they were made in",
        _returns_views_without_gradients,
    ),
    Reason("leaves", "it makes leaves of the autograd graph", lambda graph: makes_leaves(graph.gm)),
    Reason(
        "default_dtype",
        "it changes the default dtype, which ATen's factories read when they run",
        _calls(torch._C._set_default_dtype),
    ),
    Reason(
        "while_loop",
        "the number of a loop's iterations is known when it runs",
        _calls(torch.ops.higher_order.while_loop),
    ),
    Reason("inference_mode", "it enters inference mode on its way", _calls(ENTER_INFERENCE, EXIT_INFERENCE)),
    Reason(
        "views_with_gradients_on",
        "it turns gradients on and returns views, which know the mode, or the call, that they were made in",
        _returns_views_with_gradients_on,
    ),
)

# for which views may be taken outside of the graph
VIEW_OF_SEVERAL = Reason(
    "view_of_several", "a result is one of several views, of an input or of another result", _returns_one_of_many
)
NOT_DIFFERENTIABLE: Sequence[Reason] = (
    Reason("data_write", "it writes to a tensor's .data, which autograd may use later", writes_past_autograd),
    Reason("out", "it writes where autograd has rules of its own: by out=", lambda graph: bool(graph.outs)),
    Reason("one_of_many", "it writes where autograd has rules of its own: to one of many views", _writes_one_of_many),
    Reason("detached_write", "it writes what it detached, and autograd keeps the two apart", _writes_detached),
    Reason("no_gradient", "to autograd an operator is what its kernel calls", _has_no_gradient),
    Reason("read_later", "backward of a Function reads tensors from outside when it runs", _backward("backward_reads")),
    Reason("written_later", "backward of a Function writes what it did not make", _backward("backward_writes")),
    Reason("written_gradient", "backward of a Function writes gradients that others have", _writes_shared_gradients),
    VIEW_OF_SEVERAL,
)
