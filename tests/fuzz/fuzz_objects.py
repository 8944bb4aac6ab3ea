"""What programs of the broader kind (`fuzz_broad.py`) may use besides `fuzz_world.py`: a module with hooks and buffers,
its optimizer, a dataclass, a named tuple, context managers made of generators, a decorator.

Modules and optimizers keep state from call to call, so each loaded program gets its own: `fresh_state`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn


class Child(nn.Module):
    """A part with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([0.25]))
        self.act = nn.SiLU()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.act(value + self.bias)


class Net(nn.Module):
    """A module for tensors of any shape that counts and keeps statistics."""

    total: torch.Tensor
    recent: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.75]))
        self.child = Child()
        self.others = nn.ModuleList([Child(), nn.Identity()])
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("recent", torch.ones(1), persistent=False)
        self.calls = 0
        self.log: list[Any] = []

    def forward(self, value: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        if self.training:
            self.total += value.detach().float().mean()
            self.recent = value.detach().flatten()[:1]
        for other in self.others:
            value = other(value)
        return self.child(value * self.weight) * scale

    def scaled(self, value: torch.Tensor, count: int) -> torch.Tensor:
        return self(value) * count + self.total


@dataclasses.dataclass
class Point:
    """A dataclass with a default made at call time and a method."""

    x: Any
    y: int = 1
    tags: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.tags.append(self.y)

    def moved(self, by: Any) -> Point:
        return dataclasses.replace(self, x=self.x + by, tags=list(self.tags))

    def total(self) -> Any:
        return self.x * self.y + len(self.tags)


class Pair(NamedTuple):
    """A named tuple with a default."""

    first: Any
    second: Any = 2

    def both(self) -> Any:
        return self.first + self.second


@contextlib.contextmanager
def scope(log: list[Any], swallow: bool = False) -> Iterator[int]:
    """A context manager made of a generator, which may swallow ValueError."""
    log.append("in")
    try:
        yield len(log)
    except ValueError as error:
        log.append(str(error))
        if not swallow:
            raise
    finally:
        log.append("out")
        del log[:-4]


class Tagged(torch.Tensor):
    """A tensor subclass with a method; operations on it keep the type."""

    def twice(self) -> Any:
        return self * 2


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that counts."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        wrapper.count += 1  # type: ignore[attr-defined]
        return function(*args, **kwargs) * 1.5

    wrapper.count = 0  # type: ignore[attr-defined]
    return wrapper


def answering(value: Any) -> Iterator[Any]:
    """A generator that takes what it is sent, and answers exceptions."""
    factor: Any = 1
    try:
        while True:
            try:
                sent = yield value * factor
                factor = sent if sent is not None else factor + 1
            except ValueError as error:
                print("thrown", error)
                factor = -1
    finally:
        print("closed")


def fresh_state() -> dict[str, Any]:
    """Objects of one loaded program that live from call to call."""
    net = Net()
    return {
        "NET": net,
        "OPT": torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5),
        "ADAM": torch.optim.Adam(net.parameters(), lr=0.01),
        "POINT": Point(torch.ones(1), 2),
        "OPTS": {
            "Nesterov": torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5, nesterov=True, weight_decay=0.1),
            **{
                name: getattr(torch.optim, name)(net.parameters(), lr=0.02)
                for name in ("AdamW", "RMSprop", "Adagrad", "NAdam", "Adamax", "Adadelta", "RAdam")
            },
        },
    }
