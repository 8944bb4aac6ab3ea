"""Template strings (CPython 3.14 and later) made while tracing.

In: a template's texts and what stands between them. Out: `TemplateVal` and `InterpolationVal`, both immutable, whose
attributes are those of `string.templatelib`'s classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynajit.report import breaks
from dynajit.values.containers.iterators import SequenceIterator
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.registry import constructor
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal

try:
    from string import templatelib  # type: ignore[attr-defined]
except ImportError:
    templatelib = None  # no opcode of an older Python makes one


class _PartsVal(Value):
    """An object that is known by its attributes `parts`."""

    def __init__(self, kind: Any, parts: dict[str, Value]) -> None:
        self.kind = kind
        self.parts = parts

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in self.parts:
            return self.parts[name]
        if hasattr(self.kind, name):
            return tx.class_attribute(self, self.kind, name)
        raise tx.raised(
            AttributeError, f"'{self.kind.__module__}.{self.kind.__name__}' object has no attribute '{name}'"
        )


class InterpolationVal(_PartsVal):
    """A value in a template, its text in the source, its conversion and its format."""

    def __init__(self, *parts: Value) -> None:
        names = ("value", "expression", "conversion", "format_spec")
        super().__init__(templatelib.Interpolation, dict(zip(names, parts, strict=True)))

    def children(self) -> Sequence[Value]:
        return [*self.parts.values()]

    def rebuild(self, out: Any) -> None:
        out.call_on(self.kind, *self.children())


class TemplateVal(_PartsVal):
    """A template: interpolations, and one text more than there are of them."""

    def __init__(self, strings: Sequence[str], interpolations: Sequence[Value]) -> None:
        self.strings, self.interpolations = strings, interpolations
        parts: dict[str, Value] = {
            "strings": TupleVal([ConstVal(text) for text in strings]),
            "interpolations": TupleVal(interpolations),
            "values": TupleVal([each.parts["value"] for each in interpolations]),  # type: ignore[attr-defined]
        }
        super().__init__(templatelib.Template, parts)

    def iterate(self, tx: Tracer) -> Value:
        """Over texts that are not empty and interpolations."""
        items = [item for item in self._mixed() if not (isinstance(item, ConstVal) and item.value == "")]
        return SequenceIterator(items, type(iter(self.kind())))

    def binary(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        if symbol != "+" or not isinstance(right, TemplateVal):
            return None
        *before, last = self.strings
        first, *after = right.strings
        return TemplateVal([*before, last + first, *after], [*self.interpolations, *right.interpolations])

    def _mixed(self) -> list[Value]:
        """Texts and interpolations by turns."""
        found: list[Value] = [ConstVal(self.strings[0])]
        for interpolation, text in zip(self.interpolations, self.strings[1:], strict=True):
            found += [interpolation, ConstVal(text)]
        return found

    def children(self) -> Sequence[Value]:
        return self.interpolations

    def rebuild(self, out: Any) -> None:
        out.call_on(self.kind, *self._mixed())


def interpolation(
    tx: Tracer,
    value: Value,
    expression: Value | None = None,
    conversion: Value | None = None,
    format_spec: Value | None = None,
) -> Value:
    """`Interpolation(...)`."""
    empty, none = ConstVal(""), ConstVal(None)
    parts = [value, expression or empty, conversion or none, format_spec or empty]
    kinds = [part.py_type() for part in parts[1:]]
    if (
        kinds[0] is not str
        or kinds[2] is not str
        or (kinds[1] is not type(None) and parts[2].const() not in ("s", "r", "a"))
    ):
        raise GraphBreak(breaks.RAISES, "an interpolation of other parts")
    return InterpolationVal(*parts)


def template(tx: Tracer, *args: Value) -> Value:
    """`Template(*args)`: texts side by side are one."""
    strings, interpolations = [""], []
    for arg in args:
        if arg.py_type() is str:
            strings[-1] += arg.const()
        elif isinstance(arg, InterpolationVal):
            interpolations.append(arg)
            strings.append("")
        else:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a template of {arg.describe()}")
    return TemplateVal(strings, interpolations)


if templatelib is not None:
    constructor(templatelib.Interpolation)(interpolation)
    constructor(templatelib.Template)(template)
