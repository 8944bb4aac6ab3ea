"""Work in processes that may crash or hang, for as long as there is time; what is done is kept in a file.

In:  units of work, a function from one to its outcome.
Out: `run_units` hands each outcome over as it comes; a process that dies or takes too long is a finding of its unit.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

from operators_compare import Finding

SECONDS_FOR_ONE = 900
# What a process has compiled stays in its memory.
UNITS_FOR_ONE_PROCESS = 100


class Unit(NamedTuple):
    """One operator, the `number`th of the database, in one dtype."""

    number: int
    name: str
    dtype: str

    @property
    def key(self) -> str:
        """Its name in a file."""
        return f"{self.name} {self.dtype}"


@dataclass
class Outcome:
    """What came of an operator: counts of what was compared, by variant and dtype; findings as (dtype, sample, it)."""

    name: str
    compared: Counter[tuple[str, str]] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    found: list[tuple[str, str, Finding]] = field(default_factory=list)
    seconds: float = 0.0


class State:
    """The file in which finished units are kept, one a line; none if `path` is None. One file, one set of settings."""

    def __init__(self, path: str | None, settings: list[Any]) -> None:
        self.path = Path(path) if path else None
        self.done: dict[str, Outcome] = {}
        self.before = 0.0
        if self.path is None:
            return
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        if not lines:
            self.path.write_text(json.dumps(settings) + "\n")
        elif json.loads(lines[0]) != settings:
            raise SystemExit(f"{path} is of a run with other settings: {lines[0]}")
        for line in lines[1:]:
            made = json.loads(line)
            if "minutes" in made:
                self.before = made["minutes"]
                continue
            outcome = Outcome(made["name"], seconds=made["seconds"], skipped=Counter(made["skipped"]))
            outcome.compared.update({(variant, dtype): count for variant, dtype, count in made["compared"]})
            outcome.found += [(dtype, place, Finding(*finding)) for dtype, place, finding in made["found"]]
            self.done[made["key"]] = outcome

    def add(self, unit: Unit, outcome: Outcome) -> None:
        """Keep one more."""
        self._write(
            {
                "key": unit.key,
                "name": outcome.name,
                "seconds": outcome.seconds,
                "compared": [[*key, count] for key, count in outcome.compared.items()],
                "skipped": outcome.skipped,
                "found": [[d, place, [f.variant, f.kind, f.detail]] for d, place, f in outcome.found],
            }
        )

    def minutes(self, seconds: float) -> float:
        """How long all runs of this file took, the present one `seconds`."""
        total = self.before + seconds / 60
        self._write({"minutes": total})
        return total

    def _write(self, line: Any) -> None:
        if self.path is not None:
            with self.path.open("a") as out:
                out.write(json.dumps(line) + "\n")


def _serve(pipe: Any, parent: int, work: Callable[[Unit], Outcome]) -> None:
    while True:
        while not pipe.poll(5):
            if os.getppid() != parent:
                return
        try:
            unit = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(work(unit))
        except Exception as error:
            # as when a GPU is of no use to this process any more
            pipe.send(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            return


@dataclass
class _Worker:
    process: Any
    pipe: Any
    unit: Unit
    since: float
    count: int = 1


def run_units(
    units: Sequence[Unit],
    work: Callable[[Unit], Outcome],
    each: Callable[[Unit, Outcome], None],
    method: str = "fork",
    processes: int = 1,
    seconds: float = float("inf"),
    seconds_for_one: float = SECONDS_FOR_ONE,
) -> None:
    """Run the units, `processes` at once, in processes started by `method`; `each(unit, outcome)` as they end.

    After `seconds` those that still run are given up, as if they had not been started.
    """
    context: Any = multiprocessing.get_context(method)
    end = time.monotonic() + seconds
    left = list(reversed(units))
    workers: list[_Worker] = []

    def start() -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, os.getpid(), work), daemon=True)
        process.start()
        theirs.close()
        unit = left.pop()
        ours.send(unit)
        workers.append(_Worker(process, ours, unit, time.monotonic()))

    def stop(worker: _Worker) -> int:
        worker.pipe.close()
        worker.process.join(10)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        workers.remove(worker)
        return int(worker.process.exitcode)

    def crash(worker: _Worker, text: str) -> None:
        outcome = Outcome(worker.unit.name)
        outcome.found.append((worker.unit.dtype, "", Finding("", "crash", text)))
        each(worker.unit, outcome)

    while (left or workers) and time.monotonic() < end:
        while left and len(workers) < processes:
            start()
        late = min(worker.since for worker in workers) + seconds_for_one
        ready = connection.wait([w.pipe for w in workers], max(0.0, min(late, end) - time.monotonic()))
        for worker in list(workers):
            if worker.pipe in ready:
                try:
                    made = worker.pipe.recv()
                except EOFError:
                    crash(worker, f"the process ended with {stop(worker)}")
                    continue
                if isinstance(made, str):
                    stop(worker)
                    crash(worker, made)
                    continue
                each(worker.unit, made)
                if not left or worker.count == UNITS_FOR_ONE_PROCESS:
                    stop(worker)
                    continue
                worker.unit, worker.since, worker.count = left.pop(), time.monotonic(), worker.count + 1
                worker.pipe.send(worker.unit)
            elif time.monotonic() - worker.since > seconds_for_one:
                worker.process.kill()
                stop(worker)
                crash(worker, f"no result after {seconds_for_one:.0f} seconds")
    for worker in list(workers):
        worker.process.kill()
        stop(worker)
