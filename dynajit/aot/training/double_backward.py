"""Backward passes that are to be differentiated again (`create_graph=True`).

In:  the captured graph and what AOTAutograd made of it, whose backward is a compiled graph too, without a derivative.
Out: gradients with a history where the backward pass records a graph, by running the captured graph again, operator
     by operator, with autograd. Graphs that would not give the same values a second time keep AOTAutograd's backward,
     which raises when it is differentiated. A `_C.TrainingCall` asks `DoubleBackward` itself; `differentiable_twice`
     is for what runs in torch's wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from dynajit import torch_compat
from dynajit.graph.meta import value_of
from dynajit.report import logs


def reason_against(mutated: Sequence[int], drawn: Sequence[Node], plain_outputs: bool) -> str:
    """Why gradients can't be differentiated again; empty if they can.

    Args:
        mutated: positions of the inputs that the graph writes.
        drawn: its nodes that draw random numbers. Those of the CPU's own generator are drawn again.
        plain_outputs: whether no output shares memory with an input or another output.
    """
    reason = (
        ("it writes its inputs" if mutated else "")
        or ("" if all(map(is_of_the_cpu, drawn)) else "it draws random numbers, not of the CPU's own generator")
        or ("" if plain_outputs else "its results share memory")
        or ("it runs under autocast" if torch_compat.any_autocast_enabled() else "")
    )
    if reason:
        logs.emit("aot_graphs", f"gradients can't be differentiated again: {reason}")
    return reason


def is_of_the_cpu(drawn: Node) -> bool:
    """Whether a node that draws random numbers has them of the CPU's own generator."""
    values = tree_leaves([value_of(each) for each in (drawn, *drawn.all_input_nodes)])
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return drawn.kwargs.get("generator") is None and all(value.device.type == "cpu" for value in tensors)


class DoubleBackward:
    """Differentiable gradients of a graph's inputs, from its inputs and the gradients of its results."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, inputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any] | None:
        """A gradient or None for each input; None if there are none to give. `gradients`: of all results, or of those
        that have one."""
        # An input that is computed of another is to end at itself.
        inputs = [
            value.view_as(value) if isinstance(value, torch.Tensor) and value.requires_grad else value
            for value in inputs
        ]
        outputs = self.forward(*inputs)
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
        results, given = [output for output, _ in used], [grad for _, grad in used]
        found = iter(torch.autograd.grad(results, wanted, given, create_graph=True, allow_unused=True))
        return [next(found) if isinstance(value, torch.Tensor) and value.requires_grad else None for value in inputs]


def differentiable_twice(double: DoubleBackward, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, in torch's wrapper, with gradients that can be differentiated."""

    def call(*inputs: Any) -> Any:
        outputs = compiled(*inputs)
        for output in outputs:
            if isinstance(output, torch.Tensor) and output.grad_fn is not None:
                output.grad_fn.register_hook(_Hook(double, inputs))
                break
        return outputs

    return call


class _Hook:
    """Called after the compiled backward of one call of the graph, with what that was given and what it returned."""

    def __init__(self, double: DoubleBackward, inputs: tuple[Any, ...]) -> None:
        self.double = double
        self.inputs: tuple[Any, ...] | None = inputs
        self.versions = _versions(inputs)

    def __call__(self, grad_inputs: Sequence[Any], grad_outputs: Sequence[Any]) -> tuple[Any, ...] | None:
        inputs = self.inputs
        if not torch.is_grad_enabled():
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                self.inputs = None  # as saved tensors are let go of after their last use
            return None
        tensors = [value for value in inputs or () if isinstance(value, torch.Tensor)]
        if inputs is None or len(grad_inputs) != len(tensors) or self.versions != _versions(inputs):
            return None
        found = self.double(inputs, grad_outputs)
        if found is None:
            return None
        kept = [grad for value, grad in zip(inputs, found, strict=True) if isinstance(value, torch.Tensor)]
        return tuple(
            grad if value.requires_grad else given
            for value, grad, given in zip(tensors, kept, grad_inputs, strict=True)
        )


def _versions(inputs: Sequence[Any]) -> list[int]:
    return [value._version for value in inputs if isinstance(value, torch.Tensor) and not value.is_inference()]
