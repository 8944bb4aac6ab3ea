"""Run many random programs at once, in many processes; nothing that one of them does stops the rest.

    python tests/fuzz/many.py --seeds 0 100000 --minutes 60 --processes 32 --append fuzz_runs.md

Each seed is run on each backend. Seeds are dealt in chunks, one process for each chunk: a process is forked from one
that has imported torch and run nothing, so it starts at once and shares nothing with the others but the cache of
kernels. A program that takes longer than `--limit`, or takes the process with it, is a finding like any other; the
chunk goes on behind it. The exit status is 1 if there are findings.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
if __name__ == "__main__":
    # The programs are about the CPU, and a process that is forked once torch has looked for GPUs can use none.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch  # noqa: E402
from fuzz_generate import program  # noqa: E402
from run import report, run_seed  # noqa: E402

import dynajit  # noqa: E402

_FORK: Any = multiprocessing.get_context("fork")
_LOOK_S = 1.0  # how often the parent looks for programs that take too long
_IDLE = 10  # the limit is one of processor time, as the machine may be busy; of time on the clock it is so much longer


@dataclass(frozen=True)
class Chunk:
    """Seeds `first` to `last - 1` on one backend."""

    backend: str
    first: int
    last: int


@dataclass
class Failure:
    """What one seed did wrong: a finding's kind, "hang" or "crash", and what to print."""

    backend: str
    seed: int
    kind: str
    text: str


@dataclass
class Totals:
    """What was run so far."""

    programs: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def table(self) -> str:
        """One row for each backend."""
        seconds = time.monotonic() - self.started
        rows = ["| backend | programs | a second | findings | seeds of findings |", "|---|---|---|---|---|"]
        for backend, count in sorted(self.programs.items()):
            mine = [failure for failure in self.failures if failure.backend == backend]
            kinds = Counter(failure.kind for failure in mine)
            found = ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "0"
            seeds = " ".join(str(failure.seed) for failure in mine)
            rows.append(f"| {backend} | {count:,} | {count / seconds:.1f} | {found} | {seeds} |")
        return "\n".join(rows)


# --- in the worker


def warm_up() -> None:
    """Import, before the first fork, what the first captures in a process import. Starts no threads."""
    for backend in ("eager", "codegen"):
        with torch.no_grad():
            dynajit.compile(lambda x: x.sin() + 1, backend=backend)(torch.ones(3))
    for name in ("torch._functorch.aot_autograd", "torch._functorch.partitioners", "torch._inductor.config", "sympy"):
        importlib.import_module(name)
    dynajit.reset()
    gc.collect()
    gc.freeze()  # none of this need be looked at in the workers' collections


def work(chunk: Chunk, pipe: Any, errors: str, shrink_s: float) -> None:
    """Run the chunk. Sends ("start", seed), ("done", seed, None | (kind, text)), ("end",)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(errors, "w") as log:
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for seed in range(chunk.first, chunk.last):
        pipe.send(("start", seed))
        pipe.send(("done", seed, _one(seed, chunk.backend, pipe, shrink_s)))
    pipe.send(("end",))
    pipe.close()
    os._exit(0)  # nothing to tidy up, and threads of compilers and profilers would be waited for


def _one(seed: int, backend: str, pipe: Any, shrink_s: float) -> tuple[str, str] | None:
    try:
        finding = run_seed(seed, backend)
        if finding is None:
            return None
        pipe.send(("shrink", seed, finding.kind, finding.detail))
        return finding.kind, report(seed, backend, finding, shrink_s)
    except BaseException:
        return "harness", traceback.format_exc()


# --- in the parent


class Worker:
    """One process and what is known of it."""

    def __init__(self, chunk: Chunk, options: argparse.Namespace, folder: str) -> None:
        self.chunk = chunk
        self.options = options
        self.seed = chunk.first
        self.finding: tuple[str, str] | None = None  # found already; the program is being shrunk
        self.ended = False
        self.since = time.monotonic()
        handle, self.errors = tempfile.mkstemp(dir=folder)
        os.close(handle)
        self.pipe, theirs = _FORK.Pipe(duplex=False)
        self.process = _FORK.Process(target=work, args=(chunk, theirs, self.errors, options.shrink), daemon=True)
        self.process.start()
        theirs.close()
        self.cpu = 0.0

    def _cpu(self) -> float:
        """Seconds of processor time that the process and the compilers it waited for have had."""
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def take(self, totals: Totals) -> bool:
        """Read what the process sent. False: it has gone."""
        try:
            while self.pipe.poll():
                self._message(self.pipe.recv(), totals)
        except (EOFError, OSError):
            self.process.join()
            if not self.ended:
                self._fail(totals, "crash", f"exit status {self.process.exitcode}")
            return False
        return True

    def _message(self, message: tuple[Any, ...], totals: Totals) -> None:
        match message:
            case ("start", seed):
                self.seed, self.finding, self.since, self.cpu = seed, None, time.monotonic(), self._cpu()
            case ("shrink", _, kind, detail):
                self.finding, self.since, self.cpu = (kind, detail), time.monotonic(), self._cpu()
            case ("done", seed, found):
                totals.programs[self.chunk.backend] += 1
                if found is not None:
                    self._add(totals, *found)
                self.seed = seed + 1
            case ("end",):
                self.ended = True

    def late(self, totals: Totals) -> bool:
        """Whether its program took too long; it was killed then, after saying where it is."""
        allowed = self.options.limit + (self.options.shrink if self.finding else 0.0)
        waited = time.monotonic() - self.since
        if waited < allowed or self.ended or (self._cpu() - self.cpu < allowed and waited < _IDLE * allowed):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.2)
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self._fail(totals, "hang", f"{waited:.0f} s")
        return True

    def _fail(self, totals: Totals, kind: str, why: str) -> None:
        """The process has gone in the middle of `self.seed`. What it had found before stays what is told."""
        if self.seed >= self.chunk.last:
            return
        totals.programs[self.chunk.backend] += 1
        if self.finding is not None:
            kind, why = self.finding[0], f"{self.finding[1]}\n(not shrunk: {kind}, {why})"
        end = Path(self.errors).read_text(errors="replace")[-6000:]
        self._add(totals, kind, f"seed {self.seed}: {kind}\n{why}\n{end}\n{program(self.seed)}")
        self.seed += 1

    def _add(self, totals: Totals, kind: str, text: str) -> None:
        totals.failures.append(Failure(self.chunk.backend, self.seed, kind, text))
        print(f"\n--- {self.chunk.backend}: {text}", flush=True)

    def rest(self) -> Chunk | None:
        """What of the chunk is still to run."""
        left = Chunk(self.chunk.backend, self.seed, self.chunk.last)
        return left if left.first < left.last else None

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()
        Path(self.errors).unlink(missing_ok=True)


def run_all(chunks: deque[Chunk], options: argparse.Namespace, folder: str) -> Totals:
    """Keep `processes` workers busy until the chunks or the minutes are used up."""
    totals = Totals()
    end = totals.started + options.minutes * 60
    told = totals.started
    workers: list[Worker] = []
    try:
        while (chunks or workers) and time.monotonic() < end:
            while chunks and len(workers) < options.processes:
                workers.append(Worker(chunks.popleft(), options, folder))
            multiprocessing.connection.wait([worker.pipe for worker in workers], timeout=_LOOK_S)
            for worker in list(workers):
                if not worker.take(totals) or worker.late(totals):
                    workers.remove(worker)
                    worker.close()
                    left = worker.rest()
                    if left is not None:
                        chunks.appendleft(left)
            if time.monotonic() - told > 30:
                told = time.monotonic()
                counts = ", ".join(f"{count:,} {backend}" for backend, count in sorted(totals.programs.items()))
                print(f"[{told - totals.started:.0f} s] {counts}; {len(totals.failures)} findings", flush=True)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    finally:
        for worker in workers:
            with contextlib.suppress(Exception):
                worker.take(totals)
            worker.close()
    return totals


def chunks_of(seeds: range, backends: list[str], size: int) -> deque[Chunk]:
    """The seeds in chunks, the backends in turn: wherever time ends, each has got on about as far."""
    return deque(
        Chunk(backend, first, min(first + size, seeds.stop))
        for first in range(seeds.start, seeds.stop, size)
        for backend in backends
    )


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 1000), metavar=("FIRST", "LAST"))
    parser.add_argument("--backend", nargs="+", default=["eager", "codegen"], help="each seed is run on each of these")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--chunk", type=int, default=200, help="programs for one process")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of processor time for one program")
    parser.add_argument("--shrink", type=float, default=20.0, help="seconds to spend on making one finding small")
    parser.add_argument("--append", metavar="FILE", help="append the findings and the summary to this file")
    options = parser.parse_args(arguments)
    for name in ("processes", "chunk"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is at least 1")
    return options


def main() -> int:
    options = parse_options()
    # One thread a process from the start: a fork must not lose threads that it waits for.
    torch.set_num_threads(1)
    warm_up()
    with tempfile.TemporaryDirectory(prefix="dynajit-fuzz-") as folder:
        totals = run_all(chunks_of(range(*options.seeds), options.backend, options.chunk), options, folder)
    seconds = time.monotonic() - totals.started
    title = (
        f"seeds from {options.seeds[0]:,} below {options.seeds[1]:,}, {options.processes} processes, {seconds:.0f} s"
    )
    summary = f"{title}, Python {sys.version.split()[0]}, torch {torch.__version__}\n\n{totals.table()}\n"
    print(f"\n{summary}")
    if options.append:
        with open(options.append, "a") as log:
            log.writelines(f"--- {failure.backend}: {failure.text}\n" for failure in totals.failures)
            log.write(summary)
    return min(1, len(totals.failures))


if __name__ == "__main__":
    sys.exit(main())
