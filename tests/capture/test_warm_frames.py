"""A hit runs no Python of dynajit's: no frame between the user's call, the replacement code and the graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.testing import assert_same


def frames(call: Callable[[], Any]) -> list[str]:
    found: list[str] = []

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            found.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[1:]  # the first is `call` itself


def add_one(x: Tensor) -> Tensor:
    return x + 1


class Scaled:
    def __init__(self) -> None:
        self.scale = 3.0

    def of(self, x: Tensor, *, by: float = 2.0) -> Tensor:
        return x * (self.scale * by)


class Stretched(torch.Tensor):
    pass


CALLS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "function": lambda: (add_one, (torch.ones(3),)),
    "parameter": lambda: (add_one, (nn.Parameter(torch.ones(3), requires_grad=False),)),
    "method": lambda: (Scaled().of, (torch.ones(3),)),
    "partial": lambda: (functools.partial(Scaled().of, by=4.0), (torch.ones(3),)),
}


@pytest.mark.parametrize("name", CALLS)
def test_only_the_replacement_runs(name: str) -> None:
    fn, args = CALLS[name]()
    compiled = dynajit.compile(fn)
    with torch.no_grad():
        compiled(*args)
        compiled(*args)
        found = frames(lambda: compiled(*args))
    assert len(found) == 1, found


def test_a_plain_module() -> None:
    net = nn.Linear(3, 3)
    compiled, x = dynajit.compile(net), torch.ones(2, 3)
    with torch.no_grad():
        compiled(x)
        compiled(x)
        found = frames(lambda: compiled(x))
    assert len(found) == 1, found


def test_backends_may_use_torch_functions_of_proxies() -> None:
    """The backend of a graph of plain tensors runs with torch's overrides on, as its own passes may need."""
    seen = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        seen.append(torch._C._is_torch_function_enabled())
        return gm.forward

    assert_same(add_one, torch.ones(3), backend=backend)
    assert seen == [True]


def test_subclasses_without_overrides_of_their_own() -> None:
    x = torch.ones(3).as_subclass(Stretched)
    assert type(dynajit.compile(add_one, backend="eager")(x)) is type(add_one(x))


def test_errors_behind_the_graph_have_a_line() -> None:
    """A traceback's entry without a line number is more than some of its readers can take."""
    compiled = dynajit.compile(add_one, backend=lambda gm, inputs: lambda x: (x, x))
    with pytest.raises(ValueError, match="too many values") as raised:
        compiled(torch.ones(3))
    entry: Any = raised.value.__traceback__
    while entry.tb_next is not None:
        entry = entry.tb_next
    assert entry.tb_lineno is not None
