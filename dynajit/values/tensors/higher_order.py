"""torch's higher-order operators: cond and while_loop as nodes with bodies, scans and map unrolled.

In: the operator's arguments, functions among them. Out: the node's results. A function is traced where it is called,
and its nodes are then cut out into a module; what it takes from outside becomes an input of that module. To add an
operator: a model of `torch.ops.higher_order.<name>` here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dynajit.graph.subgraph import CutNodes
from dynajit.report import breaks
from dynajit.torch_compat import memory_of
from dynajit.values.core.registry import builtin, by_tracing, models_of, tail_call
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.table import running_elsewhere
from dynajit.values.objects.mutation_snapshot import without_effects
from dynajit.values.polyfills import higher_order as polyfills
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.ops import model_tensor
from dynajit.values.tensors.tensor import TensorVal, may_be_differentiated

_ENTRIES = [
    getattr(importlib.import_module(f"torch._higher_order_ops.{name}"), name)
    for name in ("cond", "while_loop", "scan", "map", "associative_scan")
]
_OPS: Any = torch.ops.higher_order


class Body:
    """A function that was traced: its nodes, and what it returned, as a tree of tensors."""

    def __init__(self, cut: CutNodes, result: Value, parts: list[Value], structure: Value) -> None:
        self.cut = cut
        self.result = result
        self.structure = structure
        self.parts = parts
        self.leaves = [part for part in parts if isinstance(part, TensorVal)]

    def rebuilt(self, tx: Tracer, leaves: Sequence[Value]) -> Value:
        """The result, with its tensors replaced, in order."""
        rest = iter(leaves)
        parts = [next(rest) if isinstance(part, TensorVal) else part for part in self.parts]
        return tx.run_python(polyfills.unflattened, [tx.new_list(parts), self.structure])


def _flat(tx: Tracer, tree: Value) -> tuple[list[Value], Value]:
    """The leaves and the structure of a tree of whatever kinds of containers torch's pytree knows."""
    parts, structure = tx.unpack(tx.run_python(polyfills.flattened, [tree]))
    return tx.unpack(parts), structure


def _write_check(tx: Tracer) -> Callable[[], bool]:
    """What says whether a tensor that there is now was written since."""
    entries = [(entry, entry.mutated) for entry in tx.graph.inputs]
    versions = [(value.fake, value.fake._version) for value in tx.tensors.values() if not value.fake.is_inference()]
    mark, memories = tx.graph.mark(), {memory_of(value.fake) for value in tx.tensors.values()}

    def of_inputs() -> set[Any]:  # also of those that were met since
        return {memory_of(entry.fake) for entry in tx.graph.inputs if entry.symbol is None}

    return lambda: (
        not tx.graph.memories_written(mark).isdisjoint(memories | of_inputs())  # statistics have no version
        or any(fake._version != version for fake, version in versions)
        or any(entry.mutated != mutated for entry, mutated in entries)
    )


def trace_body(
    tx: Tracer,
    function: Value,
    args: Sequence[Value],
    what: str,
    kwargs: dict[str, Value] | None = None,
    writes: bool = False,
) -> Body:
    """Trace a call, and cut its nodes out of the graph. `writes`: whether it may write tensors from outside, and return
    constants."""
    mark = tx.graph.mark()
    is_written = _write_check(tx)
    given = [function, *args, *(kwargs or {}).values()]
    with tx.not_resumable(), running_elsewhere(tx, what), without_effects(tx, what, given):
        result = tx.call(function, args, kwargs or {})
    if not writes and is_written():
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{what} writes to a tensor from outside")
    parts, structure = _flat(tx, result)
    for part in parts:
        if not isinstance(part, TensorVal) and not (isinstance(part, ConstVal) and (writes or part.value is None)):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{part.describe()} as a result of {what}")
    cut = tx.graph.cut(mark, [part.node for part in parts if isinstance(part, TensorVal)])
    return Body(cut, result, parts, structure)


def outputs(tx: Tracer, node: fx.Node, fakes: Sequence[torch.Tensor]) -> list[Value]:
    """Models of the parts of an operator's result."""
    made: list[Value] = []
    for index, fake in enumerate(fakes):
        part = tx.graph.create_part(node, index, tx.node_meta(fake))
        tx.journal.remove_item(tx.tensors, id(fake))
        made.append(model_tensor(tx, fake, part))
    return made


def _same_metadata(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (left.shape, left.stride(), left.dtype, left.device) == (
        right.shape,
        right.stride(),
        right.dtype,
        right.device,
    )


def _fresh(fake: torch.Tensor, grad: bool) -> torch.Tensor:
    """A fake like this one that no operation made; as part of the autograd graph if `grad`."""
    made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    return made.requires_grad_() * 1 if grad else made


@builtin(_OPS.cond)
def cond(tx: Tracer, pred: Value, true_fn: Value, false_fn: Value, operands: Value | None = None) -> Value:
    args = tx.unpack(operands) if operands is not None else []
    if not isinstance(pred, TensorVal):
        return tx.call(true_fn if pred.truth(tx) else false_fn, args, {})
    if pred.fake.numel() != 1:
        raise GraphBreak(breaks.OP_RAISES, "torch.cond on a tensor with more than one value")
    if operands is not None and not all(isinstance(part, TensorVal) for part in _flat(tx, operands)[0]):
        raise GraphBreak(breaks.RAISES, "RuntimeError: torch.cond on operands that are no tensors")
    yes = trace_body(tx, true_fn, args, "the true branch of torch.cond")
    no = trace_body(tx, false_fn, args, "the false branch of torch.cond")
    same_structure = tx.equal(yes.structure, no.structure) and list(map(type, yes.parts)) == list(map(type, no.parts))
    if not same_structure or not all(
        _same_metadata(left.fake, right.fake) for left, right in zip(yes.leaves, no.leaves, strict=True)
    ):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "branches of torch.cond with different results")
    inputs = list(dict.fromkeys([*yes.cut.free, *no.cut.free]))
    bodies = [
        tx.graph.attach(body.cut.build(inputs, name), name)
        for body, name in ((yes, "true_branch"), (no, "false_branch"))
    ]
    with tx.graph.running_fake():
        fakes = [
            _fresh(left.fake, left.fake.requires_grad or right.fake.requires_grad)
            for left, right in zip(yes.leaves, no.leaves, strict=True)
        ]
    node = tx.graph.create("call_function", _OPS.cond, [pred.node, *bodies, tuple(inputs)], {}, tx.node_meta(fakes))
    return yes.rebuilt(tx, outputs(tx, node, fakes))


@builtin(_OPS.while_loop)
def while_loop(tx: Tracer, cond_fn: Value, body_fn: Value, carried: Value, additional: Value | None = None) -> Value:
    if additional is not None and tx.unpack(additional):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "while_loop with additional inputs")
    start = tx.unpack(carried)
    if not all(isinstance(value, TensorVal) and not value.fake.requires_grad for value in start):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "while_loop over what is no tensor, or requires grad")
    mark = tx.graph.mark()
    # stand for what is carried while the functions are traced
    carried_in = [tx.torch_op("call_method", "clone", [value], {}) for value in start]
    test = trace_body(tx, cond_fn, carried_in, "the condition of while_loop")
    body = trace_body(tx, body_fn, carried_in, "the body of while_loop")
    if len(test.leaves) != 1 or len(body.leaves) != len(start):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "while_loop whose functions return something else")
    for before, after in zip(carried_in, body.leaves, strict=True):
        if not _same_metadata(before.fake, after.fake):  # type: ignore[attr-defined]
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "while_loop that changes the shape or dtype of what it carries")
    stand_ins = [value.node for value in carried_in]  # type: ignore[attr-defined]
    free = [node for node in dict.fromkeys([*test.cut.free, *body.cut.free]) if node not in stand_ins]
    inputs = [*stand_ins, *free]
    modules = [test.cut.build(inputs, "condition", single=True), body.cut.build(inputs, "body")]
    tx.graph.cut(mark, [])
    bodies = [tx.graph.attach(module, name) for module, name in zip(modules, ("condition", "body"), strict=True)]
    with tx.graph.running_fake():
        fakes = [_fresh(value.fake, False) for value in start]  # type: ignore[attr-defined]
    operands = tuple(value.node for value in start)  # type: ignore[attr-defined]
    node = tx.graph.create(
        "call_function", _OPS.while_loop, [*bodies, operands, tuple(free)], {}, tx.node_meta(tuple(fakes))
    )
    return body.rebuilt(tx, outputs(tx, node, fakes))


@tail_call
def invoke_subgraph(tx: Tracer, function: Value, /, *args: Value, **kwargs: Value) -> Value:
    """A region marked to be compiled once, or wrapped: what is compiled is shared anyway, so the function is traced as
    any other."""
    return tx.call(function, args, kwargs, tx.resumable_call())


builtin(importlib.import_module("torch._higher_order_ops.invoke_subgraph").invoke_subgraph_placeholder)(invoke_subgraph)
builtin(_OPS.wrap)(invoke_subgraph)
builtin(_OPS.wrap_with_set_grad_enabled)(by_tracing(polyfills.wrap_with_set_grad_enabled))
builtin(_OPS.wrap_with_autocast)(by_tracing(polyfills.wrap_with_autocast))


builtin(_OPS.scan)(by_tracing(polyfills.scan))
builtin(_OPS.map_impl)(by_tracing(polyfills.map_over))
builtin(_OPS.associative_scan)(by_tracing(polyfills.associative_scan))


@models_of(*_ENTRIES)
def _entry(real: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """torch's own Python in front of an operator, which checks arguments and takes trees apart, is traced; what can't
    be captured after it breaks at its call: the operator alone takes less than it does."""
    return tx.inline_body(real, args, kwargs)


@builtin(_OPS.flex_attention)
def flex_attention(tx: Tracer, query: Value, key: Value, value: Value, *rest: Value) -> Value:
    """Without gradients, for which torch has a rule of its own."""
    if may_be_differentiated((query, key, value)):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "flex_attention with gradients")
    if len(rest) != 4:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "flex_attention with tensors handed to its functions")
    made = tx.run_python(polyfills.flex_attention, [query, key, value, *rest], {})
    if any(isinstance(part, TensorVal) and part.fake.requires_grad for part in tx.unpack(made)):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "flex_attention with gradients")
    return made
