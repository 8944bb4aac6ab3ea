"""How generated code fills dictionaries and sets: without running the program's `__hash__` or `__eq__` again.

In: the entries of a model. Out: `push_dict`, `push_members`, which push a new plain dict or set in generated code; and
what that code calls to bring a real dictionary or set up to date. The program's `__hash__` ran while tracing, maybe
when the key looked otherwise; so its result goes into the code.
"""

from __future__ import annotations

import collections
import functools
import itertools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dynajit import _C
from dynajit.values.containers.keys import has_user_key
from dynajit.values.core.effect import Pushed
from dynajit.values.core.value import Value
from dynajit.values.scalars.constant import is_literal


def push_dict(out: Any, entries: dict[Any, tuple[Value, Any]]) -> None:
    """Push a plain dict of the entries; a value that nobody looked at is loaded."""
    hashes = known_hashes(entries)
    if hashes is not None:
        out.call_on(_C.dict_with_hashes, hashes, *itertools.chain.from_iterable(entries.values()))
        return
    for key, value in entries.values():
        out.push(key)
        out.push_value(value)
    out.emit.build_map(len(entries))


def push_members(out: Any, entries: dict[Any, Value], in_order: bool = False) -> None:
    """Push a plain set of the members; `in_order`: what `replace_members` takes."""
    hashes = known_hashes(entries)
    if hashes is None:
        for member in entries.values():
            out.push(member)
        build = out.emit.build_tuple if in_order else out.emit.build_set
        build(len(entries))
        return
    pairs = [part for member in entries.values() for part in (member, None)]
    if in_order:
        out.call_on(_C.dict_with_hashes, hashes, *pairs)
    else:
        out.call_const(set, lambda: out.call_on(_C.dict_with_hashes, hashes, *pairs), 1)


def known_hashes(keys: Iterable[object]) -> tuple[int | None, ...] | None:
    """For each key its hash if the program's code computes it; None if that is so for no key."""
    hashes = tuple(hash(key) if has_user_key(key) else None for key in keys)
    return hashes if any(hashed is not None for hashed in hashes) else None


def replace_entries(real: dict[Any, Any], entries: dict[Any, Any], *removed: Any) -> None:
    """Give `real` exactly these entries in this order, without running code of a subclass. Keys that were `removed`
    meanwhile are taken away first, even if they come back: whoever iterates over the dictionary would notice."""
    cls: Any = collections.OrderedDict if isinstance(real, collections.OrderedDict) else dict
    for key in removed:
        cls.pop(real, key, None)
    if not _begins_with(list(cls.keys(real)), [*entries]):
        cls.clear(real)
    store_entries(real, entries)


def _begins_with(keys: Sequence[object], wanted: Sequence[object]) -> bool:
    return len(keys) <= len(wanted) and all(map(_same_key, keys, wanted))


def _same_key(key: object, other: object) -> bool:
    return key is other or (type(key) is type(other) and is_literal(key) and key == other)


def store_entries(real: dict[Any, Any], entries: dict[Any, Any]) -> None:
    """Entries of a plain dict into a dictionary, without running code of a subclass; only an OrderedDict asks the keys
    for their hashes again."""
    store: Any = dict.__setitem__
    if isinstance(real, collections.OrderedDict):
        store = collections.OrderedDict.__setitem__
    elif dict.__len__(real) or not all(map(is_literal, entries)):
        dict.update(real, entries)
        return
    # into an empty dictionary `update` copies the whole table: who iterates over it would not notice
    for key, value in entries.items():
        store(real, key, value)


def replace_members(real: set[Any], members: tuple[Any, ...] | dict[Any, None]) -> None:
    """Give `real` exactly these members, one by one, as the program did most likely: what else would order them anew. A
    dict has their hashes."""
    has_hashes = type(members) is dict
    wanted = members if has_hashes else set(members)
    for gone in [each for each in set.__iter__(real) if each not in wanted]:
        set.discard(real, gone)
    if has_hashes:
        set.update(real, members)
    else:
        for member in members:
            set.add(real, member)


def fill_mapping(out: Any, cls: type, made: Value, entries: dict[Any, tuple[Value, Any]]) -> None:
    """Put entries into an instance of a dict subclass without running the subclass's code."""
    store = _own_store(cls)
    if all(map(is_literal, entries)) and store in (dict.__setitem__, collections.OrderedDict.__setitem__):
        out.run(_C.fill_entries, made, *itertools.chain.from_iterable(entries.values()))
    else:
        out.run(functools.partial(_fill_mapping, store), made, Pushed(lambda out: push_dict(out, entries)))


def _own_store(cls: type) -> Callable[..., None]:
    """How the class's part that is written in C takes entries."""
    for base in cls.__mro__:
        found = base.__dict__.get("__setitem__")
        if found is not None and not isinstance(found, types.FunctionType):
            store: Callable[..., None] = found
            return store
    return dict.__setitem__


def _fill_mapping(store: Callable[..., None], made: Any, entries: dict[Any, Any]) -> None:
    if store is dict.__setitem__:
        dict.update(made, entries)
        return
    for key, value in entries.items():
        store(made, key, value)
