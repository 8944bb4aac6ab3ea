"""Models of torch's optimizers: those that choose by numbers which they keep in tensors.

In: a call of the function that updates parameters. Out: the same function traced in the form that torch has for CUDA
graphs (`capturable`), which computes both ways and selects, where the numbers are on the parameters' device.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.optim import asgd, radam

from dynajit.values.base import Tracer, Value
from dynajit.values.builtins.registry import builtin, tail_call
from dynajit.values.constant import ConstVal
from dynajit.values.tensor import TensorVal


def _selects(function: Any) -> None:
    signature = inspect.signature(function)

    @builtin(function)
    @tail_call
    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        direct = tx.take_direct()
        given = signature.bind(*args, **kwargs).arguments
        first = [tx.unpack(given[name])[:1] for name in ("params", "state_steps")]
        if all(part and isinstance(part[0], TensorVal) for part in first):
            devices = {part[0].fake.device for part in first}  # type: ignore[attr-defined]
            if len(devices) == 1:
                kwargs = {**kwargs, "capturable": ConstVal(True)}
        return tx.inline_body(function, args, kwargs, direct)


for _module in (asgd, radam):
    for _name in ("_single_tensor_", "_multi_tensor_"):
        _selects(getattr(_module, _name + _module.__name__.rpartition(".")[2]))
