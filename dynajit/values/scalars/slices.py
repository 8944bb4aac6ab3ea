"""Slices, and what stands in an index besides integers.

In: start, stop and step as values. Out: a constant if all are constants, else `SliceVal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynajit.values.core.value import Tracer, Value, parts_to_graph
from dynajit.values.scalars.constant import ConstVal

PARTS = ("start", "stop", "step")


class SliceVal(Value):
    """A slice with a part that is not constant, such as a tensor."""

    kind = slice

    def __init__(self, parts: Sequence[Value]) -> None:
        self.slice_parts = list(parts)

    @property
    def symbolic(self) -> bool:  # type: ignore[override]
        return all(part.is_const() or part.symbolic for part in self.slice_parts)

    def const(self) -> Any:
        return slice(*(part.const() for part in self.slice_parts)) if self.symbolic else super().const()

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in PARTS:
            return self.slice_parts[PARTS.index(name)]
        return ConstVal(self.const()).getattr(tx, name) if self.symbolic else super().getattr(tx, name)

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        if other.py_type() is not slice:
            return None
        return all(tx.equal(part, other.getattr(tx, name)) for name, part in zip(PARTS, self.slice_parts, strict=True))

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        return parts_to_graph(tx, self.slice_parts, lambda parts: slice(*parts))

    def children(self) -> Sequence[Value]:
        return self.slice_parts

    def rebuild(self, out: Any) -> None:
        for part in self.slice_parts:
            out.push(part)
        out.emit.build_slice(3)


def make_slice(parts: Sequence[Value]) -> Value:
    """`slice(start, stop, step)`."""
    if all(isinstance(part, ConstVal) for part in parts):
        return ConstVal(slice(*(part.const() for part in parts)))
    return SliceVal(parts)
