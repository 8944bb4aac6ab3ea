"""Models of torch's optimizers: those that choose by numbers which they keep in tensors.

In: a call of the function that updates parameters. Out: the same function traced in the form that torch has for CUDA
graphs (`capturable`), which computes both ways and selects, where the numbers are on the parameters' device. And the
numbers themselves (counts of steps), of which eager mode makes Python's floats: in float64.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.optim import asgd, optimizer, radam

from dynajit.values.core.registry import builtin, tail_call
from dynajit.values.core.value import Tracer, Value
from dynajit.values.polyfills.optimizers import of_exact_steps
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.wrapper_subclass import WrapperVal

_OPTIMIZER: Any = optimizer


@builtin(_OPTIMIZER._get_value)
def _number_of(tx: Tracer, number: Value) -> Value:
    """A number that an optimizer computes with. Eager mode takes it out of its tensor, and what is made of it is as
    exact as Python's floats: `1 - 0.999**step` in float32 would be off by one part in ten thousand at first."""
    if isinstance(number, TensorVal) and number.fake.dtype == torch.float32:
        return number.call_method(tx, "to", [ConstVal(torch.float64)], {})
    return number


def _selects(function: Any) -> None:
    signature = inspect.signature(function)
    at = list(signature.parameters).index("state_steps")

    @builtin(function)
    @tail_call
    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        direct = tx.resumable_call()
        given = signature.bind(*args, **kwargs).arguments
        first = [tx.unpack(given[name])[:1] for name in ("params", "state_steps")]
        if all(part and isinstance(part[0], (TensorVal, WrapperVal)) for part in first):
            weight, count = (part[0].fake for part in first)  # type: ignore[attr-defined]
            if count.device in (weight.device, _MAY_BE_ON_CPU.get(function)):
                is_asked = _is_false(given.get("capturable")) and len(args) > at
                if is_asked and function in _BY_STEP and count.dtype == torch.float32:
                    rest = [tx.from_real(function), tx.new_tuple(list(args[:at])), *args[at:]]
                    return tx.run_python(of_exact_steps, rest, kwargs, direct)
                kwargs = {**kwargs, "capturable": ConstVal(True)}
        return tx.inline_body(function, args, kwargs, direct)


def _is_false(value: Value | None) -> bool:
    return type(value) is ConstVal and value.value is False


# what is made of a count of steps would be off by one part in ten thousand
_BY_STEP: tuple[Any, ...] = (radam._single_tensor_radam, radam._multi_tensor_radam)  # type: ignore[attr-defined]
# its form for CUDA graphs takes each number as an operand, which may be a CPU's
_MAY_BE_ON_CPU: dict[Any, torch.device] = {radam._multi_tensor_radam: torch.device("cpu")}  # type: ignore[attr-defined]
for _module in (asgd, radam):
    for _name in ("_single_tensor_", "_multi_tensor_"):
        _selects(getattr(_module, _name + _module.__name__.rpartition(".")[2]))
