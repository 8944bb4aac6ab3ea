"""Processes that compile kernels for GPUs, so that many compile at once: Triton holds the interpreter's lock for a
third of its time, and importing it takes as long as a few kernels.

In:  `start(capability)`, when the first graph for a GPU is captured: a process begins in the background
     (`triton_worker.py`), which forks one for each kernel. `config.compile_workers` says how many at once.
Out: `compile_to(job, path)`: a file with the kernel, or False where there are no such processes and the caller compiles
     by itself. Raises `CompileError` with Triton's words.
The process ends with this one, and when nothing was compiled for a while; the next kernel begins another. One that is
killed is told of once, and not begun again. A job whose process is killed is done once more.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

from dynajit.config import config
from dynajit.locks import on_fork, process_lock
from dynajit.report import logs
from dynajit.runtime import triton_worker
from dynajit.runtime.triton_worker import Job

# More at once than this are never worth their memory.
_MAX_WORKERS = 32
# On fewer cores threads do as well, and what the process costs to begin is not won back.
_FEW_CORES = 4


class CompileError(Exception):
    """Triton refuses a kernel; the text says why."""


class _Pool:
    """The process and the jobs that it was given."""

    def __init__(self, limit: int, capability: int) -> None:
        self.limit = limit
        self.pid = os.getpid()
        # No signal of the terminal's reaches it; -S, -P, -E: it looks for modules where this process does.
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-S", "-P", "-E", triton_worker.__file__, str(limit), str(capability)),
                json.dumps([path for path in sys.path if isinstance(path, str)]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.jobs: dict[int, Future[int]] = {}
        self.count = 0
        self.ended = self.closed = False
        self.lock = threading.Lock()
        self.listener = threading.Thread(target=self._listen, name="dynajit-compile-pool", daemon=True)
        self.listener.start()

    def status(self, job: Job, path: Path) -> int | None:
        """The exit status of the process that does the job; None if there can be none."""
        answer: Future[int] = Future()
        with self.lock:
            if self.ended:
                return None
            number = self.count
            self.count += 1
            self.jobs[number] = answer
            line = json.dumps({"number": number, "path": str(path), "job": dataclasses.asdict(job)})
            stdin = self.process.stdin
            assert stdin is not None
            try:
                stdin.write(line.encode() + b"\n")
                stdin.flush()
            except OSError:  # it has ended; `_listen` will see it
                del self.jobs[number]
                return None
        status = answer.result()
        return None if status == _LOST else status

    def _listen(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        for line in stdout:
            number, status = json.loads(line)
            with self.lock:
                answer = self.jobs.pop(number)
            answer.set_result(status)
        status = self.process.wait()
        with self.lock:
            self.ended = True
            left = [*self.jobs.values()]
            self.jobs.clear()
        if status and not self.closed:
            _give_up(f"the process that compiles kernels ended with status {status}")
        for answer in left:
            answer.set_result(_LOST)

    def close(self) -> None:
        """End the process, and what it compiles."""
        self.closed = True
        self.process.terminate()
        self.process.wait()


_LOST = 1 << 20  # no exit status
_lock = process_lock()
_pool: _Pool | None = None
_given_up = False
_capability = 0


def workers() -> int:
    """How many kernels compile at once."""
    return max(1, config.compile_workers or min(_cores(), _MAX_WORKERS))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(capability: int) -> None:
    """Begin the process, unless it runs, was given up, or one kernel at a time is all there may be."""
    global _capability
    _capability = capability
    _current()


def _current() -> _Pool | None:
    """The pool, begun if there is none."""
    global _pool
    pays = config.compile_workers > 1 or (not config.compile_workers and _cores() >= _FEW_CORES)
    if not _capability or _given_up or not pays or not sys.executable:
        return None
    with _lock:
        if _pool is not None and (_pool.ended or _pool.limit != workers()):
            _pool.close()
            _pool = None
        if _pool is None:
            try:
                _pool = _Pool(workers(), _capability)
            except OSError as error:
                _give_up(f"no process can be begun to compile kernels in ({error})")
        return _pool


def _give_up(why: str) -> None:
    global _given_up
    _given_up = True
    logs.emit("perf", f"{why}: kernels are compiled in this process from now on")


def compile_to(job: Job, path: Path) -> bool:
    """Compile into that file; False if no other process can. Raises CompileError."""
    for _ in range(2):
        pool = _current()
        status = pool.status(job, path) if pool is not None else None
        if status is None:
            return False
        if status == triton_worker.DONE:
            return True
        if status == triton_worker.REFUSED:
            raise CompileError(path.with_name(path.name + triton_worker.ERROR).read_text(encoding="utf-8"))
    raise CompileError(f"its compiler was killed twice (exit status {status})")


def stop() -> None:
    """End the process, which the interpreter's end does too; the next kernel may begin another."""
    global _pool, _given_up
    with _lock:
        pool, _pool, _given_up = _pool, None, False
    if pool is not None and pool.pid == os.getpid():
        pool.close()


atexit.register(stop)


@on_fork
def _forked() -> None:
    """A child has no thread that listens."""
    global _pool
    _pool = None
