"""Texts of tensors without dimensions, `f"{loss:.3f}"`: the number's text, made of what the graph gives.

In: a tensor of the graph and a format. Out: `NumberText`, which generated code makes of a copy of the tensor, for a
later line may write it; where the program needs the text itself, the graph ends.
"""

from __future__ import annotations

from typing import Any

import torch

from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.unread import UnreadCall
from dynajit.values.tensors.tensor import TensorVal

_NUMBERS = (bool, int, float, complex)


class NumberText(UnreadCall):
    """`format(tensor, spec)` of a tensor without dimensions. `hint` is the text of a one."""

    def __init__(self, tx: Tracer, tensor: TensorVal, spec: str, hint: str) -> None:
        super().__init__(tx, format, [tensor, ConstVal(spec)], str)
        self._hint = hint

    def read(self) -> Any:
        raise GraphBreak(breaks.DATA_DEPENDENT, self.describe())

    @property
    def hint(self) -> str:
        return self._hint

    def describe(self) -> str:
        return "the text of a tensor's number"


def number_text(tx: Tracer, tensor: TensorVal, spec: Value) -> Value | None:
    """`format(tensor, spec)`, if it is the text of a number whatever the number is."""
    fake = tensor.fake
    elsewhere = tx.runs_elsewhere or tx.open_levels or tx.overrides.modes
    if fake.dim() or tensor.kind is not torch.Tensor or fake.device.type not in ("cpu", "cuda") or elsewhere:
        return None
    text, one = spec.const(), torch.ones((), dtype=fake.dtype).item()
    if type(text) is not str or text.endswith("c") or not issubclass(type(one), _NUMBERS):
        return None
    try:
        hint = format(one, text)
    except (ValueError, OverflowError):
        return None  # which it will raise
    number: Any = tensor
    for method in ("detach", "clone"):
        number = tx.torch_op("call_method", method, [number], {})
    return NumberText(tx, number, text, hint)
