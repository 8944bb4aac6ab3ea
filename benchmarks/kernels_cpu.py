"""Single kernels on the CPU: eager, torch.compile and dynajit in turns, with what they move beside what a copy moves.

In: nothing but the machine. Out: for each case, on 64 MB tensors and on tensors that fit the cache, the median time of
each, dynajit's speed over the others, and GB/s beside the measured copy into memory that is already there; `--save`
writes the table to benchmarks/results/. One more case: a function with `@case`.

    python benchmarks/kernels_cpu.py [--only softmax rope] [--sizes small large] [--threads 1] [--seconds 2] [--save]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import side_by_side as sbs
import torch
import torch.nn.functional as F

# Rows of 1024 floats: 64 MB, and 256 kB.
ROWS = {"large": 16384, "small": 64}
COLUMNS = 1024


@dataclass
class Case:
    """`make(rows)` gives the arguments; `moved(arguments, result)` are the bytes that must be read and written."""

    name: str
    fn: Callable[..., Any]
    make: Callable[[int], tuple[Any, ...]]
    backward: bool = False


CASES: list[Case] = []


def case(name: str, make: Callable[[int], tuple[Any, ...]], backward: bool = False) -> Callable[[Any], Any]:
    """Register the function below."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(name, fn, make, backward))
        return fn

    return register


def matrix(rows: int) -> torch.Tensor:
    return torch.randn(rows, COLUMNS)


def low(rows: int) -> torch.Tensor:
    return torch.randn(2 * rows, COLUMNS).bfloat16()


@case("pointwise chain", lambda rows: (matrix(rows), matrix(rows)))
def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y + 1).clamp(-2, 2) * 0.5 - y


@case("bias + relu + scale", lambda rows: (matrix(rows), torch.randn(COLUMNS), torch.randn(COLUMNS)))
def bias(x: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + b) * s


@case("sin cos exp sum", lambda rows: (matrix(rows),))
def trigonometry(x: torch.Tensor) -> torch.Tensor:
    return x.sin().cos().exp().sum()


@case("softmax of rows", lambda rows: (matrix(rows),))
def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(1)


@case("softmax of rows, bfloat16", lambda rows: (low(rows),))
def softmax_low(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(1)


@case("layer norm + GELU", lambda rows: (matrix(rows), torch.randn(COLUMNS), torch.randn(COLUMNS)))
def norm_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.layer_norm(x, (COLUMNS,), w, b))


@case("RMS norm", lambda rows: (matrix(rows), torch.randn(COLUMNS)))
def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def rope_arguments(rows: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows // 64, 8, 128, 64), torch.randn(128, 64), torch.randn(128, 64)


@case("rotary embedding", rope_arguments)
def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


@case(
    "cross-entropy, forward and backward", lambda rows: (matrix(rows), torch.randint(COLUMNS, (rows,))), backward=True
)
def cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target)


@case("row sums", lambda rows: (matrix(rows),))
def row_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


@case("column sums", lambda rows: (matrix(rows),))
def column_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


@case("transpose + add", lambda rows: (matrix(rows), torch.randn(COLUMNS, rows)))
def transpose_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.t() + y


@case("embedding + add", lambda rows: (torch.randn(4096, COLUMNS), torch.randint(4096, (rows,)), matrix(rows)))
def embedding_add(table: torch.Tensor, index: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.embedding(index, table) + y


@case("cumsum of rows", lambda rows: (matrix(rows),))
def cumsum(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1)


@case("roll + pad", lambda rows: (matrix(rows),))
def roll_pad(x: torch.Tensor) -> torch.Tensor:
    return F.pad(torch.roll(x, 7, 1) * 2, (1, 1))


@case("matmul + softmax 100x100", lambda rows: (torch.randn(100, 100), torch.randn(100, 100)))
def matmul_softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y, dim=1)


def copy_bandwidth(seconds: float, clock: sbs.Clock) -> float:
    """Bytes a second, read and written, of a copy of 64 MB into memory that is already there."""
    source = matrix(ROWS["large"])
    target = torch.empty_like(source)
    times = sbs.interleave({"copy": lambda: target.copy_(source)}, seconds=seconds, clock=clock)["copy"]
    return 2 * source.nbytes / statistics.median(times)


def bytes_moved(arguments: tuple[Any, ...], result: torch.Tensor, backward: bool) -> int:
    """The least that has to be read and written."""
    once = sum(value.nbytes for value in arguments) + result.nbytes
    return once + (2 * arguments[0].nbytes if backward else 0)


def runner(fn: Callable[..., Any], arguments: tuple[Any, ...], backward: bool) -> Callable[[], Any]:
    """A call without arguments."""
    if not backward:
        return lambda: fn(*arguments)
    leaf = arguments[0].requires_grad_()

    def step() -> None:
        leaf.grad = None
        fn(*arguments).backward()

    return step


def measure(chosen: Case, rows: int, options: argparse.Namespace, clock: sbs.Clock) -> tuple[dict[str, float], int]:
    """Median seconds of each contender, and the bytes of a call."""
    torch.manual_seed(0)
    arguments = chosen.make(rows)
    moved = bytes_moved(arguments, chosen.fn(*arguments), chosen.backward)
    fns = {"eager": runner(chosen.fn, arguments, chosen.backward)}
    for name in options.compilers:
        fns[name] = runner(sbs.COMPILERS[name](chosen.fn, None), arguments, chosen.backward)
    times = sbs.interleave(fns, seconds=options.seconds, clock=clock)
    return {name: statistics.median(values) for name, values in times.items()}, moved


def table(options: argparse.Namespace) -> str:
    """All cases as Markdown."""
    clock = sbs.clock_for(options.threads)
    copy = copy_bandwidth(options.seconds, clock)
    lines = [f"Copy of 64 MB into kept memory: {copy / 1e9:.1f} GB/s (read and written).", ""]
    for size in options.sizes:
        rivals = ["eager", *(name for name in options.compilers if name != "dynajit")]
        header = ["case", *rivals, "dynajit", *(f"over {name}" for name in rivals), "GB/s"]
        lines += [f"## {size}", "", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        speeds: dict[str, list[float]] = {name: [] for name in rivals}
        for chosen in CASES:
            if options.only and not any(text in chosen.name for text in options.only):
                continue
            times, moved = measure(chosen, ROWS[size], options, clock)
            ours = times["dynajit"]
            for name in rivals:
                speeds[name].append(times[name] / ours)
            cells = [f"{times[name] * 1e6:.1f} µs" for name in (*rivals, "dynajit")]
            cells += [f"{times[name] / ours:.2f}" for name in rivals]
            lines.append(f"| {chosen.name} | {' | '.join(cells)} | {moved / ours / 1e9:.1f} |")
            print(lines[-1], flush=True)
        means = [f"{sbs.geometric_mean(speeds[name]):.2f}" for name in rivals if speeds[name]]
        lines += [f"| geometric mean |{' |' * (len(rivals) + 1)} {' | '.join(means)} | |", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name holds one of these")
    parser.add_argument("--sizes", nargs="*", default=["large", "small"], choices=[*ROWS])
    parser.add_argument("--compilers", nargs="*", default=["torch.compile", "dynajit"], choices=[*sbs.COMPILERS])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case and size")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    body = table(options)
    print(body)
    if options.save:
        sbs.save(
            "kernels_cpu", "Kernels on the CPU", body, f"python benchmarks/kernels_cpu.py --threads {options.threads}"
        )


if __name__ == "__main__":
    main()
