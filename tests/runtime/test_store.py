"""The artifact store: hits, misses, what is broken or not ours, its bound, several processes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dynajit.config import config
from dynajit.runtime import store
from dynajit.runtime.store import ArtifactStore

KEY = "ab" * 32


def writer(contents: bytes):
    return lambda path: path.write_bytes(contents)


def never(path: Path) -> None:
    raise AssertionError("made again")


@pytest.fixture
def kept(tmp_path: Path) -> ArtifactStore:
    found = ArtifactStore(tmp_path, limit=1 << 20)
    found.root.mkdir()
    return found


def test_put_then_get(kept: ArtifactStore) -> None:
    assert kept.get(KEY, ".so") is None
    path = kept.put(KEY, ".so", writer(b"contents"))
    assert path.read_bytes() == b"contents"
    assert kept.get(KEY, ".so") == path
    assert kept.get(KEY, ".other") is None
    assert not list(kept.root.glob("tmp-*"))


@pytest.mark.parametrize("damage", ["truncated", "changed", "no checksum", "checksum cut", "link", "folder"])
def test_what_is_broken_is_a_miss_and_is_replaced(kept: ArtifactStore, damage: str, tmp_path: Path) -> None:
    path = kept.put(KEY, ".so", writer(b"contents"))
    checksum = path.with_name(path.name + ".sum")
    if damage == "truncated":
        path.write_bytes(b"cont")
    elif damage == "changed":
        path.write_bytes(b"CONTENTS")
    elif damage == "no checksum":
        checksum.unlink()
    elif damage == "checksum cut":
        checksum.write_bytes(b"\xff\xfe")
    elif damage == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        checksum.unlink()
        checksum.mkdir()
    assert kept.get(KEY, ".so") is None
    if damage != "folder":
        kept.put(KEY, ".so", writer(b"contents"))
        assert kept.get(KEY, ".so") is not None


def test_a_failing_make_leaves_nothing(kept: ArtifactStore) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError

    with pytest.raises(ValueError):
        kept.put(KEY, ".so", fail)
    assert kept.get(KEY, ".so") is None
    assert not [path for path in kept.root.rglob("*") if path.is_file()]


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    kept = ArtifactStore(tmp_path, limit=250)
    kept.root.mkdir()
    keys = [f"{number:02d}" * 32 for number in range(3)]
    for age, key in enumerate(keys):
        path = kept.put(key, ".so", writer(b"x" * 100))
        os.utime(path, (1000 + age, 1000 + age))
    assert kept.get(keys[0], ".so") is not None  # a use makes it the youngest
    kept.sweep()
    assert [kept.get(key, ".so") is not None for key in keys] == [True, False, True]


def test_scratch_of_dead_processes_goes(kept: ArtifactStore) -> None:
    old, young = kept.root / "tmp-old", kept.root / "tmp-young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (1000, 1000))
    kept.sweep()
    assert not old.exists()
    assert young.exists()


def test_private(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    with config.patch(cache_dir=str(folder)):
        path = store.get_or_make(KEY, ".so", writer(b"contents"))
    assert path.is_relative_to(folder)
    for made in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(made.stat().st_mode) & 0o077 == 0


def test_second_use_makes_nothing(tmp_path: Path) -> None:
    with config.patch(cache_dir=str(tmp_path / "cache")):
        first = store.get_or_make(KEY, ".so", writer(b"contents"))
        assert store.get_or_make(KEY, ".so", never) == first


def test_a_folder_that_others_write_to_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with config.patch(cache_dir=str(folder)):
        store.get_or_make(KEY, ".so", writer(b"contents"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def _give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user owns it: for real where this process may, else it only looks so."""
    if os.geteuid() == 0:
        os.lchown(path, 12345, -1) if hasattr(os, "lchown") else os.chown(path, 12345, -1)
        return
    own = store._is_own
    taken = path.lstat().st_ino
    monkeypatch.setattr(store, "_is_own", lambda status: status.st_ino != taken and own(status))


@pytest.mark.parametrize("what", ["folder", "format", "shard"])
def test_what_another_user_owns_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    with config.patch(cache_dir=str(folder)):
        made = store.get_or_make(KEY, ".so", writer(b"theirs"))
    _give_away({"folder": folder, "format": made.parent.parent, "shard": made.parent}[what], monkeypatch)
    store._open.cache_clear()
    with config.patch(cache_dir=str(folder)), pytest.warns(UserWarning, match="another user"):
        path = store.get_or_make(KEY, ".so", writer(b"mine"))
    assert path.read_bytes() == b"mine" and not path.is_relative_to(folder)
    store._temporary_folder.cache_clear()
    store._open_temporary.cache_clear()


def test_a_file_of_another_user_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with config.patch(cache_dir=str(tmp_path / "cache")):
        made = store.get_or_make(KEY, ".so", writer(b"theirs"))
        _give_away(made, monkeypatch)
        assert store.find().get(KEY, ".so") is None


def test_a_folder_open_to_readers_is_closed_inside(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    (folder / store._FORMAT).mkdir(parents=True)
    (folder / store._FORMAT).chmod(0o755)
    with config.patch(cache_dir=str(folder)):
        store.get_or_make(KEY, ".so", writer(b"contents"))
    assert stat.S_IMODE((folder / store._FORMAT).stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with config.patch(cache_dir=str(tmp_path / "file")):
        with pytest.warns(UserWarning, match="artifact store"):
            path = store.get_or_make(KEY, ".so", writer(b"contents"))
        assert path.read_bytes() == b"contents"
        assert store.get_or_make(KEY, ".so", never) == path


def test_a_store_that_becomes_unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "cd" * 32
    with config.patch(cache_dir=str(tmp_path / "cache")):
        broken = store.find()
        monkeypatch.setattr(broken, "root", tmp_path / "gone" / "v1")
        monkeypatch.setattr(Path, "mkdir", _full_disk(Path.mkdir, tmp_path / "gone"))
        with pytest.warns(UserWarning, match="can't be written"):
            assert store.get_or_make(other, ".so", writer(b"contents")).read_bytes() == b"contents"


def test_a_disk_that_is_full_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, usage = "ef" * 32, shutil.disk_usage

    def full(folder: Path):
        return usage(folder)._replace(free=1000) if Path(folder).is_relative_to(tmp_path) else usage(folder)

    monkeypatch.setattr(shutil, "disk_usage", full)
    with config.patch(cache_dir=str(tmp_path / "cache")):
        with pytest.warns(UserWarning, match="No space left"):
            path = store.get_or_make(other, ".so", writer(b"contents"))
        assert path.read_bytes() == b"contents" and not path.is_relative_to(tmp_path)


def _full_disk(mkdir, folder: Path):
    def refuse(self: Path, *args, **kwargs):
        if self.is_relative_to(folder):
            raise OSError(28, "No space left on device")
        return mkdir(self, *args, **kwargs)

    return refuse


def test_several_processes_at_once(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from dynajit.runtime import store\n"
        "for n in range(20):\n"
        "    key = f'{n:02d}' * 32\n"
        "    path = store.get_or_make(key, '.so', lambda p: p.write_bytes(key.encode() * 1000))\n"
        "    assert path.read_bytes() == key.encode() * 1000\n"
    )
    environment = {**os.environ, "DYNAJIT_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    processes = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
