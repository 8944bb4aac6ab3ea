"""Cache folders in one file, and the folder that is only read: what is used, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dynajit
from dynajit.config import config
from dynajit.exc import ArtifactError
from dynajit.runtime import container, load, store, toolchain, travel
from dynajit.runtime.store import ArtifactStore

KEYS = [f"{number:02x}" * 32 for number in range(5)]


@pytest.fixture
def kept(tmp_path: Path) -> ArtifactStore:
    found = ArtifactStore(tmp_path / "kept", limit=1 << 20)
    for key in KEYS:
        found.put(key, ".so", lambda path: path.write_bytes(path.name.encode()))
    return found


def test_everything_sound_travels(kept: ArtifactStore, tmp_path: Path) -> None:
    first = kept.get(KEYS[0], ".so")
    assert first is not None
    first.write_bytes(b"damaged")
    assert travel.pack(kept, tmp_path / "packed") == (4, 4 * 67, 0)
    other = ArtifactStore(tmp_path / "other", limit=1 << 20)
    other.put(KEYS[1], ".so", lambda path: path.write_bytes(b"of this machine"))
    assert travel.unpack(other, tmp_path / "packed") == (3, 3 * 67, 1)
    found = [other.get(key, ".so") for key in KEYS]
    assert found[0] is None
    assert [path.read_bytes() for path in found[1:] if path] == [
        b"of this machine",
        *(f"{key}.so".encode() for key in KEYS[2:]),
    ]


@pytest.mark.parametrize("name", ["../../evil.so", "ab.so", "zz" * 32 + ".so", KEYS[0], KEYS[0] + ".so.sum", ""])
def test_names_that_no_cache_folder_has_are_refused(tmp_path: Path, name: str) -> None:
    container.write(tmp_path / "packed", travel.KIND, {}, [(name, b"")])
    with pytest.raises(ArtifactError, match="no name of a cache folder's file"):
        travel.unpack(ArtifactStore(tmp_path / "other", limit=1 << 20), tmp_path / "packed")
    assert not (tmp_path / "other").exists()


def test_a_damaged_or_too_large_pack_changes_nothing(kept: ArtifactStore, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    travel.pack(kept, packed)
    with pytest.raises(ArtifactError, match="keeps 0 MB at most: raise DYNAJIT_CACHE_SIZE_MB"):
        travel.unpack(ArtifactStore(tmp_path / "other", limit=100), packed)
    packed.write_bytes(packed.read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError, match="is damaged"):
        travel.unpack(ArtifactStore(tmp_path / "other", limit=1 << 20), packed)
    assert not (tmp_path / "other").exists()


def _no_compiler(*_: object) -> None:
    raise toolchain.ToolchainError("a kernel is compiled")


def test_kernels_come_from_the_folder_that_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2 + 0.125

    x = torch.randn(100)
    with config.patch(cache_dir=str(tmp_path / "first")):
        dynajit.compile(double)(x)
    dynajit.reset()
    load._libraries.clear()
    monkeypatch.setattr(toolchain.Toolchain, "compile", _no_compiler)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "first").rglob("*")}
    with config.patch(cache_dir=str(tmp_path / "second"), cache_read=str(tmp_path / "first")):
        torch.testing.assert_close(dynajit.compile(double)(x), double(x))
        assert not list(store.find().files())
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "first").rglob("*")} == before


def test_a_folder_that_others_may_write_to_is_not_read(kept: ArtifactStore) -> None:
    top = kept.root.parent
    top.chmod(0o755)
    assert store.ReadOnlyStore(top).get(KEYS[0], ".so") is not None
    for path in (top, kept.root, kept.root / KEYS[0][:2], kept.root / KEYS[0][:2] / f"{KEYS[0]}.so"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        assert store.ReadOnlyStore(top).get(KEYS[0], ".so") is None
        path.chmod(mode)
    assert store.ReadOnlyStore(top).get(KEYS[0], ".so") is not None
    assert store.ReadOnlyStore(top.with_name("nowhere")).get(KEYS[0], ".so") is None
