"""The clock is read when the compiled function runs: before the graph, behind it, or between two graphs."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import CompileCounter, assert_same

X = torch.linspace(-1.0, 1.0, 8)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_elapsed_time_is_stored_without_a_break(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Log:
        elapsed = -1.0

    def timed(x: Tensor, log: Log) -> Tensor:
        begin = time.perf_counter()
        y = x.sin() * 2
        log.elapsed = time.perf_counter() - begin
        return y

    log = Log()
    report = dynajit.explain(dynajit.compile(timed, backend=backend))(X, log)
    assert (report.graph_count, report.graph_break_count) == (1, 0)
    assert 0 < log.elapsed < 60


def test_clock_is_read_behind_the_graph() -> None:
    order: list[str] = []

    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            order.append("graph")
            time.sleep(0.02)
            return gm.forward(*args)

        return run

    def timed(x: Tensor) -> tuple[Tensor, float, int]:
        begin, begin_ns = time.monotonic(), time.time_ns()
        y = x.sin()
        return y, time.monotonic() - begin, time.time_ns() - begin_ns

    _, elapsed, elapsed_ns = dynajit.compile(timed, backend=backend)(X)
    assert order == ["graph"] and elapsed >= 0.02 and type(elapsed) is float
    assert elapsed_ns >= 20_000_000 and type(elapsed_ns) is int


def test_clock_between_operations_ends_the_graph_there() -> None:
    def timed(x: Tensor) -> tuple[Tensor, bool]:
        y = x.sin()
        middle = time.time()
        z = y.cos()
        return z, middle <= time.time()

    report = assert_same(timed, X, graphs=2)
    assert "time.time between operations" in report.break_reasons[0].reason


def test_number_in_the_graph_varies_without_compiling_again() -> None:
    def scaled(x: Tensor) -> Tensor:
        begin = time.perf_counter()
        return x.sign() * begin

    counter = CompileCounter()
    compiled = dynajit.compile(scaled, backend=counter)
    before = time.perf_counter()
    first, second = compiled(X), compiled(X)
    assert before <= first[-1].item() + 1 and first[-1] <= second[-1]
    assert counter.frame_count == 1
