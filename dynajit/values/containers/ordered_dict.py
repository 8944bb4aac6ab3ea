"""`collections.OrderedDict` made while tracing: a dictionary whose instances have attributes, too.

In: nothing; it is made empty. Out: `OrderedDictVal`, whose attributes are those of what the generated code makes. A
`state_dict` says in one which versions of the modules it is from.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.values.containers.attributes import AttributeDict
from dynajit.values.containers.mapping import DictVal
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal


class OrderedDictVal(DictVal):
    """An OrderedDict made while tracing."""

    def __init__(self) -> None:
        super().__init__(collections.OrderedDict)
        self.attributes = AttributeDict(self, None, None)

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "__dict__":
            return self.attributes
        found = self.attributes.attribute(tx, name)
        return found if found is not None else super().getattr(tx, name)

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        if name.startswith("__"):
            super().setattr(tx, name, value)
        self.attributes.setitem(tx, ConstVal(name), value)

    def delattr(self, tx: Tracer, name: str) -> None:
        if self.attributes.attribute(tx, name) is None:
            super().delattr(tx, name)
        self.attributes.take(tx, ConstVal(name))

    def copied(self, tx: Tracer, part: Callable[[Value], Value], remember: Callable[[Value], Value]) -> Value:
        made = OrderedDictVal()
        remember(made)
        for name, item in [(name, part(item)) for name, item in self.attributes.items(tx)]:
            made.attributes.setitem(tx, name, item)
        for key, item in self.items(tx):
            made.setitem(tx, part(key), part(item))
        return made

    # -- generated code

    def fill_children(self) -> Sequence[Value]:
        return self.attributes.entry_values()

    def rebuild(self, out: Any) -> None:
        super().rebuild(out)
        self.fill_later(out)

    def fill_later(self, out: Any) -> None:
        """Have the attributes set once all objects exist."""
        if self.attributes.entries:
            out.later(self, self.attributes.fill_owner)
