"""The progress line: on a terminal (a pseudo-terminal here), not in a pipe, unless asked for; which counts it shows."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import dynajit
from dynajit.config import config
from dynajit.report import phases, progress
from dynajit.runtime import toolchain

LONGEST = 60.0  # seconds that a test waits for what must come at once


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The line comes at once rather than after two seconds."""
    monkeypatch.setattr(progress, "_DELAY_S", 0.0)
    monkeypatch.setattr(progress, "_PERIOD_S", 0.001)
    dynajit.reset()
    yield
    dynajit.reset()


def read_until(descriptor: int, wanted: str) -> str:
    """What is written there, up to the wanted text."""
    seen = ""
    while wanted not in seen:
        ready, _, _ = select.select([descriptor], [], [], LONGEST)
        assert ready, f"no {wanted!r} in {seen!r}"
        seen += os.read(descriptor, 4096).decode()
    return seen


def test_a_slow_compile_shows_a_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, slave = pty.openpty()
    seen: list[str] = []

    def slow(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with phases.timer("c_compile"):
            progress.count(3, 12)
            seen.append(read_until(terminal, "3 of 12 kernels"))
        return gm.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    with os.fdopen(slave, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        dynajit.compile(forward, backend=slow)(torch.ones(3))
        stream.write("end\n")
        stream.flush()
        rest = read_until(terminal, "end")
    os.close(terminal)
    assert re.search(r"dynajit: compiling forward: c_compile, 3 of 12 kernels, \d+\.\d s", seen[0])
    assert re.search(r"\r +\rend", rest), "the line is wiped when the compile ends"
    assert not [thread for thread in threading.enumerate() if thread.name == "dynajit progress"]


@pytest.mark.parametrize("setting", ["auto", "off", "on"])
def test_a_pipe_gets_none_unless_asked(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    watched: list[bool] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        watched.append("dynajit progress" in {thread.name for thread in threading.enumerate()})
        if setting == "on":
            read_until(reading, "dynajit: compiling")
        return gm.forward

    with os.fdopen(writing, "w") as stream, config.patch(progress=setting):
        monkeypatch.setattr(sys, "stderr", stream)
        dynajit.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    with os.fdopen(reading) as rest:
        left = rest.read()
    assert watched == [setting == "on"]
    assert setting == "on" or left == ""


def test_a_stream_that_is_closed_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert torch.equal(dynajit.compile(lambda x: x + 1, backend="eager")(torch.ones(3)), torch.full((3,), 2.0))


def test_the_kernels_of_a_cpu_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    counts: list[tuple[Any, ...]] = []
    monkeypatch.setattr(progress, "count", lambda *args: counts.append((phases.running(), *args)))
    toolchain.find()
    with config.patch(cache_dir=str(tmp_path)):
        dynajit.compile(lambda x: (x.sin().sum(0), x.cos().sum(1)))(torch.rand(64, 8))
    assert counts[0][:2] == ("codegen", 0)
    assert counts[-1][:2] == ("c_compile", 0) and counts[-1][2] >= 1


def test_a_count_is_of_its_phase() -> None:
    with config.patch(progress="on"), phases.collect(), progress.watch("forward"):
        watch = progress._local.watch
        with phases.timer("codegen"):
            progress.count(2, 5, "steps printed")
            assert "codegen, 2 of 5 steps printed" in watch.text()
        with phases.timer("guards"):
            assert "guards, " in watch.text() and "of 5" not in watch.text()
