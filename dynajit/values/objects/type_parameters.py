"""Type parameters of functions defined while tracing (`def f[T](...)`, CPython 3.12 and later).

In: the intrinsic instruction that makes one, and its operands. Out: `TypeParameterVal`, which is made by that
instruction, anew at each call, where the program lets go of it.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

from dynajit.values.core.value import Tracer, Value

#: intrinsic → class of what it makes; its operands are the name and, for some, a function that gives the rest
TYPE_PARAMETERS: dict[str, Any] = {
    "INTRINSIC_TYPEVAR": typing.TypeVar,
    "INTRINSIC_TYPEVAR_WITH_BOUND": typing.TypeVar,
    "INTRINSIC_TYPEVAR_WITH_CONSTRAINTS": typing.TypeVar,
    "INTRINSIC_PARAMSPEC": typing.ParamSpec,
    "INTRINSIC_TYPEVARTUPLE": typing.TypeVarTuple,
}


class TypeParameterVal(Value):
    """A type variable, or its like for many parameters; `default` is the function that gives its default."""

    child_names = ("name", "rest", "default")

    def __init__(self, intrinsic: str, name: Value, rest: Value | None = None, default: Value | None = None) -> None:
        self.kind = TYPE_PARAMETERS[intrinsic]
        self.intrinsic = intrinsic
        self.name, self.rest, self.default = name, rest, default

    def with_default(self, default: Value) -> TypeParameterVal:
        """The same with a default, before anybody has it."""
        return TypeParameterVal(self.intrinsic, self.name, self.rest, default)

    def getattr(self, tx: Tracer, name: str) -> Value:
        return self.name if name == "__name__" else super().getattr(tx, name)

    def hash_key(self, tx: Tracer) -> object:
        return self

    def children(self) -> Sequence[Value]:
        return [part for part in (self.name, self.rest, self.default) if part is not None]

    def rebuild(self, out: Any) -> None:
        out.push(self.name)
        if self.rest is not None:
            out.push(self.rest)
        out.emit.op("CALL_INTRINSIC_1" if self.rest is None else "CALL_INTRINSIC_2", self.intrinsic)
        if self.default is not None:
            out.push(self.default)
            out.emit.op("CALL_INTRINSIC_2", "INTRINSIC_SET_TYPEPARAM_DEFAULT")
