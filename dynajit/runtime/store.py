"""The artifact store: compiled kernels on disk, found again by what they were made from.

In:  a key (hex digest of everything that decides the contents) and a function that makes the file.
Out: the path of a file with those contents, verified; made now or by any process before.
One folder, private to the user. A file appears under its name only when complete (temporary name, then rename), so
processes may work in it at once. What is broken, foreign or half there is a miss. Nothing in it is ever unpickled.
One more kind of artifact: another `suffix`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from dynajit.config import config
from dynajit.runtime import compile_once, remote_cache

_FORMAT = "v1"
_STALE_S = 3600  # a temporary folder older than this has lost its process
_PUTS_PER_SWEEP = 64
_MIN_FREE = 1 << 20  # bytes, with which compilers have room for what they write in between


class ArtifactStore:
    """The store in folder `root`; `limit` bytes at most are kept (checked now and then, oldest use goes first)."""

    def __init__(self, root: Path, limit: int) -> None:
        self.root = root / _FORMAT
        self.limit = limit
        self._puts = 0

    def get(self, key: str, suffix: str) -> Path | None:
        """The verified file kept under `key`, or None."""
        path = self._path(key, suffix)
        if not self.is_sound(path):
            return None
        try:
            self._used(path)
        except OSError:  # another process has deleted it meanwhile
            return None
        return path

    def holds(self, key: str, suffix: str) -> bool:
        """Is there a file under the key, sound or not?"""
        return self._path(key, suffix).exists()

    def is_sound(self, path: Path) -> bool:
        """Is the file there, complete, and from who may put files here?"""
        try:
            return self._is_trusted(path) and _checksum_file(path).read_text(encoding="ascii") == _digest(path)
        except (OSError, UnicodeDecodeError):
            return False

    def _is_trusted(self, path: Path) -> bool:
        status = path.lstat()
        return stat.S_ISREG(status.st_mode) and _is_own(status)

    def _used(self, path: Path) -> None:
        os.utime(path)

    def put(self, key: str, suffix: str, make: Callable[[Path], None]) -> Path:
        """`make(path)` writes the file; it is kept under `key`, and returned. Raises OSError, or what `make` raises."""
        path = self._path(key, suffix)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="tmp-", dir=self.root))
        try:
            made = scratch / f"{key}{suffix}"
            make(made)
            checksum = scratch / "checksum"
            checksum.write_text(_digest(made), encoding="ascii")
            for path_made in (made, checksum):
                path_made.chmod(0o600)
            made.replace(path)
            checksum.replace(_checksum_file(path))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if self._puts % _PUTS_PER_SWEEP == 0:
            with contextlib.suppress(OSError):  # another process deletes as well; what was to be kept is kept
                self.sweep()
        self._puts += 1
        return path

    def sweep(self) -> None:
        """Delete what was not used for longest until the rest fits, and what dead processes left."""
        now = time.time()
        for folder in self.root.glob("tmp-*"):
            if now - _modified(folder) > _STALE_S:
                shutil.rmtree(folder, ignore_errors=True)
        files = sorted(self.files(), key=_modified, reverse=True)
        total = 0
        for path in files:
            total += _size(path)
            if total > self.limit:
                _checksum_file(path).unlink(missing_ok=True)
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.root, ignore_errors=True)

    def files(self) -> Iterator[Path]:
        """What is kept, without the checksums beside it."""
        return (path for path in self.root.glob("??/*") if path.suffix != ".sum")

    def _path(self, key: str, suffix: str) -> Path:
        return self.root / key[:2] / f"{key}{suffix}"


class ReadOnlyStore(ArtifactStore):
    """A folder made elsewhere, as part of an image or on a shared file system: nothing in it is changed. Its files
    belong to whoever the folder belongs to, and nobody else may be able to write them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, limit=0)

    def _is_trusted(self, path: Path) -> bool:
        top = self.root.parent.stat()
        found = [top, *(part.lstat() for part in (self.root, path.parent, path))]
        private = not any(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for status in found)
        return private and all(status.st_uid == top.st_uid for status in found) and stat.S_ISREG(found[-1].st_mode)

    def _used(self, path: Path) -> None:
        pass


def find() -> ArtifactStore:
    """The store that the settings of this moment name, or one in a temporary folder where that can't be used."""
    return _open(config.cache_dir, config.cache_size_mb)


def written(contents: bytes | memoryview) -> Callable[[Path], None]:
    """What makes a file of these contents."""

    def make(path: Path) -> None:
        path.write_bytes(contents)

    return make


def lookup(key: str, suffix: str, travels: bool = True, again: bool = False) -> Path | None:
    """The file for `key`, in the store, in the folder that is only read or, if its kind travels, in the remote cache;
    None if it is in none of them. again: it was looked for just now."""
    path = find().get(key, suffix)
    if path is None and config.cache_read:
        path = ReadOnlyStore(Path(config.cache_read).expanduser()).get(key, suffix)
    remote = remote_cache.current() if path is None and travels else None
    contents = None if remote is None else remote.get(key + suffix, again)
    if contents is None:
        return path
    try:
        return _put(key, suffix, written(contents))
    except OSError:  # there is no room for it anywhere
        return None


def get_or_make(
    key: str, suffix: str, make: Callable[[Path], None], *, travels: bool = True, once: bool = True
) -> Path:
    """The file for `key`, made if no process has yet, nor is it in the folder that is only read, nor in the remote
    cache. Where the store can't be written (full disk, read-only), a file of this process's own.

    travels: whether the remote cache is for this kind of file. once: whether to wait for another process that makes it.
    """
    look = functools.partial(lookup, key, suffix, travels)
    path = look()
    if path is not None:
        return path
    if not once:
        return _make(key, suffix, make, travels)
    with compile_once.claimed(find().root, key + suffix, functools.partial(look, again=True), travels) as path:
        return path or _make(key, suffix, make, travels)


def keep(key: str, suffix: str, contents: bytes) -> Path:
    """Keep the contents under `key` in place of what is there; the remote cache gets them if it has none. Raises
    OSError."""
    path = find().put(key, suffix, written(contents))
    _send(key, suffix, path)
    return path


def _make(key: str, suffix: str, make: Callable[[Path], None], travels: bool) -> Path:
    path = _put(key, suffix, make)
    if travels:
        _send(key, suffix, path)
    return path


def _send(key: str, suffix: str, path: Path) -> None:
    remote = remote_cache.current()
    if remote is not None:
        remote.put_later(key + suffix, path)


def _put(key: str, suffix: str, make: Callable[[Path], None]) -> Path:
    """Into the store, or into a folder of this process's where that can't be written. Raises OSError."""
    store = find()
    try:
        if shutil.disk_usage(store.root.parent).free < _MIN_FREE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return store.put(key, suffix, make)
    except OSError as error:
        fallback = _open_temporary(f"the artifact store {store.root} can't be written: {error}", config.cache_size_mb)
        return fallback.get(key, suffix) or fallback.put(key, suffix, make)


@functools.cache
def _open(folder: str, limit_mb: int) -> ArtifactStore:
    root = Path(folder).expanduser()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(root.stat()):
            return _open_temporary(f"the artifact store {root} belongs to another user", limit_mb)
        if root.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            root.chmod(0o700)
        # whoever could write to the folder above may have made those in it
        inside = root / _FORMAT
        inside.mkdir(mode=0o700, exist_ok=True)
        folders = [inside, *(path for path in inside.iterdir() if len(path.name) == 2)]
        if not all(_is_own(path.lstat()) and stat.S_ISDIR(path.lstat().st_mode) for path in folders):
            return _open_temporary(f"in the artifact store {root} are folders of another user", limit_mb)
        if inside.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            inside.chmod(0o700)
    except OSError as error:
        return _open_temporary(f"the artifact store {root} can't be used: {error}", limit_mb)
    return ArtifactStore(root, limit_mb << 20)


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dynajit-")


@functools.cache
def _open_temporary(why: str, limit_mb: int) -> ArtifactStore:
    # Cached, so that each reason is reported once.
    folder = Path(_temporary_folder().name)
    warnings.warn(f"dynajit: {why}. Kernels of this process are kept in {folder} and lost with it", stacklevel=2)
    return ArtifactStore(folder, limit_mb << 20)


def _checksum_file(path: Path) -> Path:
    return path.with_name(path.name + ".sum")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
