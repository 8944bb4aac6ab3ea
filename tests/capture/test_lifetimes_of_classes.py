"""A compiled function keeps no class of the program's alive, nor what the class's functions refer to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit


def made_with_a_layer(layer: nn.Linear) -> Callable[[torch.Tensor], Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    return Model()


def read_in_a_method(layer: nn.Linear) -> Callable[[torch.Tensor], Any]:
    class Model:
        def inner(self, x: torch.Tensor) -> torch.Tensor:
            return layer(x)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    return Model().__call__


def of_a_base_class(layer: nn.Linear) -> Callable[[torch.Tensor], Any]:
    class Base(nn.Module):
        held = layer.weight

        @property
        def scale(self) -> torch.Tensor:
            return self.held * 2

    class Model(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    return Model()


def of_instances(layer: nn.Linear) -> Callable[[torch.Tensor], Any]:
    class Part:
        def __init__(self, factor: int) -> None:
            self.factor, self.layer = factor, layer

    part = Part(2)

    def call(x: torch.Tensor) -> torch.Tensor:
        return part.layer(x) * part.factor if isinstance(part, Part) else x

    return call


MAKERS = [made_with_a_layer, read_in_a_method, of_a_base_class, of_instances]


@pytest.mark.parametrize("calls", [1, 4])  # the memory of a passed check is made at a later call
@pytest.mark.parametrize("make", MAKERS)
def test_what_a_class_refers_to_is_freed(
    make: Callable[[nn.Linear], Callable[[torch.Tensor], Any]], calls: int
) -> None:
    def run(layer: nn.Linear) -> weakref.ref[Any]:
        function = make(layer)
        compiled = dynajit.compile(function, backend="eager")
        x = torch.randn(3, 3)
        for _ in range(calls):
            assert torch.equal(compiled(x), function(x))
        return weakref.ref(layer)

    first, second = (run(nn.Linear(3, 3)) for _ in range(2))  # the second with classes of the same names
    gc.collect()
    assert (first(), second()) == (None, None)
