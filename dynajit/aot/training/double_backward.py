"""Backward passes that are to be differentiated again (`create_graph=True`).

In:  the captured graph and what AOTAutograd made of it, whose backward is a compiled graph too, without a derivative.
Out: gradients with a history where the backward pass records a graph, by running the captured graph again, operator
     by operator, with autograd. Graphs that would not give the same values a second time keep AOTAutograd's backward,
     which raises when it is differentiated. A `_C.TrainingCall` asks `DoubleBackward` itself; `differentiable_twice`
     is for what runs in torch's wrapper.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from dynajit.aot.rewrite import results_of
from dynajit.graph.meta import value_of
from dynajit.report import logs

aten = torch.ops.aten
_VMAP = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("VmapMode"))
for _name in ("FuncTorchVmapMode", "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode"):
    _VMAP = _VMAP.add(torch._C._dispatch_key_parse(_name))
# The first result that is statistics; in training the results before it are computed without the arguments 3 and 4.
_STATISTICS = {"_native_batch_norm_legit_functional": 3, "_batch_norm_with_update_functional": 4}


def reason_against(drawn: Sequence[Node]) -> str:
    """Why gradients can't be differentiated again; empty if they can. `drawn`: the graph's nodes that draw random
    numbers. Those of the CPU's own generator are drawn again."""
    reason = "" if all(map(is_of_the_cpu, drawn)) else "it draws random numbers, not of the CPU's own generator"
    if reason:
        logs.emit("aot_graphs", f"gradients can't be differentiated again: {reason}")
    return reason


def is_of_the_cpu(drawn: Node) -> bool:
    """Whether a node that draws random numbers has them of the CPU's own generator."""
    values = tree_leaves([value_of(each) for each in (drawn, *drawn.all_input_nodes)])
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return drawn.kwargs.get("generator") is None and all(value.device.type == "cpu" for value in tensors)


def is_computed_from(forward: torch.fx.GraphModule, places: Iterable[int]) -> bool:
    """Whether anything that a functional graph returns depends on what these inputs hold."""
    inputs = forward.graph.find_nodes(op="placeholder")
    found = {inputs[place] for place in places}
    norms: set[Node] = set()
    for node in forward.graph.nodes:
        if node.target is operator.getitem and node.args[0] in norms:
            name = node.args[0].target._schema.name.removeprefix("aten::")
            if node.args[1] >= _STATISTICS[name]:
                found.add(node)
        elif found.intersection(node.all_input_nodes):
            (norms if _writes_statistics(node, found) else found).add(node)
    return bool(found.intersection(node for node in results_of(forward) if isinstance(node, Node)))


def _writes_statistics(node: Node, given: Collection[Node]) -> bool:
    """Whether a node is a batch norm in training, and `given` are at most its running statistics."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name.removeprefix("aten::") not in _STATISTICS:
        return False
    at = [argument.name for argument in schema.arguments].index
    training = "training" not in (each.name for each in schema.arguments) or node.args[at("training")] is True
    statistics = {at("running_mean"), at("running_var")}
    return training and not any(value in given for place, value in enumerate(node.args) if place not in statistics)


def autocast_state(values: Iterable[Any]) -> list[tuple[str, bool, torch.dtype]]:
    """Of each type of device that the tensors among the values are on: whether autocast is on, and its dtype."""
    kinds = {value.device.type for value in values if isinstance(value, torch.Tensor)} & {"cpu", "cuda"}
    return [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in sorted(kinds)]


class DoubleBackward:
    """Differentiable gradients of a graph's inputs, from its inputs and the gradients of its results.

    forward: the captured graph. autocast: what it runs under, see `autocast_state`. updated: the inputs whose new
    values are results, before the others, where a call does not say which."""

    def __init__(
        self,
        forward: Callable[..., Any],
        autocast: Sequence[tuple[str, bool, torch.dtype]],
        updated: Sequence[int] = (),
    ) -> None:
        self.forward = forward
        self.autocast = autocast
        self.updated = updated

    @contextlib.contextmanager
    def _under_autocast(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            yield

    def _run(self, inputs: Sequence[Any], written: Sequence[int], bases: Sequence[int]) -> list[Any]:
        """All that has a gradient, or nothing where a result is not the view that it was."""
        given = [value.clone() if at in written else value for at, value in enumerate(inputs)]
        with self._under_autocast():
            outputs = self.forward(*given)
        viewed = [outputs[at]._base for at in bases]
        return [] if any(each is None for each in viewed) else [*(given[at] for at in written), *outputs, *viewed]

    def __call__(
        self,
        inputs: Sequence[Any],
        gradients: Sequence[Any],
        written: Sequence[int] | None = None,
        bases: Sequence[int] = (),
    ) -> list[Any] | None:
        """A gradient or None for each input, with a history where gradients are on; None if there are none to give.
        `gradients`: of the inputs `written`, of all results and of what those at the places `bases` are views of, or of
        those results that have one."""
        again = torch.is_grad_enabled()
        # inside of vmap random numbers are drawn otherwise, or not at all; the graph was called outside
        with torch.enable_grad(), torch._C._ExcludeDispatchKeyGuard(_VMAP):
            # An input that is computed of another is to end at itself.
            inputs = [
                value.view_as(value) if isinstance(value, torch.Tensor) and value.requires_grad else value
                for value in inputs
            ]
            outputs = self._run(inputs, self.updated if written is None else written, bases)
        if len(outputs) != len(gradients):
            # a node of our own has no place for results without a gradient
            outputs = [value for value in outputs if isinstance(value, torch.Tensor) and value.requires_grad]
        if len(outputs) != len(gradients):
            return None
        used = [
            (output, grad)
            for output, grad in zip(outputs, gradients, strict=True)
            if grad is not None and isinstance(output, torch.Tensor) and output.requires_grad
        ]
        wanted = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
        if not used or not wanted:
            return None
        results, starts = [output for output, _ in used], [grad for _, grad in used]
        found = iter(torch.autograd.grad(results, wanted, starts, create_graph=again, allow_unused=True))
        return [next(found) if isinstance(value, torch.Tensor) and value.requires_grad else None for value in inputs]


def differentiable_twice(
    double: DoubleBackward,
    compiled: Callable[..., Any],
    mutated: Sequence[int],
    returned: Sequence[int],
    bases: Sequence[int],
    holds: Callable[[], bool] | None = None,
) -> Callable[..., Any]:
    """`compiled`, in torch's wrapper, with gradients that can be differentiated.

    mutated: the inputs that it writes; returned: those of them that torch's node returns, before its results; bases:
    the results that are views of what it returns after them; holds: see `_C.TrainingCall`."""

    def call(*inputs: Any) -> Any:
        if not _wanted(inputs):
            return compiled(*inputs)
        # a copy with the history that the input has before it is written
        kept = [value.clone() if at in mutated else value for at, value in enumerate(inputs)]
        before = _nodes_of(inputs)
        outputs = compiled(*inputs)
        node = _wrapper_node([*outputs, *(inputs[at] for at in returned)], before)
        if node is not None:
            unheard = frozenset(mutated).difference(returned)
            node.register_hook(_Hook(double, kept, returned, bases, unheard, holds))
        return outputs

    return call


def _wanted(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in inputs)


def _nodes_of(values: Iterable[Any]) -> list[Any]:
    nodes = (value.grad_fn for value in values if isinstance(value, torch.Tensor))
    return [node for node in nodes if node is not None]


def _wrapper_node(results: Iterable[Any], before: Collection[Any]) -> Any:
    """The node of torch's wrapper: of a result, or behind the copy into an input or the view that one is. `before`:
    nodes that were there before the call."""
    waiting = _nodes_of(results)
    for _ in range(3):
        waiting = [node for node in waiting if node not in before]
        found = next((node for node in waiting if isinstance(node, torch.autograd.function.BackwardCFunction)), None)
        if found is not None:
            return found
        waiting = [behind for node in waiting for behind, _ in node.next_functions if behind is not None]
    return None


class _Hook:
    """Called after the compiled backward of one call of the graph, with what that was given and what it returned."""

    def __init__(
        self,
        double: DoubleBackward,
        inputs: Sequence[Any],
        returned: Sequence[int],
        bases: Sequence[int],
        unheard: Collection[int],
        holds: Callable[[], bool] | None,
    ) -> None:
        self.holds = holds
        self.unheard = unheard  # inputs that the graph writes without a word to autograd: it may run several times
        self.double = double
        self.bases = bases
        self.returned = returned
        self.inputs: Sequence[Any] | None = inputs
        self.versions = _versions(inputs)

    def __call__(self, grad_inputs: Sequence[Any], grad_outputs: Sequence[Any]) -> tuple[Any, ...] | None:
        inputs, again = self.inputs, torch.is_grad_enabled()
        holds = self.holds is None or self.holds()
        if not again:
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                self.inputs = None  # as saved tensors are let go of after their last use
            if holds:
                return None
        tensors = [value for value in inputs or () if isinstance(value, torch.Tensor)]
        found = None
        if inputs is not None and len(grad_inputs) == len(tensors) and self.versions == _versions(inputs):
            given = [value.clone() if at in self.unheard else value for at, value in enumerate(inputs)]
            with torch.enable_grad():
                found = self.double(given, grad_outputs, self.returned, self.bases)
        if inputs is None or found is None:
            if holds:
                return None
            raise RuntimeError("Python state that backward reads has changed, and the graph can't run again")
        if not again:
            found = [None if grad is None else grad.detach() for grad in found]
        kept = [grad for value, grad in zip(inputs, found, strict=True) if isinstance(value, torch.Tensor)]
        return tuple(
            grad if value.requires_grad else given
            for value, grad, given in zip(tensors, kept, grad_inputs, strict=True)
        )


def _versions(inputs: Sequence[Any]) -> list[int]:
    return [value._version for value in inputs if isinstance(value, torch.Tensor) and not value.is_inference()]
