"""Slots of objects from outside: those that are empty at some calls, and what is written into one and deleted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same


class Slotted:
    __slots__ = ("a", "b")


class Fallback(Slotted):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def deletes(x: Tensor, owner: Any) -> Any:
    try:
        del owner.a
    except AttributeError as error:
        return x + 1, str(error)
    return x + 2


def deletes_what_it_wrote(x: Tensor, owner: Any) -> Any:
    owner.a = x
    del owner.a
    return x + 1, hasattr(owner, "a")


def deletes_and_writes(x: Tensor, owner: Any) -> Any:
    try:
        del owner.a
    except AttributeError:
        x = x + 10
    owner.a = x
    return owner.a * 2


def deletes_twice(x: Tensor, owner: Any) -> Any:
    for _ in range(2):
        try:
            del owner.a
        except AttributeError:
            x = x + 10
    return x


def reads(x: Tensor, owner: Any) -> Any:
    return x + 1 if hasattr(owner, "a") else x + 2, getattr(owner, "a", None)


@pytest.mark.parametrize("kind", [Slotted, Fallback])
@pytest.mark.parametrize("fn", [deletes, deletes_what_it_wrote, deletes_and_writes, deletes_twice, reads])
@pytest.mark.parametrize("order", [(True, False, True), (False, True, False)])
def test_full_and_empty(fn: Callable[..., Any], kind: type, order: tuple[bool, ...]) -> None:
    owners = []
    for is_full in order:
        owners.append(kind())
        if is_full:
            owners[-1].a = 5
    calls = [(torch.ones(2), owner) for owner in owners]
    assert_same(fn, *calls[0], then=calls[1:], repeat=1, breaks=0)
