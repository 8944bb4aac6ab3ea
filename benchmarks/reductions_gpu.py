"""Reductions of every shape on an NVIDIA GPU: is there a shape that the kernel's tile does not fit?

In: a machine with a GPU and Triton. Out: how many shapes are slower than eager's or torch.compile's kernel, and a table
of the slowest beside these, with the memory's speed; `--save` writes it to benchmarks/results/.
Lengths from 2 to 131,072, along memory and across it, of few elements and of many; microseconds are the GPU's own (a
recorded graph of calls back to back), so that the host's time is in none.

    python benchmarks/reductions_gpu.py                # eager and dynajit
    python benchmarks/reductions_gpu.py --peer --save  # torch.compile, too

One more operation: an entry of `OPERATIONS`.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import dynajit

# name -> the function of a tensor and the dimension, and how often as many bytes as the tensor's move at least
OPERATIONS: dict[str, tuple[Callable[[Tensor, int], Tensor], int]] = {
    "sum": (lambda x, dim: x.sum(dim), 1),
    "softmax": (lambda x, dim: x.softmax(dim), 2),
    "variance": (lambda x, dim: x.var(dim), 1),
    "argmax": (lambda x, dim: x.argmax(dim), 1),
}
LENGTHS = (2, 4, 8, 21, 49, 128, 512, 2048, 16384, 131072)
ELEMENTS = (1 << 18, 1 << 24)
# Columns that lie side by side.
WIDTH = 256
SLOWER, CALLS = 1.1, 10


def shapes() -> Iterator[tuple[tuple[int, ...], int]]:
    """Shapes, and the dimension that is reduced: the last, and one before columns."""
    for length, elements in itertools.product(LENGTHS, ELEMENTS):
        yield (max(elements // length, 1), length), 1
        yield (max(elements // (length * WIDTH), 1), length, WIDTH), 1


def recorded(fn: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    """Calls back to back as one launch."""
    for _ in range(3):
        fn(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            fn(x)
    return graph.replay


def microseconds(replays: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Medians over rounds in turns."""
    times: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(9):
        for name, replay in replays.items():
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            replay()
            last.record()
            torch.cuda.synchronize()
            times[name].append(first.elapsed_time(last) / CALLS * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(name: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype, peer: bool) -> dict[str, Any]:
    """A row: microseconds of each side, and terabytes a second of dynajit's."""
    function, moved = OPERATIONS[name]
    dynajit.reset()
    x = torch.randn(shape, device="cuda", dtype=dtype)

    def reduce(x: Tensor) -> Tensor:
        return function(x, dim)

    sides = {"eager": reduce, "dynajit": dynajit.compile(reduce, dynamic=False)}
    if peer:
        torch.compiler.reset()
        sides["torch.compile"] = torch.compile(reduce, dynamic=False)
    torch.testing.assert_close(sides["dynajit"](x), reduce(x), atol=2e-2, rtol=2e-2)
    row = microseconds({side: recorded(fn, x) for side, fn in sides.items()})
    label = f"{name} of {' x '.join(map(str, shape))}, dimension {dim}, {str(dtype).removeprefix('torch.')}"
    return {"case": label, "TB/s": moved * x.nbytes / row["dynajit"] / 1e6, **row}


def text_of(rows: list[dict[str, Any]], peer: bool) -> str:
    others = ["eager", *(["torch.compile"] if peer else [])]
    lines = []
    for other in others:
        ratios = [row[other] / row["dynajit"] for row in rows]
        slower = sum(ratio < 1 / SLOWER for ratio in ratios)
        mean = sbs.geometric_mean(ratios)
        lines.append(f"* {other} / dynajit: geometric mean {mean:.2f} of {len(rows)} shapes, least {min(ratios):.2f},")
        lines[-1] += f" {slower} slower by {SLOWER - 1:.0%}"
    worst = sorted(rows, key=lambda row: min(row[other] for other in others) / row["dynajit"])[:30]
    table = sbs.Table(["the thirty slowest beside the others", *others, "dynajit", "TB/s"], worst[0]["case"])
    for row in worst:
        table.add([row["case"], *(f"{row[side]:.1f}" for side in (*others, "dynajit")), f"{row['TB/s']:.2f}"])
    return "\n".join([*lines, "", str(table)])


def main() -> None:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--peer", action="store_true", help="torch.compile, too")
    parser.add_argument("--only", default="", help="of operations whose name contains this")
    parser.add_argument("--minutes", type=float, default=60, help="no shape is begun after this time")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    dtypes = (torch.bfloat16, torch.float32)
    cases = [
        (name, shape, dim, dtype)
        for (shape, dim), name, dtype in itertools.product(shapes(), OPERATIONS, dtypes)
        if given.only in name
    ]
    random.Random(0).shuffle(cases)  # a run that ends early is a sample
    end = time.monotonic() + 60 * given.minutes
    rows = []
    for name, shape, dim, dtype in cases:
        if time.monotonic() < end:
            rows.append(measure(name, shape, dim, dtype, given.peer))
    body = f"{torch.cuda.get_device_name()}; microseconds.\n\n{text_of(rows, given.peer)}"
    print(body)
    if given.save:
        sbs.save("reductions_gpu", "Reductions of every shape on a GPU", body, "python benchmarks/reductions_gpu.py")


if __name__ == "__main__":
    main()
