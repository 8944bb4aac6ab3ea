"""`operator.itemgetter`, `attrgetter` and `methodcaller` made while tracing.

In: what they were made with. Out: `GetterVal`, whose call does the look-ups.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from dynajit.values.core.value import Direct, Tracer, Value
from dynajit.values.scalars.constant import attribute_name, constant_of


class GetterVal(Value):
    """One getter object; `kind` is its class."""

    def __init__(self, kind: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> None:
        self.kind = kind
        self.args = list(args)
        self.kwargs = kwargs

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        if len(args) != 1 or kwargs:
            raise tx.raised(TypeError, f"{self.kind.__name__} expected 1 argument, got {len(args)}")
        with tx.not_resumable():
            if self.kind is operator.methodcaller:
                method = args[0].getattr(tx, constant_of(self.args[0], "a method's name"))
                return tx.call(method, self.args[1:], self.kwargs)
            found = [self._get(tx, args[0], part) for part in self.args]
        return found[0] if len(found) == 1 else tx.new_tuple(found)

    def _get(self, tx: Tracer, owner: Value, part: Value) -> Value:
        if self.kind is operator.itemgetter:
            return owner.getitem(tx, part)
        for name in attribute_name(part).split("."):
            owner = owner.getattr(tx, name)
        return owner

    def children(self) -> Sequence[Value]:
        return (*self.args, *self.kwargs.values())

    def rebuild(self, out: Any) -> None:
        out.call_on(self.kind, *self.children(), names=tuple(self.kwargs))
