"""Models of what users build on the autograd engine: autograd.Function and activation checkpointing.

In: calls of `Function.apply` and `torch.utils.checkpoint.checkpoint` as values. Out: a `Function` stays one node of the
graph, which calls the real `apply`, so that its backward is the user's; its forward and backward are traced on the
side to learn what they rely on. A checkpointed function is traced like any other.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.checkpoint

from dynajit.report import breaks
from dynajit.values import overrides
from dynajit.values.base import GraphBreak, NotReal, Tracer, Value
from dynajit.values.builtins.registry import builtin
from dynajit.values.constant import ConstVal
from dynajit.values.functions import FunctionVal, MethodVal
from dynajit.values.objects import BuiltinVal, ClassVal, lookup_type
from dynajit.values.partials import PartialVal
from dynajit.values.polyfills.autograd import autograd_function
from dynajit.values.run_time import running_elsewhere
from dynajit.values.sequence import TupleVal
from dynajit.values.tensor import TensorVal
from dynajit.values.watched import Watched


@builtin(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def apply_function(tx: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    """`Function.apply`."""
    if not isinstance(cls, ClassVal):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"autograd.Function.apply of {cls.describe()}")
    functions = {place: _real_function(cls, arg) for place, arg in enumerate(args) if isinstance(arg, _FUNCTIONS)}
    if any(isinstance(value, _FUNCTIONS) for value in kwargs.values()):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{cls.obj.__qualname__}.apply of a function by keyword")
    if overrides.user_modes(tx) or overrides.asked(tx, [*args, *kwargs.values()]):
        # nobody is asked about the call itself, but about each operation of forward, which autograd does not see
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{cls.obj.__qualname__}.apply where a __torch_function__ is asked")
    _learn(tx, cls, args, kwargs)
    others = [arg for place, arg in enumerate(args) if place not in functions]
    return tx.torch_op("call_function", _applied(cls.obj, functions), others, kwargs)


_FUNCTIONS = (BuiltinVal, FunctionVal, MethodVal, PartialVal)


def _real_function(cls: ClassVal, value: Value) -> Any:
    """A function among the arguments, which is no argument of the node but part of what the node calls."""
    try:
        return value.real()
    except NotReal:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{cls.obj.__qualname__}.apply of {value.describe()}") from None


def _applied(cls: Any, functions: Mapping[int, Any]) -> Callable[..., Any]:
    """`cls.apply` as a function of a name of its own: torch.fx takes the method for one of torch's functions.
    `functions` are those of its arguments that a graph can't hold, by position."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if functions:
            rest = iter(args)
            args = tuple(functions[at] if at in functions else next(rest) for at in range(len(args) + len(functions)))
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
    watched = Watched([*parts, *args, *kwargs.values()])
    try:
        with tx.indirect():
            tx.run_python(autograd_function, [*parts, tx.new_tuple([ConstVal(need) for need in needs]), *args], kwargs)
        effects = [value for key, value in tx.journal.dirty.items() if key not in dirty]
        effects += [value for value in (watched.changed(),) if value is not None]
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


class SavingContext(Value):
    """One of the contexts of `create_selective_checkpoint_contexts`: they choose what backward keeps, and compute
    nothing. Only `checkpoint` is given them."""

    def py_type(self) -> type:
        return object

    def describe(self) -> str:
        return "a context of selective checkpointing"


_asking = threading.local()


@builtin(torch.utils.checkpoint.create_selective_checkpoint_contexts)
def selective_contexts(tx: Tracer, policy: Value, allow_cache_entry_mutation: Value | None = None) -> Value:
    if not getattr(_asking, "by_checkpoint", False):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "contexts of selective checkpointing made outside of a checkpoint")
    return tx.new_tuple([SavingContext(), SavingContext()])


def _check_contexts(tx: Tracer, context_fn: Value) -> None:
    """Break unless the contexts around a checkpointed function only choose what is kept."""
    _asking.by_checkpoint = True
    try:
        with tx.indirect():
            made = tx.call(context_fn, [], {})
    finally:
        _asking.by_checkpoint = False
    if not isinstance(made, TupleVal) or not all(isinstance(each, SavingContext) for each in made.values(tx)):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "checkpoint with contexts of the program's own")


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
        _check_contexts(tx, context_fn)
    if use_reentrant is None:
        raise GraphBreak(breaks.OUTPUT_CALL, "checkpoint without use_reentrant warns")
    if torch.is_grad_enabled() and any(isinstance(value, TensorVal) and value.fake.is_inference() for value in args):
        raise GraphBreak(breaks.OP_RAISES, "checkpoint of tensors made in inference mode")
    with running_elsewhere(tx, "a checkpointed function, which backward runs again"):
        if not use_reentrant.truth(tx) or not torch.is_grad_enabled():
            return tx.call(function, args, kwargs)
        # the older kind gives its result no gradient unless an argument has one
        if any(isinstance(value, TensorVal) and value.fake.requires_grad for value in args):
            return tx.call(function, args, kwargs)
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, "checkpoint(use_reentrant=True) without an argument that requires grad")
