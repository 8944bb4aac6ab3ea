"""Subclasses of named tuples that do things in a way of their own."""

from __future__ import annotations

import collections
import functools
import platform
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same

Base = collections.namedtuple("Base", "a b")
x = torch.ones(2)


class Other(Base):
    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[Any]:
        return iter(["x", "y", "z"])

    def __getitem__(self, index: Any) -> Any:
        return 10

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 3

    def __contains__(self, item: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "other"

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Hidden(Base):
    @property
    def a(self) -> Any:
        return 55


class Missing(Base):
    def __getattr__(self, name: str) -> str:
        if name != "other":
            raise AttributeError(name)
        return name * 2


class Filled(Base):
    def __new__(cls, a: Any, b: int = 2) -> Any:
        made = super().__new__(cls, a, b)
        made.more = a + 1
        return made

    @functools.cached_property
    def kept(self) -> Any:
        return self.a * 3


class Plain(Base):
    @property
    def both(self) -> Any:
        return self.a + self.b


OUTSIDE = Other(1, 2), Hidden(1, 2), Missing(1, 2), Filled(1), Plain(1, 2)
STORED = Plain(1, 2)
STORED.more = 8


def own_methods(x: Tensor, n: Any) -> Any:
    return x + len(n), list(n), n[0], n == 3, 5 in n, repr(n), n.a, [*n], tuple(n)


def hidden_name(x: Tensor, n: Any) -> Any:
    return x + n.a, n[0], n._asdict()


def missing_name(x: Tensor, n: Any) -> Any:
    return x + n.a, n.other


def own_attributes(x: Tensor, n: Any) -> Any:
    return x + n.more, n.kept, n.a, n.kept


def plain(x: Tensor, n: Any) -> Any:
    a, b = n
    return x + n.both, a, b, n == (1, 2)


PROGRAMS = [own_methods, hidden_name, missing_name, own_attributes, plain]


@pytest.mark.parametrize(("program", "given"), [*zip(PROGRAMS, OUTSIDE, strict=True)])
def test_from_outside_and_made_inside(program: Callable[..., Any], given: Any) -> None:
    assert_same(program, x, given, breaks=0)

    def inside(x: Tensor, kind: Any) -> Any:
        return program(x, kind(x, 2))

    if program is not plain:  # which compares a tensor
        assert_same(inside, x, type(given), graphs=1, breaks=0)


def test_attributes_of_one_and_not_of_another() -> None:
    def read(x: Tensor, n: Any) -> Any:
        return x + getattr(n, "more", 1)

    report = assert_same(read, x, Plain(1, 2), then=[(x, STORED)])
    assert len(report.recompile_reasons) == 1


def test_pythons_own() -> None:
    assert_same(lambda x: (x + 1, platform.uname().system, len(platform.uname())), x, graphs=1, breaks=0, recompiles=0)
