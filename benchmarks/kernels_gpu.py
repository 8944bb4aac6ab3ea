"""Single kernels on an NVIDIA GPU: eager, torch.compile and dynajit in turns, with the memory's or arithmetic's limit.

In: a machine with a GPU and Triton. Out: a table of microseconds a call (medians), achieved bandwidth or TFLOP/s, and
the error against float64 beside eager's; `--save` writes it to benchmarks/results/. Large cases are timed with events
over calls back to back, small ones with the wall clock. One more case: an entry of `CASES`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dynajit  # noqa: E402

GB, TF = 1e9, 1e12


@dataclass
class Case:
    """`make` gives the arguments on the GPU; `moved` bytes and `flops` are the least that must be done."""

    name: str
    fn: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    moved: float = 0
    flops: float = 0
    wall: bool = False
    check: Callable[..., tuple[Any, ...]] | None = None  # smaller arguments to check on


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As many write it."""
    batch, length, width = q.shape
    q, k, v = (t.view(batch, length, 8, width // 8).transpose(1, 2) for t in (q, k, v))
    weights = torch.softmax(q @ k.transpose(-2, -1) / (width // 8) ** 0.5, dim=-1)
    return (weights @ v).transpose(1, 2).reshape(batch, length, width)


class Block(torch.nn.Module):
    """Of a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(width)
        self.conv2 = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + x)


def block() -> Callable[..., Any]:
    module = Block(64).cuda().eval()
    return lambda x: module(x)


BF = torch.bfloat16


def cases() -> list[Case]:
    """All cases of the table."""
    big = 16384 * 4096
    return [
        Case(
            "matmul + softmax 100x100",
            lambda a, b: torch.softmax(a @ b, -1),
            lambda: (randn(100, 100), randn(100, 100)),
            wall=True,
        ),
        Case(
            "relu(x·2 + b)·s 8192² fp32",
            lambda x, b, s: torch.relu(x * 2 + b) * s,
            lambda: (randn(8192, 8192), randn(8192), randn(8192)),
            moved=8 * 8192**2,
        ),
        Case(
            "exp(cos(sin x)).sum() 10,000²",
            lambda x: torch.exp(torch.cos(torch.sin(x))).sum(),
            lambda: (randn(10_000, 10_000),),
            moved=4 * 10_000**2,
        ),
        Case(
            "softmax bf16 16kx4k",
            lambda x: torch.softmax(x, -1),
            lambda: (randn(16384, 4096, dtype=BF),),
            moved=4 * big,
        ),
        Case(
            "gelu(layer_norm(x))·x + x bf16 16kx4k",
            lambda x, w, b: F.gelu(F.layer_norm(x, (4096,), w, b)) * x + x,
            lambda: (randn(16384, 4096, dtype=BF), randn(4096, dtype=BF), randn(4096, dtype=BF)),
            moved=4 * big,
        ),
        Case("row sum fp32 16kx4k", lambda x: x.sum(1), lambda: (randn(16384, 4096),), moved=4 * big),
        Case("column sum fp32 16kx4k", lambda x: x.sum(0), lambda: (randn(16384, 4096),), moved=4 * big),
        Case(
            "transpose + add fp32 8192²",
            lambda x, y: x.t() + y,
            lambda: (randn(8192, 8192), randn(8192, 8192)),
            moved=12 * 8192**2,
        ),
        Case(
            "rms_norm bf16 16kx4k",
            lambda x, w: F.rms_norm(x, (4096,), w),
            lambda: (randn(16384, 4096, dtype=BF), randn(4096, dtype=BF)),
            moved=4 * big,
        ),
        Case(
            "log_softmax fp32 8192x50257",
            lambda x: F.log_softmax(x, -1),
            lambda: (randn(8192, 50257),),
            moved=8 * 8192 * 50257,
        ),
        Case(
            "gelu(a @ b + c) bf16 8192³",
            lambda a, b, c: F.gelu(a @ b + c),
            lambda: (randn(8192, 8192, dtype=BF), randn(8192, 8192, dtype=BF), randn(8192, dtype=BF)),
            flops=2 * 8192**3,
        ),
        Case(
            "attention by hand bf16 32x1024x512",
            attention,
            lambda: tuple(randn(32, 1024, 512, dtype=BF) for _ in range(3)),
            flops=4 * 32 * 1024 * 1024 * 512,
        ),
        Case("ResNet block 32x64x56²", block(), lambda: (randn(32, 64, 56, 56),)),
    ]


def contenders(fn: Callable[..., Any], rival: bool, modes: list[str]) -> dict[str, Callable[..., Any]]:
    """Name of a column to callable."""
    found: dict[str, Callable[..., Any]] = {"eager": fn}
    for mode in modes:
        if rival:
            found[f"torch.compile {mode}"] = torch.compile(fn, mode=None if mode == "default" else mode)
        found[f"dynajit {mode}"] = dynajit.compile(fn, mode=None if mode == "default" else mode)
    return found


def timed(fn: Callable[..., Any], args: tuple[Any, ...], calls: int, wall: bool) -> float:
    """Microseconds a call."""
    if wall:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            fn(*args)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls * 1e6
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(calls):
        fn(*args)
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / calls * 1e3


def error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative to the reference, in the 2-norm."""
    return float((result.double() - reference).norm() / reference.norm())


@torch.no_grad()
def run(case: Case, rival: bool, modes: list[str], rounds: int) -> dict[str, Any]:
    """Compile, check on fresh inputs against float64, time."""
    args = case.make()
    fns = contenders(case.fn, rival, modes)
    row: dict[str, Any] = {"case": case.name}
    for name, fn in list(fns.items()):
        start = time.perf_counter()
        try:
            for _ in range(3):
                fn(*args)
            torch.cuda.synchronize()
        except Exception as failure:
            row[name] = f"{type(failure).__name__}: {str(failure)[:200]}"
            del fns[name]
            continue
        row[f"{name} compile"] = time.perf_counter() - start
    fresh = case.make()
    small = sum(t.numel() for t in fresh) < 2e8 and case.flops < 1e11
    try:
        reference = case.fn(*(t.double() for t in fresh)) if small else None
    except RuntimeError:
        reference = None
    expected = case.fn(*fresh)
    for name, fn in fns.items():
        result = fn(*fresh)
        row[f"{name} error"] = error(result, reference if reference is not None else expected.double())
    del fresh, reference, expected
    times: dict[str, list[float]] = {name: [] for name in fns}
    calls = 1000 if case.wall else 20
    order = list(fns)
    for number in range(rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            times[name].append(timed(fns[name], args, calls, case.wall))
    for name, found in times.items():
        row[name] = statistics.median(found)
    return row


def table(rows: list[dict[str, Any]], found: list[Case], columns: list[str]) -> str:
    """Markdown."""
    lines = ["| case | " + " | ".join(columns) + " | best of dynajit |", "|---|" + "---|" * (len(columns) + 1)]
    for row, case in zip(rows, found, strict=True):
        cells = []
        for name in columns:
            value = row.get(name, "")
            shown = f"{value:.1f}" if isinstance(value, float) else str(value)[:80]
            wrong = row.get(f"{name} error")
            cells.append(f"{shown} ({wrong:.1e})" if wrong is not None else shown)
        own = [row[name] for name in columns if name.startswith("dynajit") and isinstance(row.get(name), float)]
        rate = ""
        if own and case.moved:
            rate = f"{case.moved / min(own) / 1e-6 / TF:.2f} TB/s"
        elif own and case.flops:
            rate = f"{case.flops / min(own) / 1e-6 / TF:.0f} TFLOP/s"
        lines.append(f"| {case.name} | " + " | ".join(cells) + f" | {rate} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rival", action="store_true", help="time torch.compile too")
    parser.add_argument("--modes", default="default")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    modes = options.modes.split(",")
    found = [case for case in cases() if options.only in case.name]
    rows = []
    for case in found:
        rows.append(run(case, options.rival, modes, options.rounds))
        dynajit.reset()
        if options.rival:
            torch.compiler.reset()
        torch.cuda.empty_cache()
        print(rows[-1], flush=True)
    columns = ["eager"]
    for mode in modes:
        columns += [f"torch.compile {mode}"] * options.rival + [f"dynajit {mode}"]
    text = table(rows, found, columns)
    head = f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds a call (error against float64)"
    print(f"{head}\n\n{text}")
    if options.save:
        target = ROOT / "benchmarks" / "results" / "kernels_gpu.md"
        target.write_text(f"# Kernels on a GPU\n\n{head}\n\n{text}\n")


if __name__ == "__main__":
    main()
