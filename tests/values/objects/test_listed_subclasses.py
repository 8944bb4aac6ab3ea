"""`cls.__subclasses__()` is read while tracing, and guarded: classes that come, go or move are seen."""

from __future__ import annotations

import abc
import gc
import weakref
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

X = torch.ones(2)


class Shape:
    sides = 0


class Square(Shape):
    sides = 4


class Triangle(Shape):
    sides = 3


class Kind(abc.ABC):  # noqa: B024
    pass


class One(Kind):
    sides = 1


def by_sides(x: torch.Tensor, sides: int) -> Any:
    for cls in Shape.__subclasses__():
        if cls.sides == sides:
            return x * cls().sides, cls
    return x, None


@pytest.mark.parametrize("sides", [3, 4, 5])
def test_a_registry_of_subclasses(sides: int) -> None:
    assert_same(by_sides, X, sides, graphs=1 if sides < 5 else None, breaks=0)


def test_kinds_of_classes() -> None:
    def program(x: torch.Tensor, base: type) -> Any:
        found = base.__subclasses__()
        again = type.__subclasses__(base)
        found.append(int)
        return x + len(found), found is again, found, again, type(x).__name__

    for base in (Shape, Kind, Square, bool):
        assert_same(program, X, base, graphs=1, breaks=0)


def test_classes_come_and_go() -> None:
    class Base:
        pass

    def program(x: torch.Tensor) -> Any:
        return x + len(Base.__subclasses__()), [cls.__name__ for cls in Base.__subclasses__()]

    compiled = dynajit.compile(program, backend="eager", fullgraph=True)
    made: list[Any] = []
    for name in "abc":
        made.append(type(name, (Base,), {}))
        for _ in range(2):
            result, names = compiled(X)
            assert torch.equal(result, X + len(made)) and names == [cls.__name__ for cls in made]
    gone = weakref.ref(made.pop(0))
    gc.collect()
    assert gone() is None  # no variant keeps it
    assert compiled(X)[1] == ["b", "c"]
    made[0].__bases__ = (type("Other", (), {}),)
    assert compiled(X)[1] == ["c"]
    made[0].__bases__ = (Base,)
    assert compiled(X)[1] == ["c", "b"]


def test_a_class_made_by_the_program_itself() -> None:
    class Base:
        pass

    def program(x: torch.Tensor) -> Any:
        before = len(Base.__subclasses__())

        class Made(Base):
            pass

        return x + len(Base.__subclasses__()), before, Made.__name__

    compiled = dynajit.compile(program, backend="eager")
    for _ in range(3):
        gc.collect()
        result, before, name = compiled(X)
        assert torch.equal(result, X + 1) and before == 0 and name == "Made"


def test_many_subclasses_break_the_graph() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + (int in object.__subclasses__())

    assert_same(program, X, graphs=1)
    with pytest.raises(dynajit.exc.Unsupported, match="__subclasses__"):
        dynajit.compile(program, backend="eager", fullgraph=True)(X)


class Registry:
    def total(self, x: torch.Tensor) -> torch.Tensor:
        return x + sum(cls.size for cls in type(self).__mro__[-2].__subclasses__())  # type: ignore[attr-defined]


class First(Registry):
    size = 1


def test_of_a_class_that_another_one_tells() -> None:
    compiled = dynajit.compile(lambda x: First().total(x), backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X + 1)
    more = type("More", (Registry,), {"size": 5})
    assert torch.equal(compiled(X), X + 6)
    more.size = 7  # type: ignore[attr-defined]
    assert torch.equal(compiled(X), X + 8)
