"""Guard kinds on containers: length, keys, members.

In and out: see guard.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from dynajit.guards.guard import GuardKind, guard_kind
from dynajit.guards.kinds_object import const_equal
from dynajit.guards.source import key_identity
from dynajit.report.shown import apart, short


def _length(value: Any) -> int | None:
    kinds: tuple[Any, ...] = (list, tuple, dict, set, frozenset)
    for kind in kinds:
        if isinstance(value, kind):
            return int(kind.__len__(value))
    return None


def _keys(value: dict[Any, Any]) -> list[Any]:
    return list(OrderedDict.__iter__(value) if isinstance(value, OrderedDict) else dict.__iter__(value))


@guard_kind("LEN")
class Length(GuardKind):
    """The length of a list, tuple, dict or set, past any __len__ of a subclass."""

    form = int
    shown = "len({name}) == {p[0]}"

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return _length(value) == params[0]

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        return f"len({name}) was {params[0]}, is {_length(value)}"


def _same_key(key: Any, expected: Any) -> bool:
    """As a dictionary finds it: a tensor of equal value hashes differently."""
    return key is expected or (const_equal(key, expected) and hash(key) == hash(expected))


@guard_kind("DICT_KEYS")
class DictKeys(GuardKind):
    """A dict's keys in order: constants by value, other objects by identity or their own equality."""

    form = tuple
    runs_code = True

    def key(self, params: tuple[Any, ...]) -> Hashable:
        return key_identity(params[0])

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        if not isinstance(value, dict):
            return False
        found = _keys(value)
        return len(found) == len(params[0]) and all(map(_same_key, found, params[0]))

    def pins(self, params: tuple[Any, ...]) -> bool:
        return any(key_identity(key) == ("object", id(key)) for key in params[0])

    def looks_alike(self, value: Any, params: tuple[Any, ...]) -> bool:
        return issubclass(type(value), dict) and [*map(short, _keys(value))] == [*map(short, params[0])]

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        return f"list({name}) == [{', '.join(map(short, params[0]))}]"

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        if not isinstance(value, dict):
            return f"{name} was a dict, is {short(value)}"
        then, now = ("[" + ", ".join(map(short, keys)) + "]" for keys in (params[0], _keys(value)))
        return f"the keys of {name} were {then}, are {now if now != then else f'others that look so: {now}'}"


class _DictMember(GuardKind):
    wanted = True
    runs_code = True

    def normalize(self, *params: Any) -> tuple[Any, ...]:
        (key,) = params
        hash(key)
        return (key,)

    def key(self, params: tuple[Any, ...]) -> Hashable:
        return key_identity(params[0])

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return isinstance(value, dict) and dict.__contains__(value, params[0]) == self.wanted

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        return f"{short(params[0])} {'in' if self.wanted else 'not in'} {name}"

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        if not isinstance(value, dict):
            return f"{name} was a dict, is {short(value)}"
        return f"{short(params[0])} is {'no longer' if self.wanted else 'now'} in {name}"


@guard_kind("DICT_CONTAINS")
class DictContains(_DictMember):
    """A key is there."""


@guard_kind("DICT_MISSING")
class DictMissing(_DictMember):
    """A key is not there."""

    wanted = False


@guard_kind("SET_EQUALS")
class SetEquals(GuardKind):
    """A set or frozenset of exactly these constants."""

    form = frozenset
    runs_code = True

    def key(self, params: tuple[Any, ...]) -> Hashable:
        return frozenset(map(key_identity, params[0]))

    def encode(self, params: tuple[Any, ...]) -> tuple[str, object]:
        return "SET_EQUALS", {member: member for member in params[0]}

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        if not isinstance(value, (set, frozenset)) or _length(value) != len(params[0]):
            return False
        expected = {member: member for member in params[0]}
        return all(member in expected and const_equal(member, expected[member]) for member in value)

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        return f"{name} == {{{', '.join(map(short, params[0]))}}}"

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        then, now = apart(set(params[0]), set(value) if isinstance(value, (set, frozenset)) else value)
        return f"{name} was {then}, is {now}"
