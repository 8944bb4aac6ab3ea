"""Objects that have no model: they can be passed along, and every use of them ends the graph.

In: a real object and its source. Out: `OpaqueVal`. Breaking at the use and not at the read matters: a read at the
start of a continuation would break there again and again. Of a tensor that no graph takes, `OpaqueTensorVal`, what it
is like can be asked: libraries ask that all over.
"""

from __future__ import annotations

import types
from collections.abc import Sequence

from dynajit.guards.source import Source
from dynajit.report import breaks
from dynajit.report.breaks import BreakKind
from dynajit.values.core.bound_methods import BoundMethod
from dynajit.values.core.value import Direct, GraphBreak, Tracer, Value
from dynajit.values.objects.lookup import lookup_type


class OpaqueVal(Value):
    """An object only known by its type."""

    def __init__(self, kind: type, source: Source | None, reason: BreakKind, detail: str) -> None:
        self.kind = kind
        self.source = source
        self.reason = reason
        self.detail = detail

    def describe(self) -> str:
        return self.detail

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        if self.kind.__eq__ is not object.__eq__:  # type: ignore[comparison-overlap]
            raise GraphBreak(self.reason, f"== of {self.detail}")
        return None

    def is_same(self, tx: Tracer, other: Value) -> bool | None:
        """Which object it is isn't known: that another one of its type is known does not make them two."""
        if other.has_identity and other.py_type() is self.kind:
            raise GraphBreak(self.reason, f"whether {self.detail} is {other.describe()}")
        return None

    def truth(self, tx: Tracer) -> bool:
        raise GraphBreak(self.reason, f"the truth value of {self.detail}")


class VaryingObject(OpaqueVal):
    """An object that was another one in each variant so far."""

    def __init__(self, kind: type, source: Source) -> None:
        super().__init__(kind, source, breaks.VARYING_VALUE, source.name())

    def getattr(self, tx: Tracer, name: str) -> Value:
        if type(lookup_type(self.kind, name)[0]) is types.MethodDescriptorType and _has_no_other(self.kind):
            return BoundMethod(self, name)  # the call ends the graph: what it gives is what the rest begins with
        raise GraphBreak(self.reason, f"{name!r} of {self.detail}")

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        raise GraphBreak(self.reason, f"{name!r} of {self.detail}")

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        raise GraphBreak(self.reason, f"a call of {self.detail}")


def _has_no_other(kind: type) -> bool:
    """Whether instances have the attributes of their class alone."""
    return not kind.__dictoffset__ and type(kind.__getattribute__) is types.WrapperDescriptorType
