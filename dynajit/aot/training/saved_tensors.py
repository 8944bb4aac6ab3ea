"""What forward keeps for backward, made smaller: the same values in fewer bytes, or found in what is kept anyway.

In:  the joint graph, then the forward and the backward graph of a partition, and how many results forward has; changed
     in place.
Out: nothing. Values, and what is computed with them, stay as they are; rules for one more kind of value: `_RULES`.

The partitioner chooses among the values that the graph computes. It doesn't see that a piece of a kept concatenation
needs no memory of its own, and that places in a small plane fit 16 bits; what operations read without need is taken
from them before (`narrow_reads`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from dynajit.aot.rewrite import call, compute, is_of_backward
from dynajit.aot.training.rematerialize import is_pointwise, rematerialize
from dynajit.graph.meta import is_view, memory, value_of

aten = torch.ops.aten
_POOL_BACKWARD = aten.max_pool2d_with_indices_backward.default
# Of their second argument these ask no more than its shape.
_OF_THE_SHAPE = {
    *(_POOL_BACKWARD, aten.max_pool3d_with_indices_backward.default),
    *(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default),
    *(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default),
    *(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default),
    *(getattr(aten, f"{name}_pad{n}d_backward").default for name in ("reflection", "replication") for n in (1, 2, 3)),
}


def keep_aliases(joint: GraphModule, memories: Collection[int]) -> GraphModule:
    """Have backward read the views and aliases, of the inputs of these memories, that forward's operations saved: the
    inputs themselves, which it reads too, may have been given other data by then."""
    for node in joint.graph.nodes if memories else ():
        alias = node.op == "call_function" and memory(node) in memories and not is_of_backward(node)
        if alias and any(map(is_of_backward, node.users)):
            for kept in (node, *(user for user in node.users if not is_of_backward(user))):
                kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return joint


def _must_be_saved(node: Node) -> bool:
    return node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE


def narrow_reads(joint: GraphModule) -> GraphModule:
    """Have backward read no more of a tensor than it needs, for the partitioner to see.

    A joint graph knows no autograd: what is detached to be saved is the tensor itself, and to the partitioner it would
    be one that has to be in memory. Results are seen as they are. The gradient of relu asks of each element only
    whether it is above a threshold, that of pooling and padding no more of the input than its shape.
    """
    for node in joint.graph.find_nodes(op="call_function", target=aten.detach.default):
        if _must_be_saved(node):
            continue
        node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
        if not node.users:
            joint.graph.erase_node(node)
    for node in joint.graph.find_nodes(op="call_function", target=aten.threshold_backward.default):
        gradient, value, threshold = node.args
        with joint.graph.inserting_before(node):
            below = call(value, aten.le.Scalar, value, threshold)
        node.target, node.args = aten.masked_fill.Scalar, (gradient, below, 0)
    for node in [node for node in joint.graph.nodes if node.target in _OF_THE_SHAPE]:
        given = node.args[1]
        value = given.meta["val"]
        if value.is_contiguous() and all(type(size) is int for size in value.shape):
            layout = {"dtype": value.dtype, "device": value.device}
            with joint.graph.inserting_before(node):
                one = call(given, aten.full.default, [1] * value.dim(), 0, **layout)
                node.update_arg(1, call(given, aten.expand.default, one, list(value.shape)))
    return joint


def put_views_beside(forward: GraphModule) -> GraphModule:
    """Views that are saved beside what reads the same tensor, or makes it: the partitioner has them at the end, far
    from the layer that they are a part of."""
    order = {node: at for at, node in enumerate(forward.graph.nodes)}
    end = forward.graph.output_node()
    for node in list(forward.graph.nodes):
        if (
            node.op == "call_function"
            and is_view(node)
            and node.users.keys() == {end}
            and len(node.all_input_nodes) == 1
        ):
            (base,) = node.all_input_nodes
            beside = base
            if base.op == "placeholder":
                beside = min(base.users, key=lambda user: order[user])
            if beside is not node:
                beside.append(node)
                order[node] = order[beside]
    return forward


def take_views_late(forward: GraphModule, backward: GraphModule, n_results: int, memories: Collection[int]) -> None:
    """Save the inputs of these memories themselves, and take views of them in backward: what the program gives them by
    `.data =` until then is what backward reads in eager mode. Not those that forward's operations saved."""
    if not memories:
        return
    saved = SavedTensors(forward, backward, n_results)
    made = {node.name: node for node in forward.graph.nodes}
    views = [node for node in backward.graph.nodes if memory(node) in memories and node.op == "call_function"]
    early = [node for node in views if _must_be_saved(node) and node.name in made]
    for node in early:
        node.replace_all_uses_with(saved.keep(made[node.name]))
        backward.graph.erase_node(node)
    late = [
        node
        for node in saved.taken
        if memory(node) in memories and not saved.is_result(node) and is_view(node) and not _must_be_saved(node)
    ]
    for node in late:
        views, base = [], node
        while base.op == "call_function" and is_view(base) and len(base.all_input_nodes) == 1:
            views.append(base)
            (base,) = base.all_input_nodes
        if base.op == "placeholder":
            taken = saved.keep(base)
            for view in reversed(views):
                taken = saved.in_backward(view.target, taken, *view.args[1:], **view.kwargs)
            saved.taken[node].replace_all_uses_with(taken)
            saved.drop(node)
    if early or late:
        saved.finish()


def shrink_saved_tensors(forward: GraphModule, backward: GraphModule, n_results: int) -> None:
    """Change both graphs so that less memory lives between them.

    Args:
        forward: returns its results, then what is saved.
        backward: takes what is kept by the names of forward's nodes, then the gradients of the results.
        n_results: of forward's outputs so many are results.
    """
    saved = SavedTensors(forward, backward, n_results)
    changed = False
    for rule in _RULES:
        for node in saved.own():
            changed = (saved.uses(node) != [] and rule(saved, node)) or changed
    if changed:
        saved.finish()


class SavedTensors:
    """What forward saves for backward, while both graphs change."""

    def __init__(self, forward: GraphModule, backward: GraphModule, n_results: int) -> None:
        self.forward, self.backward = forward, backward
        self._n_results = n_results
        self._output = forward.graph.find_nodes(op="output")[0]
        outputs = list(self._output.args[0])
        self._results = set(outputs[:n_results])
        placeholders = backward.graph.find_nodes(op="placeholder")
        by_name = {node.name: node for node in placeholders}
        values = (value_of(node) for node in placeholders)
        modes = (value.fake_mode for value in values if isinstance(value, FakeTensor))
        self._mode = next(modes, None) or nullcontext()
        self._dying: list[Node] = []  # parameters of backward
        self._after = placeholders[-1]  # of this node backward computes what it is not given any more
        self._before: Node | None = None  # or before this one
        self._inputs_memory = {None, *map(memory, forward.graph.find_nodes(op="placeholder"))}
        # kept node of forward -> the parameter of backward that it becomes
        self.taken: dict[Node, Node] = {
            node: by_name[node.name]
            for node in outputs[n_results:]
            if isinstance(node, Node) and node.name in by_name and isinstance(value_of(node), torch.Tensor)
        }

    def own(self) -> list[Node]:
        """Saved values that are memory of forward's own making: no inputs, and no results, which live on anyway."""
        return [
            node
            for node in self.taken
            if node.op == "call_function"
            and node not in self._results
            and not node.meta.get("saved_tensor_with_no_vc_check")
            and not any(type(size) is not int for size in node.meta["val"].shape)
        ]

    def is_result(self, node: Node) -> bool:
        """Does forward return it?"""
        return node in self._results

    def uses(self, node: Node) -> list[Node]:
        """The nodes of backward that use a kept value."""
        return list(self.taken[node].users)

    def lives(self, node: Node) -> bool:
        """Is it saved, or in memory that lives on anyway? Not of an input, which may be given other data by then."""
        place = memory(node)
        if place in self._inputs_memory:
            return place is None and (node in self.taken or node in self._results)
        return bool(self.holding(node))

    def may_keep(self, node: Node) -> bool:
        """Is it in memory of forward's own making, which the program does not get?"""
        return memory(node) not in self._inputs_memory and not self.holding(node)

    def holding(self, node: Node) -> list[Node]:
        """The results and saved values that are in a node's memory."""
        place = memory(node)
        return [each for each in (*self._results, *self.taken) if isinstance(each, Node) and memory(each) == place]

    @contextmanager
    def before(self, node: Node) -> Iterator[None]:
        """Compute before this node of backward."""
        self._before = node
        try:
            yield
        finally:
            self._before = None

    def in_forward(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node of forward, right after its arguments."""
        nodes = [arg for arg in args if isinstance(arg, Node)]
        with self.forward.graph.inserting_after(max(nodes)):
            node = self.forward.graph.call_function(target, args, kwargs)
        return self._described(node)

    def in_backward(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node of backward: at the start, or where `before` says."""
        graph = self.backward.graph
        if self._before is not None:
            with graph.inserting_before(self._before):
                return self._described(graph.call_function(target, args, kwargs))
        with graph.inserting_after(self._after):
            self._after = graph.call_function(target, args, kwargs)
        return self._described(self._after)

    def _described(self, node: Node) -> Node:
        with self._mode:
            node.meta["val"] = compute(node)
        source = node.args[0].meta if isinstance(node.args[0], Node) else {}
        node.meta.update({key: source[key] for key in ("stack_trace",) if key in source})
        return node

    def keep(self, node: Node) -> Node:
        """Keep one value more; returns backward's parameter for it."""
        if node in self.taken:
            return self.taken[node]
        beside = next(other for other in self.taken if not other.meta.get("saved_tensor_with_no_vc_check"))
        with self.backward.graph.inserting_before(self.taken[beside]):
            parameter = self.backward.graph.placeholder(node.name)
        parameter.meta = {"val": node.meta["val"]}
        self._set_outputs(beside, node, beside)
        self.taken[node] = parameter
        return parameter

    def replace(self, node: Node, by: Node) -> Node:
        """Keep another value in place of `node`; returns backward's parameter for it."""
        parameter = self.taken.pop(node)
        with self.backward.graph.inserting_before(parameter):
            new = self.backward.graph.placeholder(by.name)
        new.meta = {**parameter.meta, "val": by.meta["val"]}
        new.meta.pop("tensor_meta", None)
        self._set_outputs(node, by)
        self.taken[by] = new
        self._dying.append(parameter)
        return new

    def drop(self, node: Node) -> None:
        """Keep it no more: backward has stopped using it."""
        self._dying.append(self.taken.pop(node))
        self._set_outputs(node)

    def finish(self) -> None:
        """Take out what nothing uses any more."""
        for parameter in self._dying:
            assert not parameter.users, parameter.users
            self.backward.graph.erase_node(parameter)
        for graph in (self.forward, self.backward):
            graph.graph.eliminate_dead_code()
            graph.graph.lint()
            graph.recompile()

    def _set_outputs(self, node: Node, *by: Node) -> None:
        """Others, or nothing, in place of a kept value."""
        outputs = list(self._output.args[0])  # type: ignore[arg-type]
        descriptions = self._output.meta.get("desc")
        described = descriptions is not None and len(descriptions) == len(outputs)
        at = outputs.index(node, self._n_results)
        outputs[at : at + 1] = by
        if described:
            self._output.meta["desc"] = [*descriptions[:at], *[descriptions[at]] * len(by), *descriptions[at + 1 :]]
        self._output.args = (tuple(outputs),)


def _pieces(saved: SavedTensors, node: Node) -> bool:
    """A piece of a concatenation that is kept too is a part of that, and what a comparison of it says is seen there."""
    if not all(is_pointwise(use) for use in saved.uses(node)):
        return False  # where the layout counts: a library's call
    sources = node.all_input_nodes
    compared = node.meta["val"].dtype is torch.bool and is_pointwise(node) and len(sources) == 1
    piece = sources[0] if compared else node
    for whole in piece.users:
        if whole.target is not aten.cat.default or whole not in saved.taken or saved.is_result(whole):
            continue
        pieces, dim = whole.args[0], whole.args[1] if len(whole.args) > 1 else 0
        if whole.meta["val"].dtype is not piece.meta["val"].dtype or not isinstance(dim, int):
            continue
        start = 0
        for each in pieces:  # type: ignore[union-attr]
            size = each.meta["val"].shape[dim]  # type: ignore[union-attr]
            if each is piece:
                break
            start += size
        part = saved.in_backward(aten.slice.Tensor, saved.taken[whole], dim, start, start + size)
        if compared:
            args = [part if arg is piece else arg for arg in node.args]
            part = saved.in_backward(node.target, *args, **node.kwargs)
        saved.taken[node].replace_all_uses_with(part)
        saved.drop(node)
        return True
    return False


def _clamped(saved: SavedTensors, node: Node) -> bool:
    """Where a value was outside of bounds is seen from the clamped one, if that is saved."""
    if node.target is not aten.bitwise_or.Tensor or node.meta["val"].dtype is not torch.bool:
        return False
    low, high = node.args
    if not isinstance(low, Node) or not isinstance(high, Node):
        return False
    if low.target is not aten.le.Scalar or high.target is not aten.ge.Scalar or low.args[0] is not high.args[0]:
        return False
    bounds = (low.args[1], high.args[1])
    source = _uncopied(low.args[0])  # type: ignore[arg-type]
    for clamped in (
        *source.users,
        *(user for copy in source.users if _uncopied(copy) is source for user in copy.users),
    ):
        same = clamped.target is aten.hardtanh.default and (*clamped.args[1:], *(-1.0, 1.0)[len(clamped.args) - 1 :])
        if same == bounds and clamped in saved.taken and bounds[0] < bounds[1]:  # type: ignore[operator]
            value = saved.taken[clamped]
            outside = saved.in_backward(
                aten.bitwise_or.Tensor,
                saved.in_backward(aten.le.Scalar, value, bounds[0]),
                saved.in_backward(aten.ge.Scalar, value, bounds[1]),
            )
            saved.taken[node].replace_all_uses_with(outside)
            saved.drop(node)
            return True
    return False


def _places(saved: SavedTensors, node: Node) -> bool:
    """Places that max pooling found, in as many bits as its planes need."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or source.target is not aten.max_pool2d_with_indices.default:
        return False
    plane = source.args[0].meta["val"].shape[-2:]  # type: ignore[union-attr]
    if node.args[1] != 1 or any(type(size) is not int for size in plane):
        return False
    if any(use.target is not _POOL_BACKWARD for use in saved.uses(node)):
        return False
    count = plane[0] * plane[1]
    dtype = torch.int16 if count <= 1 << 15 else torch.int32 if count <= 1 << 31 else None
    if dtype is None:
        return False
    parameter = saved.taken[node]
    narrow = saved.replace(node, saved.in_forward(aten._to_copy.default, node, dtype=dtype))
    wide = saved.in_backward(aten._to_copy.default, narrow, dtype=torch.int64)
    parameter.replace_all_uses_with(wide)
    return True


_RULES: tuple[Callable[[SavedTensors, Node], bool], ...] = (_pieces, _clamped, rematerialize, _places)


def _uncopied(node: Node) -> Node:
    """What has the same values: where a clamp is in place, autograd keeps a copy of what it was given."""
    while node.target is aten.clone.default:
        node = node.args[0]  # type: ignore[assignment]
    return node
