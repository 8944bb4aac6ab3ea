# mypy: ignore-errors
# (programs as users write them, without annotations)
"""Programs that ask classes: `__class__` of a class, issubclass through a metaclass, operators that nobody answers."""

import abc
import gc
import inspect
from typing import Any

import pytest
import torch
from cases import same

import dynajit
from dynajit.testing import assert_same


class Meta(type):
    def __subclasscheck__(cls, sub):
        cls.asked.append(sub.__name__)
        return sub.__name__ in cls.names


class Named(metaclass=Meta):
    names = ["int"]
    asked: list[str] = []


class Declines:
    def __mul__(self, other):
        return NotImplemented

    def __add__(self, other):
        return NotImplemented


class Iterable(Declines):
    def __iter__(self):
        return iter((4, 5))


def compiled(function):
    return dynajit.compile(function, backend="eager")


def test_class_of_a_class():
    def program(x):
        return x + 1, Named.__class__, int.__class__, type(Named) is Named.__class__

    assert_same(program, torch.ones(2))


def test_issubclass_asks_the_metaclass_at_every_call():
    def program(x):
        return (x * 2 if issubclass(int, (str, Named)) else x * 3), issubclass(float, Named)

    x, run = torch.ones(2), compiled(program)
    for names in (["int"], ["float"], ["int", "float"]):
        Named.names = names
        Named.asked.clear()
        expected, asked = program(x), list(Named.asked)
        Named.asked.clear()
        found = run(x)
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]
        assert Named.asked == asked


@pytest.mark.skipif(not hasattr(inspect, "markcoroutinefunction"), reason="newer Pythons have it")
def test_functions_marked_as_coroutine_functions():
    def program():
        def plain():
            pass

        before = inspect.iscoroutinefunction(plain)
        inspect.markcoroutinefunction(plain)
        return before, inspect.iscoroutinefunction(plain)

    assert compiled(program)() == program()


@pytest.mark.parametrize("kind", [Declines, Iterable])
@pytest.mark.parametrize(
    "other", ["s", [1], (1,), b"s", bytearray(b"s"), {1}, 3], ids=lambda other: type(other).__name__
)
@pytest.mark.parametrize("line", ["a * b", "a + b", "a - b", "a ** b", "a *= b", "a += b"])
def test_operators_that_nobody_answers(kind, other, line):
    body = f"return {line}" if "=" not in line else f"{line}\n        return a"
    text = f"def program(a, b):\n    try:\n        {body}\n    except TypeError as error:\n        return str(error)\n"
    space = {}
    exec(text, space)
    for swapped in (False, True):
        found = []
        for run in (space["program"], compiled(space["program"])):
            copied = type(other)(other)
            pair = (copied, kind()) if swapped else (kind(), copied)
            found.append(str(run(*pair)))
        assert found[0] == found[1]


class Base(abc.ABC):
    def __eq__(self, other):
        return NotImplemented if other.order.append("base") is None else None

    def __add__(self, other):
        other.order.append("base")
        return NotImplemented

    __hash__ = None


class Virtual:
    def __init__(self):
        self.order = []

    def __eq__(self, other):
        self.order.append("virtual")
        return NotImplemented

    def __radd__(self, other):
        self.order.append("virtual")
        return 1

    __hash__ = None


Base.register(Virtual)


def test_virtual_subclasses_are_not_asked_first():
    def program(base, virtual):
        return base == virtual, base + virtual, list(virtual.order)

    assert compiled(program)(Base(), Virtual()) == program(Base(), Virtual())


def test_builtins_take_no_other_arguments_than_their_own():
    def program(x):
        texts = []
        for call in (
            lambda: sorted(iterable=[]),
            lambda: sorted([], None),
            lambda: len(obj=[]),
            lambda: isinstance(1, classes=int),
            lambda: sum([1], start=2),
        ):
            try:
                texts.append(call())
            except TypeError as error:
                texts.append(str(error))
        return x + 1, texts

    assert_same(program, torch.ones(2))


def test_subclasses_are_listed_once():
    class Parent:
        pass

    def program():
        class Child(Parent):
            pass

        return len(Parent.__subclasses__()), Child.__name__

    assert program()[1] == "Child"
    gc.collect()
    assert compiled(program)() == (1, "Child")


def test_classes_in_a_list_are_none_to_isinstance():
    def program(x):
        try:
            return isinstance(1, [int])
        except TypeError as error:
            return x + 1, str(error), isinstance(1, (str, (int | None,))), issubclass(bool, int | str)

    assert_same(program, torch.ones(2), graphs=1, breaks=0)


def test_a_super_object_in_a_class() -> None:
    class Base:
        def name(self) -> str:
            return "base"

    class Derived(Base):
        above: Any

        def name(self) -> str:
            return "derived " + self.above.name()

    Derived.above = super(Derived)

    def program() -> str:
        return Derived().name()

    assert same(program) == "derived base"


class _NoArguments:
    def none() -> Any:  # type: ignore[misc]
        return super().none

    def starred(*args: Any) -> Any:
        return super()

    def caught(**named: Any) -> str:
        try:
            super()
        except RuntimeError as error:
            return str(error)
        return ""


@pytest.mark.parametrize("name", ["none", "starred", "caught"])
def test_super_without_arguments(name: str) -> None:
    assert_same(getattr(_NoArguments, name))


def test_super_of_a_class_alone() -> None:
    class Base:
        def value(self, x: Any) -> Any:
            return x + 1

    class Derived(Base):
        def value(self, x: Any) -> Any:
            return self.__super.value(x) * 2  # type: ignore[attr-defined]

        def prepare(self, x: Any) -> Any:
            Derived._Derived__super = super(Derived)  # type: ignore[attr-defined]
            return self.value(x)

    assert_same(lambda x: Derived().prepare(x), torch.ones(3))
