"""Objects written in C that the traced program made itself, from what is known, and that only their own methods change:
streams in memory, arrays, hashes, locks, seeded random numbers.

In: what makes the object, and the calls of its methods so far. Out: `ReplayedVal`. The calls run for real while
tracing, on an object that nobody else has; generated code makes another one and repeats those that change it. To admit
a class, add what its methods are to the table `_KINDS`.
"""

from __future__ import annotations

import _thread
import array
import hashlib
import io
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dynajit.report import breaks
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.bound_methods import BoundMethod
from dynajit.values.core.registry import models_of
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value
from dynajit.values.scalars.constant import ConstVal, is_literal


class ReplayedClass(NamedTuple):
    """What is known of a class: methods that only read, methods that change the object, attributes; methods among the
    second that draw from a container; what gives the object's state and sets it, which stands for all calls."""

    reading: frozenset[str]
    changing: frozenset[str]
    attributes: frozenset[str] = frozenset()
    drawing: frozenset[str] = frozenset()
    state: tuple[str, ...] = ()


def _kind(reading: str, changing: str, attributes: str = "", drawing: str = "", state: str = "") -> ReplayedClass:
    changes = frozenset(f"{changing} {drawing}".split())
    named = frozenset(reading.split()), changes, frozenset(attributes.split()), frozenset(drawing.split())
    return ReplayedClass(*named, tuple(state.split()))


_STREAM = _kind(
    "getvalue tell readable writable seekable",
    "write writelines read readline readlines seek truncate close flush __enter__ __exit__",
    "closed",
)
_ARRAY = _kind(
    "count index tolist tobytes __len__ __getitem__ __contains__",
    "append extend insert pop remove reverse frombytes byteswap __setitem__ __delitem__",
    "typecode itemsize",
)
_HASH = _kind("digest hexdigest", "update", "name digest_size block_size")
_LOCK = _kind("locked", "acquire release __enter__ __exit__")
_RECURSIVE_LOCK = _kind("", "acquire release __enter__ __exit__")
_RANDOM = _kind(
    "getstate",
    "random uniform triangular gauss normalvariate lognormvariate expovariate vonmisesvariate gammavariate betavariate "
    "paretovariate weibullvariate randint randrange getrandbits randbytes binomialvariate seed setstate",
    drawing="choice choices sample shuffle",
    state="getstate setstate",
)
_HASHES = (getattr(hashlib, name) for name in sorted(hashlib.algorithms_guaranteed))
_KINDS: dict[Any, ReplayedClass] = {
    io.StringIO: _STREAM,
    io.BytesIO: _STREAM,
    array.array: _ARRAY,
    threading.Lock: _LOCK,
    threading.RLock: _RECURSIVE_LOCK,
    hashlib.new: _HASH,
    **{made: _HASH for made in _HASHES if not isinstance(made, type)},
}
_METHODS: Any = random.Random
_ORIGINAL = {name: getattr(_METHODS, name, None) for name in _RANDOM.reading | _RANDOM.changing}
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def known_argument(value: Value) -> Any:
    """An argument as an immutable object: a tuple for a list."""
    if value.is_const():
        found = value.const()
        if is_literal(found):
            return found
    if value.py_type() in (list, tuple):
        try:
            items = tuple(value.real())
        except NotReal:
            items = (value,)
        if all(map(_is_plain, items)):
            return items
    raise GraphBreak(breaks.UNKNOWN_CALL, f"a method written in C, with {value.describe()}")


def _is_plain(found: object) -> bool:
    """Whether it is a literal or a tuple of these."""
    return is_literal(found) or (type(found) is tuple and all(map(_is_plain, found)))


def replay(make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], calls: Sequence[Call]) -> Any:
    """The object as it is after these calls of its methods."""
    made = make(*args, **kwargs)
    for name, given, named in calls:
        getattr(made, name)(*given, **named)
    return made


class ReplayedVal(Value):
    """An object whose state is the calls of its methods."""

    def __init__(
        self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], methods: ReplayedClass
    ) -> None:
        self.make = make
        self.args = args
        self.kwargs = kwargs
        self.methods = methods
        self.calls: list[Call] = []  # those that change it
        self._object: Any = make(*args, **kwargs)

    def object(self) -> Any:
        """The object as it is now, not to be kept."""
        if self._object is None:
            self._object = replay(self.make, self.args, self.kwargs, self.calls)
        return self._object

    def _take_back(self) -> None:
        self.calls.pop()
        self._object = None

    def py_type(self) -> type:
        return type(self.object())

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if not isinstance(self.getattr(tx, name), ReplayedMethod):
            return super().call_method(tx, name, args, kwargs)
        if self.methods is _RANDOM and not is_original():
            raise GraphBreak(breaks.SKIPPED_CALL, f"random.{name} while methods of random.Random are replaced")
        items = args[0] if name in self.methods.drawing and args else None
        rest = args if items is None else args[1:]
        # what a block raised does not matter to these
        given = (None, None, None) if name == "__exit__" else tuple(known_argument(arg) for arg in rest)
        named = {key: known_argument(arg) for key, arg in kwargs.items()}
        if items is not None:
            return self._draw(tx, name, items, given, named)
        self._check(name, given)
        found = self._run(tx, name, given, named)
        if found is self._object:
            return self
        if _is_plain(found) or (type(found) is list and all(map(is_literal, found))):
            return tx.from_real(found)
        raise GraphBreak(breaks.UNKNOWN_CALL, self._called(name))

    def _check(self, name: str, given: tuple[Any, ...]) -> None:
        if name in self.methods.drawing or (name == "seed" and (not given or given[0] is None)):
            raise GraphBreak(breaks.SKIPPED_CALL, f"{self._called(name)} by the clock, or with arguments by name alone")
        if name in ("acquire", "__enter__") and self.methods is _LOCK and self.object().locked():
            raise GraphBreak(breaks.UNKNOWN_CALL, f"{name} of a lock that is held")

    def _run(self, tx: Tracer, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        tx.journal.hidden_reads += 1
        try:
            found = getattr(self.object(), name)(*given, **named)
        except Exception as error:
            self._object = None  # it may have changed in part
            raise GraphBreak(breaks.RAISES, f"{type(error).__name__} of {self._called(name)}: {error}") from None
        if name in self.methods.changing:
            self.calls.append((name, given, named))
            tx.journal.changed.append(self)
            tx.journal.record(self._take_back)
        return found

    def _draw(self, tx: Tracer, name: str, items: Value, given: tuple[Any, ...], named: dict[str, Any]) -> Value:
        """Draw items of a container: which ones depends on its length alone."""
        count, item = _picked_from(tx, items)
        places: Any = range(count) if name != "shuffle" else list(range(count))
        if name == "shuffle" and not isinstance(items, ListVal):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"Random.shuffle of {items.describe()}")
        found = self._run(tx, name, (places, *given), named)
        if isinstance(items, ListVal) and name == "shuffle":
            items.replace(tx, [item(index) for index in places])
            return ConstVal(None)
        return item(found) if name == "choice" else ListVal([item(index) for index in found])

    def _called(self, name: str) -> str:
        return f"{self.py_type().__qualname__}.{name}"

    def getattr(self, tx: Tracer, name: str) -> Value:
        if not hasattr(self.object(), name):
            return tx.fold(getattr, [self, ConstVal(name)])  # raises
        if name in self.methods.attributes:
            return tx.from_real(getattr(self.object(), name))
        if name in self.methods.reading or name in self.methods.changing:
            return ReplayedMethod(self, name)
        raise GraphBreak(breaks.UNKNOWN_CALL, self._called(name))

    def _special(self, tx: Tracer, name: str, *args: Value) -> Value:
        if name not in self.methods.reading and name not in self.methods.changing:
            self.unsupported(name)
        return self.call_method(tx, name, args, {})

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
        calls = tuple(self.calls)
        if self.methods.state:
            get, set_ = self.methods.state
            calls = ((set_, (getattr(self.object(), get)(),), {}),)
        out.call_on(replay, self.make, self.args, self.kwargs, calls)


class ReplayedMethod(BoundMethod):
    """A method of such an object."""

    def py_type(self) -> type:
        return type(getattr(self.owner.object(), self.name))


def _picked_from(tx: Tracer, items: Value) -> tuple[int, Callable[[int], Value]]:
    """How many there are to draw from, and the item of a number."""
    if isinstance(items, (ListVal, TupleVal)):
        values = items.values(tx)
        return len(values), values.__getitem__
    if items.is_const() and items.py_type() in (str, bytes, range):
        real = items.const()
        return len(real), lambda index: tx.from_real(real[index])
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"drawing from {items.describe()}")


def is_original() -> bool:
    """Whether the methods of `random.Random` are the library's."""
    return all(getattr(_METHODS, name, None) is found for name, found in _ORIGINAL.items())


def seeded(seed: float | str | bytes) -> Value:
    """The model of `random.Random(seed)`."""
    return ReplayedVal(random.Random, (seed,), {}, _RANDOM)


@models_of(*_KINDS)
def _make(make: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    given = tuple(known_argument(arg) for arg in args)
    named = {name: known_argument(arg) for name, arg in kwargs.items()}
    with ending_graph(breaks.RAISES, make.__qualname__, Exception):
        return ReplayedVal(make, given, named, _KINDS[make])


_LOCKS: tuple[type, ...] = (_thread.LockType, _thread.RLock)
_LOCKING = ("__enter__", "__exit__", "acquire", "release", "locked")


@models_of(*(getattr(cls, name) for cls in _LOCKS for name in _LOCKING if hasattr(cls, name)))
def _outside_lock(function: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """A lock from outside: what it protects, other threads may read and write."""
    raise GraphBreak(breaks.HELD_LOCK, function.__qualname__)
