"""Models of what `__torch_function__` implementations use: torch's default one, the switches, the stack of modes.

In: calls of torch.overrides' functions and of the C functions behind them. Out: what `overrides.py` keeps in the
tracer; the classes that torch enters with `with` are objects whose methods change that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.overrides

from dynajit.report import breaks
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.registry import builtin, constructor, models_of
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.objects import BuiltinVal, ClassVal, ObjVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors import overrides
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.tensor_subclass import SubTensorVal, as_subclass

_NOT_WRAPPED = torch.overrides.get_default_nowrap_functions()
_DETACH: Any = torch.ops.aten.detach.default


@builtin(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def tensor_torch_function(
    tx: Tracer, cls: Value, func: Value, types: Value, args: Value | None = None, kwargs: Value | None = None
) -> Value:
    """The default: compute on the plain tensors, and make the results instances of the class."""
    kind = cls.real()
    if not all(issubclass(kind, part.real()) for part in tx.unpack(types)):
        return ConstVal(NotImplemented)
    named = {key.const(): value for key, value in kwargs.items(tx)} if isinstance(kwargs, DictVal) else {}
    with overrides.functions_off(tx, overrides.SUBCLASSES_OFF):
        result = tx.call(func, [] if args is None else tx.unpack(args), named)
    if isinstance(func, BuiltinVal) and func.obj in _NOT_WRAPPED:
        return result
    return _converted(tx, result, kind)


def _converted(tx: Tracer, value: Value, cls: type) -> Value:
    """Tensors, also those in lists and tuples, as instances of the class."""
    if cls is torch.Tensor:
        return value
    if isinstance(value, (TensorVal, SubTensorVal)) and not issubclass(value.py_type(), cls):
        return as_subclass(tx, value, cls)
    if isinstance(value, TupleVal):
        items = [_converted(tx, item, cls) for item in value.values(tx)]
        return value if all(a is b for a, b in zip(items, value.items, strict=True)) else TupleVal(items, value.kind)
    if isinstance(value, ListVal):
        return ListVal([_converted(tx, item, cls) for item in value.values(tx)])
    return value


@builtin(torch.Tensor.as_subclass)
def tensor_as_subclass(tx: Tracer, tensor: Value, cls: Value) -> Value:
    answer = overrides.dispatch(tx, "call_method", "as_subclass", [tensor, cls], {})
    return as_subclass(tx, tensor, cls.real()) if answer is None else answer


@builtin(torch.Tensor._make_subclass)
def make_subclass(tx: Tracer, cls: Value, data: Value, require_grad: Value | None = None) -> Value:
    if require_grad is not None and require_grad.truth(tx):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making a {cls.real().__name__} that requires grad")
    return as_subclass(tx, data, cls.real(), _DETACH)


@builtin(torch.Tensor.__new__)
def new_tensor(tx: Tracer, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    """Of a subclass, for a tensor: the same memory."""
    of_tensor = len(args) == 1 and isinstance(args[0], (TensorVal, SubTensorVal)) and not kwargs
    if of_tensor and isinstance(cls, ClassVal) and cls.obj is not torch.Tensor:
        return as_subclass(tx, args[0], cls.obj)
    raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making a {cls.real().__name__}")


# ----------------------------------------------------------------------------------------------------- switches


class SwitchVal(ObjVal):
    """A context manager that turns `__torch_function__` off."""

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.before: int | None = None

    def rebuild(self, out: Any) -> None:
        out.call_on(self.cls)


def _switch(cls: Any, state: int) -> None:
    @constructor(cls)
    def make(tx: Tracer) -> Value:
        return SwitchVal(cls)

    @builtin(cls.__enter__)
    def enter(tx: Tracer, switch: Value) -> None:
        tx.journal.set_attr(switch, "before", tx.overrides.turn_off(state))

    @builtin(cls.__exit__)
    def leave(tx: Tracer, switch: Value, *exception: Value) -> None:
        if not isinstance(switch, SwitchVal) or switch.before is None:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"leaving a {cls.__name__} that was entered outside")
        tx.overrides.set("off", switch.before)


_switch(torch._C.DisableTorchFunctionSubclass, overrides.SUBCLASSES_OFF)
_switch(torch._C.DisableTorchFunction, overrides.ALL_OFF)


# -------------------------------------------------------------------------------------------------------- modes


@builtin(torch._C._push_on_torch_function_stack)
def push_mode(tx: Tracer, mode: Value) -> None:
    tx.overrides.push(mode)


@builtin(torch._C._pop_torch_function_stack)
def pop_mode(tx: Tracer) -> Value:
    return tx.overrides.pop(is_device=False)


_ANSWERS: dict[Any, Callable[[overrides.Overrides], object]] = {
    torch._C._is_torch_function_enabled: lambda state: state.off == overrides.ASKING,
    torch._C._is_torch_function_all_disabled: lambda state: state.off == overrides.ALL_OFF,
    torch._C._len_torch_function_stack: lambda state: len(state.modes),
    torch._C._is_torch_function_mode_enabled: lambda state: bool(state.modes) and state.off != overrides.ALL_OFF,
}


@models_of(*_ANSWERS)
def _question(function: Any, tx: Tracer) -> Value:
    return ConstVal(_ANSWERS[function](tx.overrides))


# ---------------------------------------------------------------------------------------- torch.overrides' own


@builtin(torch.overrides.has_torch_function)
def has_torch_function(tx: Tracer, args: Value) -> Value:
    return ConstVal(overrides.user_modes(tx) or bool(overrides.asked(tx, tx.unpack(args))))


@builtin(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic)
def has_torch_function_variadic(tx: Tracer, *args: Value) -> Value:
    return ConstVal(overrides.user_modes(tx) or bool(overrides.asked(tx, args)))


@builtin(torch.overrides.handle_torch_function)
def handle_torch_function(tx: Tracer, func: Value, relevant: Value, /, *args: Value, **kwargs: Value) -> Value:
    named = tx.call(tx.from_real(dict), [], kwargs)
    return overrides.ask(tx, func, overrides.asked(tx, tx.unpack(relevant)), tx.new_tuple(args), named)
