"""Models of what users build on the autograd engine: autograd.Function and activation checkpointing.

In: calls of `Function.apply` and `torch.utils.checkpoint.checkpoint` as values. Out: a `Function` stays one node of the
graph, which calls the real `apply`, so that its backward is the user's; its forward and backward are traced on the
side to learn what they rely on. A checkpointed function is traced like any other.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.builtins.registry import builtin
from dynajit.values.constant import ConstVal
from dynajit.values.functions import FunctionVal, MethodVal
from dynajit.values.objects import BuiltinVal, ClassVal, lookup_type
from dynajit.values.partials import PartialVal
from dynajit.values.polyfills.autograd import autograd_function
from dynajit.values.tensor import TensorVal


@builtin(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def apply_function(tx: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    """`Function.apply`."""
    if not isinstance(cls, ClassVal):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"autograd.Function.apply of {cls.describe()}")
    if any(isinstance(value, (BuiltinVal, FunctionVal, MethodVal, PartialVal)) for value in (*args, *kwargs.values())):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{cls.obj.__qualname__}.apply of a function")
    _learn(tx, cls, args, kwargs)
    return tx.torch_op("call_function", _applied(cls.obj), args, kwargs)


def _applied(cls: Any) -> Callable[..., Any]:
    """`cls.apply` as a function of a name of its own: torch.fx takes the method for one of torch's functions."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return cls.apply(*args, **kwargs)

    call.__name__ = call.__qualname__ = f"{cls.__name__}_apply"
    return call


def _learn(tx: Tracer, cls: ClassVal, args: tuple[Value, ...], kwargs: dict[str, Value]) -> None:
    """Trace forward and backward for their guards alone; an effect on something outside is a graph break."""
    journal, graph, dirty = tx.journal.mark(), tx.graph.mark(), set(tx.journal.dirty)
    differentiated = torch.is_grad_enabled() and any(
        isinstance(value, TensorVal) and value.fake.requires_grad for value in (*args, *kwargs.values())
    )
    parts = [_method(tx, cls, name) for name in ("forward", "setup_context", "backward")]
    if not differentiated:
        parts[2] = ConstVal(None)
    needs = [isinstance(value, TensorVal) and bool(value.fake.requires_grad) for value in args]
    static, tx.static_numbers = tx.static_numbers, True
    try:
        with tx.indirect():
            tx.run_python(autograd_function, [*parts, tx.new_tuple([ConstVal(need) for need in needs]), *args], kwargs)
        effects = [value for key, value in tx.journal.dirty.items() if key not in dirty]
        if effects:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{cls.obj.__qualname__} changes {effects[0].describe()}")
    finally:
        tx.static_numbers = static
        tx.journal.rollback(journal)
        tx.graph.rollback(graph)


def _method(tx: Tracer, cls: ClassVal, name: str) -> Value:
    """The user's static method, or None where torch's own stands."""
    found, where = lookup_type(cls.obj, name)
    if where is None or (where.__module__ or "").startswith("torch.autograd"):
        return ConstVal(None)
    function: Any = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    if isinstance(function, types.FunctionType) and function.__globals__["__name__"] == "torch.autograd.function":
        return tx.from_real(function.__wrapped__)  # type: ignore[attr-defined]  # behind once_differentiable
    return cls.getattr(tx, name)


_NOOP_CONTEXT = torch.utils.checkpoint.noop_context_fn


@builtin(torch.utils.checkpoint.checkpoint)
def checkpoint(
    tx: Tracer,
    function: Value,
    *args: Value,
    use_reentrant: Value | None = None,
    context_fn: Value | None = None,
    determinism_check: Value | None = None,
    debug: Value | None = None,
    early_stop: Value | None = None,
    preserve_rng_state: Value | None = None,
    **kwargs: Value,
) -> Value:
    """The function itself: what backward keeps or computes again is the backend's choice."""
    if context_fn is not None and getattr(context_fn, "real_function", None) is not _NOOP_CONTEXT:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "checkpoint with a context_fn")
    if use_reentrant is None:
        raise GraphBreak(breaks.OUTPUT_CALL, "checkpoint without use_reentrant warns")
    if torch.is_grad_enabled() and any(isinstance(value, TensorVal) and value.fake.is_inference() for value in args):
        raise GraphBreak(breaks.OP_RAISES, "checkpoint of tensors made in inference mode")
    if not use_reentrant.truth(tx) or not torch.is_grad_enabled():
        return tx.call(function, args, kwargs)
    # the older kind gives its result no gradient unless an argument has one
    if any(isinstance(value, TensorVal) and value.fake.requires_grad for value in args):
        return tx.call(function, args, kwargs)
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, "checkpoint(use_reentrant=True) without an argument that requires grad")
