"""Models of NumPy's scalar classes, and of `torch.from_numpy`."""

from __future__ import annotations

from typing import Any

import torch

from dynajit.report import breaks
from dynajit.values import arrays
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.builtins.registry import builtin, constructor


def _register(kind: Any) -> None:
    @constructor(kind)
    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        return arrays.compute(tx, kind, args, kwargs)


for _kind in arrays.SCALARS:
    _register(_kind)


@builtin(torch.from_numpy)
def from_numpy(tx: Tracer, array: Value) -> Value:
    if isinstance(array, arrays.ArrayVal) and not array.is_scalar:
        return arrays.make_tensor(tx, torch.from_numpy, [array], {})
    raise GraphBreak(breaks.UNKNOWN_CALL, f"torch.from_numpy of {array.describe()}")
