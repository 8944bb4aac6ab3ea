"""Dictionary keys and set members whose class has its own `__hash__`.

In: an object's model. Out: `UserKey`, a Python object that host dictionaries and sets take for the key: its hash is
what the traced `__hash__` gave, its equality traces the class's `__eq__`. So keys are looked for, compared and raise as
in CPython. `hash_of` is the built-in function `hash`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from dynajit.bytecode.return_action import HASHED
from dynajit.report import breaks
from dynajit.values.containers.identity import ObjectKey, identical, object_key
from dynajit.values.core.slots import by_rule
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.number_calls import changes
from dynajit.values.scalars.symbolic import SymVal


class UserKey:
    """Stands for one object in the tables of models."""

    __slots__ = ("hashed", "same", "tx", "value")

    def __init__(self, tx: Tracer, value: Value, hashed: int) -> None:
        self.tx = tx
        self.value = value
        self.hashed = hashed
        self.same: list[UserKey] = []  # those found equal, for the time when nothing can be traced

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if self.tx.journal.rolling_back:
            return any(other is known for known in self.same)
        if isinstance(other, UserKey):
            equal = identical(self.tx, self.value, other.value) or self._compare(other.value)
            if equal:
                self.same.append(other)
                other.same.append(self)
            return equal
        if isinstance(other, (ObjectKey, Value, tuple)):
            return False
        return self._compare(self.tx.from_real(other))

    def _compare(self, other: Value) -> bool:
        """How often the tables here compare is not how often real ones do."""
        changes = self.tx.journal.changes
        equal = self.tx.equal(self.value, other)
        if self.tx.journal.changes != changes:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"an __eq__ with side effects, of {self.value.describe()}")
        return equal


def has_user_key(key: object) -> bool:
    """Whether hashing the key's object runs a user's code."""
    if isinstance(key, (tuple, frozenset)):
        return any(has_user_key(part) for part in key)
    return isinstance(key, UserKey)


class IdVal(Value):
    """`id(obj)`: a number that only the running program knows. It can be compared, and be a key."""

    kind = int
    child_names = ("target",)

    def __init__(self, target: Value) -> None:
        self.target = target

    def describe(self) -> str:
        return f"the id of {self.target.describe()}"

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        if other.py_type() is int and not isinstance(other, IdVal):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "comparing an id() with a number")
        return None

    def hash_key(self, tx: Tracer) -> object:
        if tx.addresses_are_keys:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "an id() as a key, where a number is one")
        if not tx.ids_are_keys:
            tx.journal.set_attr(tx, "ids_are_keys", True)
        return object_key(tx, self.target, _IdKey)

    def rebuild(self, out: Any) -> None:
        out.call_on(id, self.target)


class _IdKey(ObjectKey):
    """Equal to the `id` of the same object, never to a key that is the object itself."""


class _Hashed:
    """Has a known hash."""

    def __init__(self, hashed: int) -> None:
        self.hashed = hashed

    def __hash__(self) -> int:
        return self.hashed


def user_key(tx: Tracer, value: Value, method: Value) -> UserKey:
    """The key of an object whose class defines `__hash__`."""
    changes = tx.journal.changes
    found = tx.call(method, [], {})
    if tx.journal.changes != changes:  # one that keeps its hash changes nothing the next time
        changes = tx.journal.changes
        found = tx.call(method, [], {})
        if tx.journal.changes != changes:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a __hash__ with side effects, of {value.describe()}")
    if isinstance(found, IdVal):
        found = ConstVal(id(_by_address(tx, found.target)))
    hashed = by_rule(tx, found, HASHED)
    if not hashed.is_const():
        hashed.unsupported("a __hash__ that returns")
    return UserKey(tx, value, hashed.const())


def _by_address(tx: Tracer, value: Value) -> object:
    """The one object that this code is for, where its address matters."""
    real = value.value if isinstance(value, ConstVal) else value.real_object
    if real is None or value.source is None:
        value.unsupported("hash()")
    tx.guard(value.source, "ID", real)
    return real


def hash_of(tx: Tracer, value: Value) -> Value:
    """`hash(value)`; a tuple's is made of its items', an address is its own."""
    if isinstance(value, IdVal):
        return value
    if isinstance(value, SymVal) or changes(value):
        return tx.fold(hash, [value])
    if not issubclass(value.py_type(), (int, float)):
        tx.assumed.of_process("the hash of an object stands in the trace")
    return ConstVal(hash(_hashable(tx, value)))


def _hashable(tx: Tracer, value: Value) -> object:
    items = getattr(value, "items", None)
    if issubclass(value.py_type(), tuple) and isinstance(items, list) and not value.is_const():
        if isinstance(value.py_type().__hash__, types.FunctionType):
            found = tx.call(tx.class_attribute(value, value.py_type(), "__hash__"), [], {})
            return _Hashed(by_rule(tx, found, HASHED).const())
        return tuple(_hashable(tx, item) for item in tx.unpack(value))
    key = value.hash_key(tx)
    if isinstance(key, (UserKey, frozenset)):
        return key
    if isinstance(key, (ObjectKey, Value)):  # hashed by its address
        return _by_address(tx, value)
    return value.real()


def collide(keys: Iterable[object]) -> bool:
    """Whether two keys have one hash, though they differ as the program's code says, which a real table asks again."""
    hashes = [hash(key) for key in keys if has_user_key(key)]
    return len(set(hashes)) < len(hashes)
