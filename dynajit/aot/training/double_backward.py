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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from dynajit.aot.legality import values_read
from dynajit.aot.rewrite import results_of
from dynajit.graph.meta import value_of
from dynajit.report import logs

aten = torch.ops.aten
# under `is_grads_batched`; `torch.func.vmap` has levels instead
_BATCHED = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("VmapMode"))
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
        elif found.intersection(values_read(node)):
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
    values are results, before the others, where a call does not say which. views: so many of what `forward` gives, the
    last ones, are views of results that have no gradient here, though they may be heard of."""

    def __init__(
        self,
        forward: Callable[..., Any],
        autocast: Sequence[tuple[str, bool, torch.dtype]],
        updated: Sequence[int] = (),
        views: int = 0,
    ) -> None:
        self.views = views
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
        rerun = self._again(inputs, len(gradients), written, bases)
        if rerun is None:
            return None
        inputs, outputs = rerun
        return _gradients(dict(enumerate(outputs[: len(gradients)])), gradients, inputs)

    def parts_at(self, inputs: Sequence[Any], gradients: Sequence[Any], heard: bytes) -> list[Any] | None:
        """Of the gradients, what gets to each of the results that `heard` has a byte for that is not 0, by way of none
        of the others. None: it can't be said."""
        rerun = self._again(inputs, len(gradients), None, ())
        if rerun is None:
            return None
        outputs = rerun[1]
        gradients = [*gradients, *[None] * self.views]
        inner = [number for number, is_heard in enumerate(heard) if is_heard]
        with _ending_at([outputs[number] for number in inner]):
            found = _gradients(dict(enumerate(outputs)), gradients, [outputs[number] for number in inner])
        parts = dict(zip(inner, found or (), strict=found is not None))
        return [parts.get(number) for number in range(len(outputs))]

    def ending_at(self, inputs: Sequence[Any], gradients: Sequence[Any], heard: bytes) -> list[Any] | None:
        """As for a call, where the results that are heard of have all of their gradient already, and none of it comes
        from the others."""
        rerun = self._again(inputs, len(gradients), None, ())
        if rerun is None:
            return None
        inputs, outputs = rerun
        gradients = [*gradients, *[None] * self.views]
        inner = {number for number, is_heard in enumerate(heard) if is_heard}
        found: list[Any] = [None] * len(inputs)
        rest = set(range(len(outputs))) - inner
        for starts in (*({number} for number in inner), rest):
            with _ending_at([outputs[number] for number in inner - starts]):
                parts = _gradients({number: outputs[number] for number in starts}, gradients, inputs, keep=True)
            found = [_sum(*pair) for pair in zip(found, parts, strict=True)] if parts is not None else found
        return found

    def _again(
        self, inputs: Sequence[Any], n_gradients: int, written: Sequence[int] | None, bases: Sequence[int]
    ) -> tuple[list[Any], list[Any]] | None:
        """Inputs that end a history, and what the graph makes of them: as much as there are gradients, and the views.
        None: it does not."""
        # Inside of vmap random numbers are drawn otherwise, or not at all; the graph was called outside, and may have
        # levels of its own.
        outside = temporarily_clear_interpreter_stack()
        with torch.enable_grad(), torch._C._ExcludeDispatchKeyGuard(_BATCHED), outside:
            # An input that is computed of another is to end at itself.
            given = [value.view_as(value) if _has_gradient(value) else value for value in inputs]
            outputs = self._run(given, self.updated if written is None else written, bases)
        count = n_gradients + self.views
        if len(outputs) != count:
            # a node of our own has no place for results without a gradient
            outputs = list(filter(_has_gradient, outputs))
        return (given, outputs) if len(outputs) == count else None


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _gradients(
    results: Mapping[int, Any], gradients: Sequence[Any], ends: Sequence[Any], keep: bool = False
) -> list[Any] | None:
    """Of each of `ends`, the gradient from the results, by number, whose own are among `gradients`; None where there is
    none. None: no result or no end has a gradient. keep: another pass follows."""
    used = [(value, gradients[number]) for number, value in results.items() if _has_gradient(value)]
    used = [(value, gradient) for value, gradient in used if gradient is not None]
    wanted = list(filter(_has_gradient, ends))
    if not used or not wanted:
        return None
    again = torch.is_grad_enabled()
    starts, given = [value for value, _ in used], [gradient for _, gradient in used]
    found = iter(torch.autograd.grad(starts, wanted, given, keep or again, again, allow_unused=True))
    return [next(found) if _has_gradient(value) else None for value in ends]


@contextlib.contextmanager
def _ending_at(results: Iterable[torch.Tensor]) -> Iterator[None]:
    """Backward passes in the block don't go past these."""
    ends = [_End(result) for result in results]
    try:
        yield
    finally:
        for end in ends:
            end.remove()


class _End:
    """Keeps the gradient of one result from the operation that it is a result of. Others of the same operation have
    gradients that do go on; if there are none, what it makes of nothing does not go on either."""

    def __init__(self, result: torch.Tensor) -> None:
        node: Any = result.grad_fn
        self.output = result.output_nr
        self.has_none = False
        self.handles = (node.register_prehook(self.before), node.register_hook(self.after))

    def before(self, given: Sequence[Any]) -> tuple[Any, ...]:
        rest = tuple(None if at == self.output else gradient for at, gradient in enumerate(given))
        self.has_none = all(gradient is None for gradient in rest)
        return rest

    def after(self, found: Sequence[Any], given: Any) -> tuple[None, ...] | None:
        return (None,) * len(found) if self.has_none else None

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def _sum(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else one + other


def differentiable_twice(
    double: DoubleBackward,
    compiled: Callable[..., Any],
    mutated: Sequence[int],
    returned: Sequence[int],
    bases: Sequence[int],
    holds: Callable[[], bool] | None = None,
    draws: bool = False,
) -> Callable[..., Any]:
    """`compiled`, in torch's wrapper, with gradients that can be differentiated.

    mutated: the inputs that it writes; returned: those of them that torch's node returns, before its results; bases:
    the results that are views of what it returns after them; holds, draws: see `_C.TrainingCall`."""

    def call(*inputs: Any) -> Any:
        if not _wanted(inputs):
            return compiled(*inputs)
        # a copy with the history that the input has before it is written
        kept = [value.clone() if at in mutated else value for at, value in enumerate(inputs)]
        before = _nodes_of(inputs)
        random = torch.get_rng_state() if draws else None
        outputs = compiled(*inputs)
        node = _wrapper_node([*outputs, *(inputs[at] for at in returned)], before)
        if node is not None:
            unheard = frozenset(mutated).difference(returned)
            node.register_hook(_Hook(double, kept, returned, bases, unheard, holds, random))
        return outputs

    return call


@contextlib.contextmanager
def _drawn_again(state: torch.Tensor | None) -> Iterator[None]:
    """Has the block draw what was drawn from this state of the CPU's generator on, if there is one."""
    before = None if state is None else torch.get_rng_state()
    try:
        if state is not None:
            torch.set_rng_state(state)
        yield
    finally:
        if before is not None:
            torch.set_rng_state(before)


def _wanted(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(map(_has_gradient, inputs))


def _nodes_of(values: Iterable[Any]) -> list[Any]:
    nodes = (value.grad_fn for value in values if isinstance(value, torch.Tensor))
    return [node for node in nodes if node is not None]


def _wrapper_node(results: Iterable[Any], before: Collection[Any]) -> Any:
    """The node of torch's wrapper: of a result, or after the copy into an input or the view that one is. `before`:
    nodes that were there before the call."""
    waiting = _nodes_of(results)
    for _ in range(3):
        waiting = [node for node in waiting if node not in before]
        found = next((node for node in waiting if isinstance(node, torch.autograd.function.BackwardCFunction)), None)
        if found is not None:
            return found
        waiting = [following for node in waiting for following, _ in node.next_functions if following is not None]
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
        random: torch.Tensor | None,
    ) -> None:
        self.holds = holds
        self.random = random  # the state of the CPU's generator before the call, if the graph draws
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
            with torch.enable_grad(), _drawn_again(self.random):
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
