"""Comparing callables and compilers fairly: interleaved timing, fresh processes with empty caches, tables.

In: callables to time in one process (`interleave`), or a script's own `--child` mode to run in a new process
(`run_child`). Out: seconds per call for each round, dictionaries from children, markdown. One more compiler: a line in
`COMPILERS`.

Timing rules: the callables take turns in every round, and the order rotates, so that slow drift of the machine hits all
alike; what is quoted is the median, and ratios are medians of the ratios within a round. With one thread the clock is
the CPU time of the process, which other programs on the machine do not stretch.
"""

import argparse
import compileall
import functools
import gc
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

Clock = Callable[[], float]


# ------------------------------------------------------------------------------------------------ compilers


def _dynajit(fn: Any, backend: str | None) -> Any:
    import dynajit

    return dynajit.compile(fn, backend=backend) if backend else dynajit.compile(fn)


def _torch_compile(fn: Any, backend: str | None) -> Any:
    import torch

    return torch.compile(fn, backend=backend) if backend else torch.compile(fn)


# name -> compile(fn, backend or None for the compiler's own default)
COMPILERS: dict[str, Callable[[Any, str | None], Any]] = {"dynajit": _dynajit, "torch.compile": _torch_compile}


# ------------------------------------------------------------------------------------------------ timing


def clock_for(threads: int) -> Clock:
    """CPU time of the process where one thread does all the work, else the wall clock."""
    return time.process_time if threads == 1 else time.perf_counter


def calls_filling(fn: Callable[[], Any], seconds: float, clock: Clock) -> int:
    """How many calls of `fn` take about `seconds`; found by doubling."""
    count = 1
    while True:
        start = clock()
        for _ in repeat(None, count):
            fn()
        took = clock() - start
        if took >= seconds / 2 or count >= 1 << 20:
            return max(1, round(count * seconds / max(took, 1e-9)))
        count *= 2


def interleave(
    fns: dict[str, Callable[[], Any]],
    *,
    seconds: float = 3.0,
    slice_seconds: float = 0.003,
    min_rounds: int = 9,
    max_rounds: int = 300,
    clock: Clock = time.process_time,
) -> dict[str, list[float]]:
    """Seconds per call of each callable, one entry for each round; equal indices are of the same round.

    A round gives every callable one slice: `slice_seconds` of calls, at least one call. Rounds go on for about
    `seconds` in all.
    """
    names = list(fns)
    for fn in fns.values():
        fn()
    counts = {name: calls_filling(fn, slice_seconds, clock) for name, fn in fns.items()}
    times: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for done in range(max_rounds):
            if done >= min_rounds and time.perf_counter() > end:
                break
            turn = done % len(names)
            for name in names[turn:] + names[:turn]:
                fn, count = fns[name], counts[name]
                start = clock()
                for _ in repeat(None, count):
                    fn()
                times[name].append((clock() - start) / count)
    finally:
        if collecting:
            gc.enable()
    return times


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Median over the rounds of a/b."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def paired_difference(a: Sequence[float], b: Sequence[float]) -> float:
    """Median over the rounds of a-b."""
    return statistics.median(x - y for x, y in zip(a, b, strict=True))


def spread(times: Sequence[float]) -> float:
    """Interquartile range over median: above 0.3 the machine was too busy for this row to mean much."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def tree_cpu_seconds() -> float:
    """CPU seconds of this process and its descendants, the living (workers) and the ended (C compilers)."""
    if not Path("/proc/self/stat").exists():
        spent = os.times()
        return spent.user + spent.system + spent.children_user + spent.children_system
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while the folder was read
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------------------------------------ child processes


class ChildFailed(Exception):
    """A child process ended badly; the text is the last line it wrote to stderr, or that it ran out of time."""


@functools.cache
def byte_compile() -> None:
    """Byte-compile dynajit, as an installer does: in some environments Python leaves it undone for a source tree, and
    each process would compile all files anew, which takes three times as long as to import them."""
    compileall.compile_dir(ROOT / "dynajit", quiet=2)


def argument_parser(description: str | None, child: bool = False) -> argparse.ArgumentParser:
    """For a benchmark's options. `child`: it is one that runs itself in new processes, by `run_child`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if child:
        parser.add_argument("--out", help=argparse.SUPPRESS)
        parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


def run_child(script: str, arguments: Sequence[str], cache: Path, timeout: float = 300) -> dict[str, Any]:
    """Run `script --child ... --out FILE` in a new process with the compilers' caches below `cache`; its result."""
    byte_compile()
    environment = dict(
        os.environ,
        DYNAJIT_CACHE_DIR=str(cache / "dynajit"),
        TORCHINDUCTOR_CACHE_DIR=str(cache / "inductor"),
        TRITON_CACHE_DIR=str(cache / "triton"),
        PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, script, "--child", *arguments, "--out", str(out)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"not finished after {timeout:.0f} s") from None
        if not out.exists():
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
            raise ChildFailed(_last_error(lines) if lines else f"exit status {done.returncode}")
        result: dict[str, Any] = json.loads(out.read_text())
        return result


def _last_error(lines: list[str]) -> str:
    """The line of a traceback that names the exception: the last that is not indented and reads like `Name: text`."""
    for line in reversed(lines):
        head = line.partition(":")[0]
        if head == line.strip().partition(":")[0] and head.replace(".", "").replace("_", "").isalnum() and ":" in line:
            return line[:300]
    return lines[-1][:300]


def finish_child(out: str, result: dict[str, Any]) -> None:
    """Hand the result to the parent and end at once, without waiting for compile workers."""
    partial = Path(out + ".partial")
    partial.write_text(json.dumps(result))
    partial.replace(out)
    sys.stdout.flush()
    os._exit(0)


# ------------------------------------------------------------------------------------------------ showing


def machine() -> str:
    """Processor, cores, instruction set, versions."""
    processor, vector = platform.machine(), ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        text = cpuinfo.read_text()
        names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
        processor = names[0] if names else processor
        vector = next((label for flag, label in (("avx512f", ", AVX-512"), ("avx2", ", AVX2")) if flag in text), "")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))
    return f"{processor}{vector}, {os.cpu_count()} cores; CPython {platform.python_version()}, {versions}"


class Table:
    """A markdown table whose lines can be printed as they come: the first column to the left, the others to the right.

    `longest` has the longest texts that the first columns will hold. Lines are kept for `str()`.
    """

    def __init__(self, header: Sequence[str], *longest: str) -> None:
        known = [*map(len, longest), *repeat(7, len(header) - len(longest))]
        self._widths = [max(len(title), width) for title, width in zip(header, known, strict=True)]
        rule = (
            "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(self._widths)) + "|"
        )
        self.lines = [self._line(header), rule]

    def add(self, cells: Sequence[str]) -> str:
        """Add a row and return its line."""
        self.lines.append(self._line(cells))
        return self.lines[-1]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _line(self, cells: Sequence[str]) -> str:
        first, *rest = zip(cells, self._widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"


def save(name: str, title: str, body: str, how: str) -> Path:
    """Write a result page: what, on which machine, made by which command."""
    path = RESULTS / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# {title}\n\n{machine()}. Made by `{how}` on {time.strftime('%Y-%m-%d')}.\n\n{body}\n")
    return path


class Progress:
    """A line on stderr that says what is being done; on a terminal it is overwritten, elsewhere each step is a line."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._start = time.perf_counter()

    def step(self, text: str) -> None:
        elapsed = f"{time.perf_counter() - self._start:5.0f} s  "
        sys.stderr.write(f"\r\033[K{elapsed}{text}" if self._live else f"{elapsed}{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
