"""Tensors that no graph takes: nested, quantized and sparse ones.

In: a real tensor and its source. Out: `OpaqueTensorVal`; what it is like can be asked: libraries ask that all over.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

import torch

from dynajit.guards.source import Source
from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.opaque import OpaqueVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.tensor import TensorMethod

_ATTRIBUTES = frozenset(
    {"dtype", "device", "layout", "requires_grad", "is_nested", "is_quantized", "is_sparse", "is_cuda", "is_cpu"}
)
_METHOD_TYPES = (types.FunctionType, types.MethodDescriptorType)
_METHODS = frozenset({"dim", "is_floating_point", "is_complex"})


class OpaqueTensorVal(OpaqueVal):
    """A nested, quantized or sparse tensor."""

    def __init__(self, real: torch.Tensor, source: Source) -> None:
        if real.is_nested or real.is_quantized:
            detail = "a nested tensor" if real.is_nested else "a quantized tensor"
        else:
            detail = f"a tensor with layout {real.layout}"
        super().__init__(type(real), source, breaks.UNSUPPORTED_TENSOR, detail)
        self._real = real

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in _ATTRIBUTES:
            return self._known(tx, name)
        if isinstance(getattr(self.kind, name, None), _METHOD_TYPES):
            return TensorMethod(self, name)
        raise GraphBreak(self.reason, f"{name!r} of {self.detail}")

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if name in _METHODS and not args and not kwargs:
            return self._known(tx, name)
        raise GraphBreak(self.reason, f"{name}() of {self.detail}")

    def _known(self, tx: Tracer, name: str) -> Value:
        answer = _told(self._real, name)
        tx.guard(self.source, "PREDICATE", functools.partial(_still, name, answer), f"{name} is {answer}")
        return ConstVal(answer)


def _told(tensor: torch.Tensor, name: str) -> Any:
    found = getattr(tensor, name)
    return found() if name in _METHODS else found


def _still(name: str, expected: object, tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and _told(tensor, name) == expected
