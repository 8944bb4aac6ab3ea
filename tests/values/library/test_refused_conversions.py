"""What CPython refuses or warns at in match statements and conversions, with tensors around."""

from __future__ import annotations

import bisect
import collections
import itertools
import operator
import warnings
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same


class Same:
    __match_args__: Any = ("a", "a")
    a = 1


class NotNames(Same):
    __match_args__ = (None,)


class Listed(Same):
    __match_args__ = ["a"]


class Keys:
    KEY = "a"


class Halved(float):
    def __float__(self) -> float:
        return self


def two(x: torch.Tensor, obj: Any) -> Any:
    y = x + 1
    match obj:
        case Same(_a, _b):
            return y
    return x


def one(x: torch.Tensor, obj: Any) -> Any:
    y = x + 1
    match obj:
        case Same(_a, a=_b):
            return y
    return x


def first(x: torch.Tensor, obj: Any) -> Any:
    y = x + 1
    match obj:
        case NotNames(_a) | Listed(_a):
            return y
    return x


def keys(x: torch.Tensor, obj: Any) -> Any:
    y = x + 1
    match obj:
        case {Keys.KEY: _a, "a": _b}:
            return y
    return x


@pytest.mark.parametrize(
    "fn, obj",
    [(two, Same()), (one, Same()), (first, NotNames()), (first, Listed()), (keys, {"a": 1, "b": 2})],
)
def test_a_pattern_that_cannot_be_matched_raises_as_in_eager(fn: Any, obj: Any) -> None:
    x = torch.ones(2)
    with pytest.raises((TypeError, ValueError)) as expected:
        fn(x, obj)
    with pytest.raises((TypeError, ValueError)) as got:
        dynajit.compile(fn, backend="eager")(x, obj)
    assert type(got.value) is type(expected.value) and str(got.value) == str(expected.value)


def test_float_of_what_makes_a_subclass_warns_and_gives_a_float() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        return x + 1, float(Halved(3.0))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, number = dynajit.compile(fn, backend="eager")(torch.ones(2))
    assert type(number) is float and number == 3.0
    assert [entry.category for entry in caught] == [DeprecationWarning]


def test_arguments_that_the_real_functions_refuse_or_leave_out() -> None:
    """Not all of a mapping has to be in a template; limits are integers; what bisect searches is a sequence."""

    def program(x: torch.Tensor) -> list[object]:
        table = collections.defaultdict(list, a=1)
        found: list[object] = [x + 1, operator.mod("name", table), operator.mod("%(a)s", table)]
        calls = [
            lambda: list(itertools.islice({1}, b"ab")),  # type: ignore[call-overload]
            lambda: operator.length_hint([1], 1.5),  # type: ignore[arg-type]
            lambda: bisect.bisect({1: 2}, 1),  # type: ignore[call-overload]
            lambda: operator.mod("name", collections.deque()),
        ]
        for call in calls:
            try:
                found.append(call())
            except (TypeError, ValueError, KeyError) as error:
                found.append(type(error))
        return found

    assert_same(program, torch.ones(2))
