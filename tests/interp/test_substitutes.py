"""Functions that are traced in the place of others."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.graph.opaque import OPAQUE
from dynajit.testing import assert_same
from dynajit.values.core.registry import BUILTINS, TAIL_CALLS


@pytest.fixture(autouse=True)
def _without_marks() -> Iterator[None]:
    builtins, opaque, tails = dict(BUILTINS), set(OPAQUE), set(TAIL_CALLS)
    yield
    for table, before in ((BUILTINS, builtins), (OPAQUE, opaque), (TAIL_CALLS, tails)):
        table.clear()
        table.update(before)  # type: ignore[attr-defined]


@dynajit.disable
def hidden(x: Tensor) -> Tensor:
    return x.sin() * 2


def test_a_function_of_the_programs() -> None:
    def program(x: Tensor) -> Tensor:
        return hidden(x + 1).cos()

    assert_same(program, torch.randn(3), graphs=2, breaks=1)

    @dynajit.substitute_in_graph(hidden)
    def traced(x: Tensor) -> Tensor:
        return x.sin() * 2

    assert_same(program, torch.randn(3), graphs=1, breaks=0)
    assert_same(program, torch.randn(3), graphs=1, breaks=0, fullgraph=True)


def test_a_function_written_in_c() -> None:
    @dynajit.substitute_in_graph(operator.indexOf)
    def index_of(a: Any, b: Any, /) -> int:
        for position, item in enumerate(a):
            if item is b or item == b:
                return position
        raise ValueError("sequence.index(x): x not in sequence")

    @dynajit.substitute_in_graph(math.gamma)
    def gamma(x: float, /) -> float:
        return 7.0

    def program(x: Tensor) -> Any:
        try:
            return operator.indexOf([1, 2], 3), x
        except ValueError as error:
            return x * operator.indexOf([3, 4, x.size(0)], 4), str(error)

    assert_same(program, torch.randn(3), graphs=1, breaks=0)
    assert dynajit.compile(lambda x: x * math.gamma(2.0), backend="eager")(torch.ones(1)).item() == 7


def test_a_break_in_the_substitute_goes_on_in_there() -> None:
    @dynajit.substitute_in_graph(hidden)
    def traced(x: Tensor) -> Tensor:
        x = x.sin()
        dynajit.graph_break()
        return x * 2

    def program(x: Tensor) -> Tensor:
        return hidden(x + 1).cos()

    assert_same(program, torch.randn(3), graphs=2, breaks=1)


def test_what_is_refused() -> None:
    with pytest.raises(dynajit.exc.ConfigError, match="needs a function"):
        dynajit.substitute_in_graph(3)  # type: ignore[arg-type]
    with pytest.raises(dynajit.exc.ConfigError, match="written in Python"):
        dynajit.substitute_in_graph(hidden)(len)
    with pytest.raises(dynajit.exc.ConfigError, match="are not those of"):
        dynajit.substitute_in_graph(hidden)(lambda y: y)
    with pytest.raises(dynajit.exc.ConfigError, match="skip_signature_check"):
        dynajit.substitute_in_graph(time.strftime)(lambda *args: "")
    dynajit.substitute_in_graph(time.strftime, skip_signature_check=True)(lambda *args: "now")
    assert dynajit.compile(lambda x: (x + 1, time.strftime("%H")), backend="eager")(torch.ones(1))[1] == "now"
