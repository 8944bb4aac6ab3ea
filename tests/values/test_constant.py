"""What counts as an immutable constant, and when two values are known to be one object."""

import enum
import math
from typing import Any

import pytest
import torch

from dynajit.values.constant import ConstVal, identical, is_literal


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


def test_identical() -> None:
    nan, text = math.nan, ConstVal("a" * 50)
    assert identical(ConstVal(nan), ConstVal(nan)) and identical(text, text)
    assert not identical(ConstVal(float("nan")), ConstVal(float("nan")))
    assert not identical(ConstVal(1), ConstVal(True))
