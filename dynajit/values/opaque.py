"""Objects that have no model: they can be passed along, and every use of them ends the graph.

In: a real object and its source. Out: `OpaqueVal`. Breaking at the use and not at the read matters: a read at the
start of a continuation would break there again and again.
"""

from __future__ import annotations

from dynajit.guards.source import Source
from dynajit.report.breaks import BreakKind
from dynajit.values.base import GraphBreak, Tracer, Value


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
