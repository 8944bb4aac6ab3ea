"""Whether memory stays level: many calls of compiled functions, and many functions compiled and dropped.

    python benchmarks/memory_level.py [--calls N] [--functions N] [--save]

`calls`: a million calls of a few programs (a hit, a tensor that changes its size under symbolic sizes, a break, a
training step), with what tracemalloc finds added by a tenth of them, and the process's resident memory by all, after a
warm-up. `functions`: ten thousand functions made, compiled, called and dropped; a tenth as many trees of modules.
Returns 1 where memory grows by more than a stated margin.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import side_by_side as sbs
import torch
from torch import Tensor, nn

import dynajit

# Kilobytes that may be added in all, whatever the number of calls.
MARGIN_TRACED, MARGIN_RESIDENT = 256.0, 16_384.0


def resident() -> float:
    """Kilobytes of the process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1024


def programs() -> dict[str, Callable[[int], Any]]:
    """Name -> a call, given its number."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    inputs = [torch.randn(size, 4) for size in (2, 3, 4, 5)]
    hit = dynajit.compile(lambda x: torch.relu(x) + 1)
    sized = dynajit.compile(lambda x: x.sum(0) * x.shape[0], dynamic=True)

    def broken(x: Tensor) -> Tensor:
        y = x * 2
        os.getpid()
        return y + 1

    breaking = dynajit.compile(broken)
    trained = dynajit.compile(net)

    def step(number: int) -> None:
        for parameter in net.parameters():
            parameter.grad = None
        trained(inputs[0]).sum().backward()

    return {
        "hit": lambda number: hit(inputs[0]),
        "sizes": lambda number: sized(inputs[number % 4]),
        "break": lambda number: breaking(inputs[0]),
        "training": step,
    }


def growth(work: Callable[[int], Any], count: int, warm: int) -> tuple[float, float]:
    """Kilobytes added by `count` calls after `warm`: of Python's objects, and of the process."""
    for number in range(warm):
        work(number)
    gc.collect()
    tracemalloc.start()
    try:
        # what tracemalloc itself needs is there after a few calls
        for number in range(min(warm, 100)):
            work(number)
        gc.collect()
        traced, whole = tracemalloc.get_traced_memory()[0], resident()
        for number in range(count // 10):
            work(number)
        gc.collect()
        traced = tracemalloc.get_traced_memory()[0] - traced
    finally:
        tracemalloc.stop()
    for number in range(count - count // 10):
        work(number)
    gc.collect()
    return traced / 1024, resident() - whole


def made_and_dropped(number: int) -> None:
    """A function with code of its own, compiled, called, and gone."""
    scope: dict[str, Any] = {}
    exec(f"def made(x):\n    return x * {number % 7} + {number % 13}\n", scope)
    dynajit.compile(scope.pop("made"), backend="eager")(torch.ones(2))


def module_dropped(number: int) -> None:
    """A tree of modules, compiled, called, and gone."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(1 + number % 4)))
    with torch.no_grad():
        dynajit.compile(net, backend="eager")(torch.ones(2, 4))


def row(name: str, count: int, found: tuple[float, float]) -> tuple[list[str], bool]:
    """A row of the table; whether memory is level."""
    traced, whole = found
    level = traced < MARGIN_TRACED and whole < MARGIN_RESIDENT
    return [name, str(count), f"{traced:+.1f}", f"{whole:+.0f}", "yes" if level else "no"], level


def main() -> int:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--functions", type=int, default=10_000)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/memory_level.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    jobs = [(name, work, options.calls // 4, 2000) for name, work in programs().items()]
    jobs.append(("functions", made_and_dropped, options.functions, 200))
    jobs.append(("modules", module_dropped, options.functions // 10, 100))
    table = sbs.Table(("what", "times", "KB of objects", "KB resident", "level"), "functions")
    print("\n".join(table.lines), flush=True)
    all_level = True
    for name, work, count, warm in jobs:
        cells, level = row(name, count, growth(work, count, warm))
        all_level = all_level and level
        print(table.add(cells), flush=True)
    if options.save:
        what = (
            "What is added after a warm-up: Python's objects by tracemalloc over a tenth of the calls, resident memory "
            f"over all; level: under {MARGIN_TRACED:.0f} and {MARGIN_RESIDENT:.0f} KB."
        )
        how = "python benchmarks/memory_level.py --save"
        print("written:", sbs.save("memory_level", "Memory over many calls", f"{what}\n\n{table}", how))
    return 0 if all_level else 1


if __name__ == "__main__":
    raise SystemExit(main())
