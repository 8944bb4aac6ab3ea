"""The `__dict__` of an object: read attribute by attribute, written back name by name.

In: the object's model, and the real dictionary if the object came from outside. Out: `AttributeDict`, a dictionary of
which only the names that were looked at are guarded, and only those that were changed are written.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from dynajit import _C
from dynajit.guards.source import AttrSource, ItemSource, Source
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import Lazy
from dynajit.values.core.effect import Pushed
from dynajit.values.core.finalizers import check_dropped
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal, is_the

MAX_AT_ONCE = 64


class AttributeDict(DictVal):
    """The attributes of `owner`; without a real dictionary those of an object made while tracing."""

    def __init__(self, owner: Value, owner_source: Source | None, real: dict[Any, Any] | None) -> None:
        super().__init__(dict, AttrSource(owner_source, "__dict__") if owner_source is not None else None, real)
        self.owner = owner
        self.owner_source = owner_source
        self.changed_names: dict[Any, None] = {}

    # -- where names stand

    def guard_absent(self, tx: Tracer, name: str) -> None:
        """Rely on the object not having the attribute."""
        tx.guard(self.source, "DICT_MISSING", name)

    def entry_source(self, name: str) -> Source:
        """How the attribute is reached again, without running code of the program's."""
        assert self.source is not None
        return ItemSource(self.source, name)

    # -- reading

    def attribute(self, tx: Tracer, name: str) -> Value | None:
        """The attribute, or None; guarded."""
        return self.lookup(tx, ConstVal(name))

    def lookup_hashed(self, tx: Tracer, hashed: Any, key: Value) -> Value | None:
        if self.complete or hashed in self.entries or self.real_dict is None or not isinstance(hashed, str):
            return super().lookup_hashed(tx, hashed, key)
        if hashed in self.changed_names:
            return None
        if hashed not in self.real_dict:
            self.guard_absent(tx, hashed)
            return None
        value = tx.wrap(self.real_dict[hashed], self.entry_source(hashed))
        self._set_entry(tx, hashed, (key, value))
        return value

    def contains(self, tx: Tracer, item: Value) -> bool:
        hashed = item.hash_key(tx)
        if not self.complete and isinstance(hashed, str):
            return self.lookup_hashed(tx, hashed, item) is not None
        return super().contains(tx, item)

    def materialise(self, tx: Tracer) -> None:
        if self.complete or not self.changed_names:
            super().materialise(tx)
            return
        written = self._written()
        super().materialise(tx)
        stay = written.keys() - self.removed.keys()
        merged = {name: entry for name, entry in self.entries.items() if name in stay or name not in self.changed_names}
        merged.update(written)
        tx.journal.replace_all(self.entries, merged)

    # -- writing

    def mutate(self, tx: Tracer) -> None:
        if self.source is not None:
            self.materialise(tx)
            for hashed in self.entries:
                tx.journal.set_item(self.changed_names, hashed, None)
            tx.journal.touch(self)

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        hashed = key.hash_key(tx)
        old = self.entries.get(hashed)
        if old is not None:
            check_dropped(old[1])
        elif self.real_dict is not None and hashed in self.real_dict and hashed not in self.changed_names:
            check_dropped(Lazy(self.real_dict[hashed], None))
        self._set_entry(tx, hashed, (key, value))
        self._note(tx, hashed)

    def take(self, tx: Tracer, key: Value) -> Value:
        found = self.getitem(tx, key)
        hashed = key.hash_key(tx)
        rest = {name: entry for name, entry in self.entries.items() if name != hashed}
        self.remove(tx, rest)
        self._note(tx, hashed)
        return found

    def _note(self, tx: Tracer, hashed: Any) -> None:
        if self.source is not None:
            tx.journal.set_item(self.changed_names, hashed, None)
        tx.journal.wrote(self)

    # -- generated code

    def _written(self) -> dict[Any, tuple[Value, Any]]:
        """The attributes that the program set, in the order of those that it deleted or that were not there."""
        return {name: entry for name, entry in self.entries.items() if name in self.changed_names}

    def is_as_it_was(self) -> bool:
        real, written = self.real_dict, self._written()
        return real is not None and all(
            name in real and name in written and name not in self.removed and is_the(written[name][1], real[name])
            for name in self.changed_names
        )

    def emit_effect(self, out: Any) -> None:
        written = self._written()
        for name in self.changed_names:
            if name not in written or name in self.removed:  # what is set again comes last
                out.run(dict.pop, self.source, name, None)
        for name, entry in written.items():
            out.push_value(entry[1])
            out.load(self.source)
            out.const(name)
            out.emit.store_subscr()

    def changed_places(self) -> Sequence[Source]:
        return () if self.source is None else [self.entry_source(name) for name in self.changed_names]

    def effect_children(self) -> Sequence[Value]:
        entries = [self.entries[name][1] for name in self.changed_names if name in self.entries]
        return [entry for entry in entries if isinstance(entry, Value)]

    def fill_owner(self, out: Any) -> None:
        """Give the owner, made just now, its attributes."""
        if not self.entries:
            return
        names = [key.const() if key.is_const() else None for key, _ in self.entries.values()]
        if len(names) <= MAX_AT_ONCE and all(type(name) is str for name in names):
            fill = out.filler(self.owner.py_type(), tuple(names))
            out.run(fill, self.owner, *(value for _, value in self.entries.values()))
        else:
            out.run(dict.update, Pushed(self.rebuild), Pushed(self.push_entries))

    def entry_values(self) -> Sequence[Value]:
        """What `fill_owner` pushes."""
        return DictVal.children(self)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Any) -> None:
        if not isinstance(self.owner.py_type().__getattribute__, types.FunctionType):
            out.push(self.owner)
            out.emit.load_attr("__dict__")
        else:
            out.call_on(_C.generic_getattr, self.owner, "__dict__")
