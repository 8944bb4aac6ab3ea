"""Graphs that change torch's state on their way: which of them can't be traced again, and how the others are compiled.

In:  a torch-level graph. Out: why it has to run as it stands (`as_it_stands`), whether all of it is inside of inference
mode (`without_inference_mode`), whether it has levels of torch.func (`has_levels`).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.autograd.grad_mode
from torch._subclasses.fake_tensor import FakeTensor

from dynajit import torch_compat
from dynajit.aot.rewrite import without
from dynajit.graph.meta import graph_notes, memory, value_of, written_by
from dynajit.locks import process_lock
from dynajit.op_facts import facts
from dynajit.torch_compat import memory_of

# torch's tracing keeps anomaly mode, functorch's counters and fx's current node for the whole process.
one_at_a_time = process_lock()
_DUAL: Any = torch._C._enter_dual_level
_ENTER: Any = torch.autograd.grad_mode._enter_inference_mode
# the name of what registers a hook on a gradient, in the graphs that are captured
HOOK = "hook_gradient"
# the name of a region of activation checkpointing there; its first argument is its body, a module
REGION = "checkpointed_region"
_EXIT: Any = torch.autograd.grad_mode._exit_inference_mode


def _calls(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in gm.graph.nodes if node.op.startswith("call")]


def _inside_autocast(gm: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The calls made while autocast is on; its own contexts' are not among them."""
    depth = int(torch_compat.any_autocast_enabled())
    for node in _calls(gm):
        if node.target is torch.autocast_increment_nesting:
            depth += 1
        elif node.target is torch.autocast_decrement_nesting:
            depth -= 1
        elif depth > 0:
            yield node


def has_levels(gm: torch.fx.GraphModule) -> bool:
    """Whether torch.func's transforms, or a level of forward-mode differentiation, are in the graph."""
    names = [getattr(node.target, "__name__", "") for node in _calls(gm)]
    return any(
        (name.endswith("_increment_nesting") and "autocast" not in name) or name == _DUAL.__name__ for name in names
    )


@contextlib.contextmanager
def dual_level_left(gm: torch.fx.GraphModule) -> Iterator[None]:
    """A level of forward-mode differentiation that the graph enters does not stay where tracing the graph fails."""
    if not any(node.target is _DUAL for node in gm.graph.nodes) or _in_dual_level():
        yield
        return
    try:
        yield
    finally:
        if _in_dual_level():
            torch._C._exit_dual_level(level=0)


def _in_dual_level() -> bool:
    """There is one at most, and entering another one fails."""
    try:
        _DUAL()
    except RuntimeError:
        return True
    torch._C._exit_dual_level(level=0)
    return False


def _inside_levels(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """The calls inside of torch.func's transforms."""
    depth = 0
    found: set[torch.fx.Node] = set()
    for node in _calls(gm):
        name = getattr(node.target, "__name__", "")
        if "autocast" not in name:
            depth += name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")
        if depth > 0:
            found.add(node)
    return found


def mixes_autocast_dtypes(gm: torch.fx.GraphModule) -> bool:
    """Whether the dtype of autocast changes inside of autocast. Weights that were cast before keep their dtype then,
    until the outermost context ends: torch's cache of them does not look at the dtype."""
    return any(node.target is torch.set_autocast_dtype for node in _inside_autocast(gm))


def writes_cast_weights(gm: torch.fx.GraphModule) -> bool:
    """Whether a tensor that autocast keeps a cast of is written inside of autocast: what it kept is used on."""
    kept = {
        memory(node)
        for node in gm.graph.nodes
        if node.op == "placeholder" and getattr(value_of(node), "requires_grad", False)
    }
    return any(memory(part) in kept for node in _inside_autocast(gm) for part in written_by(node))


def gives_data(node: torch.fx.Node) -> bool:
    """Whether the node is `tensor.data`."""
    return node.target is getattr and node.args[1:] == ("data",)


def writes_past_autograd(gm: torch.fx.GraphModule) -> bool:
    """Whether memory that `tensor.data` gave is written: autograd does not hear of it, and uses what is there then."""
    hidden = {memory(node) for node in _calls(gm) if gives_data(node)} - {None}
    return bool(hidden) and not hidden.isdisjoint(written_memory(gm))


def _writes_detached_views_of_leaves(gm: torch.fx.GraphModule) -> bool:
    """Whether an input that is a view of a leaf with gradients is written through `detach`: eager allows what it would
    refuse without, and an updated input is copied back to the view itself."""
    inputs = (value_of(node) for node in gm.graph.find_nodes(op="placeholder"))
    views = {
        memory_of(value)
        for value in inputs
        if isinstance(value, torch.Tensor) and value.requires_grad and value._base is not None and value._base.is_leaf
    } - {None}
    return any(memory_of(value) in views and not value.requires_grad for value in _written(gm))


def writes_one_of_many(gm: torch.fx.GraphModule) -> bool:
    """Whether a view that came with others of one call (`unbind`, `split`), or a view of it, is written, or may be once
    the graph has returned it: autograd refuses that, functionalisation and the views that AOTAutograd returns do not.
    Of results, only views of inputs count: models often return parts of what they computed, and nobody writes those."""
    many: set[torch.fx.Node] = set()
    for node in _calls(gm):
        own = memory(node)
        sources = first_of(node)
        if own is None or not sources:
            continue
        whole = value_of(sources[0])
        if isinstance(whole, (tuple, list)):
            viewed = [memory(part) for part in first_of(sources[0])]
            is_one = node.target is operator.getitem and own in viewed
        else:
            is_one = sources[0] in many and memory_of(whole) == own
        if is_one:
            many.add(node)
    memories = {memory(node) for node in gm.graph.find_nodes(op="placeholder")}
    returned = [node for output in gm.graph.find_nodes(op="output") for node in output.all_input_nodes]
    if any(node in many and memory(node) in memories for node in returned):
        return True
    return any(not many.isdisjoint(written_by(node)) for node in _calls(gm))


def _outs(node: torch.fx.Node) -> list[torch.fx.Node]:
    out = node.kwargs.get("out")
    return [part for part in (out if isinstance(out, (list, tuple)) else [out]) if isinstance(part, torch.fx.Node)]


def has_out(gm: torch.fx.GraphModule) -> bool:
    """Whether an operation is told where to write its result."""
    return any(_outs(node) for node in _calls(gm))


def _writes_out_over(gm: torch.fx.GraphModule) -> bool:
    """Whether `out=` is a view of an input, which eager may give another size, or overlaps an operand."""
    inputs = gm.graph.find_nodes(op="placeholder")
    memories = {memory(node) for node in inputs} - {None}
    for node in _calls(gm):
        for out in _outs(node):
            own = memory(out)
            if own in memories and out not in inputs:
                return True
            others = [part for part in node.all_input_nodes if part is not out]
            if own is not None and any(memory(part) == own for part in others):
                return True
    return False


def _writes_over_operands(gm: torch.fx.GraphModule) -> bool:
    """Whether an operation writes memory in place of which it reads another view: what it reads may be what it has
    written already, as it goes along."""
    for node in _calls(gm):
        parts = written_by(node)
        written: list[Any] = [value_of(part) for part in parts]
        others = [part for part in node.all_input_nodes if part not in parts]
        read: list[Any] = [value_of(part) for part in others]
        pairs = [(one, other) for one in written for other in read if memory_of(one) is not None]
        if any(memory_of(one) == memory_of(other) and _overlap(one, other) for one, other in pairs):
            return True
    return False


_MOST_PLACES = 1 << 16


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
    if one.dtype != other.dtype or max(one.numel(), other.numel()) > _MOST_PLACES:
        return True
    return not _places(one).isdisjoint(_places(other))


def _places(view: torch.Tensor) -> set[int]:
    places = {int(view.storage_offset())}
    for size, stride in zip(view.shape, view.stride(), strict=True):
        places = {place + at * stride for place in places for at in range(size)}
    return places


def _writes_through_overlaps(gm: torch.fx.GraphModule) -> bool:
    """Whether a tensor with elements that lie in one another's place, or a view of one, is written: the write is seen
    in all of them, and the values of all of them can't be copied back."""
    return any(
        _overlaps_itself(value_of(view)) for node in _calls(gm) for part in written_by(node) for view in _viewed(part)
    )


def _viewed(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The node, and those that it is a view of."""
    own = memory(node)
    waiting, seen = [node], {node}
    while waiting:
        node = waiting.pop()
        yield node
        for source in node.all_input_nodes:
            if source not in seen and own is not None and memory(source) == own:
                seen.add(source)
                waiting.append(source)


def _overlaps_itself(value: Any) -> bool:
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


def _returns_what_it_goes_on_with(gm: torch.fx.GraphModule) -> bool:
    """Whether a result that may have gradients is computed from another one."""
    returned = {
        node
        for output in gm.graph.find_nodes(op="output")
        for node in output.all_input_nodes
        if node.op.startswith("call") and getattr(value_of(node), "requires_grad", False)
    }
    behind: set[torch.fx.Node] = set()
    for node in gm.graph.nodes:
        if any(part in returned or part in behind for part in node.all_input_nodes):
            behind.add(node)
    return not returned.isdisjoint(behind)


def _returns_views(gm: torch.fx.GraphModule) -> bool:
    """Whether a result shares memory with an input and is not that input."""
    inputs = gm.graph.find_nodes(op="placeholder")
    memories = {memory(node) for node in inputs} - {None}
    returned = [node for output in gm.graph.find_nodes(op="output") for node in output.all_input_nodes]
    views = [node for node in returned if node not in inputs and not _detaches(node)]
    return any(memory(node) in memories for node in views)


def _returns_views_without_gradients(gm: torch.fx.GraphModule) -> bool:
    """Whether a result is a view, made after gradients were turned off, of a tensor that has gradients."""
    memories: set[int | None] = set()
    returned = {node for output in gm.graph.find_nodes(op="output") for node in output.all_input_nodes}
    views = {node for node in returned if not _detaches(node)}
    off = False
    for node in gm.graph.nodes:
        value = value_of(node)
        if node.target is torch._C._set_grad_enabled:
            off = node.args[0] is False
        elif off and node in views and memory_of(value) in memories - {None}:
            return True
        elif isinstance(value, torch.Tensor) and value.requires_grad:
            memories.add(memory_of(value))
    return False


def _detaches(node: torch.fx.Node) -> bool:
    """Whether the node is a tensor's `detach`, which is no view to autograd."""
    return name_of(node) == "detach"


def written_memory(gm: torch.fx.GraphModule) -> set[int | None]:
    """Memory, as `memory_of` names it, that operations write in place."""
    return set(map(memory_of, _written(gm)))


def _written(gm: torch.fx.GraphModule) -> Iterator[Any]:
    """The examples of what operations write in place."""
    return (value_of(part) for node in _calls(gm) for part in written_by(node))


def name_of(node: torch.fx.Node) -> str:
    """A call's name, by torch's and Python's names; empty where it has none."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def writes(node: torch.fx.Node) -> bool:
    """Whether an operation writes one of its arguments, by what is known of it."""
    return bool(written_by(node))


def first_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The first argument, or the members of the list that it is."""
    first = node.args[0] if node.args else None
    members = first if isinstance(first, (list, tuple)) else [first]
    return [part for part in members if isinstance(part, torch.fx.Node)]


_RELAYS = {"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"}


def _relays_inputs(gm: torch.fx.GraphModule) -> bool:
    """Whether an input is given another layout."""
    inputs = gm.graph.find_nodes(op="placeholder")
    return any(name_of(node) in _RELAYS and any(part in inputs for part in first_of(node)) for node in _calls(gm))


def _looks_at_memory_it_wrote(gm: torch.fx.GraphModule) -> bool:
    """Whether `as_strided` takes elements by their place in memory that an operation wrote."""
    strided = [part for node in _calls(gm) if name_of(node) == "as_strided" for part in first_of(node)]
    if not strided:
        return False
    written = written_memory(gm) | {memory(o) for n in _calls(gm) for o in _outs(n)}
    return any(memory(part) in written for part in strided)


def _draws_in_an_order_that_writes_change(gm: torch.fx.GraphModule) -> bool:
    """Whether random numbers are drawn for a tensor that is not contiguous, in the order of its memory, behind a write
    whose functional twin gives another order."""
    written: set[int | None] = set()
    calls = list(_calls(gm))
    if not any(facts(node.target).draws for node in calls):
        return False
    if any(name_of(node) in _RELAYS for node in calls):
        return True  # what the writes before it were given is not known any more
    for node in calls:
        drawn = node.all_input_nodes if written and facts(node.target).draws else ()
        if any(memory(part) in written for part in drawn):
            return True
        if writes(node) and _lays_out_anew(node):
            written.update(map(memory, written_by(node)))
    return False


def _lays_out_anew(write: torch.fx.Node) -> bool:
    """Whether the operation that gives what a write leaves gives it other strides."""
    value = value_of(write.args[0])
    function = getattr(torch.Tensor, name_of(write).removesuffix("_"), None)
    if not isinstance(value, FakeTensor) or not callable(function):  # `requires_grad` of `requires_grad_`: a property
        return False
    if not all(type(number) is int for number in (*value.shape, *value.stride())) or value.is_contiguous():
        return False
    args, kwargs = torch.fx.node.map_arg((write.args, write.kwargs), lambda node: value_of(node))
    with value.fake_mode, torch.no_grad():
        twin = function(*args, **kwargs)
    return isinstance(twin, torch.Tensor) and twin.shape == value.shape and twin.stride() != value.stride()


def _writes_inference_tensors(gm: torch.fx.GraphModule) -> bool:
    """Whether an inference tensor is written from outside of inference mode, as is allowed through `detach`."""
    inputs = [value_of(node) for node in gm.graph.find_nodes(op="placeholder")]
    made = [value for value in inputs if isinstance(value, torch.Tensor) and value.is_inference()]
    if not made or torch.is_inference_mode_enabled():
        return False
    written = written_memory(gm)
    return any(memory_of(value) in written for value in made)


def makes_leaves(gm: torch.fx.GraphModule) -> bool:
    """Whether an operation gives a leaf of the autograd graph: a factory with `requires_grad=True`, in a body too. A
    graph that is one node to autograd has none inside. The leaves of torch.func's transforms are its own."""
    return any(isinstance(module, torch.fx.GraphModule) and _has_leaves(module) for module in gm.modules())


def _has_leaves(gm: torch.fx.GraphModule) -> bool:
    inside = _inside_levels(gm)
    given = {id(value_of(node)) for node in gm.graph.find_nodes(op="placeholder")}
    for node in _calls(gm):
        made: Any = value_of(node)
        if node not in inside and (name_of(node) == "requires_grad_" or node.target is torch.nn.Parameter):
            return True
        if any(_is_leaf(each) and id(each) not in given for each in (made if type(made) in _SEVERAL else (made,))):
            return True
    return False


_SEVERAL = (tuple, list)


def _is_leaf(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or torch._C._functorch.is_functorch_wrapped_tensor(value):
        return False
    # a view's history can't be asked for where a write has made it ambiguous; one is a leaf by `requires_grad_` alone
    return value.requires_grad and not value._is_view() and value.grad_fn is None


def _hooks_results(gm: torch.fx.GraphModule) -> bool:
    """Whether a hook is registered on a tensor that the graph returns: its gradient, asked for outside, is what the
    hook makes of it, and hooks registered there come after it."""
    returned = {node for output in gm.graph.find_nodes(op="output") for node in output.all_input_nodes}
    return any(getattr(node.target, "__name__", "") == HOOK and node.args[0] in returned for node in _calls(gm))


def as_it_stands(gm: torch.fx.GraphModule) -> str | None:
    """Why tracing the graph to ATen operations would lose something, or None."""
    if mixes_autocast_dtypes(gm):
        return "it nests autocast contexts of different dtypes, whose casts of weights are shared"
    if writes_cast_weights(gm):
        return "it writes weights inside of autocast, which goes on with its casts of them"
    if graph_notes(gm).differentiated_inside and _returns_what_it_goes_on_with(gm):
        return "a result may be differentiated by another one, which takes autograd's own nodes between them"
    if graph_notes(gm).versions_read and any(map(writes, _calls(gm))):
        return "the program reads how often tensors were written, and functional graphs write other tensors"
    if _looks_at_memory_it_wrote(gm):
        return "it looks at memory by strides that it has written, and functional graphs lay out anew what is written"
    if _draws_in_an_order_that_writes_change(gm):
        return "it draws random numbers in the order of memory that it wrote, and functional graphs lay that out anew"
    if _writes_detached_views_of_leaves(gm):
        return "it writes, by detach, a view of a leaf"
    if _writes_inference_tensors(gm):
        return "it writes inference tensors outside of inference mode"
    if _writes_over_operands(gm):
        return "an operation writes memory of which it reads another view"
    if _writes_through_overlaps(gm):
        return "it writes a tensor whose elements share memory with one another"
    if _relays_inputs(gm):
        return "it gives an input another layout"
    if _writes_out_over(gm):
        return "it writes its result, by out=, to a view of an input or over an operand"
    if _hooks_results(gm):
        return "a result has a hook on its gradient, whose outcome the program may see"
    if torch.is_grad_enabled() and _returns_views_without_gradients(gm):
        return "it returns views that were made without gradients, which know the mode that they were made in"
    if makes_leaves(gm):
        return "it makes leaves of the autograd graph"
    for node in _calls(gm):
        if node.target is torch._C._set_default_dtype:
            return "it changes the default dtype, which ATen's factories read when they run"
        if node.target is torch.ops.higher_order.while_loop:
            return "the number of a loop's iterations is known when it runs"
        if node.target in (_ENTER, _EXIT):
            return "it enters inference mode on its way"
        if node.target is torch._C._set_grad_enabled and node.args[0] is not False and _returns_views(gm):
            return "it turns gradients on and returns views of its inputs, which know the mode that they were made in"
    return None


def without_inference_mode(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, bool] | None:
    """If all operations are inside of one inference mode: the graph without it, and its flag."""
    calls = _calls(gm)
    if len(calls) < 3 or calls[0].target is not _ENTER or calls[-1].target is not _EXIT:
        return None
    if any(node.target in (_ENTER, _EXIT) for node in calls[1:-1]):
        return None
    return without(gm, (calls[0], calls[-1])), bool(calls[0].args[0])


def in_inference_mode(flag: bool, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, run under the inference mode that was taken out of its graph."""

    def call(*inputs: Any) -> Any:
        with torch.inference_mode(flag):
            return compiled(*inputs)

    return call


def has_effects(gm: torch.fx.GraphModule) -> bool:
    """Whether operations write tensors, change torch's state, or have bodies: whatever gives no tensor or number."""
    return (
        has_out(gm)
        or has_levels(gm)
        or graph_notes(gm).differentiated_inside
        or graph_notes(gm).versions_read
        or any(
            writes(node)
            or value_of(node) is None
            or isinstance(node.target, torch._ops.HigherOrderOperator)
            or name_of(node) in (HOOK, "getattr")
            or "autocast" in name_of(node)
            for node in _calls(gm)
        )
    )


def turns_gradients_on(gm: torch.fx.GraphModule) -> bool:
    """Whether a part of the graph may have gradients though the mode at the call is off."""
    return any(
        node.op == "call_function" and node.target is torch._C._set_grad_enabled and node.args[0] is not False
        for node in gm.graph.nodes
    )
