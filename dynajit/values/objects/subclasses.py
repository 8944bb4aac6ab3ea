"""The builtin part of instances of `str`, `int`, `float`, `bytes`, `complex`, `tuple`, `set`, `frozenset` subclasses.

In: a real instance with its source, or a class and its constructor's arguments. Out: the payload of an `ObjVal`. What C
code does with such an object it does with the builtin part, unless the subclass has special methods of its own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.guards.kinds_object import const_equal
from dynajit.guards.source import ItemSource, Source
from dynajit.report.shown import short
from dynajit.values.containers.sequence import Lazy, TupleVal
from dynajit.values.containers.set_history import guard_members
from dynajit.values.containers.sets import SetVal
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal, is_literal

# the value of an instance of a subclass as an instance of the builtin class, no user code run
PLAIN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda obj: bytes.__getitem__(obj, slice(None)),
    complex: lambda obj: complex(complex.real.__get__(obj), complex.imag.__get__(obj)),
}
_IMMUTABLE = (*PLAIN, tuple, frozenset)
_HARMLESS = frozenset(
    {
        "__new__",
        "__init__",
        "__init_subclass__",
        "__class_getitem__",
        "__setattr__",
        "__delattr__",
        "__getattr__",
        "__getattribute__",
        "__reduce__",
        "__reduce_ex__",
        "__copy__",
        "__deepcopy__",
        "__getnewargs__",
        "__getnewargs_ex__",
        "__call__",
        "__enter__",
        "__exit__",
        "__set_name__",
    }
)


def scalar_base(kind: type) -> type | None:
    """The scalar builtin class that `kind` is a proper subclass of, if its instances can be modelled."""
    if kind.__module__.partition(".")[0] in ("numpy", "torch", "sympy"):
        return None
    return next((base for base in PLAIN if issubclass(kind, base) and kind not in (base, bool)), None)


def _same_value(base: type, kind: type, expected: Any, found: Any) -> bool:
    return type(found) is kind and const_equal(PLAIN[base](found), expected)


def payload_of_real(tx: Tracer, obj: Any, kind: type, source: Source) -> Value | None:
    """The guarded builtin part of a real object, or None if it has none that can be modelled."""
    base = scalar_base(kind)
    if base is not None:
        value = PLAIN[base](obj)
        tx.guard(source, "PREDICATE", functools.partial(_same_value, base, kind, value), f"== {short(value)}")
        return ConstVal(value)
    if issubclass(kind, tuple(PLAIN)):
        return None
    if issubclass(kind, tuple):
        tx.guard(source, "LEN", tuple.__len__(obj))
        items = [Lazy(item, ItemSource(source, index, raw=True)) for index, item in enumerate(tuple.__iter__(obj))]
        return TupleVal(items, tuple, source)
    base = set if issubclass(kind, set) else frozenset
    members = list(base.__iter__(obj))
    if not all(is_literal(member) for member in members):
        return None  # nothing of the program's may run here, as it would in making a set of them
    guard_members(tx, base, obj, source)
    return SetVal.outside(base, obj, {member: ConstVal(member) for member in members}, source)


def make_payload(tx: Tracer, kind: type, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """What `kind.__new__(kind, *args)` of a builtin's subclass puts into the instance."""
    base = scalar_base(kind)
    if base is not None:
        return tx.call(tx.from_real(base), args, kwargs)
    if issubclass(kind, tuple):
        return TupleVal(tx.unpack(args[0]) if args else [])
    if issubclass(kind, frozenset):
        return SetVal.of_items(tx, args[0] if args else None, frozenset)
    if issubclass(kind, set):
        return SetVal(set)
    return None


def is_immutable(kind: type) -> bool:
    """Whether the builtin part is given to `__new__`."""
    return issubclass(kind, _IMMUTABLE)


@functools.lru_cache(maxsize=1024)
def behaves_as_plain(kind: type) -> bool:
    """Whether C code sees no difference between an instance and its builtin part: no special methods in Python."""
    for base in kind.__mro__:
        if base in _IMMUTABLE:
            return True
        for name, found in vars(base).items():
            if name.startswith("__") and isinstance(found, types.FunctionType) and name not in _HARMLESS:
                return False
    return True
