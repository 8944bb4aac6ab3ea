"""Ranks that do different things: results as in eager mode, and no hang beyond the group's time-out."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import ENDED, Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dynajit


def branching(x: torch.Tensor) -> torch.Tensor:
    """Ranks whose data differ go on in other graphs, or in eager mode; the collectives are the same."""
    if x.sum() > 0:
        y = x * 2
    else:
        y = x - 1
        print(end="")
    dist.all_reduce(y)
    parts = [torch.empty_like(y) for _ in range(2)]
    dist.all_gather(parts, y)
    return parts[0] + parts[1]


def on_one_side(x: torch.Tensor) -> torch.Tensor:
    """Of two ranks one breaks at each collective, since its tensor is not contiguous."""
    y = x * 2
    if dist.get_rank() == 1:
        y = y.t()
    dist.all_reduce(y)
    return y + 1


def with_data_of(rank: int, name: str) -> list[bool]:
    fn = {"branching": branching, "on one side": on_one_side}[name]
    compiled = dynajit.compile(fn)
    same = []
    for step in range(4):
        x = torch.ones(2, 2) * (1 if (step + rank) % 2 else -1)
        same.append(torch.equal(compiled(x), fn(x)))
    return same


@pytest.mark.parametrize("name", ["branching", "on one side"])
def test_branches_on_data(two: Ranks, name: str) -> None:
    assert two.run(with_data_of, name) == [[True] * 4] * 2


def of_lengths(rank: int, how: str) -> list[float]:
    """Each rank compiles for its own lengths, at other steps than the other one."""
    torch.manual_seed(0)
    wrapped: Any = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)))
    call = dynajit.compile(wrapped) if how == "compiled" else wrapped
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    losses = []
    for step in range(6):
        length = 4 if rank == 0 else 4 + step
        loss = call(torch.linspace(-1, 1, length * 8).reshape(length, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses


def test_lengths(two: Ranks) -> None:
    for eager, compiled in zip(two.run(of_lengths, "eager"), two.run(of_lengths, "compiled"), strict=True):
        assert compiled == pytest.approx(eager, rel=1e-4)


def one_raises(rank: int, when: str) -> tuple[str, float]:
    """One rank raises before a collective that the other one waits in."""

    def f(x: torch.Tensor, fails: bool) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        if fails:
            raise ValueError("no data")
        dist.all_reduce(y)
        return y + 1

    compiled = dynajit.compile(f)
    x = torch.ones(3)
    if when == "later":
        compiled(x, False)
    begin = time.monotonic()
    try:
        compiled(x, rank == 0)
    except (ValueError, RuntimeError) as error:
        return type(error).__name__, time.monotonic() - begin
    return "", time.monotonic() - begin


@pytest.mark.parametrize("when", ["at the first call", "later"])
def test_one_rank_raises(two: Ranks, when: str) -> None:
    (first, _), (second, seconds) = two.run(one_raises, when, seconds=3.0)
    assert (first, second) == ("ValueError", "RuntimeError")
    assert seconds < 3.0 + 20.0  # the group's time-out, and a compile


def one_fails_in_a_step(rank: int, how: str) -> list[str]:
    """One rank raises in its forward pass, when the other waits for its gradients; then both go on."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, fails: bool) -> torch.Tensor:
            y = self.inner(x)
            if fails:
                raise ValueError("no data")
            return y.square()

    wrapped: Any = DistributedDataParallel(Model())
    call = dynajit.compile(wrapped) if how == "compiled" else wrapped
    found = []
    for step in range(3):
        try:
            call(torch.ones(4, 8), step == 2 and rank == 0).mean().backward()
            found.append("")
        except (ValueError, RuntimeError) as error:
            found.append(type(error).__name__)
    return found


def test_one_rank_raises_in_a_step(two: Ranks) -> None:
    expected = two.run(one_fails_in_a_step, "eager", seconds=3.0)
    assert expected == [["", "", "ValueError"], ["", "", "RuntimeError"]]
    assert two.run(one_fails_in_a_step, "compiled", seconds=3.0) == expected


def one_is_killed(rank: int, how: str) -> tuple[str, float]:
    """One rank is killed while the other waits for it, in a compiled graph or for DDP's gradients."""
    torch.manual_seed(0)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def trained(x: torch.Tensor) -> None:
        call(x).mean().backward()

    if how == "gradients":
        call: Any = dynajit.compile(DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))))
    step = dynajit.compile(f) if how == "collective" else trained
    x = torch.ones(4, 8)
    for _ in range(2):
        step(x)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        step(x)
    except RuntimeError as error:
        return type(error).__name__, time.monotonic() - begin
    return "", time.monotonic() - begin


@pytest.mark.parametrize("how", ["collective", "gradients"])
def test_one_rank_is_killed(tmp_path: Any, how: str) -> None:
    ranks = Ranks(tmp_path)
    try:
        (name, seconds), killed = ranks.run(one_is_killed, how, seconds=5.0)
    finally:
        ranks.stop()
    assert killed == ENDED and name == "RuntimeError"
    assert seconds < 5.0 + 20.0  # the group's time-out


def logged(rank: int) -> list[str]:
    """What logs say, by the rank that says it."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("dynajit.graph_code")
    logger.addHandler(handler)
    dynajit.set_logs("graph_code")
    try:
        dynajit.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    finally:
        dynajit.set_logs()
        logger.removeHandler(handler)
    return [line.partition(" ")[0] for text in lines for line in text.splitlines()]


def test_logs_carry_the_rank(two: Ranks) -> None:
    for rank, prefixes in enumerate(two.run(logged)):
        assert prefixes and set(prefixes) == {f"[rank{rank}]"}


def told(rank: int, how: str) -> list[str]:
    """What is logged where ranks don't meet, and that no rank waits much longer than the group's time-out."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dynajit.ranks").addHandler(handler)

    def meets(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def branches(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1  # and this rank is not in the sum
        return meets(x)

    def raises(x: torch.Tensor) -> torch.Tensor:
        y = meets(x)
        if dist.get_rank() == 1:
            raise ValueError("no data")
        return meets(y)

    call = dynajit.compile({"branch": branches, "raise": raises, "killed": meets}[how])
    x = torch.ones(3) * (1 if how == "branch" and rank == 1 else -1)
    if how == "killed":
        call(x)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with contextlib.suppress(ValueError, RuntimeError):
        call(x)
    assert time.monotonic() - begin < 5.0 + 25.0  # the group's time-out, a compile, the report
    logging.getLogger("dynajit.ranks").removeHandler(handler)
    time.sleep(0 if rank == 0 else 7.0)  # the process lives while the other one tells
    return lines


@pytest.mark.parametrize("how", ["branch", "raise", "killed"])
def test_one_report_tells_what_each_rank_did(tmp_path: Any, how: str) -> None:
    ranks = Ranks(tmp_path)
    try:
        (text,), other = ranks.run(told, how, seconds=5.0)
    finally:
        ranks.stop()
    assert other == (ENDED if how == "killed" else [])
    first, second = text.split("  rank 0: ")[1].split("  rank 1: ")
    assert text.startswith("[rank0] [ranks] dynajit: a collective failed") and "all_reduce" in first
    assert "raised RuntimeError: " in first and f"({__file__}:" in first
    if how != "killed":  # what a program catches is its own affair: `uncaught` has an exception that is told
        assert "has neither compiled nor raised" in second and "only on rank 0: " in text
    else:
        assert "is gone; " in second and "only on" not in text


def compiles_for_long(rank: int) -> list[str]:
    """One rank compiles for longer than the others wait."""

    def backend(gm: Any, inputs: Any) -> Any:
        time.sleep(6.0 if rank == 1 else 0.0)
        return gm

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dynajit.ranks").addHandler(handler)

    def meets(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x + 1

    with contextlib.suppress(RuntimeError):
        dynajit.compile(meets, backend=backend)(torch.ones(3))
    logging.getLogger("dynajit.ranks").removeHandler(handler)
    return lines


def test_a_rank_that_compiles_is_told(two: Ranks) -> None:
    (text, *_), _ = two.run(compiles_for_long, seconds=3.0)
    assert "rank 1: is compiling [0/0] meets" in text


def uncaught(folder: str) -> None:
    """A program that nobody catches exceptions of; gradients are waited for outside of any compiled call."""
    rank = int(os.environ["RANK"])
    seconds = datetime.timedelta(seconds=4)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=seconds)
    model = dynajit.compile(DistributedDataParallel(nn.Linear(4, 4)))
    for step in range(3):
        loss = model(torch.ones(2, 4)).mean()
        if rank == 1 and step == 2:
            raise ValueError("no data")
        loss.backward()


def test_what_nobody_catches_is_told(tmp_path: Any) -> None:
    program = f"import test_ranks_disagree as t; t.uncaught({str(tmp_path)!r})"
    path = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(dynajit.__path__[0])])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "RANK": str(rank), "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    first, second = (process.communicate(timeout=100)[1] for process in started)
    assert "dynajit: a collective failed" in first and "raised ValueError: no data, in uncaught" in first
    assert "ValueError: no data" in second and "a collective failed" not in second


def index_fails(rank: int, which: str) -> list[tuple[str, int, float]]:
    """What is raised after a collective, how many collectives were made by then, and what the argument is."""

    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y[at] + 1

    def of_the_sum(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(at)
        z = x[at] + 1
        x.copy_(x * 2)
        return z

    fn = {"own": f, "of the sum": of_the_sum}[which]
    compiled, found = dynajit.compile(fn), []
    compiled(torch.ones(3), torch.tensor([1]))
    for call in (fn, compiled):
        name, x = "", torch.ones(3)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            try:
                call(x, torch.tensor([5]))
            except IndexError as error:
                name = type(error).__name__
        sums = sum(each.count for each in trace.key_averages() if each.key == "gloo:all_reduce")
        found.append((name, sums, x.sum().item()))
    return found


@pytest.mark.parametrize("which", ["own", "of the sum"])
def test_no_collective_is_made_a_second_time(two: Ranks, which: str) -> None:
    for eager, compiled in two.run(index_fails, which):
        assert eager == compiled == ("IndexError", 1, 3.0)
