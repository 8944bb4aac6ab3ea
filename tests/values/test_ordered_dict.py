"""Attributes of OrderedDicts that a compiled function makes."""

from __future__ import annotations

import collections
import copy
from typing import Any

import torch

import dynajit
from dynajit.testing import assert_same

Tensor = torch.Tensor


def test_set_and_read() -> None:
    def f(x: Tensor) -> Any:
        first: Any = collections.OrderedDict()
        first.tag = "a"
        first["x"] = x + 1
        first.gone = 1
        del first.gone
        return first.tag, hasattr(first, "gone"), hasattr(first, "other"), vars(first)["tag"], first

    assert_same(f, torch.ones(2), graphs=1, breaks=0)


def test_they_come_out() -> None:
    def f(x: Tensor) -> Any:
        first: Any = collections.OrderedDict(x=x * 2)
        second: Any = collections.OrderedDict(first=first)
        second.me, second["me"], second.first = second, second, first
        return second

    made = dynajit.compile(f, backend="eager")(torch.ones(2))
    assert made.me is made and made["me"] is made and made.first is made["first"] and made.first["x"][0] == 2


def test_copies_say_what_python_says() -> None:
    def f(x: Tensor) -> Any:
        made: Any = collections.OrderedDict(x=x)
        made.tag = [1]
        return x + 1, [getattr(other, "tag", None) for other in (made.copy(), copy.copy(made), copy.deepcopy(made))]

    assert_same(f, torch.ones(2))


def test_state_dicts() -> None:
    def f(target: torch.nn.Module, source: torch.nn.Module, x: Tensor) -> Any:
        loaded = target.load_state_dict(source.state_dict())
        return target(x), loaded.missing_keys, {name: value.clone() for name, value in target.state_dict().items()}

    make = lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))  # noqa: E731
    assert_same(f, make(), make(), torch.randn(4, 3), graphs=1, breaks=0)


def test_the_versions_are_those_of_the_modules() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    made = dynajit.compile(lambda: model.state_dict(), backend="eager")()
    assert made._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
