"""The order of an object's attributes: what is deleted and set again comes last, and is seen so by `vars`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.testing import assert_same


class Plain:
    def __init__(self) -> None:
        self.x, self.y = 1, 2


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = 1, 2


def set_again(owner: Any, t: Tensor) -> Tensor:
    del owner.x
    owner.x = 3
    return t + 1


def set_deleted_and_set_again(owner: Any, t: Tensor) -> Tensor:
    owner.x = t
    del owner.x
    owner.x = 3
    return t + 1


def through_the_dictionary(owner: Any, t: Tensor) -> Any:
    owner.__dict__.pop("x")
    owner.x = t
    return t + 1, list(owner.__dict__)


def beside_new_ones(owner: Any, t: Tensor) -> Any:
    owner.z = 1
    del owner.x
    owner.x = owner.y + 1
    del owner.z
    owner.z = t
    return [*vars(owner)][-3:], owner.x


def all_are_read_between(owner: Any, t: Tensor) -> Any:
    del owner.x
    before = [*vars(owner)][-2:]
    owner.x = 5
    owner.y = t
    return before, [*vars(owner)][-2:]


@pytest.mark.parametrize("kind", [Plain, Module])
@pytest.mark.parametrize(
    "fn",
    [set_again, set_deleted_and_set_again, through_the_dictionary, beside_new_ones, all_are_read_between],
)
def test_like_eager(fn: Callable[..., Any], kind: type) -> None:
    assert_same(fn, kind(), torch.ones(2), repeat=1, breaks=0)
    eager, compiled = kind(), kind()
    fn(eager, torch.ones(2))
    dynajit.compile(fn, backend="eager")(compiled, torch.ones(2))
    assert [*vars(compiled)] == [*vars(eager)]
