"""Models of hooks on tensors' gradients.

In: `Tensor.register_hook` and `register_post_accumulate_grad_hook` as values. Out: for a tensor that the graph
computes, a node that registers the hook each time the graph runs; the hook's own operations are traced, and are the
body of that node, so that a backend that differentiates the graph compiles them too. Hooks on leaves from outside stay
what they are in eager mode: registered by the generated code, on the leaf itself.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.hooks import BackwardHook, RemovableHandle

from dynajit.graph.state_snapshot import StateSnapshot
from dynajit.report import breaks
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.registry import asked_first, builtin, models_of, tail_call
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value
from dynajit.values.effects.deferred import DeferredCall
from dynajit.values.objects.functions import CellVal, FunctionVal, MethodVal
from dynajit.values.objects.partials import PartialVal
from dynajit.values.scalars.constant import is_none
from dynajit.values.tensors.higher_order import trace_body
from dynajit.values.tensors.tensor import TensorVal, may_be_differentiated


def hook_gradient(tensor: torch.Tensor, body: Any, *free: Any) -> None:
    """What the node does: a hook on the gradient of what the graph has computed."""
    if tensor.requires_grad:
        tensor.register_hook(functools.partial(_hooked, body, free))  # type: ignore[no-untyped-call]


def _hooked(body: Any, free: tuple[Any, ...], gradient: torch.Tensor) -> torch.Tensor:
    return body(gradient, *free)[0]  # type: ignore[no-any-return]


class UnusedHandle(Value):
    """The handle of a hook, in a variable that nothing reads; it can't be made where something does."""

    kind = RemovableHandle

    def rebuildable(self) -> bool:
        return False


@models_of(torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
def register(function: Any, tx: Tracer, tensor: Value, hook: Value) -> Value:
    """`tensor.register_hook(hook)` and its like, of which nobody uses the handle."""
    name = function.__name__
    if not isinstance(tensor, TensorVal) or type(tensor.kind) is not type(torch.Tensor):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"Tensor.{name}() of {tensor.describe()}")
    if not tensor.fake.requires_grad:
        raise GraphBreak(breaks.OP_RAISES, f"Tensor.{name}() of a tensor that doesn't require grad")
    if not tx.result_unused():
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"Tensor.{name}() whose handle is used")
    if _is_leaf_outside(tensor):
        tx.journal.touch(DeferredCall(tx.from_real(function), [tensor, hook], {}))
        return UnusedHandle()
    if name != "register_hook":
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"Tensor.{name}() of what is no leaf from outside")
    _check_graph_can(tx, tensor)
    for cell in _variables(hook):
        if tx.may_rebind(cell):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"a gradient hook with the variable {cell!r}, which may change")
    if StateSnapshot(_state_roots(hook)):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "a gradient hook that reads state, which may change until it runs")
    _add_node(tx, tensor, hook)
    return UnusedHandle()


@asked_first(BackwardHook.setup_input_hook, BackwardHook.setup_output_hook)
def set_up(tx: Tracer, self: Value, args: Value) -> None:
    """What a module with full backward hooks does with its arguments or its result: nothing without gradients."""
    parts = tx.unpack(args) if isinstance(args, TupleVal) else [args]
    if may_be_differentiated(parts):
        raise GraphBreak(breaks.MODULE_BACKWARD_HOOK)


@builtin(RemovableHandle.remove)
@tail_call
def remove(tx: Tracer, self: Value) -> Value:
    """Traced for what was registered here; the number of one from outside is another one at each call."""
    direct = tx.resumable_call()
    if self.source is not None:
        raise GraphBreak(breaks.SKIPPED_CALL, "the remove() of a hook's handle from outside")
    return tx.inline_body(RemovableHandle.remove, [self], {}, direct)


def _is_leaf_outside(tensor: TensorVal) -> bool:
    return tensor.source is not None and tensor.real_tensor is not None and tensor.real_tensor.is_leaf


def _check_graph_can(tx: Tracer, tensor: TensorVal) -> None:
    """Break where a hook in the graph would not see all of the gradient, or the graph is not differentiated."""
    if tensor.source is not None:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "Tensor.register_hook() of a result of what is not in the graph")
    if tx.open_levels:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "Tensor.register_hook() inside of a torch.func transform")
    if tensor.fake._is_view() or tensor.fake.is_leaf:
        # backends make views that a graph returns anew outside of it
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "Tensor.register_hook() of a view or a leaf made here")
    if not any(entry.requires_grad for entry in tx.graph.inputs):
        raise GraphBreak(
            breaks.UNSUPPORTED_TENSOR, "Tensor.register_hook() in a graph without an input that requires grad"
        )


def _variables(hook: Value) -> Iterator[str]:
    """Names of the variables of the functions around that a hook reads when it runs."""
    if isinstance(hook, (MethodVal, PartialVal)):
        yield from _variables(hook.function)
    elif isinstance(hook, FunctionVal):
        yield from hook.code.co_freevars
        for cell in hook.closure:
            if isinstance(cell, CellVal) and isinstance(cell.contents, FunctionVal) and cell.contents is not hook:
                yield from cell.contents.code.co_freevars


def _state_roots(hook: Value, outer: tuple[Value, ...] = ()) -> Iterator[Any]:
    """What leads to the state that a hook reads. The traced function's own variables don't change any more."""
    with contextlib.suppress(NotReal):
        yield hook.real()
        return
    parts, closure = hook.children(), getattr(hook, "closure", None)
    if closure is not None:
        cells = (types.CellType(types) if cell.real_cell is None else cell.real_cell for cell in closure)
        yield types.FunctionType(hook.code, hook.globals, closure=tuple(cells))  # type: ignore[attr-defined]
        parts = [cell.contents for cell in closure if cell.contents is not None]
    for part in parts:
        if part is not hook and part not in outer:
            yield from _state_roots(part, (*outer, hook))


def _add_node(tx: Tracer, tensor: TensorVal, hook: Value) -> None:
    mark = tx.graph.mark()
    grad_mode = torch.is_grad_enabled()
    with torch.no_grad():
        stand_in = tx.torch_op("call_function", torch.empty_like, [tensor], {})
        assert isinstance(stand_in, TensorVal)
        impure = tx.graph.impure
        body = trace_body(tx, hook, [stand_in], "a gradient hook")
    assert torch.is_grad_enabled() == grad_mode
    if tx.graph.impure != impure:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "a gradient hook that draws random numbers or has effects")
    free = [node for node in body.cut.free if node is not stand_in.node]
    module = body.cut.build([stand_in.node, *free], "gradient_hook")
    tx.graph.cut(mark, [])
    if is_none(body.result):
        return
    if not isinstance(body.result, TensorVal) or not _is_gradient_of(body.result.fake, tensor.fake):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"a gradient hook that returns {body.result.describe()}")
    attached = tx.graph.attach(module, "gradient_hook")
    tx.graph.create("call_function", hook_gradient, [tensor.node, attached, *free], {}, tx.node_meta(None))
    tx.graph.impure = True


def _is_gradient_of(gradient: torch.Tensor, tensor: torch.Tensor) -> bool:
    return (gradient.shape, gradient.dtype, gradient.device) == (tensor.shape, tensor.dtype, tensor.device)


@builtin(torch.autograd.graph.saved_tensors_hooks.__enter__, torch.autograd.graph.saved_tensors_hooks.__exit__)
def hooks_on_saved_tensors(tx: Tracer, *args: Value) -> Value:
    """The graph's own backward keeps other tensors than eager's operations do."""
    raise GraphBreak(breaks.SAVED_TENSOR_HOOKS)
