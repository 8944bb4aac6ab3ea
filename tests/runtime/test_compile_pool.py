"""Kernels compiled by other processes: the same as in this one, whatever becomes of those processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from dynajit.config import config
from dynajit.report import logs
from dynajit.runtime import compile_pool, triton_worker
from dynajit.runtime.triton_worker import Job

ADD = """@triton.jit
def add(a0, a1):
    x = tl.program_id(0) * 64 + tl.arange(0, 64)
    tl.store(a1 + x, tl.load(a0 + x) + {})
"""


def job(text: str = ADD.format(1.0)) -> Job:
    return Job(text, "add", ("*fp32", "*fp32"), 2, 2, 90)


@pytest.fixture
def pool() -> Iterator[compile_pool._Pool]:
    with config.patch(compile_workers=2):
        compile_pool.start(90)
        assert compile_pool._pool is not None
        yield compile_pool._pool
        compile_pool.stop()
    compile_pool._capability = 0


def wait_for_end(pid: int) -> None:
    """Until the process has ended, which a hundred seconds are enough for."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 100)[0], f"process {pid} runs on"
    finally:
        os.close(process)


def test_result_is_that_of_this_process(pool: compile_pool._Pool, tmp_path: Path) -> None:
    assert compile_pool.compile_to(job(), tmp_path / "made")
    assert triton_worker.unpack((tmp_path / "made").read_bytes()) == triton_worker.compile_job(job())
    assert os.getsid(pool.process.pid) != os.getsid(0)  # a terminal's Ctrl+C is not for it


def test_refused_kernels_raise_what_triton_says(pool: compile_pool._Pool, tmp_path: Path) -> None:
    with pytest.raises(compile_pool.CompileError, match="nowhere is not defined"):
        compile_pool.compile_to(job(ADD.format("nowhere")), tmp_path / "made")
    assert compile_pool.compile_to(job(), tmp_path / "made")
    assert pool is compile_pool._pool and not pool.ended


def test_a_job_whose_process_is_killed_is_done_again(pool: compile_pool._Pool, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    dies = f"import os\nif not os.path.exists({str(mark)!r}):\n"
    dies += f"    os.mkdir({str(mark)!r})\n    os.kill(os.getpid(), 9)\n"
    assert compile_pool.compile_to(job(dies + ADD.format(2.0)), tmp_path / "made")
    assert mark.exists()
    always = "import os\nos.kill(os.getpid(), 11)\n"
    with pytest.raises(compile_pool.CompileError, match="killed twice"):
        compile_pool.compile_to(job(always + ADD.format(2.0)), tmp_path / "other")


def test_without_the_process_the_caller_compiles(
    pool: compile_pool._Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compile_pool.compile_to(job(), tmp_path / "made")
    logs.set_logs(perf=True)
    try:
        pool.process.kill()
        pool.listener.join()
    finally:
        logs.set_logs(perf=False)
    assert capsys.readouterr().err.count("ended with status -9: kernels are compiled in this process") == 1
    assert not compile_pool.compile_to(job(), tmp_path / "made")
    assert compile_pool._pool is None or compile_pool._pool.ended


def test_one_worker_is_this_process(tmp_path: Path) -> None:
    with config.patch(compile_workers=1):
        compile_pool.start(90)
        assert compile_pool._pool is None and not compile_pool.compile_to(job(), tmp_path / "made")
    compile_pool._capability = 0


def test_on_few_cores_threads_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "_cores", lambda: 2)
    compile_pool.start(90)
    assert compile_pool.workers() == 2
    assert compile_pool._pool is None and not compile_pool.compile_to(job(), tmp_path / "made")
    compile_pool._capability = 0


def test_it_ends_with_its_parent() -> None:
    text = (
        "import os, signal\nfrom dynajit.config import config\nfrom dynajit.runtime import compile_pool\n"
        "config.compile_workers = 2\ncompile_pool.start(90)\n"
        "print(compile_pool._pool.process.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    wait_for_end(int(done.stdout))


def test_it_ends_when_idle() -> None:
    text = f"import sys\nsys.path[:] = {sys.path!r}\nfrom dynajit.runtime import triton_worker\n"
    text += "triton_worker.serve(2, 90, idle=0.0)"
    process = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE)
    assert process.wait(100) == 0


def test_a_forked_child_begins_its_own(pool: compile_pool._Pool, tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        status = 1
        try:
            done = compile_pool.compile_to(job(), tmp_path / "made")
            status = 0 if done and compile_pool._pool is not pool else 2
            compile_pool.stop()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not pool.ended and triton_worker.unpack((tmp_path / "made").read_bytes()).symbol == "add"
