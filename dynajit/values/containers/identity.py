"""Which objects are one object, where tables and containers ask.

In: models. Out: `object_key`, what stands in the tables of models for an object that is equal to itself alone, and
`identical`, what containers ask before they compare. Either answer is guarded where it decides: objects that are
distinct now may be one object at the next call, and the other way round.
"""

from __future__ import annotations

import collections
from typing import Any

from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal, is_nan
from dynajit.values.scalars.symbolic import SymVal

MAX_COMPARED = 32
# equal to themselves whatever is in them, if all of that is identical or equal to itself
_REFLEXIVE = frozenset({list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict})
# equal exactly if their values are, and so to themselves
_VALUES = frozenset({int, bool, str, bytes})


class ObjectKey:
    """Equal to the key of the same object. Where a table compares two of them, it is guarded whether they are one.

    Up to `MAX_COMPARED` objects from outside have one hash in a trace, so that tables compare them, and what is not
    compared is not guarded. Any further ones have hashes of their own, and count as compared with all (see
    `interp/distinct.py`): comparing each with each would take time that grows with the square of their number.
    """

    __slots__ = ("hashed", "tx", "value")

    def __init__(self, tx: Tracer, value: Value, hashed: int) -> None:
        self.tx = tx
        self.value = value
        self.hashed = hashed

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return False
        assert isinstance(other, ObjectKey)
        if self.value is other.value or self.tx.journal.rolling_back:
            return self.value is other.value
        return self.tx.same_object(self.value, other.value)


def object_key(tx: Tracer, value: Value, kind: type[ObjectKey] = ObjectKey) -> ObjectKey:
    """The key of an object of which it matters only which one it is."""
    pin = getattr(value, "pin", None)
    if pin is not None:
        pin()
    real = _guarded_object(value)
    if real is not None:
        return kind(tx, value, id(real))
    if isinstance(value, (ConstVal, SymVal)):
        return kind(tx, value, 0)  # whether equal ones are one object is known when they are compared
    if value.source is None:
        return kind(tx, value, id(value))  # made while tracing: none from outside is the same
    entry = tx.keyed.get(id(value))
    if entry is None:
        entry = value, _address(value) if len(tx.keyed) >= MAX_COMPARED else 0
        tx.journal.set_item(tx.keyed, id(value), entry)
    return kind(tx, value, entry[1])


def _guarded_object(value: Value) -> Any:
    """The real object, where the value is guarded as this very one."""
    real = getattr(value, "real_function", None)
    return real if real is not None else getattr(value, "obj", None)


def _address(value: Value) -> int:
    """A number that is the same for all models of one object."""
    real = value.real_object
    return id(value if real is None else real)


def identical(tx: Tracer, left: Value, right: Value) -> bool:
    """Whether both are one object, as containers ask before they compare."""
    if left is right:
        return True
    both = (left, right)
    if _VALUES.issuperset(each.py_type() for each in both) or any(isinstance(each, SymVal) for each in both):
        return False  # they are equal if they are one; symbolic floats are finite
    if isinstance(left, ConstVal) and isinstance(right, ConstVal):
        if is_nan(left.value) and is_nan(right.value):
            return tx.same_object(left, right)
        return left.value is right.value
    real = _guarded_object(left)
    if real is not None and real is _guarded_object(right):  # reached in two ways
        return True
    if left.py_type() not in _REFLEXIVE:
        tx.guard_distinct(left, right)  # were they one, nobody would compare them
    return False
