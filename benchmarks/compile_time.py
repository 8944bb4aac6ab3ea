"""How long the first compile in a fresh process takes, against torch.compile.

    python benchmarks/compile_time.py [--repeats N] [--save]

Each figure is from a process of its own: imports of torch and of the model, then the clock from `compile` to the first
result. `empty caches`: new cache folders. `prepared`: the same, after another process compiled an unrelated function
into those folders, which takes out what a compiler does once for a machine (torch.compile probes the processor's vector
instructions and builds a precompiled header). `warm`: the same program again over full caches. CPU seconds are of the
process and everything it started. Medians over the repeats; the compilers take turns. Last, what importing dynajit adds
to importing torch.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from models import PROGRAMS

PROGRAM_NAMES = ("softmax(x @ y)", "GPT-2 (4 layers)", "ResNet (3 stages)", "SGD training step")
STATES = ("empty caches", "prepared", "warm")
HEADER = (
    "program",
    "caches",
    "dynajit s",
    "torch.compile s",
    "share",
    "dynajit CPU s",
    "torch.compile CPU s",
    "CPU share",
)
# At most this share of torch.compile's wall seconds, in the geometric mean over the programs.
BARS = {"empty caches": 1 / 5, "prepared": 1 / 2, "warm": 1 / 3}
IMPORT_BAR = 0.3


def unrelated(x: torch.Tensor) -> torch.Tensor:
    return (x - 3).sum(dim=0)


def compile_once(name: str, compiler: str) -> dict[str, Any]:
    """Child: wall and CPU seconds from compile to first result."""
    if name == "unrelated":
        fn: Callable[..., Any] = unrelated
        args: tuple[Any, ...] = (torch.randn(64, 64),)
        kwargs: dict[str, Any] = {}
    else:
        case = PROGRAMS[name].build()
        fn, args, kwargs = case.fn, case.args, case.kwargs
    with torch.set_grad_enabled(name != "unrelated" and case.grad):
        cpu, wall = sbs.tree_cpu_seconds(), time.perf_counter()
        sbs.COMPILERS[compiler](fn, None)(*args, **kwargs)
        wall = time.perf_counter() - wall
        cpu = sbs.tree_cpu_seconds() - cpu
    return {"wall": wall, "cpu": cpu}


def one_repeat(name: str, compiler: str) -> dict[str, dict[str, float]]:
    """The three cache states once, in new processes."""

    def child(program: str, folder: str) -> dict[str, Any]:
        return sbs.run_child(__file__, ["--program", program, "--compiler", compiler], Path(folder))

    with (
        tempfile.TemporaryDirectory(prefix="compile-", ignore_cleanup_errors=True) as empty,
        tempfile.TemporaryDirectory(prefix="compile-", ignore_cleanup_errors=True) as prepared,
    ):
        out = {"empty caches": child(name, empty), "warm": child(name, empty)}
        child("unrelated", prepared)
        out["prepared"] = child(name, prepared)
    return out


def measure(name: str, repeats: int, progress: sbs.Progress) -> dict[str, dict[str, dict[str, list[float]]]]:
    """state -> compiler -> "wall" and "cpu" -> the figure of each repeat."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {
        state: {who: {"wall": [], "cpu": []} for who in sbs.COMPILERS} for state in STATES
    }
    for repeat in range(repeats):
        order = list(sbs.COMPILERS) if repeat % 2 == 0 else list(reversed(sbs.COMPILERS))
        for who in order:
            progress.step(f"{name}: {who}, repeat {repeat + 1} of {repeats}")
            for state, figures in one_repeat(name, who).items():
                for clock, seconds in figures.items():
                    found[state][who][clock].append(seconds)
    progress.clear()
    return found


def row(name: str, state: str, found: dict[str, dict[str, list[float]]]) -> tuple[list[str], float]:
    """The cells, and dynajit's wall seconds over torch.compile's."""
    cells, shares = [name, state], []
    for clock in ("wall", "cpu"):
        ours, theirs = (statistics.median(found[who][clock]) for who in ("dynajit", "torch.compile"))
        shares.append(ours / max(theirs, 1e-9))
        cells += [f"{ours:.2f}", f"{theirs:.2f}", f"{shares[-1]:.2f}"]
    return cells, shares[0]


def import_seconds(repeats: int) -> float:
    """CPU seconds that `import dynajit` takes where torch is imported already."""
    sbs.byte_compile()
    code = "import torch, time; t = time.process_time(); import dynajit; print(time.process_time() - t)"
    command = [sys.executable, "-c", code]
    texts = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2 * repeats + 1)]
    return statistics.median(map(float, texts))


def verdict(shares: dict[str, list[float]], failures: list[str], importing: float) -> tuple[str, bool]:
    """The bars, and whether they are met."""
    lines, fine = list(failures), not failures
    for state, found in shares.items():
        mean = sbs.geometric_mean(found)
        fine = fine and mean <= BARS[state]
        lines.append(f"* {state}: {mean:.2f} of torch.compile's wall seconds, geometric mean (bar: {BARS[state]:.2f})")
    lines.append(f"* `import dynajit`: {importing:.2f} s more than `import torch` (bar: {IMPORT_BAR})")
    return "\n".join(lines), fine and importing <= IMPORT_BAR


def main() -> int:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/compile_time.md")
    for hidden in ("--program", "--compiler"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        sbs.finish_child(options.out, compile_once(options.program, options.compiler))

    print(sbs.machine())
    table = sbs.Table(HEADER, max(PROGRAM_NAMES, key=len), max(STATES, key=len))
    print("\n".join(table.lines), flush=True)
    progress = sbs.Progress()
    failures = []
    shares: dict[str, list[float]] = {state: [] for state in STATES}
    for name in PROGRAM_NAMES:
        try:
            found = measure(name, options.repeats, progress)
        except sbs.ChildFailed as error:
            progress.clear()
            failures.append(f"{name}: {error}")
            continue
        for state in STATES:
            cells, share = row(name, state, found[state])
            shares[state].append(share)
            print(table.add(cells), flush=True)
    judged, fine = verdict({state: found for state, found in shares.items() if found}, failures, import_seconds(1))
    print("\n" + judged)
    if options.save:
        what = f"Seconds from `compile` to the first result in a fresh process; medians of {options.repeats}."
        text = f"{what}\n\n{table}\n\n{judged}"
        print("written:", sbs.save("compile_time", "First compile", text, "python benchmarks/compile_time.py --save"))
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
