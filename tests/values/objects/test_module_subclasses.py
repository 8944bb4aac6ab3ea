"""Modules of a class of their own, as packages have that import parts when asked: what reading a name relies on."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import same
from torch import Tensor

import dynajit
from dynajit.testing import CompileCounter

X = torch.arange(3.0)


class Lazy(types.ModuleType):
    wide = 4.0

    def __getattr__(self, name: str) -> Any:
        if name == "scale":
            return 3.0
        raise AttributeError(name)

    def method(self) -> float:
        return 2.0


class Named(Lazy):
    """A class that tests change."""


def _replaced(self: Named, name: str) -> float:
    return 9.0


PACKAGE = Named("package")
CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], object, str, object]] = {
    "the module gets what __getattr__ gave": (lambda x: x * PACKAGE.scale, PACKAGE, "scale", 5.0),
    "the module hides an attribute of the class": (lambda x: x * PACKAGE.wide, PACKAGE, "wide", 6.0),
    "the module hides a method": (lambda x: x * PACKAGE.method(), PACKAGE, "method", lambda: 7.0),
    "the class gets what __getattr__ gave": (lambda x: x * PACKAGE.scale, Named, "scale", 8.0),
    "the class gets another __getattr__": (lambda x: x * PACKAGE.scale, Named, "__getattr__", _replaced),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    function, holder, attribute, value = CHANGES[name]
    counter = CompileCounter()
    compiled = dynajit.compile(function, backend=counter, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert torch.equal(compiled(X), function(X))
        assert counter.frame_count == 1
        setattr(holder, attribute, value)
        try:
            assert torch.equal(compiled(X), function(X))
            assert counter.frame_count == 2
        finally:
            delattr(holder, attribute)
        assert torch.equal(compiled(X), function(X))


def test_what_a_state_dict_says_of_versions() -> None:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))

    def program() -> Any:
        found: Any = module.state_dict()
        return list(found), found._metadata

    assert same(program)[1]["0"] == {"version": 2}
