"""Attributes of classes that the traced program sets or deletes.

In: a class, a name, a value without `__get__`. Out: an entry in `tx.class_writes`, which look-ups in the class and in
its subclasses' instances see, and an effect that carries it out. Functions and descriptors end the graph: the classes
themselves are read all over while tracing.
"""

from __future__ import annotations

import enum
import gc
import types
from typing import Any

from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.values.containers.mapping import DictVal
from dynajit.values.core.effect import CallEffect
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.lookup import namespace_of
from dynajit.values.scalars.constant import ConstVal

_PLAIN_BUILTINS = (int, float, complex, str, bytes, bool, type(None), list, dict, tuple, set, frozenset)


class ClassNamespace(DictVal):
    """What `cls.__dict__` shows: the class's own dictionary, with what the program wrote to the class."""

    def __init__(self, cls: type) -> None:
        (real,) = gc.get_referents(namespace_of(cls))
        super().__init__(dict, ConstSource(real, f"{cls.__qualname__}.__dict__"), real)
        self.cls = cls

    @staticmethod
    def of(tx: Tracer, cls: type) -> ClassNamespace:
        """The model of the class's namespace: one, however often it is asked for."""
        made = ClassNamespace(cls)
        assert made.source is not None
        known = tx.known_object(made.real_dict, made.source)
        if isinstance(known, ClassNamespace):
            return known
        tx.remember_object(made.real_dict, made)
        return made

    def lookup_hashed(self, tx: Tracer, hashed: Any, key: Value) -> Value | None:
        if (self.cls, hashed) in tx.class_writes:
            return tx.class_writes[self.cls, hashed]
        return super().lookup_hashed(tx, hashed, key)

    def contains(self, tx: Tracer, item: Value) -> bool:
        hashed = item.hash_key(tx)
        if (self.cls, hashed) in tx.class_writes:
            return tx.class_writes[self.cls, hashed] is not None  # type: ignore[index]
        return super().contains(tx, item)

    def materialise(self, tx: Tracer) -> None:
        self._check_unchanged(tx)
        super().materialise(tx)

    def length(self, tx: Tracer) -> Value:
        self._check_unchanged(tx)
        return super().length(tx)

    def _check_unchanged(self, tx: Tracer) -> None:
        if any(changed is self.cls for changed, _ in tx.class_writes):
            self.unsupported("reading all of a class's attributes after a change")


# Py_TPFLAGS_HEAPTYPE, which classes written in C may have, too; Py_TPFLAGS_IMMUTABLETYPE
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8


def write_class(tx: Tracer, cls: type, name: str, value: Value | None) -> None:
    """`cls.name = value`, or `del cls.name`."""
    meta = type(cls)
    here = namespace_of(cls).get(name)
    if (
        name.startswith("__")
        or id(cls) in tx.made_classes
        or not cls.__flags__ & _HEAP
        or cls.__flags__ & _IMMUTABLE
        or issubclass(cls, enum.Enum)
        or isinstance(meta.__setattr__, types.FunctionType)
        or isinstance(meta.__delattr__, types.FunctionType)
        or hasattr(meta, name)
        or any(hasattr(type(namespace_of(base)[name]), "__get__") for base in cls.__mro__ if name in namespace_of(base))
        or (value is not None and not _is_plain(value))
    ):
        what = "setting" if value is not None else "deleting"
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{what} {name!r} of the class {cls.__qualname__}")
    if value is None:
        known = tx.class_writes.get((cls, name), ConstVal(None) if name in namespace_of(cls) else None)
        if known is None:
            raise tx.raised(AttributeError, f"type object '{cls.__name__}' has no attribute '{name}'")
        if here is None and any(name in namespace_of(base) for base in cls.__mro__[1:]):
            raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"deleting {name!r}, which a base class has, too")
    tx.journal.set_item(tx.class_writes, (cls, name), value)
    change = [tx.from_real(cls), ConstVal(name), *([] if value is None else [value])]
    tx.journal.touch(CallEffect(tx.from_real(delattr if value is None else setattr), change))


def _is_plain(value: Value) -> bool:
    """Whether an attribute of this value is read as it is, by instances too."""
    return issubclass(value.py_type(), _PLAIN_BUILTINS) or not hasattr(value.py_type(), "__get__")


def written(tx: Tracer, kind: type, name: str) -> tuple[Value | None] | None:
    """What the traced program made of the attribute: (value,), (None,) if it is gone; None if it is untouched."""
    if not tx.class_writes:
        return None
    for position, base in enumerate(kind.__mro__):
        if (base, name) in tx.class_writes:
            value = tx.class_writes[base, name]
            if value is None and any(name in namespace_of(other) for other in kind.__mro__[position + 1 :]):
                raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r}, deleted from {base.__qualname__}")
            return (value,)
        if name in namespace_of(base):
            return None
    return None
