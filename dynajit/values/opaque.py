"""Objects that have no model: they can be passed along, and every use of them ends the graph.

In: a real object and its source. Out: `OpaqueVal`. Breaking at the use and not at the read matters: a read at the
start of a continuation would break there again and again. Of a tensor that no graph takes, `OpaqueTensorVal`, what it
is like can be asked: libraries ask that all over.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

import torch

from dynajit.bytecode.landing import Landing
from dynajit.guards.source import Source
from dynajit.report import breaks
from dynajit.report.breaks import BreakKind
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.constant import ConstVal
from dynajit.values.tensor import TensorMethod


class OpaqueVal(Value):
    """An object only known by its type."""

    def __init__(self, kind: type, source: Source, reason: BreakKind, detail: str) -> None:
        self.kind = kind
        self.source = source
        self.reason = reason
        self.detail = detail

    def py_type(self) -> type:
        return self.kind

    def describe(self) -> str:
        return self.detail

    def truth(self, tx: Tracer) -> bool:
        raise GraphBreak(self.reason, f"the truth value of {self.detail}")


class VaryingObject(OpaqueVal):
    """An object that was another one in each variant so far."""

    def __init__(self, kind: type, source: Source) -> None:
        super().__init__(kind, source, breaks.VARYING_VALUE, source.name())

    def getattr(self, tx: Tracer, name: str) -> Value:
        raise GraphBreak(self.reason, f"{name!r} of {self.detail}")

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Landing | None = None) -> Value:
        raise GraphBreak(self.reason, f"a call of {self.detail}")


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
