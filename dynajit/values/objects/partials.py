"""`functools.partial` while tracing.

In: what is called and the arguments to be put before those of the call, or a real partial object. Out: `PartialVal`,
whose `keywords` is a dictionary that the program may change.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from dynajit.guards.source import Source
from dynajit.report import breaks
from dynajit.values.containers.attributes import AttributeDict
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.effect import Pushed
from dynajit.values.core.value import Direct, GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal

#: the class of functools.Placeholder, which stands for an argument that a call gives (from CPython 3.14 on)
PLACEHOLDER: Any = getattr(functools, "_PlaceholderType", None)


def merged(before: Sequence[Value], args: Sequence[Value]) -> list[Value]:
    """`before` with the first of `args` in the places of its placeholders and the others after it."""
    left = iter(args)
    return [next(left, value) if value.py_type() is PLACEHOLDER else value for value in before] + [*left]


class Keywords(DictVal):
    """`partial.keywords` of a partial object made while tracing."""

    def __init__(self, owner: PartialVal) -> None:
        super().__init__()
        self.owner = owner

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Any) -> None:
        out.push(self.owner)
        out.emit.load_attr("keywords")


class PartialVal(Value):
    """functools.partial."""

    kind = functools.partial
    child_names = ("function", "args")

    def __init__(
        self, function: Value, args: Value, keywords: DictVal | None, source: Source | None = None, real: Any = None
    ) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords if keywords is not None else Keywords(self)
        self.source = source
        self.attributes = AttributeDict(self, source, real.__dict__ if real is not None else None)

    @staticmethod
    def made(tx: Tracer, function: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> PartialVal:
        """`functools.partial(function, *args, **kwargs)`: partials of partials are one."""
        before: Sequence[Value] = ()
        if args and args[-1].py_type() is PLACEHOLDER:
            raise tx.raised(TypeError, "trailing Placeholders are not allowed")
        if any(value.py_type() is PLACEHOLDER for value in kwargs.values()):
            raise tx.raised(TypeError, "Placeholder cannot be passed as a keyword argument")
        if isinstance(function, PartialVal) and not function.attributes.items(tx):
            before, kwargs = tx.unpack(function.args), {**function.named(tx), **kwargs}
            function = function.function
        partial = PartialVal(function, TupleVal(merged(before, args)), None)
        for name, value in kwargs.items():
            partial.keywords.setitem(tx, ConstVal(name), value)
        return partial

    def named(self, tx: Tracer) -> dict[str, Value]:
        """The keyword arguments as they stand."""
        found = self.keywords.items(tx)
        if not all(key.py_type() is str and key.is_const() for key, _ in found):
            raise GraphBreak(breaks.RAISES, "TypeError: keywords must be strings")
        return {key.const(): value for key, value in found}

    def getattr(self, tx: Tracer, name: str) -> Value:
        own = {"func": self.function, "args": self.args, "keywords": self.keywords, "__dict__": self.attributes}
        if name in own:
            return own[name]
        found = self.attributes.attribute(tx, name)
        if found is not None:
            return found
        if hasattr(functools.partial, name):
            return tx.class_attribute(self, functools.partial, name)
        raise tx.raised(AttributeError, f"'functools.partial' object has no attribute '{name}'")

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        if name in functools.partial.__dict__:
            super().setattr(tx, name, value)
        self.attributes.setitem(tx, ConstVal(name), value)

    def delattr(self, tx: Tracer, name: str) -> None:
        if name in functools.partial.__dict__ or self.attributes.attribute(tx, name) is None:
            super().delattr(tx, name)
        self.attributes.take(tx, ConstVal(name))

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        before = tx.unpack(self.args)
        least = sum(value.py_type() is PLACEHOLDER for value in before)
        if len(args) < least:
            missing = f"expected at least {least}, got {len(args)}"
            raise tx.raised(TypeError, f"missing positional arguments in 'partial' call; {missing}")
        return tx.call(self.function, merged(before, args), {**self.named(tx), **kwargs}, direct)

    # -- generated code

    def fill_children(self) -> Sequence[Value]:
        return [*DictVal.children(self.keywords), *self.attributes.entry_values()]

    def rebuild(self, out: Any) -> None:
        out.call_on(functools.partial, self.function, *self.args.items)  # type: ignore[attr-defined]
        out.later(self, self._fill)

    def _fill(self, out: Any) -> None:
        if self.keywords.entries:
            out.run(dict.update, Pushed(self.keywords.rebuild), Pushed(self.keywords.push_entries))
        self.attributes.fill_owner(out)
