"""Processes of one job, for tests of torch.distributed: started once, each case has a group of its own.

In: a function of a test module and its arguments; it is called in each process with the rank first. Out: what each
rank's call gave, or an AssertionError with the traceback of the rank that raised, or the ranks that gave no answer.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dynajit
from dynajit.report import records
from dynajit.report.explain import ExplainReport

GROUP_SECONDS = 20.0
ANSWER_SECONDS = 60.0
ENDED = "ended"  # what a process that is gone answers


class Ranks:
    """Two processes, or more, that wait for cases. `backend`: of their groups; with "nccl" each has a GPU."""

    def __init__(self, folder: Path, count: int = 2, backend: str = "gloo") -> None:
        self.folder, self.cases = folder, 0
        spawn = multiprocessing.get_context("spawn")
        self.connections: list[Connection] = []
        self.processes = []
        for rank in range(count):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(rank, count, there, backend), daemon=True)
            process.start()
            there.close()
            self.connections.append(here)
            self.processes.append(process)

    def run(self, case: Callable[..., Any], *args: Any, seconds: float = GROUP_SECONDS) -> list[Any]:
        """What `case(rank, *args)` gives in each process, `ENDED` where it ends the process. `seconds`: the time-out of
        the group's collectives."""
        self.cases += 1
        for connection in self.connections:
            connection.send((case, args, f"file://{self.folder}/group{self.cases}", seconds))
        end = time.monotonic() + ANSWER_SECONDS
        silent = [rank for rank, each in enumerate(self.connections) if not each.poll(max(0, end - time.monotonic()))]
        if silent:
            self.stop()
            raise AssertionError(f"no answer from ranks {silent} after {ANSWER_SECONDS} s")
        answers = [_answer(connection) for connection in self.connections]
        raised = [f"rank {rank}: {text}" for rank, (fine, text) in enumerate(answers) if not fine]
        assert not raised, "\n".join(raised)
        return [answer for _, answer in answers]

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _answer(connection: Connection) -> tuple[bool, Any]:
    try:
        return connection.recv()  # type: ignore[no-any-return]
    except EOFError:
        return True, ENDED


def _serve(rank: int, count: int, connection: Connection, backend: str) -> None:
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    while True:
        try:
            case, args, store, seconds = connection.recv()
        except EOFError:
            return
        torch.manual_seed(0)
        dynajit.reset()
        timeout, short = datetime.timedelta(seconds=GROUP_SECONDS), datetime.timedelta(seconds=seconds)
        try:
            dist.init_process_group(backend, init_method=store, rank=rank, world_size=count, timeout=timeout)
            dist.barrier()  # a short case's rank would leave, with its connections, while another one still connects
            if short < timeout:  # not for the ranks to find each other: the machine may be busy
                dist.distributed_c10d._set_pg_timeout(short)
            answer = True, case(rank, *args)
        except BaseException:  # whatever it is, the test's own process tells it
            answer = False, traceback.format_exc()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        connection.send(answer)


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Counts what is captured inside."""
    counts = Counts()
    with records.listen(counts.seen.append):
        yield counts


class Counts:
    """What was captured so far."""

    def __init__(self) -> None:
        self.seen: list[records.CompileRecord] = []

    def totals(self) -> tuple[int, int, int]:
        """Graphs, breaks, recompiles."""
        report = ExplainReport(self.seen)
        return report.graph_count, report.graph_break_count, len(report.recompile_reasons)


def device() -> str:
    """Where tensors are that the group exchanges."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def compared(
    rank: int, fn: Callable[..., Any], backend: str, fullgraph: bool = True, parts: int = 1, tolerance: float = 0.0
) -> tuple[int, int, int]:
    """Eager and compiled, three calls each: results, and what the argument is afterwards, whose numbers are `parts` to
    one. Gives what was captured."""
    compiled = dynajit.compile(fn, backend=backend, fullgraph=fullgraph)
    reruns = dynajit.counters["reruns"]
    reruns.clear()
    with counted() as counts, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for step in range(3):
            x = torch.arange(12.0, device=device()).reshape(4, 3) / parts + 100 * rank + step
            y = x.clone()
            torch.testing.assert_close((compiled(y), y), (fn(x), x), rtol=tolerance, atol=tolerance)
    assert not reruns  # a graph that raises each time would be right, too
    return counts.totals()
