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

from dynajit.guards.source import HEAP_TYPE, IMMUTABLE_TYPE, ConstSource
from dynajit.report import breaks
from dynajit.values.containers.mapping import OverlaidDict
from dynajit.values.core.effect import CallEffect
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.lookup import namespace_of
from dynajit.values.scalars.constant import ConstVal

_PLAIN_BUILTINS = (int, float, complex, str, bytes, bool, type(None), list, dict, tuple, set, frozenset)


class ClassNamespace(OverlaidDict):
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

    def changed(self, tx: Tracer, name: Any) -> tuple[Value | None] | None:
        if name is None:
            return (None,) if any(changed is self.cls for changed, _ in tx.class_writes) else None
        return (tx.class_writes[self.cls, name],) if (self.cls, name) in tx.class_writes else None


def write_class(tx: Tracer, cls: type, name: str, value: Value | None) -> None:
    """`cls.name = value`, or `del cls.name`."""
    here = namespace_of(cls).get(name)
    plainly = id(cls) not in tx.made_classes and _is_written_plainly(cls, name)
    if not plainly or (value is not None and not _is_plain(value)):
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


def _is_written_plainly(cls: type, name: str) -> bool:
    """Whether setting or deleting the attribute does no more than that, and nothing reads it through a descriptor."""
    meta = type(cls)
    held = [namespace_of(base)[name] for base in cls.__mro__ if name in namespace_of(base)]
    return (
        not name.startswith("__")
        and cls.__flags__ & (HEAP_TYPE | IMMUTABLE_TYPE) == HEAP_TYPE
        and not issubclass(cls, enum.Enum)
        and not isinstance(meta.__setattr__, types.FunctionType)
        and not isinstance(meta.__delattr__, types.FunctionType)
        and not hasattr(meta, name)
        and not any(hasattr(type(each), "__get__") for each in held)
    )


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
