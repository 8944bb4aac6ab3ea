"""Processes and machines that share what they compile: one does, the others wait for it, or start warm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dynajit.runtime import remote_servers
from dynajit.runtime.compile_once import claimed

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from remote_servers_for_tests import REDIS, free_port, http_server, redis_server

HERE = Path(__file__).parent
SECRET = "0123456789abcdef"


class Process:
    """One that has imported dynajit and waits for `go`."""

    def __init__(self, cache: Path, *arguments: str, **variables: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "DYNAJIT_CACHE_DIR": str(cache), **variables}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "shared_compiles.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ready(self) -> Process:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]
        return self

    def go(self) -> Process:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self

    def ended(self) -> dict[str, Any]:
        out, errors = self.process.communicate(timeout=150)
        assert self.process.returncode == 0, errors
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert found["same"]
        return {"remote": {}, "stderr": errors, **found}


def run(cache: Path, **variables: str) -> dict[str, Any]:
    return Process(cache, "compile", **variables).ready().go().ended()


def remote(url: str | Path, secret: str = SECRET) -> dict[str, str]:
    return {"DYNAJIT_REMOTE_CACHE": str(url), "DYNAJIT_REMOTE_KEY": secret, "DYNAJIT_KEEP_VARIANTS": "1"}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A machine's cache folder, and what it put into a folder that others reach."""
    folder = tmp_path_factory.mktemp("first")
    cache, shared = folder / "cache", folder / "shared"
    first = run(cache, **remote(shared))
    assert first["compiles"] == 3 and first["remote"]["written"] == 5  # three libraries and two kept variants
    return cache, shared


def starts_warm(found: dict[str, Any]) -> None:
    assert found["compiles"] == 0 and found["kept"]["loaded"] == 2
    assert found["remote"]["hits"] == 5 and "refused" not in found["remote"]
    assert "[remote]" not in found["stderr"]


def test_a_second_machine_starts_warm_from_a_folder(published: tuple[Path, Path], tmp_path: Path) -> None:
    starts_warm(run(tmp_path / "cache", **remote(published[1].as_uri())))


def test_a_second_machine_starts_warm_over_http(published: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="the package aiohttp is not installed (pip install 'dynajit[remote]')")
    with http_server(published[1]) as url:
        starts_warm(run(tmp_path / "cache", **remote(url)))


@pytest.mark.skipif(REDIS is None, reason="redis-server or the package redis is not installed")
def test_a_second_machine_starts_warm_from_redis(published: tuple[Path, Path], tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        command = [sys.executable, "-m", "dynajit", "cache", "publish"]
        variables = {"PYTHONPATH": str(HERE.parents[1]), "DYNAJIT_CACHE_DIR": str(published[0]), **remote(url)}
        environment = {**os.environ, **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0 and done.stdout.startswith("published 5 files"), done
        starts_warm(run(tmp_path / "cache", **remote(url)))


def test_changed_entries_and_another_key_load_nothing(published: tuple[Path, Path], tmp_path: Path) -> None:
    shared = shutil.copytree(published[1], tmp_path / "shared")
    for number, path in enumerate(sorted(path for path in shared.rglob("*") if path.is_file())):
        contents = bytearray(path.read_bytes())
        contents[(number * 97 + 5) % len(contents)] ^= 0x10
        path.write_bytes(contents)
    other_key = remote(published[1].as_uri(), "quite another secret")
    read_only = shutil.copytree(published[1], tmp_path / "for the other key")
    other_key["DYNAJIT_REMOTE_CACHE"] = str(read_only)
    for name, variables in (("changed", remote(shared)), ("other key", other_key)):
        found = run(tmp_path / name, **variables)
        assert found["compiles"] == 3 and found["remote"]["refused"] == 5, name
        assert "hits" not in found["remote"] and "loaded" not in found["kept"]
        assert found["stderr"].count("was not loaded") == 1


# ---- one compiles


def makers(log: Path) -> int:
    return len(log.read_text().splitlines())


def together(processes: list[Process]) -> list[dict[str, int]]:
    """What each did with the remote cache, where all begin once all are ready."""
    for process in processes:
        process.ready()
    for process in processes:
        process.go()
    return [process.ended()["remote"] for process in processes]


def test_processes_of_one_folder_make_an_entry_once(tmp_path: Path) -> None:
    log, key = tmp_path / "log", "ab" * 32
    processes = [Process(tmp_path / "cache", "make", key, "1", str(log)) for _ in range(3)]
    found = together(processes)
    assert makers(log) == 1
    assert sorted(each.get("waited for", 0) for each in found) in ([0, 1, 1], [0, 0, 1], [0, 0, 0])
    assert not [*(tmp_path / "cache" / "v1" / "locks").iterdir()]


def test_who_dies_while_compiling_is_not_waited_for(tmp_path: Path) -> None:
    log, key = tmp_path / "log", "ab" * 32
    dying = Process(tmp_path / "cache", "make", key, "100", str(log)).ready()
    waiting = Process(tmp_path / "cache", "make", key, "0", str(log)).ready()
    dying.go()
    while not log.exists():
        time.sleep(0.01)
    waiting.go()
    time.sleep(0.2)
    dying.process.kill()
    dying.process.communicate()
    assert waiting.ended() and makers(log) == 2


def test_an_entry_made_between_the_look_and_the_right_to_make_it(tmp_path: Path) -> None:
    """Whoever made it has left no lock to wait at."""
    made = tmp_path / "entry"
    with claimed(tmp_path, "entry", lambda: made, travels=False) as found:
        assert found == made


@pytest.mark.parametrize("kind", ["folder", "redis"])
def test_machines_make_an_entry_once(tmp_path: Path, kind: str) -> None:
    if kind == "redis":
        if REDIS is None:
            pytest.skip("redis-server or the package redis is not installed")
        with redis_server(tmp_path) as (url, _):
            make_on_two_machines(tmp_path, url)
    else:
        make_on_two_machines(tmp_path, str(tmp_path / "shared"))


def make_on_two_machines(folder: Path, url: str) -> None:
    log, key = folder / "log", "ab" * 32
    machines = [Process(folder / str(n), "make", key, "2", str(log), **remote(url)) for n in range(2)]
    found = together(machines)
    assert makers(log) == 1
    assert sum(each.get("hits", 0) for each in found) == sum(each.get("written", 0) for each in found) == 1


def test_one_of_those_that_found_no_claim_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both looked before either wrote."""
    servers = [remote_servers.connect(str(tmp_path / "shared")) for _ in range(2)]
    for server in servers:
        monkeypatch.setattr(server.files, "exists", lambda path: False)  # type: ignore[attr-defined]
    assert [server.claim("ab" * 32, 60.0) for server in servers] == [True, False]
    servers[0].release("ab" * 32)
    assert servers[1].claim("ab" * 32, 60.0)


def test_ranks_share_by_the_groups_store(tmp_path: Path) -> None:
    log, port = tmp_path / "log", str(free_port())
    variables = {**remote("group://"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [Process(tmp_path / str(n), "group", str(log), RANK=str(n), **variables) for n in range(2)]
    for rank in ranks:
        rank.ready().go()
    found = [rank.ended() for rank in ranks]
    assert makers(log) == 1
    assert sum(each["compiles"] for each in found) == 3
    assert all("refused" not in each["remote"] and "[remote]" not in each["stderr"] for each in found)
