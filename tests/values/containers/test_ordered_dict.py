"""Attributes of OrderedDicts that a compiled function makes."""

from __future__ import annotations

import collections
import copy
from typing import Any

import torch
from cases import outside

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
        copies: Any = (made.copy(), copy.copy(made), copy.deepcopy(made), made | {}, dict(made))
        copies[1].other = 3
        same = [getattr(other, "tag", None) is made.tag for other in copies]
        return x + 1, copies, [getattr(other, "tag", None) for other in copies], same, list(vars(made))

    assert_same(f, torch.ones(2), graphs=1, breaks=0)


def test_deep_copies_keep_what_is_shared() -> None:
    def f(x: Tensor) -> Any:
        made: Any = collections.OrderedDict(x=x, items=[1])
        made.me, made.items_again, made["me"] = made, made["items"], made
        found = copy.deepcopy(made)
        return x + 1, found.me is found, found["me"] is found, found.items_again is found["items"], found.me is made

    assert_same(f, torch.ones(2), graphs=1, breaks=0)


def test_the_best_state_is_kept() -> None:
    def f(model: torch.nn.Module, x: Tensor) -> Any:
        best = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(2)
        worse = model(x)
        model.load_state_dict(best)
        return worse, model(x), list(best), best._metadata, [value.clone() for value in model.state_dict().values()]

    for backend in ("eager", "codegen"):
        make = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
        assert_same(f, make, torch.randn(4, 3), graphs=1, breaks=0, backend=backend)


def test_attributes_given_from_outside_are_seen() -> None:
    given: Any = collections.OrderedDict(a=1)
    run = dynajit.compile(lambda x, held: (x + 1, copy.deepcopy(held), copy.copy(held)), backend="eager")
    for number in range(3):
        _, deep, shallow = run(torch.ones(2), given)
        assert vars(deep) == vars(shallow) == vars(given)
        given.tag = [number]


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


def test_attributes_of_an_ordered_dict() -> None:
    def program(made: Any) -> Any:
        found = getattr(made, "note", "nothing")
        copied = collections.OrderedDict(made)
        copied.note = outside("new")  # type: ignore[attr-defined]
        return found, list(made), copied, copied.note, hasattr(made, "note")  # type: ignore[attr-defined]

    plain, noted = collections.OrderedDict(a=1), collections.OrderedDict(a=1)
    noted.note = "kept"  # type: ignore[attr-defined]
    for given in ((plain, noted), (noted, plain)):
        dynajit.reset()
        compiled = dynajit.compile(program, backend="eager")
        assert [compiled(one) for one in given] == [program(one) for one in given]
