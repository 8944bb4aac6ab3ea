"""Objects written in C that the traced program made itself, from what is known, and that only their own methods change.

In: what makes the object, and the calls of its methods so far. Out: `ReplayedVal`. The calls run for real while
tracing, on an object that nobody else has; generated code makes another one and repeats those that change it. To admit
a class, add what its methods are to `KINDS` and its maker to `builtins/replaying.py`.
"""

from __future__ import annotations

import _thread
import array
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dynajit.bytecode.landing import Landing
from dynajit.report import breaks
from dynajit.values.base import GraphBreak, NotReal, Tracer, Value
from dynajit.values.constant import ConstVal, is_literal


class Kind(NamedTuple):
    """What is known of a class: methods that only read, methods that change the object, attributes."""

    reading: frozenset[str]
    changing: frozenset[str]
    attributes: frozenset[str] = frozenset()


def _kind(reading: str, changing: str, attributes: str = "") -> Kind:
    return Kind(frozenset(reading.split()), frozenset(changing.split()), frozenset(attributes.split()))


_STREAM = _kind(
    "getvalue tell readable writable seekable",
    "write writelines read readline readlines seek truncate close flush __enter__ __exit__",
    "closed",
)
HASH = _kind("digest hexdigest", "update", "name digest_size block_size")
_LOCK = _kind("locked", "acquire release __enter__ __exit__")
KINDS: dict[type, Kind] = {
    io.StringIO: _STREAM,
    io.BytesIO: _STREAM,
    array.array: _kind(
        "count index tolist tobytes __len__ __getitem__ __contains__",
        "append extend insert pop remove reverse frombytes byteswap __setitem__ __delitem__",
        "typecode itemsize",
    ),
    _thread.LockType: _LOCK,
    _thread.RLock: _kind("", "acquire release __enter__ __exit__"),
}
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def known_argument(value: Value) -> Any:
    """The immutable object that stands for an argument; a tuple for a list."""
    if value.is_const():
        found = value.const()
        if is_literal(found):
            return found
    if value.py_type() in (list, tuple):
        try:
            items = tuple(value.real())
        except NotReal:
            items = (value,)
        if all(map(is_literal, items)):
            return items
    raise GraphBreak(breaks.UNKNOWN_CALL, f"a method written in C, with {value.describe()}")


def replay(make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], calls: Sequence[Call]) -> Any:
    """The object as it is behind these calls of its methods."""
    made = make(*args, **kwargs)
    for name, given, named in calls:
        getattr(made, name)(*given, **named)
    return made


class ReplayedVal(Value):
    """One such object."""

    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], kind: Kind) -> None:
        self.make = make
        self.args = args
        self.kwargs = kwargs
        self.kind = kind
        self.calls: list[Call] = []  # those that change it
        self._object: Any = make(*args, **kwargs)

    def object(self) -> Any:
        """The object as it is now, for nobody to keep."""
        if self._object is None:
            self._object = replay(self.make, self.args, self.kwargs, self.calls)
        return self._object

    def _take_back(self) -> None:
        self.calls.pop()
        self._object = None

    def py_type(self) -> type:
        return type(self.object())

    def run(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """Call a method."""
        # what a block raised does not matter to these
        given = (None, None, None) if name == "__exit__" else tuple(known_argument(arg) for arg in args)
        named = {key: known_argument(arg) for key, arg in kwargs.items()}
        real = self.object()
        if name in ("acquire", "__enter__") and self.kind is _LOCK and real.locked():
            raise GraphBreak(breaks.UNKNOWN_CALL, f"{name} of a lock that is held")
        try:
            found = getattr(real, name)(*given, **named)
        except Exception as error:
            self._object = None  # it may have changed in part
            raise GraphBreak(breaks.RAISES, f"{type(error).__name__} of {self._called(name)}") from None
        if name in self.kind.changing:
            self.calls.append((name, given, named))
            tx.journal.changes += 1
            tx.journal.record(self._take_back)
        if found is real:
            return self
        if is_literal(found) or (type(found) is list and all(map(is_literal, found))):
            return tx.from_real(found)
        raise GraphBreak(breaks.UNKNOWN_CALL, self._called(name))

    def _called(self, name: str) -> str:
        return f"{self.py_type().__qualname__}.{name}"

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in self.kind.attributes and not (self.py_type() in (io.StringIO, io.BytesIO) and name != "closed"):
            return tx.from_real(getattr(self.object(), name))
        if name in self.kind.reading or name in self.kind.changing:
            return ReplayedMethod(self, name)
        if not hasattr(self.object(), name):
            return tx.fold(getattr, [self, ConstVal(name)])  # raises
        raise GraphBreak(breaks.UNKNOWN_CALL, self._called(name))

    def _special(self, tx: Tracer, name: str, *args: Value) -> Value:
        if name not in self.kind.reading and name not in self.kind.changing:
            self.unsupported(name)
        return self.run(tx, name, args, {})

    def truth(self, tx: Tracer) -> bool:
        return bool(self.object())

    def length(self, tx: Tracer) -> Value:
        return self._special(tx, "__len__")

    def getitem(self, tx: Tracer, key: Value) -> Value:
        return self._special(tx, "__getitem__", key)

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        self._special(tx, "__setitem__", key, value)

    def delitem(self, tx: Tracer, key: Value) -> None:
        self._special(tx, "__delitem__", key)

    def contains(self, tx: Tracer, item: Value) -> bool:
        return self._special(tx, "__contains__", item).truth(tx)

    def rebuild(self, out: Any) -> None:
        made = (self.make, self.args, self.kwargs, tuple(self.calls))
        out.call_const(replay, lambda: [out.const(part) for part in made], len(made))


class ReplayedMethod(Value):
    """A method of such an object."""

    def __init__(self, owner: ReplayedVal, name: str) -> None:
        self.owner = owner
        self.name = name

    def py_type(self) -> type:
        return type(len)

    def describe(self) -> str:
        return f"{self.name} of {self.owner.describe()}"

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Landing | None = None) -> Value:
        return self.owner.run(tx, self.name, args, kwargs)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Any) -> None:
        out.push(self.owner)
        out.emit.load_attr(self.name)
