"""What the programs of features.py have in common: their table, and their inputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Made = tuple[Any, ...]
FEATURES: dict[str, tuple[str, Callable[[], Made]]] = {}


def feature(area: str, name: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def put(make: Callable[[], Made]) -> Callable[[], Made]:
        add(area, name, make)
        return make

    return put


def add(area: str, name: str, make: Callable[[], Made]) -> None:
    assert name not in FEATURES, name
    FEATURES[name] = (area, make)


def simple(area: str, name: str, fn: Any, *args: Callable[[], Any]) -> None:
    """A feature whose function is made once, and its arguments by calls."""
    add(area, name, lambda: (fn, *(arg() for arg in args)))


class Calls(list):
    """The arguments of each call, of a feature whose calls differ."""


def varied(area: str, name: str, make: Callable[[], Any], *calls: tuple[Any, ...]) -> None:
    """A feature whose calls differ in sizes or values; `make` gives the function or module."""
    add(area, name, lambda: (make(), Calls(calls)))


def varied_feature(area: str, name: str, *calls: tuple[Any, ...]) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Decorates a function that makes such a feature."""

    def put(make: Callable[[], Any]) -> Callable[[], Any]:
        varied(area, name, make, *calls)
        return make

    return put


def x8() -> Tensor:
    return torch.linspace(-1.0, 1.0, 8)


def x44() -> Tensor:
    return torch.randn(4, 4)


def leaf() -> Tensor:
    return torch.linspace(-1.0, 1.0, 8).requires_grad_()


def block(x: Tensor, scale: float = 1.0) -> Tensor:
    return (x.sin() * scale).cos()
