"""What counts as an immutable constant, and when two values are known to be one object."""

import enum
from typing import Any

import pytest
import torch

from dynajit.testing import assert_same
from dynajit.values.scalars.constant import is_literal


class Color(enum.Enum):
    RED = 1


class Subclass(int):
    pass


class Pretender:
    """Claims another class; nobody may ask it."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")


@pytest.mark.parametrize(
    "value",
    [
        1,
        1.5,
        2j,
        "s",
        b"b",
        True,
        None,
        ...,
        NotImplemented,
        torch.float32,
        torch.device("cpu"),
        torch.strided,
        Color.RED,
        slice(1, None),
        range(3),
        frozenset({1}),
    ],
)
def test_literals(value: object) -> None:
    assert is_literal(value)


@pytest.mark.parametrize(
    "value",
    [[], {}, set(), (1,), object(), Subclass(3), slice([]), frozenset({(1,)}), torch.ones(1), int, len],
    ids=lambda v: type(v).__name__,
)
def test_no_literals(value: object) -> None:
    assert not is_literal(value)


def test_objects_are_not_asked() -> None:
    assert not is_literal(Pretender())


NOTED: dict[int, int] = {}


class Activation(enum.Enum):
    """Members that do what the program says, as instances of any class do."""

    RELU = 2
    SCALE = 3

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() if self is Activation.RELU else x * self.value

    def __getitem__(self, at: int) -> int:
        return int(self.value) + at

    def __setitem__(self, at: int, value: int) -> None:
        NOTED[at] = value

    def __iter__(self) -> Any:
        return iter(range(self.value))

    def __contains__(self, number: int) -> bool:
        return number < int(self.value)


class Text(enum.StrEnum):
    AB = "ab"


class Pair(tuple[int, int], enum.Enum):
    LOW = (1, 2)


class Access(enum.Flag):
    READ = 1
    WRITE = 2


def _called(x: torch.Tensor) -> Any:
    try:
        return Activation.SCALE(x), Activation.RELU(x)
    except TypeError:
        return "not callable"


def _read(x: torch.Tensor) -> Any:
    return x * Activation.RELU[3] + sum(Activation.SCALE), 1 in Activation.RELU, 5 in Activation.RELU


def _written(x: torch.Tensor) -> Any:
    Activation.RELU[1] = 4
    return x + NOTED[1]


def _mixed_in(x: torch.Tensor) -> Any:
    return x * Pair.LOW[1] + sum(Pair.LOW), Text.AB[0], [*Text.AB], [*Pair.LOW]


@pytest.mark.parametrize("program", [_called, _read, _written, _mixed_in])
def test_special_methods_of_members_are_the_programs(program: Any) -> None:
    assert_same(program, torch.tensor([-1.0, 2.0]), graphs=1, breaks=0)


def test_members_that_are_none_of_these_raise() -> None:
    def fn(x: torch.Tensor) -> Any:
        found = []
        for action in (lambda: Access.READ(x), lambda: Access.READ[0], lambda: list(Color.RED)):
            try:
                found.append(action())
            except TypeError as error:
                found.append(str(error))
        return x + 1, found, [flag.name for flag in Access.READ | Access.WRITE]

    assert_same(fn, torch.ones(2), graphs=1, breaks=0)


@pytest.mark.parametrize("action", [lambda: [*Color.RED], lambda: max(*Color.RED)])
def test_a_class_of_members_is_iterable_and_its_members_are_not(action: Any) -> None:
    def fn(x: torch.Tensor) -> Any:
        try:
            return action()
        except TypeError as error:
            return x + 1, str(error)

    assert_same(fn, torch.ones(2))
