"""Call each program of tests/programs a thousand times, compiled: objects and memory stay level.

    python tools/leaks.py                         all programs, 1,000 calls each
    python tools/leaks.py --only closure --calls 200 --backend codegen
    python tools/leaks.py --save                  also write benchmarks/results/leaks.md

In:  the tables of programs (`@cases(...)`) in tests/programs.
Out: exit status 1 and the programs after which more is alive than after as many eager calls: objects that the collector
     knows, blocks of Python's allocator, bytes of malloc's.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests", "tests/programs", "tests/processes", "benchmarks", "")]

import torch  # noqa: E402
from cases import Case, Cases  # noqa: E402
from test_leaks import allocated  # noqa: E402

import dynajit  # noqa: E402

WARM = 60
# For each call: objects, blocks, bytes. Caches of the interpreter's and of torch's may take a little.
ALLOWED = (0.1, 0.25, 40.0)
# Whatever the number of calls.
ONCE = (20, 100, 16384)


def programs(only: str = "") -> Iterator[tuple[str, Case]]:
    """Name and program."""
    for path in sorted((ROOT / "tests/programs").glob("test_*.py")):
        if "." in only and not only.startswith(f"{path.stem}."):
            continue
        module = importlib.import_module(path.stem)
        for table in [value for value in vars(module).values() if isinstance(value, Cases)]:
            for case in table:
                name = f"{path.stem}.{case.fn.__name__}"
                if only in name:
                    yield name, case


def growth(call: Callable[..., Any], case: Case, calls: int) -> list[float]:
    """What so many calls add for each of them, after a warm-up: objects, blocks, bytes."""

    def run(count: int) -> None:
        for _ in range(count):
            args, kwargs = copy.deepcopy((case.args, case.options.get("kwargs") or {}))
            # what a program raises, it raises
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                call(*args, **kwargs)

    run(WARM)
    before = allocated()
    run(calls)
    return [(after - first) / calls for first, after in zip(before, allocated(), strict=True)]


def leaks(case: Case, calls: int, backend: str) -> list[float] | None:
    """None if all is level, else the growth for each call beyond eager's."""
    dynajit.reset()
    fn = copy.deepcopy(case.program())
    options = {key: value for key, value in case.options.items() if key in ("dynamic", "fullgraph")}
    found = growth(dynajit.compile(fn, backend=backend, **options), case, calls)
    if is_level(found, calls):
        return None
    # the program itself may keep something, or the run came across a cache that grows once
    eager = growth(case.program(), case, calls)
    beyond = [
        mine - theirs
        for mine, theirs in zip(growth(dynajit.compile(fn, backend=backend), case, calls), eager, strict=True)
    ]
    return None if is_level(beyond, calls) else beyond


def is_level(found: list[float], calls: int) -> bool:
    """Whether that growth for each call is nothing that goes on."""
    return all(each * calls < most * calls + once for each, most, once in zip(found, ALLOWED, ONCE, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--part", default="0/1", metavar="K/N", help="each Nth program, from the Kth on")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/leaks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first, step = map(int, options.part.split("/"))
    chosen = list(programs(options.only))[first::step]
    gc.collect()
    gc.freeze()  # what is there does not count, and takes no time to look at
    found: dict[str, list[float]] = {}
    for number, (name, case) in enumerate(chosen, 1):
        if os.isatty(2):
            print(f"\r{number} of {len(chosen)}", end="", file=sys.stderr)
        beyond = leaks(case, options.calls, options.backend)
        if beyond is not None:
            found[name] = beyond
            print(
                f"{name}: " + ", ".join(f"{each:+.2f}" for each in beyond) + " objects, blocks, bytes a call",
                flush=True,
            )
    summary = f"{len(chosen)} programs, {options.calls} calls each, backend {options.backend}: {len(found)} not level"
    print(summary)
    if options.save:
        save(summary, found)
    return 1 if found else 0


def save(summary: str, found: dict[str, list[float]]) -> None:
    """Write the table."""
    import side_by_side as sbs

    rows = [f"| {name} | " + " | ".join(f"{each:+.2f}" for each in beyond) + " |" for name, beyond in found.items()]
    table = ["| program | objects a call | blocks | bytes |", "|---|--:|--:|--:|", *rows] if rows else []
    text = "\n".join([f"{summary}.", "", *table])
    print("written:", sbs.save("leaks", "Each test program a thousand times", text, "python tools/leaks.py --save"))


if __name__ == "__main__":
    sys.exit(main())
