"""Cells that keep alive what the locals of a loop's body are bound to.

In: such a cell (`bytecode/outline.py` says which a body is given) and what the body binds. Out: the cell's contents
after the body: the object, if somebody may notice that it lives. One more kind of object that is noticed: in `_kept`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynajit.guards.source import LocalSource
from dynajit.values.core.finalizers import MAX_LOOKED_AT, dies_with
from dynajit.values.core.value import Tracer, Value
from dynajit.values.objects.functions import CellVal
from dynajit.values.objects.generators import GeneratorVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal


class LifetimeCell(CellVal):
    """The cell that keeps alive what a local of a loop's body is bound to, when the body has ended. Nobody reads it. So
    what nobody would miss is not made, and not kept; None is."""

    def set(self, tx: Tracer, value: Value | None) -> None:
        if not self.known:
            kind = dies_with(self.real_cell.cell_contents)
            if kind is not None:
                tx.journal.set_attr(tx, "dropped", kind)  # what follows finds it dead
            self.tx = tx
        super().set(tx, value)

    def _kept(self) -> Value | None:
        value = self.contents
        if value is None or isinstance(value, (ConstVal, SymVal)):
            return None
        return value if isinstance(value.source, LocalSource) or _closes(value) else None

    def fill_children(self) -> Sequence[Value]:
        kept = self._kept()
        return () if kept is None else (kept,)

    def emit_effect(self, out: Any) -> None:
        kept = self._kept()
        if kept is None:
            out.const(None)
        else:
            out.push(kept)
            dies = _closes(kept) or dies_with(kept.real_object) is not None
            if dies and self.real_cell.cell_contents is None:
                # the next of this kind is let go of where another takes its place: that is another trace
                self.tx.guard(self.contents_source, "ID", None)
        out.emit.store_deref(self.source.local_name)  # type: ignore[union-attr]


def _closes(value: Value, depth: int = 2) -> bool:
    """Whether this is a generator that runs code when it is let go of, or will once it has begun, or a small container
    of one, or a generator that holds or waits for one."""
    if isinstance(value, GeneratorVal):
        unstarted = value.state == "created" and value.origin is None and value.rebuildable()
        if value.needs_closing() or unstarted:
            return True
    parts = [*value.children(), *value.fill_children()][:MAX_LOOKED_AT] if depth and value.source is None else ()
    return any(_closes(part, depth - 1) for part in parts if isinstance(part, Value))
