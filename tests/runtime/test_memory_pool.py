"""The memory pool: memory comes back and is used again, from any thread; what tensors on it can do; bounds; forks."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import dynajit
from dynajit.config import config
from dynajit.runtime import memory

ELEMENTS = 1 << 20  # 4 MB


def make(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


@pytest.fixture
def compiled() -> Iterator[object]:
    gc.collect()
    dynajit.reset()
    yield dynajit.compile(make)
    gc.collect()
    dynajit.reset()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(ELEMENTS, dtype=torch.float32)


def test_the_memory_of_a_dead_tensor_is_used_again(compiled, x: torch.Tensor) -> None:
    before = memory.stats()
    y = compiled(x)
    assert memory.stats().in_use == before.in_use + y.nbytes
    address = y.data_ptr()
    del y
    assert memory.stats().in_use == before.in_use and memory.stats().kept >= 4 * ELEMENTS
    hits = memory.stats().hits
    z = compiled(x)
    assert z.data_ptr() == address and memory.stats().hits == hits + 1
    assert torch.equal(z, make(x))


def test_what_the_user_holds_is_never_handed_out(compiled, x: torch.Tensor) -> None:
    held = [compiled(x + n) for n in range(5)]
    assert len({y.data_ptr() for y in held}) == 5
    view = held.pop(2)[100:200]
    for _ in range(3):
        compiled(x)
    assert torch.equal(view, make(x + 2)[100:200])
    assert all(torch.equal(y, make(x + n)) for y, n in zip(held, (0, 1, 3, 4), strict=True))


def test_neighbours_become_one_block(compiled, x: torch.Tensor) -> None:
    held = [compiled(x) for _ in range(6)]
    lowest = min(y.data_ptr() for y in held)
    del held[1::2]
    held.clear()
    large = torch.zeros(5 * ELEMENTS)
    assert compiled(large).data_ptr() == lowest


def test_reset_gives_the_memory_back(compiled, x: torch.Tensor) -> None:
    compiled(x)
    assert memory.stats().kept > 0
    dynajit.reset()
    assert memory.stats().kept == 0


def test_no_more_is_kept_than_the_bound() -> None:
    with config.patch(memory_pool_mb=6):
        compiled = dynajit.compile(lambda x: (x * 2, x * 3, x * 4))
        y = compiled(torch.ones(ELEMENTS))
        assert [float(part[0]) for part in y] == [2, 3, 4]
        del y
        assert memory.stats().bound == 6 << 20 and memory.stats().kept <= 6 << 20
    dynajit.reset()


def test_without_a_pool_nothing_is_kept() -> None:
    with config.patch(memory_pool_mb=0):
        before = memory.stats().in_use
        y = dynajit.compile(lambda x: x * 5)(torch.ones(ELEMENTS))
        assert memory.stats().in_use == before and float(y[3]) == 5
    dynajit.reset()
    dynajit.compile(lambda x: x * 6)(torch.ones(4))
    assert memory.stats().bound == config.memory_pool_mb << 20


def test_operators_in_a_graph_use_the_pool_and_others_do_not(x: torch.Tensor) -> None:
    product = dynajit.compile(lambda a: torch.mm(a, a))
    square = torch.randn(512, 512)
    before = memory.stats().in_use
    y = product(square)
    assert memory.stats().in_use > before
    torch.testing.assert_close(y, square @ square)
    held = memory.stats().in_use
    z = square @ square
    assert memory.stats().in_use == held and memory.stats().outside >= z.nbytes


def test_tensors_die_on_other_threads(compiled, x: torch.Tensor) -> None:
    before = memory.stats().in_use
    boxes = [[compiled(x)] for _ in range(8)]
    threads = [threading.Thread(target=box.clear) for box in boxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.stats().in_use == before


def test_many_threads_at_once(compiled) -> None:
    wrong = []

    def work(number: int) -> None:
        for round in range(30):
            x = torch.full((60_000 + 7000 * ((number + round) % 5),), float(number))
            y = compiled(x)
            z = compiled(y)
            if not (torch.equal(y, make(x)) and torch.equal(z, make(make(x)))):
                wrong.append((number, round))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_storages_behave_as_others_do(compiled, x: torch.Tensor) -> None:
    expected = make(x)
    y = compiled(x)
    assert torch.equal(copy.deepcopy(y), expected)
    assert torch.equal(pickle.loads(pickle.dumps(y)), expected)
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    assert torch.equal(torch.load(file), expected)
    array = y.numpy()
    y[5] = 77
    assert array[5] == 77
    del y
    compiled(x)
    assert array[5] == 77 and array[6] == 13
    shared = compiled(x)
    assert shared.share_memory_() is shared and shared.is_shared() and torch.equal(shared, expected)
    grown = compiled(x)
    grown.resize_(2 * ELEMENTS)
    assert torch.equal(grown[:ELEMENTS], expected)
    grown.untyped_storage().resize_(0)
    grown.untyped_storage().resize_(4 * ELEMENTS)
    torch.from_dlpack(compiled(x)).add_(1)


def test_gradients_and_version_counters(x: torch.Tensor) -> None:
    leaf = x.clone().requires_grad_()
    y = dynajit.compile(lambda v: (v.sin() * v).exp().sum())(leaf * 1e-6)
    y.backward()
    other = x.clone().requires_grad_()
    ((other * 1e-6).sin() * (other * 1e-6)).exp().sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


SCRIPT = """
import os, sys, torch, dynajit
torch.set_num_threads(1)  # OpenMP's threads do not survive a fork, in eager neither
f = dynajit.compile(lambda x: x * 2 + 1)
x = torch.arange(1 << 20, dtype=torch.float32)
y = f(x)
f(x)
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", SCRIPT + script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    out = run("""
pid = os.fork()
z = f(x + 1)
fine = torch.equal(z, (x + 1) * 2 + 1) and torch.equal(y, x * 2 + 1)
if pid == 0:
    os._exit(0 if fine else 1)
print(fine, os.waitpid(pid, 0)[1])
""")
    assert out.split() == ["True", "0"]


def test_idle_memory_goes_back_to_the_system() -> None:
    out = run("""
import time
before = dynajit.memory_stats().kept
end = time.monotonic() + 60
while dynajit.memory_stats().kept and time.monotonic() < end:
    time.sleep(0.1)
print(before > 0, dynajit.memory_stats().kept)
""")
    assert out.split() == ["True", "0"]


def test_the_peak_stays_near_that_of_eager() -> None:
    """Free memory of the pool gives way to what is allocated elsewhere."""
    out = run("""
parts = dynajit.compile(lambda x: tuple(x * n for n in range(2, 12)))
x = torch.ones(4 << 20)
del y
parts(x)
kept = dynajit.memory_stats().kept
held = [torch.ones(4 << 20) for _ in range(20)]
stats = dynajit.memory_stats()
print(kept >= 10 * x.nbytes, stats.kept <= 0.1 * stats.peak + (160 << 20), stats.in_use + stats.kept + stats.outside)
""")
    assert out.split()[:2] == ["True", "True"]
