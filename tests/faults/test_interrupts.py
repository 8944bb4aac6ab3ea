"""KeyboardInterrupt at any point of a compile: it reaches the user, nothing stays behind, and the next call works."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import dynajit
from dynajit import locks
from tests.faults.process_state import differences, state

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread only"
)
POINTS = 40
AGAIN_S = 0.1


def program(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    y = x.sin() * 2
    seen.append(1)
    with torch.no_grad():
        y = y + x.mean()
    print(end="")
    for _ in range(3):
        y = torch.relu(y - 0.1)
    return y.sum(0)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """One KeyboardInterrupt, after so long in the block. The alarm is sent again until its handler runs: CPython's
    interpreter now and then misses a signal's wake-up and runs on until something else wakes it."""
    raised = False

    def raise_it(*args: Any) -> None:
        nonlocal raised
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not raised:
            raised = True
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGALRM)
    left, every = signal.getitimer(signal.ITIMER_REAL)
    started = time.perf_counter()
    try:
        signal.signal(signal.SIGALRM, raise_it)
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        yield
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:  # the alarm may come right before it is stopped
            signal.signal(signal.SIGALRM, before)
            if left:  # each test's own end, which uses the same timer
                signal.setitimer(signal.ITIMER_REAL, max(left - (time.perf_counter() - started), 1e-3), every)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_interrupts_leave_nothing_behind(backend: str, tmp_path: Any) -> None:
    x = torch.linspace(-1, 1, 64).reshape(8, 8)
    wanted = program(x, [])
    with dynajit.config.patch(cache_dir=str(tmp_path)):
        dynajit.compile(program, backend=backend)(x, [])  # what is done once for a process
        dynajit.reset()
        started = time.perf_counter()
        dynajit.compile(program, backend=backend)(x, [])
        whole = time.perf_counter() - started
        before, drawn = state(), torch.get_rng_state()
        hit = 0
        for point in range(POINTS):
            dynajit.reset()
            compiled = dynajit.compile(program, backend=backend)
            seen: list[int] = []
            try:
                with interrupted_after(whole * (point + 0.5) / POINTS):
                    result = compiled(x, seen)
            except KeyboardInterrupt:
                hit += 1
                assert seen in ([], [1])
            else:
                assert torch.allclose(result, wanted)
            assert torch.allclose(compiled(x, []), wanted)
            assert not differences(before, state())
            assert torch.equal(torch.get_rng_state(), drawn)
    assert hit > 0
    assert not dynajit.counters["internal_errors"]


def test_an_interrupt_while_the_c_compiler_runs(tmp_path: Any) -> None:
    slow = tmp_path / "cc"
    slow.write_text('#!/bin/sh\ncase "$*" in *-shared*) sleep 30;; esac\nexec cc "$@"\n')
    slow.chmod(0o755)
    x = torch.rand(16)
    with dynajit.config.patch(cache_dir=str(tmp_path / "cache"), compiler=str(slow)):
        compiled = dynajit.compile(lambda x: (x * 3).cos() + 1)
        started = time.perf_counter()
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.5):
            compiled(x)
        waited = time.perf_counter() - started
    assert waited < 20, "the compiler was waited for"
    assert torch.allclose(compiled(x), (x * 3).cos() + 1)


def test_an_interrupt_leaves_no_lock_shut() -> None:
    lock = locks.process_lock()
    for turn in range(100):
        with pytest.raises(KeyboardInterrupt), interrupted_after(1e-4 + turn * 1e-6):
            while True:
                with lock:
                    pass
        assert not lock._is_owned()


def test_a_test_that_interrupts_still_has_an_end() -> None:
    ends = signal.getsignal(signal.SIGALRM)
    left, every = signal.getitimer(signal.ITIMER_REAL)
    assert callable(ends) and left > 0 and every > 0
    with interrupted_after(60):
        time.sleep(0.01)
    assert signal.getsignal(signal.SIGALRM) is ends
    now, now_every = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < now < left and now_every == every
