"""Members of enumerations and flags that are other ones at each call: relied on only for what the program asks."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same

x = torch.ones(2)


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3
    BLACK = 4
    WHITE = 5
    PINK = 6

    def is_dark(self) -> bool:
        return self in (Colour.BLACK, Colour.BLUE)

    @property
    def doubled(self) -> int:
        return self.value * 2


class Speaking(enum.Enum):
    ONE = 1
    TWO = 2
    THREE = 3

    def __init__(self, number: int) -> None:
        self.square = number * number

    def __str__(self) -> str:
        print("asked")
        return f"<{self.name}>"

    def __format__(self, spec: str) -> str:
        print("formatted", spec)
        return spec + self.name

    def __eq__(self, other: object) -> bool:
        print("compared")
        return isinstance(other, Speaking) and self.value <= other.value

    __hash__ = enum.Enum.__hash__


class Renamed(enum.Enum):
    A = "a"
    B = "b"

    @property
    def value(self) -> str:  # type: ignore[override]
        return "not " + self._value_


class Named(str, enum.Enum):  # noqa: UP042
    A = "a"
    B = "b"
    C = "c"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Holder:
    def __init__(self) -> None:
        self.last: Any = None
        self.seen: list[Any] = []


def passed(x: Tensor, c: Any) -> Any:
    holder = Holder()
    holder.last = c
    holder.seen.append(c)
    return x * 2, c, [c], {"c": c}, holder.last


def named(x: Tensor, c: Any) -> Any:
    return x * c.value, c.name, f"{c}", str(c), f"{c.name:>8}", type(c)


def chosen(x: Tensor, c: Any) -> Any:
    if c is Colour.RED:
        return x + 1
    return x + 2 if c == Colour.GREEN or c != Colour.BLUE else x + 3


MEMBERS = [*Colour, *Colour]


@pytest.mark.parametrize(("program", "again"), [(passed, 1), (named, 1), (chosen, 3)])
def test_what_is_not_asked_for_is_not_relied_on(program: Callable[..., Any], again: int) -> None:
    report = assert_same(program, x, MEMBERS[0], then=[(x, c) for c in MEMBERS[1:]], repeat=1, breaks=0)
    assert len(report.recompile_reasons) <= again


def test_methods_and_properties_of_members() -> None:
    def asked(x: Tensor, c: Any) -> Any:
        return x * c.doubled, x + 1 if c.is_dark() else x + 2, c.__class__.__name__, bool(c), hash(c) == hash(c.name)

    assert_same(asked, x, MEMBERS[0], then=[(x, c) for c in MEMBERS[1:]], repeat=1)


def test_a_class_of_the_programs_own_ways() -> None:
    def asked(x: Tensor, c: Any) -> Any:
        return x * c.square, str(c), f"{c:>>}", c == Speaking.TWO, c is Speaking.TWO, c in (Speaking.ONE,), c.value

    assert_same(asked, x, Speaking.ONE, then=[(x, c) for c in (Speaking.TWO, Speaking.THREE, Speaking.ONE)], repeat=1)
    assert_same(lambda x, c: (x, c.value, c.name), x, Renamed.A, then=[(x, Renamed.B), (x, Renamed.A)], repeat=1)


def test_members_that_are_texts_or_flags() -> None:
    def compared(x: Tensor, c: Any) -> Any:
        return (x * 2 if c == "a" else x), c.upper(), c.value, f"{c}", c is Named.B, c + "!"

    def allowed(x: Tensor, c: Any) -> Any:
        return x * 2 if Rights.READ in c else x, c | Rights.RUN, c

    assert_same(compared, x, Named.A, then=[(x, c) for c in (Named.B, Named.C, Named.A)], repeat=1)
    report = assert_same(allowed, x, Rights(0), then=[(x, Rights(n)) for n in (1, 2, 3, 4, 5, 6, 7)], repeat=1)
    assert len(report.recompile_reasons) <= 8  # two of them in what follows the break at the operator


def test_two_members_that_may_be_one() -> None:
    def compared(x: Tensor, a: Any, b: Any) -> Any:
        return x * 2, a is b, a == b, {a: 1}.get(b)

    pairs = [(Colour.RED, Colour.RED), (Colour.RED, Colour.BLUE), (Colour.BLUE, Colour.BLUE), (Colour.PINK, None)]
    assert_same(compared, x, Colour.RED, Colour.GREEN, then=[(x, *pair) for pair in pairs], repeat=1)


def test_a_member_or_something_else() -> None:
    def told(x: Tensor, c: Any) -> Any:
        return x * 2, c is None, c == 2, c == "RED", c

    others = [Colour.GREEN, None, 2, "RED", Speaking.TWO, Colour.BLUE, Named.A]
    assert_same(told, x, Colour.RED, then=[(x, c) for c in others], repeat=1)


def test_flags_that_are_only_kept() -> None:
    class Settings:
        def __init__(self, n: int) -> None:
            self.a, self.b, self.c = n % 2 == 0, n % 3 == 0, n % 5 == 0

    def kept(x: Tensor, s: Any) -> Any:
        s.all = (s.a, s.b, s.c)
        return x * 2, [s.b], s.c

    def used(x: Tensor, s: Any) -> Any:
        return (x * 2 if s.a else x) + s.b, s.a is s.b, not s.c

    report = assert_same(kept, x, Settings(0), then=[(x, Settings(n)) for n in range(1, 12)], repeat=1, breaks=0)
    assert len(report.recompile_reasons) <= 1
    assert_same(used, x, Settings(0), then=[(x, Settings(n)) for n in range(1, 12)], repeat=1)


class Ordered(enum.Enum):
    LOW = 1
    MIDDLE = 2
    HIGH = 3

    def __ge__(self, other: Any) -> Any:
        print("ge")
        return self.value >= other.value if type(self) is type(other) else NotImplemented

    def __lt__(self, other: Any) -> Any:
        print("lt")
        return self.value < other.value if type(self) is type(other) else NotImplemented


class Lenient(str, enum.Enum):  # noqa: UP042
    A = "a"
    B = "b"

    def __eq__(self, other: object) -> Any:
        print("eq")
        return self.value.upper() == other if other != "b" else NotImplemented

    __hash__ = str.__hash__


def test_comparisons_of_the_programs_own_are_made_at_each_call() -> None:
    def ordered(x: Tensor, c: Any) -> Any:
        return x * 2 if c >= Ordered.MIDDLE else x, c < Ordered.HIGH, max([c, Ordered.LOW])

    def refused(x: Tensor, c: Any) -> Any:
        try:
            return x, c < 3
        except TypeError as error:
            return x + 1, str(error)

    def lenient(x: Tensor, c: Any) -> Any:
        return x * 2, c == "A", c == "b", ["A"].count(c), c != "A", c != "b", c == Lenient.B

    for program, kind in ((ordered, Ordered), (refused, Ordered), (lenient, Lenient)):
        members = [*kind, *kind]
        assert_same(program, x, members[0], then=[(x, c) for c in members[1:]], repeat=1)
