"""What a remote cache is kept on: files that fsspec reaches, a redis server, the store of the job's process group.

In:  the URL of `config.remote_cache`.
Out: `connect(url)`: a `RemoteServer`, whose methods raise what the client in use raises, and may take for ever: the
     caller bounds them (`remote_cache.py`). `RemoteUnavailable` says in a sentence what is to be installed or set.
One more kind: a class with these methods, and its scheme in `connect`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
from typing import Any, Protocol

from dynajit import torch_compat

# Clients give up by themselves after so many seconds, so that no thread of theirs stays.
CLIENT_TIMEOUT_S = 5.0
GROUP = "group"
_PREFIX = "dynajit-v1"
_CLAIM = ".claim"
# Where a file is there only when it is whole. Elsewhere it gets its name when it is.
_WHOLE_FILES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"})
_READ_ONLY = frozenset({"http", "https"})


class RemoteUnavailable(Exception):
    """The server can't be used by this process; the text says what to install or to set."""


class RemoteServer(Protocol):
    """Named entries, each written once.

    Attributes:
        writable: whether entries can be put there at all.
    """

    writable: bool

    def get(self, name: str) -> bytes | None:
        """The entry; None: there is none."""

    def put(self, name: str, sealed: bytes, replace: bool) -> None:
        """Keep the entry; one that is there stays, unless it is to be replaced."""

    def claim(self, name: str, seconds: float) -> bool:
        """Whether this process is to make the entry: no other one has said so in the last `seconds`, as far as the
        server can tell."""

    def release(self, name: str) -> None:
        """Take the claim back: the entry is there, or will not be."""


def connect(url: str) -> RemoteServer:
    """The server at the URL; nothing is asked of it yet. Raises RemoteUnavailable."""
    scheme = url.partition("://")[0] if "://" in url else "file"
    if scheme == GROUP:
        return GroupServer()
    if scheme in ("redis", "rediss"):
        return RedisServer(url)
    return FileServer(url, scheme)


class FileServer:
    """A folder on whatever fsspec reaches: a shared file system, S3, GCS, HTTP."""

    def __init__(self, url: str, scheme: str) -> None:
        core = _module("fsspec.core", "fsspec")
        try:
            self.files, self.root = core.url_to_fs(url.rstrip("/"), skip_instance_cache=True)
        except ImportError as error:
            extra = "pip install 'dynajit[remote]'" if scheme in _READ_ONLY else "it is fsspec's to reach"
            raise RemoteUnavailable(f"{scheme}:// needs a package ({error}; {extra})") from None
        except ValueError as error:
            raise RemoteUnavailable(f"fsspec knows no {scheme}:// ({error})") from None
        self.writable = scheme not in _READ_ONLY
        self.whole = scheme in _WHOLE_FILES
        self.local = scheme in ("file", "local")

    def _path(self, name: str) -> str:
        return f"{self.root}/{_PREFIX}/{name[:2]}/{name}"

    def get(self, name: str) -> bytes | None:
        """The file's bytes."""
        try:
            found: bytes = self.files.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        return found

    def put(self, name: str, sealed: bytes, replace: bool) -> None:
        """Write the file, under another name first where half of it could be seen."""
        path = self._path(name)
        if not replace and self.files.exists(path):
            return
        if self.whole:
            self.files.pipe_file(path, sealed)
            return
        self._make_folder(path)
        scratch = f"{path}.{secrets.token_hex(8)}.tmp"
        try:
            self.files.pipe_file(scratch, sealed)
            self.files.mv(scratch, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.files.rm_file(scratch)
            raise

    def claim(self, name: str, seconds: float) -> bool:
        """Make a file beside it that must not be there. One that a dead process left is waited for once."""
        if not self.writable:
            return True
        path = self._path(name) + _CLAIM
        if not self.whole:
            self._make_folder(path)
        try:
            if self.local:
                # `create` looks first, then writes: two may both find nothing there
                self.files.open(path, "xb").close()
            else:
                self.files.pipe_file(path, b"", mode="create")
        except FileExistsError:
            return False
        except (NotImplementedError, TypeError):  # it can't tell
            return True
        return True

    def release(self, name: str) -> None:
        """Delete that file."""
        if self.writable:
            with contextlib.suppress(FileNotFoundError):
                self.files.rm_file(self._path(name) + _CLAIM)

    def _make_folder(self, path: str) -> None:
        self.files.makedirs(path.rpartition("/")[0], exist_ok=True)


class RedisServer:
    """Keys of a redis server."""

    writable = True

    def __init__(self, url: str) -> None:
        redis = _module("redis", "redis")
        retry, backoff = _module("redis.retry", "redis"), _module("redis.backoff", "redis")
        self.token = f"{os.getpid()} {secrets.token_hex(8)}".encode()
        try:
            self.client: Any = redis.Redis.from_url(
                url,
                socket_timeout=CLIENT_TIMEOUT_S,
                socket_connect_timeout=CLIENT_TIMEOUT_S,
                retry=retry.Retry(backoff.NoBackoff(), 0),
            )
        except ValueError as error:
            raise RemoteUnavailable(f"redis can't read the URL ({error})") from None

    def get(self, name: str) -> bytes | None:
        """The key's value."""
        found: bytes | None = self.client.get(f"{_PREFIX}:{name}")
        return found

    def put(self, name: str, sealed: bytes, replace: bool) -> None:
        """Set the key."""
        self.client.set(f"{_PREFIX}:{name}", sealed, nx=not replace)

    def claim(self, name: str, seconds: float) -> bool:
        """Set a key beside it that dies by itself."""
        key = f"{_PREFIX}:{name}{_CLAIM}"
        return bool(self.client.set(key, self.token, nx=True, px=max(1, int(seconds * 1000))))

    def release(self, name: str) -> None:
        """Delete that key, if it is still this process's."""
        key = f"{_PREFIX}:{name}{_CLAIM}"
        if self.client.get(key) == self.token:
            self.client.delete(key)


class GroupServer:
    """The store of torch.distributed's default group, which the job's ranks meet in: it lives as long as the job. Where
    there is no group, or none yet, it is empty."""

    writable = True

    def __init__(self) -> None:
        self.default: Any = None
        self.own: Any = None

    def _store(self) -> Any:
        """A connection of its own: one that another thread waits in answers nobody else meanwhile."""
        default = torch_compat.group_store()
        if default is not self.default:
            self.default, self.own = default, None if default is None else default.clone()
        return self.own

    def get(self, name: str) -> bytes | None:
        """The key's value, without waiting for it."""
        store, key = self._store(), f"{_PREFIX}/{name}"
        found: bytes | None = store.get(key) if store is not None and store.check([key]) else None
        return found

    def put(self, name: str, sealed: bytes, replace: bool) -> None:
        """Set the key."""
        store, key = self._store(), f"{_PREFIX}/{name}"
        if store is not None and (replace or not store.check([key])):
            store.set(key, sealed)

    def claim(self, name: str, seconds: float) -> bool:
        """Be the first one that counts."""
        store = self._store()
        return store is None or bool(store.add(f"{_PREFIX}/{name}{_CLAIM}", 1) == 1)

    def release(self, name: str) -> None:
        """Count from the start again."""
        store = self._store()
        if store is not None:
            store.delete_key(f"{_PREFIX}/{name}{_CLAIM}")


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RemoteUnavailable(f"the package {package} is missing ({error}): pip install 'dynajit[remote]'") from None
