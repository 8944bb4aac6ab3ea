"""Texts of tensors without dimensions, `f"{loss:.3f}"`, and of NumPy's scalars: made of what the graph gives.

In: a tensor or scalar of the graph, and a format. Out: `NumberText`, which generated code makes of a copy of the
tensor, for a later line may write it; where the program needs the text itself, the graph ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.unread import UnreadCall
from dynajit.values.tensors.graph_arrays import GraphArrayVal, computed

_NUMBERS = (bool, int, float, complex, numpy.generic)


class NumberText(UnreadCall):
    """`function(number, *rest)`, where a tensor or scalar is the number. `hint` is the text of a one."""

    def __init__(self, tx: Tracer, function: Callable[..., Any], parts: Sequence[Value], hint: str) -> None:
        super().__init__(tx, function, parts, str)
        self._hint = hint

    def read(self) -> Any:
        raise GraphBreak(breaks.DATA_DEPENDENT, self.describe())

    @property
    def hint(self) -> str:
        return self._hint

    def describe(self) -> str:
        return "the text of a tensor's number"


def number_text(tx: Tracer, function: Callable[..., Any], value: Value, *rest: Value) -> Value | None:
    """`function(value, *rest)`, of `format`, `"...".__mod__` or, for NumPy's scalars, `str` and `repr`: if it is the
    text of a number whatever the number is. `rest`: what is known."""
    if tx.runs_elsewhere or tx.open_levels or tx.overrides.modes:
        return None
    tensor = value.tensor if computed(value) and value.is_scalar else value
    fake = tensor.fake
    if fake is None or fake.dim() or fake.device.type not in ("cpu", "cuda") or tensor.py_type() is not torch.Tensor:
        return None
    if fake.requires_grad and function is not format:
        return None  # torch warns of a conversion
    known = [part.const() for part in rest]
    one = value.sample() if computed(value) else torch.ones((), dtype=fake.dtype).item()
    texts = [*known, getattr(function, "__self__", "")]
    if any(type(text) is str and text.endswith("c") for text in texts) or not isinstance(one, _NUMBERS):
        return None  # a character is made of some numbers only
    try:
        hint = function(one, *known)
    except (TypeError, ValueError, OverflowError):
        return None  # which it will raise
    copy: Any = tensor
    for method in ("detach", "clone"):
        copy = tx.torch_op("call_method", method, [copy], {})
    return NumberText(tx, function, [GraphArrayVal(copy, is_scalar=True) if computed(value) else copy, *rest], hint)
