"""Guard kinds on one object, whatever its type: type, identity, value, cells, aliasing, user predicates.

In and out: see guard.py.
"""

from __future__ import annotations

import struct
import types
from collections.abc import Callable, Hashable
from typing import Any

from dynajit.guards.guard import LAST, GuardKind, Held, guard_kind, names
from dynajit.guards.source import HEAP_TYPE, Source, key_identity
from dynajit.report.shown import apart, short


def const_equal(value: Any, expected: Any) -> bool:
    """Same exact type, same value; floats by their bits, tuples and slices item by item."""
    if value is expected:
        return True
    if type(value) is not type(expected) or isinstance(value, bool):
        return False
    if isinstance(value, (float, complex)):
        return _bits(value) == _bits(expected)
    if type(value) is tuple:
        return len(value) == len(expected) and all(map(const_equal, value, expected))
    if isinstance(value, slice):
        return all(const_equal(getattr(value, part), getattr(expected, part)) for part in ("start", "stop", "step"))
    return bool(value == expected)


def _bits(value: complex) -> bytes:
    number = complex(value)
    return struct.pack("dd", number.real, number.imag)


class _OfObject(GuardKind):
    """On the identity of an object, which the parameter holds."""

    def key(self, params: tuple[Any, ...]) -> Hashable:
        return params[0].id

    def encode(self, params: tuple[Any, ...]) -> tuple[str, object]:
        return params[0].encode(self.name)


@guard_kind("TYPE")
class TypeIs(_OfObject):
    """The exact type."""

    shown = "type({name}) is {p[0].text}"

    def normalize(self, *params: Any) -> tuple[Any, ...]:
        (kind,) = params
        if not isinstance(kind, type):
            raise TypeError(f"a TYPE guard needs a type, not {short(kind)}")
        return (Held(kind, weakly=bool(kind.__flags__ & HEAP_TYPE)),)

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return params[0].is_(type(value))

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        now = short(type(value))
        return f"type({name}) was {params[0].text}, is {now if now != params[0].text else 'another class of that name'}"


@guard_kind("ID")
class Identity(_OfObject):
    """The very object; kept weakly where its type allows. None, True and False are guarded this way too."""

    form = Held
    shown = "{name} is {p[0].text}"

    def pins(self, params: tuple[Any, ...]) -> bool:
        return not params[0].is_singleton

    def looks_alike(self, value: Any, params: tuple[Any, ...]) -> bool:
        return short(value) == params[0].text

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return params[0].is_(value)

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        now = short(value)
        if now == params[0].text:
            return f"{name} is another object of the same type ({now})"
        return f"{name} was {params[0].text}, is {now}"


@guard_kind("CODE")
class SameCode(_OfObject):
    """A function runs this very code; another may be assigned to it."""

    shown = "{name} runs the code that it ran"

    def normalize(self, *params: Any) -> tuple[Any, ...]:
        (code,) = params
        if not isinstance(code, types.CodeType):
            raise TypeError(f"a CODE guard needs a code object, not {short(code)}")
        return (Held(code),)

    def encode(self, params: tuple[Any, ...]) -> tuple[str, object]:
        return "CODE", params[0].encode("ID")[1]

    def pins(self, params: tuple[Any, ...]) -> bool:
        return True

    def looks_alike(self, value: Any, params: tuple[Any, ...]) -> bool:
        return type(value) is types.FunctionType and short(value.__code__) == params[0].text

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return isinstance(value, types.FunctionType) and params[0].is_(value.__code__)

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        return f"{name} runs other code: {short(getattr(value, '__code__', value))}"


@guard_kind("EQUALS")
class Equals(GuardKind):
    """An equal constant of the same exact type."""

    def pins(self, params: tuple[Any, ...]) -> bool:
        return True

    def key(self, params: tuple[Any, ...]) -> Hashable:
        return key_identity(params[0])

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return const_equal(value, params[0])

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        return f"{name} == {short(params[0])}"

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        then, now = apart(params[0], value)
        return f"{name} was {then}, is {now}"


@guard_kind("CELL_EMPTY")
class CellEmpty(GuardKind):
    """A cell with nothing in it. The source leads to the cell."""

    shown = "{name} is empty"

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return isinstance(value, types.CellType) and value == types.CellType()


@guard_kind("PREDICATE")
class Predicate(GuardKind):
    """A callable that says whether the object will do; an exception counts as no."""

    rank = LAST
    runs_code = True
    shown = "{name} {p[1]}"

    def normalize(self, *params: Any) -> tuple[Any, ...]:
        predicate, text = params
        if not callable(predicate):
            raise TypeError(f"a PREDICATE guard needs a callable, not {short(predicate)}")
        return (predicate, str(text))

    def key(self, params: tuple[Any, ...]) -> Hashable:
        return id(params[0])

    def pins(self, params: tuple[Any, ...]) -> bool:
        return bool(params[1].startswith(("is ", "== ")))

    def looks_alike(self, value: Any, params: tuple[Any, ...]) -> bool:
        return f"is {short(value)}" == params[1]

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        predicate: Callable[[Any], object] = params[0]
        try:
            return bool(predicate(value))
        except Exception:
            # the leaf does the same: what raises doesn't hold
            return False


class _OfSources(GuardKind):
    """On what further sources, the parameters, lead to."""

    rank = LAST

    def encode(self, params: tuple[Any, ...]) -> tuple[str, object]:
        return self.name, None

    def sources(self, params: tuple[Any, ...]) -> tuple[Source, ...]:
        return params


@guard_kind("SAME_OBJECT")
class SameObject(_OfSources):
    """Two sources lead to one object."""

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        own, other = value
        return own is other

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        return f"{name} is {params[0].name()}"

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        return f"{name} and {params[0].name()} were the same object and are not any more"


@guard_kind("NOT_ALIASED")
class NotAliased(_OfSources):
    """Sources that lead to pairwise distinct objects: the guard's own and those given."""

    def normalize(self, *params: Any) -> tuple[Any, ...]:
        if len(params) == 1 and isinstance(params[0], (list, tuple)):
            return tuple(params[0])
        return params

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return len({id(obj) for obj in value}) == len(value)

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        return f"{name}, {names(params)} are distinct objects"

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        seen: dict[int, str] = {}
        for text, obj in zip([name, *(source.name() for source in params)], value, strict=True):
            if id(obj) in seen:
                return f"{seen[id(obj)]} and {text} were distinct objects and are now the same"
            seen[id(obj)] = text
        return self.describe(name, params)
