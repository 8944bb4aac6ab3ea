"""Dictionaries while tracing, and their views.

In: keys and values, or a real `dict` with its source, read key by key until something depends on all its keys. Out:
`DictVal` and its views. Methods are entries of `DICT_METHODS`, by `@dict_method`.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.guards.source import (
    AttrSource,
    CallSource,
    DictKeySource,
    InstanceAttrSource,
    ItemSource,
    Source,
    length_source,
)
from dynajit.report import breaks
from dynajit.values.containers.identity import ObjectKey, identical
from dynajit.values.containers.iterators import PositionIterator, drain
from dynajit.values.containers.keys import collide, has_user_key
from dynajit.values.containers.lengths import LONG, check_growth, leave_long, length_varies, outside_length
from dynajit.values.containers.rebuild_containers import (
    push_dict,
    replace_entries,
    store_entries,
)
from dynajit.values.containers.sequence import Lazy
from dynajit.values.containers.set_history import History, view_of
from dynajit.values.containers.sets import SetLike, SetVal
from dynajit.values.containers.varying_keys import VaryingKey, differ, read_at, varying_key
from dynajit.values.core.effect import Pushed
from dynajit.values.core.finalizers import check_dropped, check_removed
from dynajit.values.core.registry import Model, entering
from dynajit.values.core.value import GraphBreak, NotReal, Raised, Tracer, Value, parts_to_graph
from dynajit.values.scalars.constant import VALUE_TYPES, ConstVal, UnreadConst, is_literal, is_nan


class DictVal(Value):
    """A dict or OrderedDict.

    `entries` maps a hash key to (key, value). With a source, entries not looked at are in `real_dict` only, until
    `materialise` has guarded all keys; keys `written` until then are guarded one by one. So it is with a copy of such a
    one, made while tracing, whose source is `copied_from`.
    """

    copied_from: Any = None

    def __init__(
        self,
        kind: type = dict,
        source: Source | None = None,
        real_dict: dict[Any, Any] | None = None,
        raw: bool = False,
    ) -> None:
        self.raw = raw  # the real dict is of a subclass, whose own __getitem__ must not run
        self.kind = kind
        # both, or neither
        self.source: Any = source
        self.real_dict: Any = real_dict
        self.entries: dict[Any, tuple[Value, Any]] = {}
        self.complete = real_dict is None
        self.written: dict[Any, None] = {}  # while not complete
        self.has_varying_keys = False  # among the entries
        self.iterated = False
        # how often keys were taken away: where the rest stands in the real table is not known from then on
        self.removals = 0
        # names and numbers among those keys, maybe there again
        self.removed: dict[Any, None] = {}
        self._runs_code: bool | None = None

    @property
    def read_from(self) -> Any:
        """The source of the real dictionary: its own, or that of the one that it is a copy of."""
        return self.source if self.copied_from is None else self.copied_from

    # -- reading

    def lookup(self, tx: Tracer, key: Value) -> Value | None:
        """The value at `key`, or None; guards presence or absence."""
        return self.lookup_hashed(tx, self._hash_of(tx, key), key)

    def _hash_of(self, tx: Tracer, key: Value, writes: bool = False) -> Any:
        """The key's hash key, or what stands for it if it varies; `writes`: it is going to be written."""
        if self.complete or self.iterated or type(self) is not DictVal or self._compares_itself():
            return key.hash_key(tx)
        found = varying_key(tx, self.read_from, key)
        if found is None and not self.has_varying_keys:
            return key.hash_key(tx)
        hashed = key.hash_key(tx) if found is None else found
        for other, (other_key, _) in list(self.entries.items()):
            concerned = other != hashed and (writes or other in self.written)
            if concerned and VaryingKey in (type(other), type(hashed)) and not differ(tx, key, other_key):
                self._settle(tx)
                return key.hash_key(tx)
        return hashed

    def _settle(self, tx: Tracer) -> None:
        """Depend on which keys they are that vary."""
        if not self.has_varying_keys:
            return
        tx.journal.set_attr(self, "has_varying_keys", False)
        settled = {
            hashed: self.entries[hashed][0].hash_key(tx) for hashed in self.entries if type(hashed) is VaryingKey
        }
        for table in (self.entries, self.written):
            tx.journal.replace_all(table, {settled.get(hashed, hashed): value for hashed, value in table.items()})

    def lookup_hashed(self, tx: Tracer, hashed: Any, key: Value) -> Value | None:
        entry = self.entries.get(hashed)
        if entry is not None:
            return self._resolve(tx, hashed, entry)
        if self.complete:
            return None
        if type(hashed) is VaryingKey:
            return self._lookup_varying(tx, hashed)
        real_key = self._real_key(hashed)
        if real_key is None:
            self.materialise(tx)
            return self.lookup_hashed(tx, hashed, key)
        if not dict.__contains__(self.real_dict, real_key[0]):
            tx.guard(self.read_from, "DICT_MISSING", real_key[0])
            return None
        value = tx.wrap(dict.__getitem__(self.real_dict, real_key[0]), self._place(real_key[0]))
        self._set_entry(tx, hashed, (key, value))
        return value

    def _lookup_varying(self, tx: Tracer, hashed: VaryingKey) -> Value | None:
        if not self._has_varying(tx, hashed):
            return None
        value = read_at(tx, hashed, dict.__getitem__(self.real_dict, hashed.hint))
        self._set_entry(tx, hashed, (hashed.value, value))
        return value

    def _has_varying(self, tx: Tracer, hashed: VaryingKey) -> bool:
        found = dict.__contains__(self.real_dict, hashed.hint)
        tx.guard(hashed.contains, "EQUALS", found)
        return found

    def _compares_itself(self) -> bool:
        """Whether looking for a key runs the code of one that is there."""
        if self._runs_code is None:
            self._runs_code = any(map(_compares_itself, set(map(type, dict.keys(self.real_dict)))))
        return self._runs_code

    def _real_key(self, hashed: Any) -> tuple[Any] | None:
        """The real key of a hash key, if it is one that a guard can hold, and looking for it runs nobody's code."""
        if self._compares_itself():
            return None
        if is_literal(hashed) or isinstance(hashed, type) or (callable(hashed) and not isinstance(hashed, Value)):
            return (hashed,)
        if isinstance(hashed, tuple) and all(is_literal(part) for part in hashed):
            return (hashed,)
        return None

    def _place(self, real_key: Any) -> Source:
        return ItemSource(self.read_from, real_key, self.raw)

    def _set_entry(self, tx: Tracer, hashed: Any, entry: tuple[Value, Any]) -> None:
        tx.journal.set_item(self.entries, hashed, entry)
        if type(hashed) is VaryingKey:
            tx.journal.set_attr(self, "has_varying_keys", True)

    def _resolve(self, tx: Tracer, hashed: Any, entry: tuple[Value, Any]) -> Value:
        key, value = entry
        if isinstance(value, Lazy):
            value = tx.wrap(value.obj, value.source)
            self._set_entry(tx, hashed, (key, value))
        return value

    def materialise(self, tx: Tracer) -> None:
        """Depend on all keys and their order."""
        if self.complete:
            return
        check_growth(tx, self.read_from, dict.__len__)
        self._settle(tx)
        pairs = self._real_items()
        tx.guard(self.read_from, "DICT_KEYS", tuple(key for key, _ in pairs))
        old = dict(self.entries)
        entries: dict[Any, tuple[Value, Any]] = {}
        for position, (real_key, real_value) in enumerate(pairs):
            key = self._wrap_key(tx, real_key, position)
            hashed = key.hash_key(tx)
            known = old.pop(hashed, None)
            entries[hashed] = (key, known[1] if known else Lazy(real_value, self._place(real_key)))
        objects = frozenset(id(entry[0]) for hashed, entry in entries.items() if type(hashed) is ObjectKey)
        if objects:
            tx.journal.set_item(tx.tables, self.read_from, objects)
        entries.update(old)
        tx.journal.replace_all(self.entries, entries)
        tx.journal.set_attr(self, "complete", True)

    def by_position(self, tx: Tracer) -> int | None:
        """How many entries there are, guarded, if an iteration is to rely on nothing but where they stand: one whose
        keys are numbers that were others at a call before. None: on all keys."""
        if self.complete or self.written or self.raw or self.read_from not in tx.seen.renumbered:
            return None
        if any(type(key) is not int for key in dict.keys(self.real_dict)):
            return None
        count = dict.__len__(self.real_dict)
        tx.guard(self.read_from, "LEN", count)
        return count

    def at_position(self, tx: Tracer, position: int) -> tuple[Value, Value]:
        """The key, which nothing relies on until it is read, and the value."""
        key, value = self._real_items()[position]
        place = CallSource(self.read_from, functools.partial(_value_at, position), f"list({{}}.values())[{position}]")
        tx.seen.made_anew.add(place)
        of_key = DictKeySource(self.read_from, position)
        tx.guard(of_key, "TYPE", int)
        return UnreadConst(tx, key, of_key), tx.wrap(value, place)

    def _real_items(self) -> list[tuple[Any, Any]]:
        """In their own order, which an OrderedDict keeps apart from its entries."""
        if not isinstance(self.real_dict, collections.OrderedDict):
            return [*dict.items(self.real_dict)]
        try:
            return [*collections.OrderedDict.items(self.real_dict)]
        except KeyError:
            self.unsupported("iteration over keys that were taken away behind its back")

    def _wrap_key(self, tx: Tracer, key: object, position: int) -> Value:
        if is_literal(key) and type(key) not in VALUE_TYPES and not is_nan(key):  # which are not known by their value
            return ConstVal(key)
        return tx.wrap(key, DictKeySource(self.read_from, position))

    def unread(self) -> int:
        return 0 if self.complete or type(self) is not DictVal else dict.__len__(self.real_dict)

    def items(self, tx: Tracer) -> list[tuple[Value, Value]]:
        leave_long(tx, self)
        return self.all_items(tx)

    def all_items(self, tx: Tracer) -> list[tuple[Value, Value]]:
        """As `items`, for the graph, however many they are."""
        self.materialise(tx)
        return [(entry[0], self._resolve(tx, hashed, entry)) for hashed, entry in list(self.entries.items())]

    def look_into(self, tx: Tracer) -> None:
        for _, item in self.items(tx):
            item.look_into(tx)

    def real(self) -> Any:
        if not self.complete:
            raise NotReal("a dictionary not looked at yet")
        found = self.kind()
        for key, value in self.entries.values():
            if isinstance(value, Lazy):
                raise NotReal("an item not looked at yet")
            found[key.real()] = value.real()
        return found

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        items = {key.const(): item for key, item in self.all_items(tx)}
        return parts_to_graph(tx, items.values(), lambda parts: dict(zip(items, parts, strict=True)))

    def truth(self, tx: Tracer) -> bool:
        return self.length(tx).truth(tx)

    def length(self, tx: Tracer) -> Value:
        if not self.complete:
            more = sum(not dict.__contains__(self.real_dict, _plain(hashed)) for hashed in self.written)
            return outside_length(tx, dict.__len__(self.real_dict), self.read_from, dict.__len__, more)
        return ConstVal(len(self.entries))

    def iterate(self, tx: Tracer) -> Value:
        return self.iterator_over(tx, "keys")

    def iterate_backwards(self, tx: Tracer) -> Value:
        return self.iterator_over(tx, "keys", backwards=True)

    def iterator_over(self, tx: Tracer, what: str, backwards: bool = False) -> Value:
        """An iterator over its keys, values or items."""
        return DictIterator(self, what, backwards)

    def contains(self, tx: Tracer, item: Value) -> bool:
        if type(item) is UnreadConst and not (self.complete or self.entries or dict.__len__(self.real_dict)):
            tx.guard(self.read_from, "LEN", 0)  # whatever number or text it is
            return False
        hashed = self._hash_of(tx, item)
        if hashed in self.entries:
            return True
        if self.complete:
            return False
        if type(hashed) is VaryingKey:
            return self._has_varying(tx, hashed)
        real_key = self._real_key(hashed)
        if real_key is None:
            self.materialise(tx)
            return hashed in self.entries
        found = dict.__contains__(self.real_dict, real_key[0])
        tx.guard(self.read_from, "DICT_CONTAINS" if found else "DICT_MISSING", real_key[0])
        return found

    def getitem(self, tx: Tracer, key: Value) -> Value:
        found = self.lookup(tx, key)
        if found is None:
            raise tx.raised(KeyError, key)
        return found

    def getattr(self, tx: Tracer, name: str) -> Value:
        if self.kind is not dict and self.source is not None and not hasattr(self.kind, name):
            tx.guard(AttrSource(self.source, "__dict__"), "DICT_MISSING", name)  # it had no attributes then
        return tx.class_attribute(self, self.kind, name)

    # -- writing

    def mutate(self, tx: Tracer) -> None:
        """To be called before each change."""
        if self.source is not None or not self.complete:
            leave_long(tx, self, LONG)
            self.materialise(tx)
        tx.journal.wrote(self)

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        hashed = self._hash_of(tx, key, writes=True)
        if self._write_alone(tx, hashed, key, value):
            return
        self.mutate(tx)
        if self.kind is not dict and has_user_key(hashed):
            # generated code can't give a real one the hash that was computed here
            self.unsupported("a key with a hash of its own")
        old = self.entries.get(hashed)
        if old is not None:
            check_dropped(old[1])
        elif self.source is not None and has_user_key(hashed) and collide([hashed, *self.entries]):
            self.unsupported("two keys of one hash")
        self._set_entry(tx, hashed, (old[0] if old else key, value))

    def _write_alone(self, tx: Tracer, hashed: Any, key: Value, value: Value) -> bool:
        """Write one key, depending on nothing but whether it is there, if all keys don't have to be known for it."""
        if self.complete or self.iterated or type(self) is not DictVal:
            return False
        if type(hashed) is not VaryingKey and self._real_key(hashed) is None:
            return False
        if hashed in self.entries:
            check_dropped(self.entries[hashed][1])
        elif self.contains(tx, key):
            check_dropped(Lazy(dict.__getitem__(self.real_dict, _plain(hashed)), None))
        tx.journal.wrote(self)
        tx.journal.set_item(self.written, hashed, None)
        old = self.entries.get(hashed)
        self._set_entry(tx, hashed, (old[0] if old else key, value))
        return True

    def delitem(self, tx: Tracer, key: Value) -> None:
        self.take(tx, key)

    def take(self, tx: Tracer, key: Value) -> Value:
        """Remove and return; raises KeyError."""
        found = self.getitem(tx, key)
        self.mutate(tx)
        rest = dict(self.entries)
        del rest[key.hash_key(tx)]
        self.remove(tx, rest)
        return found

    def remove(self, tx: Tracer, rest: dict[Any, tuple[Value, Any]]) -> None:
        """Keep only these entries."""
        tx.journal.set_attr(self, "removals", self.removals + 1)
        if self.source is not None:
            gone = {hashed: None for hashed in self.entries if hashed not in rest and is_literal(hashed)}
            tx.journal.set_attr(self, "removed", {**self.removed, **gone})
        check_removed((value for _, value in self.entries.values()), (value for _, value in rest.values()))
        tx.journal.replace_all(self.entries, rest)

    def become_copy(self, tx: Tracer, other: Any) -> bool:
        """If it is new: begin as a copy of a dictionary that is long or had another length before, as those have that a
        program adds to (`{**log, step: loss}`), and depend on none of its keys; whether that was so."""
        plain = all(type(each) is DictVal and each.kind is dict and not each.iterated for each in (self, other))
        if not plain or self.source is not None or self.entries or not self.complete:
            return False
        if other.complete or other.raw or other._compares_itself():
            return False
        count = dict.__len__(other.real_dict)
        if not length_varies(tx, count, length_source(other.read_from, dict.__len__)) and count < LONG:
            return False
        tx.journal.changed.append(self)
        for name in ("real_dict", "has_varying_keys", "complete"):
            tx.journal.set_attr(self, name, getattr(other, name))
        tx.journal.set_attr(self, "copied_from", other.read_from)
        tx.journal.replace_all(self.entries, dict(other.entries))
        tx.journal.replace_all(self.written, dict(other.written))
        return True

    def copy_as(self, tx: Tracer, kind: type) -> DictVal:
        copied = DictVal(kind)
        if copied.become_copy(tx, self):
            return copied
        for key, value in self.items(tx):
            copied.entries[key.hash_key(tx)] = (key, value)
        return copied

    def copied(self, tx: Tracer, part: Callable[[Value], Value], remember: Callable[[Value], Value]) -> Value:
        if self.kind is collections.OrderedDict and self.source is not None and not self.raw:
            # one that has no attributes now may have some another time, and they are copied
            tx.guard(InstanceAttrSource(self.source, "__dict__"), "LEN", 0)
        made = DictVal(self.kind)
        remember(made)
        for key, value in self.items(tx):
            own = part(key)
            if own is key:
                made.entries[key.hash_key(tx)] = (key, part(value))
            else:
                made.setitem(tx, own, part(value))
        return made

    def binary(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        if symbol != "|" or not isinstance(right, DictVal):
            return None
        made = self.copy_as(tx, self.kind)
        for key, value in right.items(tx):
            made.setitem(tx, key, value)
        return made

    def ibinary(self, tx: Tracer, symbol: str, right: Value) -> bool:
        if symbol == "|":
            self.call_method(tx, "update", [right], {})
        return symbol == "|"

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        if not isinstance(other, DictVal):
            return None
        ours, theirs = self.items(tx), {key.hash_key(tx): value for key, value in other.items(tx)}
        if len(ours) != len(theirs):
            return False
        return all(
            key.hash_key(tx) in theirs
            and (identical(tx, value, theirs[key.hash_key(tx)]) or tx.equal(value, theirs[key.hash_key(tx)]))
            for key, value in ours
        )

    # -- generated code

    def children(self) -> Sequence[Value]:
        found = []
        for key, value in self.entries.values():
            found.append(key)
            if not isinstance(value, Lazy):
                found.append(value)
        return found

    def read_parts(self, out: Any) -> None:
        # the one that this is a copy of may be changed before this one is made
        if not self.complete:
            out.keep_result(self, dict.copy, self.read_from)
        for _, value in self.entries.values():
            if type(value) is Lazy:
                out.ensure_source(value.source)

    def push_entries(self, out: Any) -> None:
        """Push a plain dict of the entries."""
        if self.complete:
            push_dict(out, self.entries)
            return
        written = {hashed: self.entries[hashed] for hashed in self.written}
        out.call_on(_filled, Pushed(lambda out: out.load_kept(self)), Pushed(lambda out: push_dict(out, written)))

    def rebuildable(self) -> bool:
        return self.source is not None or not collide(self.entries)

    def rebuild(self, out: Any) -> None:
        if self.kind is dict:
            self.push_entries(out)
        else:
            out.call_const(self.kind, lambda: self.push_entries(out), 1)

    def emit_effect(self, out: Any) -> None:
        """Bring the real dictionary up to date, its order included."""
        gone = self.removed if self.complete else ()
        entries = self.entries if self.complete else {hashed: self.entries[hashed] for hashed in self.written}
        pushed = Pushed(lambda out: push_dict(out, entries))
        out.run(replace_entries if self.complete else store_entries, self.source, pushed, *gone)


class OverlaidDict(DictVal):
    """A real dictionary of which the program's changes are kept elsewhere, name by name."""

    def changed(self, tx: Tracer, name: Any) -> tuple[Value | None] | None:
        """What the program made of the entry: (value,), (None,) if it is gone; None if it is untouched. Of None:
        whether anything was changed."""
        raise NotImplementedError

    def lookup_hashed(self, tx: Tracer, hashed: Any, key: Value) -> Value | None:
        found = self.changed(tx, hashed) if isinstance(hashed, str) else None
        return super().lookup_hashed(tx, hashed, key) if found is None else found[0]

    def contains(self, tx: Tracer, item: Value) -> bool:
        hashed = item.hash_key(tx)
        found = self.changed(tx, hashed) if isinstance(hashed, str) else None
        return super().contains(tx, item) if found is None else found[0] is not None

    def _unchanged(self, tx: Tracer) -> None:
        if self.changed(tx, None) is not None:
            self.unsupported("reading all of it after a change")

    def materialise(self, tx: Tracer) -> None:
        self._unchanged(tx)
        super().materialise(tx)

    def length(self, tx: Tracer) -> Value:
        self._unchanged(tx)
        return super().length(tx)

    def iterator_over(self, tx: Tracer, what: str, backwards: bool = False) -> Value:
        self._unchanged(tx)  # one made for real before the change would notice it
        return super().iterator_over(tx, what, backwards)


def _plain(hashed: Any) -> Any:
    """The real key of one that a guard can hold, at the call at hand."""
    return hashed.hint if type(hashed) is VaryingKey else hashed


def _filled(copied: dict[Any, Any], entries: dict[Any, Any]) -> dict[Any, Any]:
    """In generated code."""
    copied.update(entries)
    return copied


def _compares_itself(cls: type) -> bool:
    return isinstance(cls.__eq__, types.FunctionType) or isinstance(cls.__hash__, types.FunctionType)


class DictIterator(PositionIterator):
    """Over keys, values or items; changing the size meanwhile raises as in CPython."""

    def __init__(self, mapping: DictVal, what: str, backwards: bool = False) -> None:
        self.container = mapping
        mapping.iterated = True
        self.what = what
        self.backwards = backwards
        #: the dictionary's when the iterator was made, if that was known then; -1 after it was found to have changed
        self.size = len(mapping.entries) if mapping.complete else None
        self.removals = mapping.removals
        self.kind = type(iter(getattr(mapping.kind(), what)()))

    def count(self, tx: Tracer) -> int:
        count: int | None = self.container.by_position(tx)
        return len(self.container.entries) if count is None else count

    def check(self, tx: Tracer) -> None:
        if self.container.by_position(tx) is None:
            self.container.materialise(tx)
        if self.size is None:
            tx.journal.set_attr(self, "size", self.count(tx))
        if self.size != self.count(tx):
            tx.journal.set_attr(self, "size", -1)
            raise tx.raised(RuntimeError, "dictionary changed size during iteration")
        if self.removals != self.container.removals:
            self.unsupported("going on after keys were exchanged")

    def item(self, tx: Tracer, index: int) -> Value:
        count = self.container.by_position(tx)
        if count is not None:
            key, value = self.container.at_position(tx, count - 1 - index if self.backwards else index)
        else:
            hashed = [*self.container.entries][-1 - index if self.backwards else index]
            key, value = self.container.entries[hashed]
        if self.what == "keys":
            return key
        if count is None:
            value = self.container._resolve(tx, hashed, (key, value))
        return value if self.what == "values" else tx.new_tuple([key, value])

    def rebuildable(self) -> bool:
        return self.ended or (self.removals == self.container.removals and self.size != -1)

    def rebuild(self, out: Any) -> None:
        if not self.ended:
            out.bring_up_to_date(self.container)  # an iterator made before the change would notice it
        # when it ended, over an empty dictionary of the kind
        mapping = self.container.kind if self.ended else self.container
        out.call_on(_dict_iterator_at, mapping, self.what, -1 if self.ended else self.index, self.backwards)


def _value_at(position: int, mapping: dict[Any, Any]) -> Any:
    """Where a guard or generated code reads it."""
    values = (collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict).values(mapping)
    return [*values][position]


def _dict_iterator_at(mapping: Any, what: str, index: int, backwards: bool) -> Any:
    """An iterator over a dictionary that has given `index` items, or came to its end (-1); in generated code."""
    mapping = mapping() if index < 0 else mapping
    view = getattr(collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict, what)(mapping)
    iterator = reversed(view) if backwards else iter(view)
    for _ in range(abs(index)):
        next(iterator, None)  # none of an empty dictionary
    return iterator


class DictViewVal(SetLike):
    """`d.keys()`, `d.values()`, `d.items()`."""

    child_names = ("mapping",)

    def __init__(self, mapping: DictVal, what: str) -> None:
        self.mapping = mapping
        self.what = what

    def py_type(self) -> type:
        return type(getattr(self.mapping.kind(), self.what)())

    def iterate(self, tx: Tracer) -> Value:
        return self.mapping.iterator_over(tx, self.what)

    def iterate_backwards(self, tx: Tracer) -> Value:
        return self.mapping.iterator_over(tx, self.what, backwards=True)

    def length(self, tx: Tracer) -> Value:
        return self.mapping.length(tx)

    def unread(self) -> int:
        return self.mapping.unread()

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        return parts_to_graph(tx, drain(tx, self.iterate(tx)))

    def truth(self, tx: Tracer) -> bool:
        return self.mapping.truth(tx)

    def contains(self, tx: Tracer, item: Value) -> bool:
        if self.what == "keys":
            return self.mapping.contains(tx, item)
        if self.what == "values":
            return any(identical(tx, member, item) or tx.equal(member, item) for member in tx.unpack(self))
        if not issubclass(item.py_type(), tuple):
            return False
        pair = tx.unpack(item.payload or item)
        found = self.mapping.lookup(tx, pair[0]) if len(pair) == 2 else None
        return found is not None and (identical(tx, found, pair[1]) or tx.equal(found, pair[1]))

    @property
    def compares(self) -> bool:  # type: ignore[override]
        return self.what != "values"  # of which each call makes a view, equal to itself alone

    def look_into(self, tx: Tracer) -> None:
        self.mapping.look_into(tx)

    def real(self) -> Any:
        return getattr(self.mapping.real(), self.what)()

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "isdisjoint" and self.what == "keys":
            return self.as_set(tx).getattr(tx, name)
        return super().getattr(tx, name)

    def as_set(self, tx: Tracer) -> SetVal:
        return SetVal.of(tx, tx.unpack(self))

    def as_operand(self, entries: dict[Any, Value]) -> History:
        return view_of(entries, self.what, self.mapping.kind is dict)

    def rebuild(self, out: Any) -> None:
        out.call_on(getattr(self.mapping.kind, self.what), self.mapping)


DICT_METHODS: dict[str, Model] = {}
dict_method = entering(DICT_METHODS)


@dict_method
def get(tx: Tracer, self: DictVal, key: Value, default: Value | None = None) -> Value:
    found = self.lookup(tx, key)
    return found if found is not None else default or ConstVal(None)


def _view(what: str, tx: Tracer, self: DictVal) -> Value:
    return DictViewVal(self, what)


DICT_METHODS.update({what: functools.partial(_view, what) for what in ("keys", "values", "items")})


@dict_method
def pop(tx: Tracer, self: DictVal, key: Value, default: Value | None = None) -> Value:
    if default is not None and not self.contains(tx, key):
        return default
    return self.take(tx, key)


@dict_method
def popitem(tx: Tracer, self: DictVal, last: Value | None = None) -> Value:
    entries = self.items(tx)
    if not entries:
        raise tx.raised(KeyError, "popitem(): dictionary is empty")
    key, value = entries[-1 if last is None or last.truth(tx) else 0]
    self.take(tx, key)
    return tx.new_tuple([key, value])


@dict_method
def setdefault(tx: Tracer, self: DictVal, key: Value, default: Value | None = None) -> Value:
    found = self.lookup(tx, key)
    if found is None:
        found = default or ConstVal(None)
        self.setitem(tx, key, found)
    return found


@dict_method
def update(tx: Tracer, self: DictVal, other: Value | None = None, /, **kwargs: Value) -> None:
    for key, value in pairs_of(tx, other, self.kind) if other is not None else ():
        self.setitem(tx, key, value)
    for name, value in kwargs.items():
        self.setitem(tx, ConstVal(name), value)


@dict_method
def clear(tx: Tracer, self: DictVal) -> None:
    self.mutate(tx)
    self.remove(tx, {})


@dict_method
def copy(tx: Tracer, self: DictVal) -> Value:
    return self.copy_as(tx, self.kind)


@dict_method
def move_to_end(tx: Tracer, self: DictVal, key: Value, last: Value | None = None) -> None:
    value = self.take(tx, key)
    if last is None or last.truth(tx):
        self.setitem(tx, key, value)
    else:
        self.remove(tx, {key.hash_key(tx): (key, value), **self.entries})


def _is_asked(kind: type, own: type, into: type) -> bool:
    """Whether C code that copies an instance of a subclass of `own` has to ask it for its keys and values: a dict does
    so if it has an `__iter__` of its own, as an OrderedDict has."""
    if into is dict and getattr(kind, "__iter__", None) is dict.__iter__:
        return False
    return any(getattr(kind, name) is not getattr(own, name) for name in ("keys", "__getitem__"))


def pairs_of(tx: Tracer, value: Value, into: type = dict) -> list[tuple[Value, Value]]:
    """Keys and values of a mapping, or of an iterable of pairs, as they are put `into` a dict or an OrderedDict."""
    payload = value.payload
    mapping = value if isinstance(value, DictVal) else payload
    if isinstance(mapping, DictVal) and (value is mapping or not _is_asked(value.py_type(), mapping.kind, into)):
        return mapping.items(tx)
    if not isinstance(value, DictViewVal) and hasattr(value.py_type(), "keys"):
        with tx.not_resumable():
            return [(key, value.getitem(tx, key)) for key in tx.unpack(value.call_method(tx, "keys", (), {}))]
    found = []
    for position, item in enumerate(tx.unpack(value)):
        try:
            pair = tx.unpack(item)
        except Raised as raised:
            raise GraphBreak(breaks.RAISES, f"{raised.value.py_type().__name__} in pair {position}") from None
        if len(pair) != 2:  # those before it are in the dictionary by then
            raise GraphBreak(breaks.RAISES, f"ValueError: pair {position} has {len(pair)} items")
        found.append((pair[0], pair[1]))
    return found
