"""Weights taken as constants: `options={"freezing": True}`, for inference.

In:  a torch-level graph, and which of its inputs are parameters and buffers of modules.
Out: `fold_batch_norm`: the graph with batch norms folded into the convolutions before them; `frozen`: a `CompileFn`
     that computes what depends on weights alone once, and packs weights the way the vendor's libraries want them
     (`prepack.py`). The weights' identities, memory and version counters are looked at in every call: where one has
     changed, the constants are computed again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dynajit.aot.inference import prepack
from dynajit.aot.legality import grad_modes
from dynajit.aot.pipeline import CompileFn
from dynajit.aot.rewrite import copied
from dynajit.graph.meta import notes, value_of

_CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
_MODULE_STATE = ("._parameters['", "._buffers['")


def weights_of(gm: GraphModule, example_inputs: Sequence[Any]) -> frozenset[int]:
    """The positions of the inputs that are parameters or buffers; none where gradients may be asked for."""
    needs_grad = any(isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs)
    if (torch.is_grad_enabled() and needs_grad) or grad_modes(gm) or torch.is_autocast_enabled("cpu"):
        return frozenset()
    found = set()
    for position, (node, value) in enumerate(zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True)):
        state = isinstance(value, torch.nn.Parameter) or any(part in notes(node).source for part in _MODULE_STATE)
        if state and isinstance(value, torch.Tensor) and not value.is_inference():
            found.add(position)
    return frozenset(found)


# ---- batch norm


def fold_batch_norm(gm: GraphModule, weights: frozenset[int]) -> GraphModule:
    """`gm`, or a copy of it in which convolutions do the work of the batch norms that follow them."""
    if not any(node.target is torch.nn.functional.batch_norm for node in gm.graph.nodes):
        return gm
    made = copied(gm)
    inputs = made.graph.find_nodes(op="placeholder")
    frozen = {node for position, node in enumerate(inputs) if position in weights}
    for node in made.graph.find_nodes(op="call_function", target=torch.nn.functional.batch_norm):
        if _can_fold(node, frozen):
            _fold(made.graph, node)
    made.recompile()
    return made


def _can_fold(norm: Node, frozen: set[Node]) -> bool:
    if norm.kwargs or len(norm.args) != 8 or norm.args[5] is not False:
        return False
    convolution = norm.args[0]
    if not isinstance(convolution, Node) or convolution.target not in _CONVOLUTIONS or len(convolution.users) != 1:
        return False
    if convolution.kwargs or len(convolution.args) != 7:
        return False
    used = [*convolution.args[1:3], *norm.args[1:5]]
    if convolution.args[1] is None or norm.args[1] is None or norm.args[2] is None:
        return False
    known = all(value is None or value in frozen for value in used)
    dtypes = {value.meta["example_value"].dtype for value in used if isinstance(value, Node)} if known else set()
    return known and (dtypes <= {torch.float32} or dtypes == {torch.float64})


def _fold(graph: Graph, norm: Node) -> None:
    convolution, mean, variance, weight, bias, _, _, epsilon = norm.args
    assert isinstance(convolution, Node)
    x, kernel, own_bias, *rest = convolution.args
    with graph.inserting_before(convolution):

        def call(function: Callable[..., Any], *args: Any) -> Node:
            return graph.call_function(function, args)

        scale = call(torch.rsqrt, call(operator.add, variance, epsilon))
        if weight is not None:
            scale = call(operator.mul, scale, weight)
        shape = (-1, *[1] * (1 + _CONVOLUTIONS[convolution.target]))  # type: ignore[index]
        scaled = call(operator.mul, kernel, call(torch.reshape, scale, shape))
        shift = call(operator.neg, mean) if own_bias is None else call(operator.sub, own_bias, mean)
        shift = call(operator.mul, shift, scale)
        if bias is not None:
            shift = call(operator.add, shift, bias)
    convolution.args = (x, scaled, shift, *rest)
    convolution.meta["example_value"] = value_of(norm)
    norm.replace_all_uses_with(convolution)
    graph.erase_node(norm)


# ---- what depends on weights alone


def frozen(compile_fn: CompileFn, weights: frozenset[int], count: int) -> CompileFn:
    """`compile_fn` for graphs of `count` inputs of which those at `weights` are constants."""

    def compile_frozen(gm: GraphModule, inputs: list[Any], phase: str) -> Callable[..., Any]:
        if phase != "inference" or len(inputs) != count:
            return compile_fn(gm, inputs, phase)
        split = prepack.split(gm, weights)
        if split is None:
            return compile_fn(gm, inputs, phase)
        made = compile_fn(split.main, [*inputs, *split.values], phase)
        return _Frozen(split.constants, sorted(weights), made)

    return compile_frozen


class _Frozen:
    """A compiled graph with constants that are made at the first call, and anew when a weight has changed."""

    def __init__(self, constants: GraphModule, positions: list[int], compiled: Callable[..., Any]) -> None:
        self.constants = constants
        self.positions = positions
        self.compiled = compiled
        self.state: tuple[list[Any], list[int], tuple[Any, ...]] | None = None
        self.memory: list[Any] = []  # keeps the addresses of former memory from being given out again

    def __call__(self, *inputs: Any) -> Any:
        weights = [inputs[position] for position in self.positions]
        marks = [mark for weight in weights for mark in (weight._version, weight.data_ptr())]
        state = self.state
        if state is None or marks != state[1] or not all(map(operator.is_, weights, state[0])):
            state = self._computed_again(inputs, weights, marks)
        return self.compiled(*inputs, *state[2])

    def _computed_again(
        self, inputs: Sequence[Any], weights: list[Any], marks: list[int]
    ) -> tuple[list[Any], list[int], tuple[Any, ...]]:
        with torch.no_grad(), torch.inference_mode(False):
            made = tuple(self.constants(*inputs))
        self.memory = [weight.untyped_storage() for weight in weights]
        # one assignment: another thread sees the former constants or these
        self.state = (weights, marks, made)
        return self.state
