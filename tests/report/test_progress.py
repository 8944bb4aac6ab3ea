"""The progress line: on a terminal (a pseudo-terminal here), not in a pipe, unless asked for; which counts it shows."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
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


class Reader:
    """Reads all that is written there, at once: who writes must never wait."""

    def __init__(self, descriptor: int) -> None:
        self.text = ""
        self._descriptor = descriptor
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                read = os.read(self._descriptor, 4096).decode()
            except OSError:  # what a terminal says at its end
                read = ""
            if not read:
                return
            with self._more:
                self.text += read
                self._more.notify_all()

    def wait_for(self, wanted: str) -> None:
        with self._more:
            assert self._more.wait_for(lambda: wanted in self.text, LONGEST), f"no {wanted!r} in {self.text!r}"

    def end(self) -> str:
        """All there was, once nobody can write any more."""
        self._thread.join(LONGEST)
        assert not self._thread.is_alive()
        os.close(self._descriptor)
        return self.text


def test_a_slow_compile_shows_a_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, slave = pty.openpty()
    reader = Reader(terminal)

    def slow(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with phases.timer("c_compile"):
            progress.count(3, 12)
            reader.wait_for("3 of 12 kernels")
        return gm.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    with os.fdopen(slave, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        dynajit.compile(forward, backend=slow)(torch.ones(3))
        assert not [thread for thread in threading.enumerate() if thread.name == "dynajit progress"]
    text = reader.end()
    assert re.search(r"dynajit: compiling forward: c_compile, 3 of 12 kernels, \d+\.\d s", text)
    assert re.search(r"\r +\r$", text), "the line is wiped when the compile ends"


@pytest.mark.parametrize("setting", ["auto", "off", "on"])
def test_a_pipe_gets_none_unless_asked(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    reader = Reader(reading)
    watched: list[bool] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        watched.append("dynajit progress" in {thread.name for thread in threading.enumerate()})
        if setting == "on":
            reader.wait_for("dynajit: compiling")
        return gm.forward

    with os.fdopen(writing, "w") as stream, config.patch(progress=setting):
        monkeypatch.setattr(sys, "stderr", stream)
        dynajit.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    text = reader.end()
    assert watched == [setting == "on"]
    assert setting == "on" or text == ""


def test_a_pipe_that_nobody_reads_stops_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.01)
    stuck: list[threading.Thread] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        stuck.extend(thread for thread in threading.enumerate() if thread.name == "dynajit progress")
        return gm.forward

    with os.fdopen(writing, "w") as stream, config.patch(progress="on"):
        monkeypatch.setattr(sys, "stderr", stream)
        result = dynajit.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
        Reader(reading)
        stuck[0].join(LONGEST)
    assert not stuck[0].is_alive()
    assert torch.equal(result, torch.full((3,), 2.0))


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
