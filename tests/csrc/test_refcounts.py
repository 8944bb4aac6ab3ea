"""Reference counts after many calls are what they were: of arguments, functions, code, globals, classes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit

CALLS = 200
TABLE = {"scale": 2.0, "items": [1, 2]}


class Settings:
    def __init__(self) -> None:
        self.by = 3.5
        self.net = nn.Linear(3, 3)


def hit(x: Tensor, settings: Settings) -> Tensor:
    return x * settings.by + TABLE["scale"]


def broken(x: Tensor, settings: Settings) -> Tensor:
    y = x * settings.by
    dynajit.graph_break()
    return y + TABLE["scale"]


def looping(x: Tensor, settings: Settings) -> Tensor:
    for item in TABLE["items"]:  # type: ignore[attr-defined]
        x = x + item
        dynajit.graph_break()
    return settings.net(x)


def raising(x: Tensor, settings: Settings) -> Tensor:
    y = x * settings.by
    raise KeyError(y.shape)


def missing(x: Tensor, settings: Settings) -> Tensor:
    """Its guards fail at every second call, once the limit of variants is reached."""
    return x * settings.by


def watched(function: Callable[..., Any], x: Tensor, settings: Settings) -> dict[str, Any]:
    return {
        "x": x,
        "settings": settings,
        "settings.__dict__": settings.__dict__,
        "net": settings.net,
        "weight": settings.net.weight,
        "function": function,
        "code": function.__code__,
        "table": TABLE,
        "items": TABLE["items"],
        "globals": globals(),
        "Settings": Settings,
        "Tensor": Tensor,
        "KeyError": KeyError,
    }


@pytest.mark.filterwarnings("ignore:dynajit.*was compiled")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("function", [hit, broken, looping, raising, missing], ids=lambda function: function.__name__)
def test_calls_leave_the_counts(function: Callable[..., Any], backend: str) -> None:
    x, settings = torch.ones(2, 3), Settings()
    compiled = dynajit.compile(function, backend=backend, dynamic=False)

    def call() -> None:
        if function is missing:
            settings.by = settings.by + 1 if settings.by < 40 else 3.5
        try:
            with torch.no_grad():
                compiled(x, settings)
        except KeyError as error:
            assert function is raising, error

    with dynajit.config.patch(recompile_limit=2):
        for _ in range(40):
            call()
        gc.collect()
        objects = watched(function, x, settings)
        before = {name: sys.getrefcount(value) for name, value in objects.items()}
        for _ in range(CALLS):
            call()
        gc.collect()
        after = {name: sys.getrefcount(value) for name, value in objects.items()}
    assert {name: after[name] - before[name] for name in before if abs(after[name] - before[name]) > 2} == {}
