"""A full disk, a killed compiler, damaged artifacts, no memory: the answer is right; what happened is said once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import dynajit
from dynajit.exc import BackendCompilerFailed
from dynajit.runtime.load import Library
from dynajit.runtime.store import ArtifactStore

PROGRAM = """
    import resource, sys, warnings
    import torch, dynajit

    {limit}
    x = torch.linspace(-1, 1, 32)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        f = dynajit.compile(lambda x: (x * 2).sin() + x.mean())
        for _ in range(3):
            torch.testing.assert_close(f(x), (x * 2).sin() + x.mean())
        g = dynajit.compile(lambda x: (x * 3).sin())
        torch.testing.assert_close(g(x), (x * 3).sin())
    print(sum("dynajit" in str(each.message) for each in told))
"""


def run(limit: str, tmp_path: Path, **environment: str) -> int:
    """How many warnings a fresh process gives that runs PROGRAM under a limit."""
    code = textwrap.dedent(PROGRAM).format(limit=limit)
    env = {"PYTHONPATH": str(Path(dynajit.__file__).parents[1]), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "DYNAJIT_CACHE_DIR": str(tmp_path / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.split()[-1])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose "cache" has the kernels of PROGRAM, which ran once with nothing wrong."""
    folder = tmp_path_factory.mktemp("filled")
    assert run("", folder) == 0
    return folder


def kernels_in(folder: Path) -> dict[Path, int]:
    """The kernels kept in a folder's cache. One that is made again is another file: it has another inode."""
    return {path: path.stat().st_ino for path in (folder / "cache").rglob("*.so")}


def test_nothing_wrong(filled: Path) -> None:
    kept = ArtifactStore(filled / "cache", 1 << 20)
    kernels = kernels_in(filled)
    assert len(kernels) == 2
    assert all(kept.get(path.stem, ".so") == path for path in kernels)


def test_a_full_disk(tmp_path: Path) -> None:
    limit = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))"
    assert run(limit, tmp_path) == 2, "the store can't be written, and then kernels not at all"


def test_no_memory_for_the_compiler(tmp_path: Path) -> None:
    killed = tmp_path / "cc"
    killed.write_text('#!/bin/sh\ncase "$*" in *-shared*) ulimit -v 20000;; esac\nexec cc "$@"\n')
    killed.chmod(0o755)
    assert run("", tmp_path, DYNAJIT_COMPILER=str(killed)) == 1


def test_a_compiler_that_is_killed(tmp_path: Path) -> None:
    killed = tmp_path / "cc"
    killed.write_text('#!/bin/sh\ncase "$*" in *-shared*) kill -9 $$;; esac\nexec cc "$@"\n')
    killed.chmod(0o755)
    assert run("", tmp_path, DYNAJIT_COMPILER=str(killed)) == 1


def test_a_noexec_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernel.so"
    path.write_bytes(b"what the loader refuses")
    with pytest.raises(OSError, match=r"^(?!.*mounted noexec)"):
        Library(path)
    monkeypatch.setattr(os, "statvfs", lambda path: types.SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(OSError, match="file system is mounted noexec; set DYNAJIT_CACHE_DIR to a folder on another"):
        Library(path)


def test_each_byte_of_an_artifact_counts(tmp_path: Path) -> None:
    kept = ArtifactStore(tmp_path, 1 << 20)
    contents = bytes(range(200))
    path = kept.put("ab12", ".so", lambda made: made.write_bytes(contents) and None)
    for position in range(len(contents)):
        damaged = bytearray(contents)
        damaged[position] ^= 0x40
        path.write_bytes(bytes(damaged))
        assert kept.get("ab12", ".so") is None, position
    path.write_bytes(contents)
    assert kept.get("ab12", ".so") == path


def test_damaged_kernels_are_made_again(filled: Path, tmp_path: Path) -> None:
    """In a process of its own: a library must not change under a process that has loaded it."""
    shutil.copytree(filled / "cache", tmp_path / "cache")
    before = kernels_in(tmp_path)
    empty, cut = before
    empty.write_bytes(b"")
    cut.write_bytes(cut.read_bytes()[:-1])
    assert run("", tmp_path) == 0
    after = kernels_in(tmp_path)
    assert after.keys() == before.keys()
    kept = ArtifactStore(tmp_path / "cache", 1 << 20)
    for path in before:
        assert after[path] != before[path] and kept.get(path.stem, ".so") == path, path


def test_what_is_kept_belongs_to_no_python(filled: Path, tmp_path: Path) -> None:
    """Several Pythons may share one cache: kernels know nothing of the Python that had them compiled."""
    shutil.copytree(filled / "cache", tmp_path / "cache")
    before = kernels_in(tmp_path)
    assert before
    for path in before:
        content = path.read_bytes()
        assert b"Py_" not in content and b"PyObject" not in content, path
        assert f"cpython-{sys.version_info.major}{sys.version_info.minor}".encode() not in content
    # Whoever runs the program next, in another folder, compiles nothing: the files' names say what is in them.
    assert run("", tmp_path) == 0
    assert kernels_in(tmp_path) == before


OTHER_PYTHON = os.environ.get("DYNAJIT_OTHER_PYTHON", "")


@pytest.mark.skipif(not OTHER_PYTHON, reason="DYNAJIT_OTHER_PYTHON names no other Python with dynajit's extension")
def test_two_pythons_on_one_cache(tmp_path: Path) -> None:
    """At once, and then each once more: both are right, and nothing is compiled twice."""
    environment = {
        "PYTHONPATH": str(Path(dynajit.__file__).parents[1]),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "DYNAJIT_CACHE_DIR": str(tmp_path / "cache"),
    }
    code = textwrap.dedent(PROGRAM).format(limit="")
    kept: list[dict[Path, int]] = []
    for _ in range(2):
        running = [subprocess.Popen([python, "-c", code], env=environment) for python in (sys.executable, OTHER_PYTHON)]
        assert [process.wait(timeout=300) for process in running] == [0, 0]
        kept.append(kernels_in(tmp_path))
    assert kept[0] and kept[0] == kept[1]


@pytest.mark.parametrize("error", [MemoryError("no memory"), RecursionError("too deep"), OSError(28, "No space left")])
def test_a_backend_that_runs_out(error: Exception) -> None:
    def backend(module: Any, inputs: Any) -> Any:
        raise error

    x = torch.ones(3)
    compiled = dynajit.compile(lambda x: x + 1, backend=backend)
    with pytest.raises((BackendCompilerFailed, MemoryError, RecursionError)):
        compiled(x)
    with dynajit.config.patch(suppress_errors=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(compiled(x), x + 1)
    assert torch.equal(dynajit.compile(lambda x: x + 2)(x), x + 2)


def test_a_low_recursion_limit() -> None:
    def deep(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + 1 if n == 0 else deep(x, n - 1) * 1

    limit = sys.getrecursionlimit()
    x = torch.ones(3)
    try:
        sys.setrecursionlimit(200)
        with pytest.raises(RecursionError):
            deep(x, 400)
        with pytest.raises(RecursionError):
            dynajit.compile(deep, backend="eager")(x, 400)
        assert sys.getrecursionlimit() == 200
    finally:
        sys.setrecursionlimit(limit)
    assert torch.equal(dynajit.compile(deep, backend="eager")(x, 5), x + 1)


@pytest.mark.parametrize("decorated", [False, True])
def test_recursion_deeper_than_the_stack_of_c(decorated: bool) -> None:
    """Eager needs none of C's stack for a Python function that calls another; nor may dynajit end the process."""
    program = f"""
        import sys, torch, dynajit

        sys.setrecursionlimit(150_000)

        def deep(x, n):
            return x if n == 0 else deep(x, n - 1) + 0

        def fn(x, n):
            return deep(x * 2, n)

        compiled = dynajit.compile(fn, backend="eager")
        if {decorated}:
            deep = dynajit.compile(deep, backend="eager")
        for n in (1_400, 100_000):
            try:
                assert compiled(torch.ones(2), n).tolist() == [2.0, 2.0]
            except RecursionError:
                assert {decorated}
        print("ended")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "ended", done.stderr[-2000:]
