"""Sets from outside that are long or had another length before, as those have that a program adds to at each call.

In: a real set and its source. Out: `OutsideSet`, a `SetVal` that is asked for one member, or given one, and nothing
depends on the others: `if step not in seen: seen.add(step)`. All members are guarded where the trace asks for more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from dynajit.guards.source import CallSource, Source, length_source
from dynajit.values.containers.lengths import LONG, check_growth, leave_long, length_varies, outside_length
from dynajit.values.containers.set_history import UNKNOWN, History, from_outside, guard_members, is_known
from dynajit.values.containers.sets import SET_METHODS, SetVal
from dynajit.values.containers.varying_keys import VaryingKey, differ, varying_key
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.number_calls import escaped


def asked_alone(tx: Tracer, real: set[Any] | frozenset[Any], source: Source) -> bool:
    """Whether to ask for single members: it is long, or an earlier capture saw it with another length."""
    varies = length_varies(tx, len(real), length_source(source, type(real).__len__))
    return (varies or len(real) >= LONG) and all(map(is_known, real))  # looking for a member runs nobody's code


class OutsideSet(SetVal):
    """A real set whose members nothing depends on yet; `_added`: the new ones, by hash key or `VaryingKey`."""

    def __init__(self, tx: Tracer, real: set[Any] | frozenset[Any], members: dict[Any, Value], source: Source) -> None:
        self._tx = tx
        self._real = real
        self._members = members
        self._whole = False
        self._entries: dict[Any, Value] = {}
        self._history = UNKNOWN
        self._added: dict[Any, Value] = {}
        super().__init__(type(real), source)
        self._history = from_outside(self.kind, real)

    @property
    def entries(self) -> dict[Any, Value]:  # type: ignore[override]
        self._settle()
        return self._entries

    @entries.setter
    def entries(self, entries: dict[Any, Value]) -> None:
        self._entries = entries

    @property
    def history(self) -> History:  # type: ignore[override]
        self._settle()
        return self._history

    @history.setter
    def history(self, history: History) -> None:
        self._history = history

    def unread(self) -> int:
        return 0 if self._whole else len(self._real)

    def iterate(self, tx: Tracer) -> Value:
        if not self._whole and VaryingKey in map(type, self._added):
            # to be told before the numbers are relied on: whatever they are, their order is not known
            self.unsupported("the order of a set from outside to which what varies was added")
        self._read()
        return super().iterate(tx)

    def _settle(self) -> None:
        """Depend on all members, where it is no longer asked for single ones."""
        if not self._whole:
            leave_long(self._tx, self)
            self._read()

    def _read(self) -> None:
        """Depend on all members, and on which they are that were added."""
        if self._whole:
            return
        check_growth(self._tx, self.source, self.kind.__len__)  # type: ignore[arg-type]
        tx, added = self._tx, list(self._added.values())
        for item in added:
            item.hash_key(tx)  # which may end the graph
        assert self.source is not None
        guard_members(tx, self.kind, self._real, self.source)
        tx.journal.set_attr(self, "_whole", True)
        tx.journal.replace_all(self._entries, self._members)
        for item in added:
            SET_METHODS["add"](tx, self, item)

    def _hash_of(self, tx: Tracer, item: Value) -> Any:
        """What the member is known by; None if all members have to be known to tell."""
        assert self.source is not None
        found = varying_key(tx, self.source, item, self.kind)
        hashed = item.hash_key(tx) if found is None else found
        if found is None and not is_known(hashed):
            return None
        for other, value in self._added.items():
            if other != hashed and VaryingKey in (type(other), type(hashed)) and not differ(tx, item, value):
                return None
        return hashed

    def _has(self, tx: Tracer, hashed: Any) -> bool:
        assert self.source is not None
        if type(hashed) is VaryingKey:
            source, found = hashed.contains, hashed.hint in self._real
        else:
            source = CallSource(self.source, functools.partial(_has_member, hashed), f"{escaped(repr(hashed))} in {{}}")
            found = hashed in self._real
        tx.guard(source, "EQUALS", found)
        return found

    def contains(self, tx: Tracer, item: Value) -> bool:
        hashed = None if self._whole else self._hash_of(tx, item)
        if hashed is None:
            return super().contains(tx, item)
        return hashed in self._added or self._has(tx, hashed)

    def add_alone(self, tx: Tracer, item: Value) -> bool:
        hashed = None if self._whole else self._hash_of(tx, item)
        if hashed is None:
            return False
        if hashed not in self._added and not self._has(tx, hashed):
            tx.journal.touch(self)
            tx.journal.set_item(self._added, hashed, item)
        return True

    def length(self, tx: Tracer) -> Value:
        if self._whole:
            return super().length(tx)
        return outside_length(tx, len(self._real), self.source, self.kind.__len__, len(self._added))  # type: ignore[arg-type]

    def truth(self, tx: Tracer) -> bool:
        if self._whole or not self._added:
            return self.length(tx).truth(tx)
        return True

    def children(self) -> Sequence[Value]:
        return super().children() if self._whole else list(self._added.values())

    def rebuildable(self) -> bool:
        return not self._whole or super().rebuildable()

    def emit_effect(self, out: Any) -> None:
        if self._whole:
            super().emit_effect(out)
        else:
            out.run(_add_members, self.source, *self._added.values())


def _has_member(member: Any, found: set[Any] | frozenset[Any]) -> bool:
    return member in found


def _add_members(real: set[Any], *members: Any) -> None:
    """In generated code, in the program's order."""
    for member in members:
        set.add(real, member)
