"""Reductions of every shape: is there one that the kernel's loops or tile do not fit?

In: a processor, or an NVIDIA GPU and Triton. Out: how many shapes are slower than eager's or torch.compile's kernel,
and a table of the slowest beside these, with the memory's speed; `--save` writes it to benchmarks/results/.
Rows and columns of two elements up to 131,072, of few elements in all and of many; and images in every order of memory,
of which some dimensions are reduced, or all. Microseconds of a processor are of
one thread's time, in turns; of a GPU its own, of a recorded graph of calls back to back: the host's time is in none.

    python benchmarks/reductions.py --minutes 5             # a sample of the shapes: eager and dynajit
    python benchmarks/reductions.py --device cuda --peer    # torch.compile, too

One more operation: an entry of `OPERATIONS`.
"""

from __future__ import annotations

import functools
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

# one dimension, or several
Dims = int | tuple[int, ...]
# name -> the function of a tensor and the dimension, and how often as many bytes as the tensor's move at least
OPERATIONS: dict[str, tuple[Callable[[Tensor, Any], Tensor], int]] = {
    "sum": (lambda x, dim: x.sum(dim), 1),
    "mean": (lambda x, dim: x.mean(dim), 1),
    "prod": (lambda x, dim: x.prod(dim), 1),
    "norm": (lambda x, dim: torch.linalg.vector_norm(x, dim=dim), 1),
    "amax": (lambda x, dim: x.amax(dim), 1),
    "argmax": (lambda x, dim: x.argmax(dim), 1),
    "any": (lambda x, dim: (x > 2).any(dim), 1),
    "logsumexp": (lambda x, dim: x.logsumexp(dim), 1),
    "variance": (lambda x, dim: x.var(dim), 1),
    "softmax": (lambda x, dim: x.softmax(dim), 2),
    "cumsum": (lambda x, dim: x.cumsum(dim), 2),
}
ONE_DIMENSION = ("prod", "argmax", "softmax", "cumsum")
LENGTHS = (2, 3, 8, 21, 49, 128, 512, 2048, 16384, 131072)
ELEMENTS = {"cpu": (1 << 12, 1 << 16, 1 << 20), "cuda": (1 << 18, 1 << 24)}
# Columns that lie side by side, in matrices of many.
WIDTH = 64
IMAGES = {"cpu": (8, 32, 24, 24), "cuda": (64, 64, 56, 56)}
ROUNDS, SLOWER, CALLS = 9, 1.1, 10


def shapes(device: str) -> Iterator[tuple[tuple[int, ...], Dims, tuple[int, ...]]]:
    """Shapes, what is reduced of them, and the dimensions in the order in which they lie in memory. Of matrices the
    last, the first, and one before columns."""
    for length, elements in itertools.product(LENGTHS, ELEMENTS[device]):
        if length <= elements:
            yield (elements // length, length), 1, (0, 1)
            yield (length, elements // length), 0, (0, 1)
            yield (max(elements // (length * WIDTH), 1), length, WIDTH), 1, (0, 1, 2)
    for order in itertools.permutations(range(4)):
        for count in range(1, 5):
            for dims in itertools.combinations(range(4), count):
                yield IMAGES[device], dims[0] if count == 1 else dims, order


def recorded(fn: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], float]:
    """Calls back to back as one launch; what they give is the seconds of one."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            fn(x)
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def replay() -> float:
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / CALLS / 1e3

    return replay


def in_turns(calls: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """What each gives, round by round."""
    rounds = [{side: call() for side, call in calls.items()} for _ in range(ROUNDS)]
    return {side: [each[side] for each in rounds] for side in calls}


def measure(
    name: str,
    shape: tuple[int, ...],
    dims: Dims,
    order: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    peer: bool,
) -> dict[str, Any]:
    """A row: microseconds of each side, and gigabytes a second of dynajit's."""
    function, moved = OPERATIONS[name]
    dynajit.reset()
    torch.manual_seed(0)
    x = (
        torch.randn(shape, device=device)
        .permute(order)
        .contiguous()
        .permute(*map(order.index, range(len(order))))
        .to(dtype)
    )

    def reduce(x: Tensor) -> Tensor:
        return function(x, dims)

    sides: dict[str, Any] = {"eager": reduce, "dynajit": dynajit.compile(reduce, dynamic=False)}
    if peer:
        torch.compiler.reset()
        sides["torch.compile"] = torch.compile(reduce, dynamic=False)
    # eager's products of bfloat16 are rounded at each step
    got, expected = sides["dynajit"](x).double(), reduce(x.double()).double()
    most = expected.abs().nan_to_num(posinf=0).max().item()
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * most, equal_nan=True)
    for _, fn in itertools.product(range(3), sides.values()):
        fn(x)
    if device == "cuda":
        times = in_turns({side: recorded(fn, x) for side, fn in sides.items()})
    else:
        bound = {side: functools.partial(fn, x) for side, fn in sides.items()}
        times = sbs.interleave(bound, seconds=0, min_rounds=ROUNDS, clock=sbs.clock_for(1))
    row = {side: statistics.median(found) * 1e6 for side, found in times.items()}
    label = f"{name} of {' x '.join(map(str, shape))}, dimension {dims}, {str(dtype).removeprefix('torch.')}"
    label += "" if list(order) == sorted(order) else f", in memory {order}"
    return {"case": label, "GB/s": moved * x.nbytes / row["dynajit"] / 1e3, **row}


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
    table = sbs.Table(["the thirty slowest beside the others", *others, "dynajit", "GB/s"], worst[0]["case"])
    for row in worst:
        table.add([row["case"], *(f"{row[side]:.1f}" for side in (*others, "dynajit")), f"{row['GB/s']:.1f}"])
    return "\n".join([*lines, "", str(table)])


def main() -> None:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peer", action="store_true", help="torch.compile, too")
    parser.add_argument("--only", default="", help="of operations whose name contains this")
    parser.add_argument("--images", action="store_true", help="in all orders of memory, no matrices")
    parser.add_argument("--minutes", type=float, default=60, help="no shape is begun after this time")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases = [
        (name, *shape, dtype)
        for shape, name, dtype in itertools.product(shapes(given.device), OPERATIONS, (torch.bfloat16, torch.float32))
        if given.only in name
        and (isinstance(shape[1], int) or name not in ONE_DIMENSION)
        and (len(shape[0]) == 4 or not given.images)
    ]
    random.Random(0).shuffle(cases)  # a run that ends early is a sample
    end = time.monotonic() + 60 * given.minutes
    rows = []
    for case in cases:
        if time.monotonic() < end:
            rows.append(measure(*case, given.device, given.peer))
    on_gpu = given.device == "cuda"
    head = f"{torch.cuda.get_device_name()}; microseconds" if on_gpu else "One thread; microseconds"
    body = f"{head}, {len(rows)} of {len(cases)} shapes.\n\n{text_of(rows, given.peer)}"
    print(body)
    if given.save:
        name, where = ("reductions_gpu", "a GPU") if on_gpu else ("reductions", "the CPU")
        how = f"python benchmarks/reductions.py --device {given.device} --minutes {given.minutes:g}"
        sbs.save(name, f"Reductions of every shape on {where}", body, how)


if __name__ == "__main__":
    main()
