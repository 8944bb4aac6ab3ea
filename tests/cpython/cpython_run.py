"""Runs CPython's own test-suite with every test function compiled, and compares each outcome with plain CPython's.

In: `python tests/cpython/cpython_run.py [MODULE ...]` (default: all of `cpython_modules.MODULES`). Out: a line for each
module, a report of every difference, and status 1 if there is one that `known.toml` does not list. Each module runs in
processes of its own with a time limit, once plain and once compiled. `--deep` compiles every function of the test
package, not only test methods and what they call; `--verbose` shows tracebacks, `--stats FILE` writes all figures.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cpython_modules import MODULES, exists, known, reason_for

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@dataclass
class Run:
    """One process: outcome and seconds of each test, and how it ended."""

    tests: dict[str, tuple[list[str], str, float]] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    crash: str = ""


@dataclass
class Comparison:
    """One module, plain and compiled."""

    module: str
    plain: Run
    compiled: Run
    differences: list[tuple[str, str, str, str]] = field(default_factory=list)
    excused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.differences or self.compiled.crash or self.compiled.statistics.get("internal_errors"))

    def line(self) -> str:
        """The module's line in the report."""
        got = self.compiled.statistics
        parts = [
            f"{self.module:28} {'ok ' if self.good else 'BAD'} {len(self.plain.tests):5} tests",
            f"{len(self.differences):3} differ {len(self.excused):3} excused",
            f"{got.get('compiled', 0):5} frames compiled {got.get('eager', 0):5} eager",
            f"{got.get('inlined', 0):6} calls inlined {got.get('breaks', 0):5} breaks",
            f"{got.get('internal_errors', 0):3} faults {self.plain.seconds:6.1f} s -> {self.compiled.seconds:6.1f} s",
        ]
        return "  ".join(parts) + (f"  {self.compiled.crash}" if self.compiled.crash else "")


class Server:
    """A process that forks one for each module."""

    def __init__(self, mode: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "cpython_worker.py"), mode],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, module: str, limit: float, wanted: Sequence[str]) -> Run:
        """One module in a process of its own."""
        assert self.process.stdin is not None and self.process.stdout is not None
        run = Run()
        with tempfile.TemporaryDirectory(prefix="cpython-suite-") as folder:
            request = {"module": module, "limit": limit, "folder": folder, "wanted": wanted}
            began = time.perf_counter()
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            status = json.loads(self.process.stdout.readline())
            run.seconds = time.perf_counter() - began
            started = _read(Path(folder) / "outcomes", run)
            if status or not run.statistics:
                output = (Path(folder) / "output").read_text(errors="replace")[-3000:]
                run.crash = f"{status or 'ended early'} (in {started}) {output}"
        return run

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _read(out: Path, run: Run) -> str:
    started = ""
    for line in out.read_text().splitlines() if out.exists() else []:
        entry = json.loads(line)
        if "start" in entry:
            started = entry["start"]
        elif "test" in entry:
            before = run.tests.get(entry["test"], ([], "", 0.0))
            run.tests[entry["test"]] = (
                before[0] + entry["outcome"],
                before[1] + entry["text"],
                before[2] + entry["seconds"],
            )
        else:
            run.statistics = entry["statistics"]
    return started


def compare(
    module: str, plainly: Server, compiling: Server, limit: float, mode: str, wanted: Sequence[str]
) -> Comparison:
    """Run a module both ways."""
    plain = plainly.run(module, limit, wanted)
    compiled = compiling.run(module, limit, wanted)
    found = Comparison(module, plain, compiled)
    table = known()
    for test in dict.fromkeys([*plain.tests, *compiled.tests]):
        before = plain.tests.get(test, (["absent"], "", 0.0))
        after = compiled.tests.get(test, (["absent"], "", 0.0))
        if before[0] == after[0] or (after[0] == ["absent"] and compiled.crash):
            continue
        reason = reason_for(test, table, mode)
        if reason is not None:
            found.excused.append((test, reason))
        else:
            found.differences.append((test, " ".join(before[0]), " ".join(after[0]), after[1] or before[1]))
    return found


def run_all(modules: Sequence[str], mode: str, limit: float, wanted: Sequence[str] = ()) -> Iterator[Comparison]:
    """Compare modules one after the other."""
    plainly, compiling = Server("plain"), Server(mode)
    try:
        for module in modules:
            yield compare(module, plainly, compiling, limit, mode, wanted)
    finally:
        plainly.close()
        compiling.close()


def details(each: Comparison, verbose: bool) -> Iterator[str]:
    """A module's differences and faults."""
    for test, before, after, text in each.differences:
        yield f"    {test}: plain {before}, compiled {after}"
        if verbose:
            yield from ("        " + line for line in text.splitlines())
    if verbose:
        for text in each.compiled.statistics.get("internal", ()):
            yield "    FAULT " + text


def report(found: list[Comparison]) -> str:
    """The totals."""
    kinds: collections.Counter[str] = collections.Counter()
    eager: collections.Counter[str] = collections.Counter()
    total: collections.Counter[str] = collections.Counter()
    for each in found:
        kinds.update(each.compiled.statistics.get("break_kinds", {}))
        eager.update(each.compiled.statistics.get("why_eager", {}))
        for name in ("wrapped", "compiled", "eager", "inlined", "breaks", "internal_errors"):
            total[name] += each.compiled.statistics.get(name, 0)
    lines = [
        f"{len(found)} modules, {sum(len(each.plain.tests) for each in found)} tests: "
        f"{sum(len(each.differences) for each in found)} differ, {sum(len(each.excused) for each in found)} excused, "
        f"{sum(bool(each.compiled.crash) for each in found)} crashes or time-outs",
        f"{total['wrapped']} test functions wrapped; frames looked at: {total['compiled']} compiled, {total['eager']} "
        f"left eager; {total['inlined']} calls inlined, {total['breaks']} breaks, {total['internal_errors']} faults",
        f"plain {sum(each.plain.seconds for each in found):.0f} s, "
        f"compiled {sum(each.compiled.seconds for each in found):.0f} s, of which capturing "
        f"{sum(each.compiled.statistics.get('capture_seconds', 0) for each in found):.0f} s",
        "breaks: " + ", ".join(f"{name} {count}" for name, count in kinds.most_common(40)),
        "left eager: " + ", ".join(f"{name} {count}" for name, count in eager.most_common(20)),
    ]
    return "\n".join(lines)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="modules of the package test; default: all")
    parser.add_argument("--deep", action="store_true", help="compile every function of the test package")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each module")
    parser.add_argument("--only", nargs="*", default=[], help="run the tests whose identifier has one of these words")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--stats", type=Path)
    return parser.parse_args(argv)


def main() -> int:
    options = parse()
    chosen = options.modules or MODULES
    absent = [module for module in chosen if not exists(module)]
    if absent:
        print("not in this Python:", " ".join(absent))
    mode = "deep" if options.deep else "compiled"
    found = []
    for each in run_all([module for module in chosen if exists(module)], mode, options.limit, options.only):
        found.append(each)
        print("\n".join([each.line(), *details(each, options.verbose)]), flush=True)
    print(report(found))
    if options.stats:
        options.stats.write_text(
            json.dumps({each.module: [each.compiled.statistics, each.compiled.tests] for each in found}, indent=1)
        )
    return 0 if all(each.good for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
