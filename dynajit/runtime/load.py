"""Compiled C into this process.

In:  C source and what to call in it.
Out: an open `Library`, which knows the addresses of its functions.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import hashlib
import os
import weakref
from pathlib import Path

from dynajit.locks import process_lock
from dynajit.report import phases, progress
from dynajit.runtime import store, toolchain

# Bump when what is compiled from the same source with the same flags changes meaning.
_FORMAT = "1"


class Library:
    """An open shared object. The functions it hands out do not keep it open: hold on to it while they may be called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            if os.statvfs(path).f_flag & os.ST_NOEXEC:
                raise OSError(
                    f"kernels in {path.parent} can't run: its file system is mounted noexec; set DYNAJIT_CACHE_DIR to "
                    "a folder on another one"
                ) from error
            raise
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False

    def address(self, name: str) -> int:
        """Where the function of that name is."""
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None
        return address


_libraries: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
_lock = process_lock()


def load_source(source: str, kernels: int) -> Library:
    """The library compiled from `source`: open already, from the artifact store, or compiled now. `kernels`: how many
    are in it, for the progress line.

    Raises ToolchainError where no C compiler works or it refuses the text.
    """
    chain = toolchain.find()
    key = _key(chain, source)
    with _lock:
        library = _libraries.get(key)
    if library is None:
        with phases.timer("c_compile"):
            progress.count(0, kernels)  # all of them at once
            library = Library(compiled(source, chain))
        with _lock:
            library = _libraries.setdefault(key, library)
    return library


def compiled(source: str, chain: toolchain.Toolchain) -> Path:
    """The shared object of `source`, from the artifact store or compiled now. Raises ToolchainError."""
    return store.get_or_make(_key(chain, source), ".so", functools.partial(_compile, chain, source))


def _key(chain: toolchain.Toolchain, source: str) -> str:
    return hashlib.sha256(f"{_FORMAT}\0{chain.fingerprint}\0{source}".encode()).hexdigest()


def load_binary(contents: bytes | memoryview) -> Library:
    """The library that these bytes are, compiled before and elsewhere. Raises OSError where it can't be opened."""
    key = hashlib.sha256(contents).hexdigest()
    with _lock:
        library = _libraries.get(key)
        if library is None:
            path = store.get_or_make(key, ".so", store.written(contents), travels=False, once=False)
            library = _libraries[key] = Library(path)
    return library


def _compile(chain: toolchain.Toolchain, source: str, output: Path) -> None:
    text = output.with_suffix(".c")
    text.write_text(source, encoding="utf-8")
    chain.compile(text, output)
