"""Members of enumerations that were other ones in earlier captures: nothing depends yet on which one it is.

In: a member from outside. Out: its model. What it is compared with, its name and its value are guarded by themselves;
whatever else the program asks relies on the member.
"""

from __future__ import annotations

import enum
import types
from typing import Any

from dynajit.guards.source import AttrSource, ConstSource, Source
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal, UnreadConst, has_own

# what a member is asked for, and where it is kept
_KEPT_AS = {"name": "_name_", "_name_": "_name_", "value": "_value_", "_value_": "_value_"}


class UnreadMember(UnreadConst):
    """A member that is only passed along, or compared."""

    def __init__(self, tx: Tracer, member: enum.Enum, source: Source) -> None:
        super().__init__(tx, member, source, differs=True)

    def getattr(self, tx: Tracer, name: str) -> Value:
        if self.is_read:
            return super().getattr(tx, name)
        kind, kept_as = self.py_type(), _KEPT_AS.get(name)
        if name == "__class__" and vars_of(kind, name) is object.__dict__[name]:
            return tx.from_real(kind)
        if kept_as is not None and _keeps_plainly(kind, name):
            source = AttrSource(self.source, kept_as)
            tx.seen.expect(source)
            return tx.wrap(getattr(self.hint, kept_as), source)
        if type(vars_of(kind, name)) is types.FunctionType and name not in self.hint.__dict__:
            tx.guard(self.source, "HAS_NO_INSTANCE_ATTR", name)
            return tx.class_attribute(self, kind, name)
        return super().getattr(tx, name)

    def is_same(self, tx: Tracer, other: Value) -> bool | None:
        if self.is_read or other.py_type() is not self.py_type():
            return super().is_same(tx, other)
        member: ConstVal = other  # type: ignore[assignment]
        if tx.graph.shapes.decide(lambda: member.hint is self.hint):
            return super().is_same(tx, other)
        place = member.source if not member.is_read else ConstSource(member.hint, member.describe())
        tx.guard(self.source, "NOT_ALIASED", place)
        return False

    def describe(self) -> str:
        return f"a member of {self._kind.__name__}"


def vars_of(kind: type, name: str) -> object:
    """What the class or one of its bases has under the name."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _keeps_plainly(kind: type, name: str) -> bool:
    """Whether the class leaves a member's name and value to `enum`."""
    plain = type(kind.__getattribute__) is types.WrapperDescriptorType
    return plain and vars_of(kind, name) is vars(enum.Enum).get(name)


def are_told_by_identity(left: Value, right: Value) -> bool:
    """Whether one is a member that nothing depends on yet, and its class leaves `==` to identity."""
    kinds = left.py_type(), right.py_type()
    return UnreadMember in (type(left), type(right)) and all(
        issubclass(kind, enum.Enum) and kind.__eq__ is object.__eq__ for kind in kinds
    )


def differs_by_own_equality(value: Value) -> bool:
    """Whether `!=` of a member asks the program's `==`."""
    own: Any = value.py_type().__ne__
    return own is object.__ne__ and has_own(value, "__eq__")


def is_mixed(member: Value) -> bool:
    """Whether members of its class are numbers or texts, too."""
    return member.py_type()._member_type_ is not object  # type: ignore[attr-defined]
