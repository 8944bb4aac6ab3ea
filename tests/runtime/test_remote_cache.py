"""The remote cache: what one folder has, another one finds; what is not signed, late, broken or full is a miss."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_servers_for_tests import REDIS, garbage, half, http_server, never, raw_server, redis_server

from dynajit.config import config
from dynajit.exc import ConfigError
from dynajit.report.counters import counters
from dynajit.runtime import remote_cache, remote_servers, signed, store

KEY = "ab" * 32
SECRET = "0123456789abcdef"
CONTENTS = b"\x7fELF machine code " * 40

needs_redis = pytest.mark.skipif(REDIS is None, reason="redis-server or the package redis is not installed")


class Machine:
    """A cache folder of its own, and the settings of the remote cache."""

    def __init__(self, folder: Path, url: str, secret: str = SECRET) -> None:
        self.settings: dict[str, Any] = {"cache_dir": str(folder), "remote_cache": url, "remote_key": secret}
        self.made: list[str] = []

    def get(self, key: str = KEY, contents: bytes = CONTENTS) -> bytes:
        """The entry, made here if nowhere else."""

        def make(path: Path) -> None:
            self.made.append(key)
            path.write_bytes(contents)

        with config.patch(**self.settings):
            found = store.get_or_make(key, ".so", make).read_bytes()
            assert remote_cache.flush(60)
        return found


def counted() -> Counter[str]:
    return +counters["remote"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Each test connects anew, with nothing counted or said."""
    remote_cache._opened.cache_clear()
    counters["remote"].clear()
    yield


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """What was said whatever the logs are."""
    logging.getLogger("dynajit").propagate = True
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_cache, "ANSWER_S", 0.5)
    monkeypatch.setattr(remote_cache, "FIRST_S", 1.0)
    monkeypatch.setattr(remote_servers, "CLIENT_TIMEOUT_S", 0.5)


@pytest.fixture(params=["folder", "folder without a scheme", "memory", pytest.param("redis", marks=needs_redis)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A server of each kind that can be written."""
    if request.param == "redis":
        with redis_server(tmp_path) as (found, _):
            yield found
    elif request.param == "memory":
        yield f"memory://{tmp_path.name}"
    else:
        yield f"{'file://' if request.param == 'folder' else ''}{tmp_path / 'shared'}"


def test_another_machine_finds_what_one_has_made(url: str, tmp_path: Path) -> None:
    first, second = Machine(tmp_path / "a", url), Machine(tmp_path / "b", url)
    assert first.get() == second.get() == second.get() == CONTENTS
    assert (first.made, second.made) == ([KEY], [])
    assert counted() == {"misses": 1, "written": 1, "hits": 1}


def test_an_entry_is_written_once(url: str, tmp_path: Path) -> None:
    cache = remote_cache.RemoteCache(url, SECRET.encode())
    assert cache.put("aa.so", b"first") and cache.put("aa.so", b"second")
    assert cache.get("aa.so") == b"first"


def test_only_one_claims(url: str) -> None:
    one, other = (remote_cache.RemoteCache(url, SECRET.encode()) for _ in range(2))
    assert one.claim("aa.so") and not other.claim("aa.so") and not one.claim("aa.so")
    one.release_later("aa.so")
    assert remote_cache.flush(60)
    assert other.claim("aa.so")


@needs_redis
def test_a_claim_of_a_dead_process_ends(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        one, other = remote_servers.connect(url), remote_servers.connect(url)
        assert one.claim("aa.so", 0.2)
        other.release("aa.so")  # it is not its own
        assert not other.claim("aa.so", 60)
        time.sleep(0.3)
        assert other.claim("aa.so", 60)


def test_http_is_only_read(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="the package aiohttp is not installed (pip install 'dynajit[remote]')")
    Machine(tmp_path / "a", str(tmp_path / "served")).get()
    with http_server(tmp_path / "served") as url:
        second = Machine(tmp_path / "b", url)
        assert second.get() == CONTENTS and not second.made
        other = "cd" * 32
        assert second.get(other) == CONTENTS and second.made == [other]
        assert counted() == {"misses": 2, "written": 1, "hits": 1, "read only": 1}
        with config.patch(**second.settings):
            assert remote_cache.state() == f"{url}: answers; only read, signed with DYNAJIT_REMOTE_KEY"


def test_what_is_made_elsewhere_alone_does_not_travel(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a", str(tmp_path / "shared"))
    with config.patch(**machine.settings):
        store.get_or_make(KEY, ".so", store.written(b"of an artifact"), travels=False)
        assert remote_cache.flush(60)
    assert not counted() and not (tmp_path / "shared").exists()


def test_kept_contents_travel_and_the_first_stay(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    for folder, contents in (("a", b"one"), ("b", b"two")):
        with config.patch(cache_dir=str(tmp_path / folder), remote_cache=shared, remote_key=SECRET):
            store.keep(KEY, ".variant", contents)
            assert remote_cache.flush(60)
    with config.patch(cache_dir=str(tmp_path / "c"), remote_cache=shared, remote_key=SECRET):
        found = store.lookup(KEY, ".variant")
        assert found is not None and found.read_bytes() == b"one"


# ---- what is not signed


def entry_of(folder: Path) -> Path:
    (found,) = folder.rglob("*.so")
    return found


def test_each_byte_counts() -> None:
    key, name = SECRET.encode(), f"{KEY}.so"
    sealed = signed.seal(key, name, CONTENTS)
    assert signed.unseal(key, name, sealed) == CONTENTS and len(sealed) < len(CONTENTS)
    wrong = [sealed[:n] + bytes([sealed[n] ^ 1 << n % 8]) + sealed[n + 1 :] for n in range(len(sealed))]
    wrong += [sealed[:n] for n in range(len(sealed))] + [sealed + b"\0", b"", CONTENTS, os.urandom(200)]
    for contents in wrong:
        with pytest.raises(signed.UnsignedEntry):
            signed.unseal(key, name, contents)
    for other_key, other_name in ((b"another key, as long", name), (key, "cd" * 32 + ".so"), (key, f"{KEY}.variant")):
        with pytest.raises(signed.UnsignedEntry):
            signed.unseal(other_key, other_name, sealed)


def test_what_is_signed_and_no_entry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    key, name = SECRET.encode(), "aa.so"
    monkeypatch.setattr(signed, "MAX_CONTENTS", 100)
    with pytest.raises(signed.UnsignedEntry, match="no whole entry"):
        signed.unseal(key, name, signed.seal(key, name, bytes(101)))
    monkeypatch.setattr(signed.zlib, "compress", lambda contents, level: contents)
    with pytest.raises(signed.UnsignedEntry, match="no compressed entry"):
        signed.unseal(key, name, signed.seal(key, name, b"plain"))


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "another entry", "another key", "plain"])
def test_what_is_not_signed_is_made_again_and_mended(tmp_path: Path, damage: str, said: Any) -> None:
    shared = tmp_path / "shared"
    first, second = Machine(tmp_path / "a", str(shared)), Machine(tmp_path / "b", str(shared))
    first.get()
    path = entry_of(shared)
    sealed = path.read_bytes()
    if damage == "another entry":
        first.get("cd" * 32, b"something else")
        path.write_bytes(next(p for p in shared.rglob("*.so") if p != path).read_bytes())
    elif damage == "another key":
        second = Machine(tmp_path / "b", str(shared), "another secret of the same length")
    else:
        changed = {
            "flipped": sealed[:-1] + bytes([sealed[-1] ^ 1]),
            "cut": sealed[:-9],
            "empty": b"",
            "plain": CONTENTS,
        }
        path.write_bytes(changed[damage])
    counters["remote"].clear()
    assert second.get() == CONTENTS and second.made == [KEY]
    assert counted() == {"refused": 1, "written": 1}
    assert [KEY in line and "was not loaded" in line for line in said()] == [True]
    third = Machine(tmp_path / "c", str(shared), second.settings["remote_key"])
    assert third.get() == CONTENTS and not third.made


@pytest.mark.parametrize(("secret", "why"), [("", "there is no key"), ("short", "shorter than 16 bytes")])
def test_without_a_key_nothing_is_asked(tmp_path: Path, secret: str, why: str, said: Any) -> None:
    shared = str(tmp_path / "shared")
    Machine(tmp_path / "a", shared).get()
    counters["remote"].clear()
    machine = Machine(tmp_path / "b", shared, secret)
    assert machine.get() == machine.get("cd" * 32) == CONTENTS and machine.made == [KEY, "cd" * 32]
    assert counted() == {"no key": 1}
    assert [why in line for line in said()] == [True]
    with config.patch(**machine.settings):
        assert why in remote_cache.state()


def test_secrets_are_not_shown(tmp_path: Path, said: Any) -> None:
    url = "redis://user:pass%40word@127.0.0.1:1/0?password=hidden"
    with config.patch(remote_cache=url, remote_key=SECRET):
        texts = [config.describe(), repr(config), remote_cache.state(), *said()]
        with pytest.raises(ConfigError, match=r"config\.remote_key takes str, not bytes$"):
            config.remote_key = SECRET.encode()  # type: ignore[assignment]
    for text in texts:
        assert not any(secret in text for secret in (SECRET, "pass%40word", "pass@word", "hidden"))
    assert "redis://127.0.0.1:1/0" in texts[2]


# ---- servers that fail


@pytest.mark.parametrize("scheme", ["redis", "http"])
@pytest.mark.parametrize("answer", [never, half, garbage])
def test_a_server_that_misbehaves_is_a_miss_and_left_alone(
    tmp_path: Path, scheme: str, answer: Any, said: Any, quick: None
) -> None:
    pytest.importorskip("redis" if scheme == "redis" else "aiohttp", reason="needs pip install 'dynajit[remote]'")
    with raw_server(answer) as (port, times):
        machine = Machine(tmp_path / "a", f"{scheme}://127.0.0.1:{port}")
        begin = time.monotonic()
        keys = [f"{n:02d}" * 32 for n in range(20)]
        assert all(machine.get(key) == CONTENTS for key in keys)
        assert time.monotonic() - begin < 30  # twenty waits of the client's would be longer than its own time-out
    assert machine.made == keys
    failed = counted()
    assert failed.pop("left alone") >= 20 and failed == {"reading failed": 1}
    assert [f"{scheme}://127.0.0.1" in line and "reading failed" in line for line in said()] == [True]
    assert len(times) <= 3


def test_an_absent_server_is_asked_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    clock = [1.0]
    monkeypatch.setattr(remote_cache.time, "monotonic", lambda: clock[0])
    pytest.importorskip("redis", reason="needs pip install 'dynajit[remote]'")
    machine = Machine(tmp_path / "a", "redis://127.0.0.1:1/0")
    for asked, passed in ((1, 0.0), (1, remote_cache.LEFT_ALONE_S / 2), (2, remote_cache.LEFT_ALONE_S)):
        clock[0] += passed
        machine.get(f"{asked}{int(passed)}".ljust(64, "c"))
        assert counted()["reading failed"] == asked


@needs_redis
def test_a_server_killed_in_the_middle(tmp_path: Path, said: Any) -> None:
    with redis_server(tmp_path) as (url, process):
        first, second = Machine(tmp_path / "a", url), Machine(tmp_path / "b", url)
        first.get()
        assert second.get() == CONTENTS
        process.kill()
        process.wait()
        for key in ("cd" * 32, "ef" * 32):
            assert second.get(key) == CONTENTS
        assert second.made == ["cd" * 32, "ef" * 32]
        assert counted()["reading failed"] == 1
        assert ["reading failed" in line for line in said()] == [True]


@needs_redis
def test_a_full_redis_is_still_read(tmp_path: Path, said: Any) -> None:
    limits = ("--maxmemory", "1500kb", "--maxmemory-policy", "noeviction")
    with redis_server(tmp_path, *limits) as (url, _):
        first, second = Machine(tmp_path / "a", url), Machine(tmp_path / "b", url)
        first.get()
        for n in range(10, 14):
            assert first.get(f"{n}" * 32, os.urandom(1 << 20)) != CONTENTS
        assert counted()["writing failed"] == 1
        assert ["writing failed" in line and "memory" in line for line in said()] == [True]
        assert second.get() == CONTENTS and not second.made


def test_a_folder_that_cannot_be_written(tmp_path: Path, said: Any) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "dynajit-v1").write_text("a file where a folder is to be")
    machine = Machine(tmp_path / "a", str(tmp_path / "shared"))
    assert machine.get() == machine.get("cd" * 32) == CONTENTS
    assert len(said()) == 1 and len(machine.made) == 2


def test_a_file_is_never_half_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = remote_servers.connect(str(tmp_path))
    whole = server.files.pipe_file  # type: ignore[attr-defined]

    def full(path: str, value: bytes, **options: Any) -> None:
        whole(path, value[: len(value) // 2], **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server.files, "pipe_file", full)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="No space left"):
        server.put("aa.so", b"entry", False)
    assert server.get("aa.so") is None and not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_system_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None, said: Any) -> None:
    class Hanging:
        writable = True

        def get(self, name: str) -> None:
            threading.Event().wait(30)

    monkeypatch.setattr(remote_servers, "connect", lambda url: Hanging())
    machine = Machine(tmp_path / "a", str(tmp_path / "shared"))
    begin = time.monotonic()
    assert machine.get() == machine.get("cd" * 32) == CONTENTS
    assert time.monotonic() - begin < 10
    assert ["no answer within 1.0 s" in line for line in said()] == [True]


@pytest.mark.parametrize(
    ("url", "missing", "expected"),
    [
        ("redis://127.0.0.1:1/0", "redis", "the package redis is missing .*pip install 'dynajit\\[remote\\]'"),
        ("http://127.0.0.1:1", "aiohttp", "http:// needs a package .*pip install 'dynajit\\[remote\\]'"),
        ("s3://bucket/folder", "s3fs", "s3:// needs a package .*s3fs"),
        ("nonsense://x", "", "fsspec knows no nonsense://"),
    ],
)
def test_what_is_missing_is_named(
    url: str, missing: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing:
        for name in [*sys.modules]:
            if name.partition(".")[0] == missing or name == "fsspec.implementations.http":
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, missing, None)
        if missing == "aiohttp":
            registry = importlib.import_module("fsspec.registry")
            monkeypatch.delitem(registry._registry, "http", raising=False)
    with pytest.raises(remote_servers.RemoteUnavailable, match=expected):
        remote_servers.connect(url)
    machine = Machine(tmp_path / "a", url)
    assert machine.get() == CONTENTS and machine.made == [KEY]


def test_what_is_too_large_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_cache, "_MAX_ENTRY", 100)
    assert Machine(tmp_path / "a", str(tmp_path / "shared")).get(KEY, os.urandom(200))
    assert counted() == {"misses": 1, "too large": 1}


def test_a_full_cache_folder_takes_the_entry_from_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, key = str(tmp_path / "shared"), "f0" * 32  # the folder that is used instead is the process's
    Machine(tmp_path / "a", shared).get(key)
    monkeypatch.setattr(store, "_MIN_FREE", 1 << 60)
    second = Machine(tmp_path / "b", shared)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert second.get(key) == CONTENTS
    assert not second.made


def test_a_forked_child_connects_anew(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    Machine(tmp_path / "a", shared).get()
    child = os.fork()
    if not child:
        status = 1
        try:
            second = Machine(tmp_path / "b", shared)
            other = Machine(tmp_path / "c", shared)
            right = second.get() == CONTENTS and other.get("cd" * 32) == CONTENTS
            status = 0 if right and not second.made and second.get("cd" * 32) and not second.made else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_a_write_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    program = """
import threading
from dynajit.runtime import remote_servers, store

class Hanging:
    writable = True
    get = lambda self, name: None
    claim = lambda self, name, seconds: True
    put = lambda self, *entry: threading.Event().wait(1000)

remote_servers.connect = lambda url: Hanging()
print(store.get_or_make("ab" * 32, ".so", store.written(b"made")).read_bytes())
"""
    variables = {
        "DYNAJIT_CACHE_DIR": str(tmp_path),
        "DYNAJIT_REMOTE_CACHE": "any://where",
        "DYNAJIT_REMOTE_KEY": SECRET,
    }
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'made'\n", "")
