"""Keys of a dictionary that are other numbers or texts at each call: `history[step]`, `seen[f"{name}/{step}"]`.

In: a dictionary from outside of which nothing depends on all its keys, and a key that is computed of numbers that vary.
Out: `VaryingKey`, which stands for the key in the model's tables. Whether the real dictionary has the key is guarded as
what a function of the dictionary and the numbers gives, and the value is read by such a function: nothing depends on
which key it is. Members of a set and indices of a list are such keys, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynajit import _C
from dynajit.guards.source import CallSource, Source, TogetherSource
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.number_calls import MAX_NUMBERS, NumberCall, escaped, varies

_KEYS = (int, float, str)
# classes of which no two objects are equal, if both are of different rows
_UNLIKE = ({int, float, bool}, {str}, {tuple}, {type(None)})


class VaryingKey:
    """Stands for such a key. Two are equal if they are written alike.

    Attributes:
        value: the key's model.
        hint: the key of the call at hand.
        contains, getitem: the sources of whether the dictionary, set or list has the key, and of what is there.
    """

    __slots__ = ("contains", "getitem", "hint", "text", "value")

    def __init__(self, kind: Any, source: Source, value: Value, call: NumberCall, code: str, shown: str) -> None:
        names, places = ", ".join(call.numbers), [source for source, _ in call.numbers.values()]
        make: Callable[..., Any] = eval(f"lambda {names}: {code}", call.known)
        self.value = value
        self.hint = make(*(hint for _, hint in call.numbers.values()))
        self.text = escaped(shown.format(*(source.name() for source in places)))
        base = TogetherSource([source, *places])
        find, get = (in_range, list.__getitem__) if kind is list else (kind.__contains__, dict.__getitem__)
        self.contains = self._found(base, "has", names, code, {"use": find, **call.known})
        self.getitem = self._found(base, "item", names, code, {"use": get, **call.known})

    def _found(self, base: Source, what: str, names: str, code: str, known: dict[str, Any]) -> CallSource:
        # one Python call, as it is made at each call of the program's
        exec(f"def look_up(found):\n    table, {names} = found\n    return use(table, {code})", known)
        _C.mark_ours(known["look_up"].__code__)
        return CallSource(base, known["look_up"], f"{what} {self.text} of {{}}")

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return type(other) is VaryingKey and other.text == self.text


def in_range(items: list[Any], index: int) -> bool:
    """Whether the list has an item there."""
    count = list.__len__(items)
    return -count <= index < count


def varying_key(tx: Tracer, source: Source, key: Value, kind: type = dict) -> VaryingKey | None:
    """What stands for the key in a dictionary, set or list that is there; None if the key itself is needed."""
    if tx.static_numbers or not _may_vary(tx, key):
        return None
    call = NumberCall(tx, hash)
    written = _written(tx, call, key)
    if written is None or not 1 <= len(call.numbers) < MAX_NUMBERS:
        return None
    return VaryingKey(kind, source, key, call, *written)


def read_at(tx: Tracer, key: VaryingKey, found: Any) -> Value:
    """The model of what is there, which may be something else at the next call."""
    tx.seen.made_anew.add(key.getitem)
    if type(found) in (int, float, str, bytes):
        tx.seen.expect(key.getitem)
    return tx.wrap(found, key.getitem)


def differ(tx: Tracer, key: Value, other: Value) -> bool:
    """Whether two keys, of which one varies, are known to be different ones; of numbers that is guarded."""
    kinds = {key.py_type(), other.py_type()}
    if kinds == {int} or (kinds == {str} and not _may_vary(tx, key) and not _may_vary(tx, other)):
        return not tx.equal(key, other)
    if kinds == {tuple}:
        parts, others = tx.unpack(key), tx.unpack(other)
        return len(parts) != len(others) or any(differ(tx, *pair) for pair in zip(parts, others, strict=True))
    return kinds <= set().union(*_UNLIKE) and not any(kinds <= row for row in _UNLIKE)


def _may_vary(tx: Tracer, key: Value) -> bool:
    if key.py_type() is tuple:
        return any(_may_vary(tx, part) for part in tx.unpack(key))
    return key.py_type() in _KEYS and varies(key)


def _written(tx: Tracer, call: NumberCall, key: Value) -> tuple[str, str] | None:
    """How the key is written in code and in messages, as `NumberCall.argument`."""
    if key.py_type() is not tuple:
        return call.argument(key) if key.py_type() in (*_KEYS, type(None)) else None
    found = [_written(tx, call, part) for part in tx.unpack(key)]
    if None in found:
        return None
    text, seen = ("".join(f"{each}, " for each in column) for column in zip(*filter(None, found), strict=True))
    return f"({text})", f"({seen})"
