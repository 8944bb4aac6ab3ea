"""The remote cache: compiled kernels that machines share, behind the artifact store.

In:  `config.remote_cache`, a URL, and `config.remote_key`, the secret that entries are signed with.
Out: `current()`: a `RemoteCache`, or None where none is set or it can't be used, which is said once. Its `get` returns
     an entry that this key has signed; whatever else happens is a miss. What is put goes there in the background.
No answer is waited for longer than a bound. After a failure the server is left alone for a while. What happened is
counted in `counters["remote"]`, told in the log `remote`, and each kind of failure said once whatever the logs are.
"""

from __future__ import annotations

import atexit
import functools
import queue
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from dynajit.config import config
from dynajit.locks import on_fork, process_lock
from dynajit.report import logs, records
from dynajit.report.counters import counters
from dynajit.report.records import CompileRecord
from dynajit.runtime import remote_servers, signed
from dynajit.runtime.remote_servers import RemoteServer, RemoteUnavailable

# Seconds that an answer may take; the first one may take longer, for a client is imported and a connection opened.
ANSWER_S, FIRST_S = 2.0, 8.0
# Seconds without a request after a failed one.
LEFT_ALONE_S = 60.0
# Seconds that the process's end waits for entries that are on their way.
EXIT_S = 2.0
# Seconds after which one process no longer waits for another one that compiles.
CLAIM_S = 60.0
# Entries on their way, and the size of one: more are not put.
_MAX_QUEUED = 256
_MAX_ENTRY = 64 << 20
_MAX_TOLD = 300

_T = TypeVar("_T")


class _Failed(Exception):
    """The server did not do what it was asked, or is left alone."""


class _Requests:
    """Requests of one kind: bounded in time, and none for a while after a failure of theirs or of the `others`."""

    def __init__(self, cache: RemoteCache, what: str, *others: _Requests) -> None:
        self.cache = cache
        self.what = what
        self.others = others
        self.again = 0.0  # when the next request may be made
        self.first = True

    def ask(self, question: Callable[[RemoteServer], _T], waited_for: bool = True) -> _T:
        """The server's answer. Raises _Failed."""
        if time.monotonic() < max(each.again for each in (self, *self.others)):
            counters.count("remote", "left alone")
            raise _Failed(f"it is left alone for {LEFT_ALONE_S:.0f} s after a failure")
        seconds = FIRST_S if self.first else ANSWER_S
        self.first = False
        try:
            if not waited_for:
                return question(self.cache.server())
            return _within(seconds, lambda: question(self.cache.server()))
        except Exception as error:  # clients raise what they like; it is a miss, and it is said
            self.again = time.monotonic() + LEFT_ALONE_S
            late = isinstance(error, TimeoutError) and not error.args
            why = f"no answer within {seconds:.1f} s" if late else f"{type(error).__name__}: {error}"
            counters.count("remote", f"{self.what} failed")
            why = str(error) if isinstance(error, RemoteUnavailable) else f"{self.what} failed ({why})"
            self.cache.warn(why if isinstance(error, RemoteUnavailable) else self.what, why)
            raise _Failed(why) from None


class RemoteCache:
    """One server, with one key. Threads may use it at once.

    Attributes:
        place: the URL without what may be secret in it, for messages.
    """

    def __init__(self, url: str, key: bytes) -> None:
        self.place = _public(url)
        self._url, self._key = url, key
        self._server: RemoteServer | None = None
        self._lock = process_lock()
        self._told: set[str] = set()
        self._unsigned: set[str] = set()  # names whose entries there are to be replaced
        self._reads = _Requests(self, "reading")
        self._writes = _Requests(self, "writing", self._reads)

    def server(self) -> RemoteServer:
        """The connection, made when it is first needed. Raises RemoteUnavailable."""
        server = self._server
        if server is None:
            server = self._server = remote_servers.connect(self._url)
        return server

    def get(self, name: str, again: bool = False) -> bytes | None:
        """The contents of the entry; None for a miss of any kind. again: it was asked for just now: a second miss is no
        news, and what was refused is not asked for."""
        if again and name in self._unsigned:
            return None
        try:
            sealed = self._reads.ask(lambda server: server.get(name))
            contents = None if sealed is None else signed.unseal(self._key, name, sealed)
        except _Failed:
            return None
        except signed.UnsignedEntry as why:
            self._unsigned.add(name)
            counters.count("remote", "refused")
            self.warn("refused", f"the entry {name} was not loaded: {why}")
            return None
        if again and contents is None:
            return None
        found = "misses" if contents is None else "hits"
        counters.count("remote", found)
        logs.emit("remote", f"{name}: " + (f"found, {len(sealed or b'')} bytes" if found == "hits" else "not there"))
        return contents

    def put(self, name: str, contents: bytes, compiled: CompileRecord | None = None) -> bool:
        """Sign the contents and keep them there, unless they are. Whether the server took them. compiled: what they
        were made for, for the log."""
        sealed = signed.seal(self._key, name, contents)
        if len(sealed) > _MAX_ENTRY:
            counters.count("remote", "too large")
            return False
        try:
            writable = self._writes.ask(lambda server: server.writable, waited_for=False)
            if not writable:
                counters.count("remote", "read only")
                return False
            self._writes.ask(lambda server: server.put(name, sealed, name in self._unsigned), waited_for=False)
        except _Failed:
            return False
        self._unsigned.discard(name)
        counters.count("remote", "written")
        told = () if compiled is None else (compiled.compile_id, (compiled.filename, compiled.firstlineno))
        logs.emit("remote", f"{name}: written, {len(sealed)} bytes", *told)
        return True

    def put_later(self, name: str, path: Path) -> None:
        """`put` the file's contents in the background."""
        _background.add(functools.partial(self._put_file, name, path, records.current()))

    def _put_file(self, name: str, path: Path, compiled: CompileRecord | None) -> None:
        try:
            contents = path.read_bytes()
        except OSError:  # deleted meanwhile, as the least recently used are
            counters.count("remote", "gone before written")
            return
        self.put(name, contents, compiled)

    def claim(self, name: str) -> bool:
        """Whether this process shall make the entry, since no other one does as far as can be known."""
        try:
            return self._writes.ask(lambda server: server.claim(name, CLAIM_S))
        except _Failed:
            return True

    def release_later(self, name: str) -> None:
        """Take the claim back when what was put before is there."""
        _background.add(functools.partial(self._release, name))

    def _release(self, name: str) -> None:
        try:
            self._writes.ask(lambda server: server.release(name), waited_for=False)
        except _Failed:
            return  # it ends by itself, or is waited for once

    def state(self) -> str:
        """Whether the server answers, in a line."""
        try:
            self._reads.ask(lambda server: server.get("00" * 32))
        except _Failed as why:
            return f"{self.place}: not used: {why}"
        kind = "read and written" if self.server().writable else "only read"
        return f"{self.place}: answers; {kind}, signed with DYNAJIT_REMOTE_KEY"

    def warn(self, kind: str, message: str) -> None:
        """Say it, once for each kind."""
        message = message.replace(self._url, self.place)[:_MAX_TOLD]
        with self._lock:
            told = kind in self._told
            self._told.add(kind)
        if told:
            logs.emit("remote", message)
        else:
            logs.warn("remote", f"the remote cache {self.place}: {message}")


def current() -> RemoteCache | None:
    """The cache that the settings of this moment name."""
    return _opened(config.remote_cache, config.remote_key) if config.remote_cache else None


def state() -> str:
    """Whether there is a remote cache and what it does, in a line."""
    if not config.remote_cache:
        return "none: DYNAJIT_REMOTE_CACHE names no URL"
    cache = current()
    if cache is None:
        return f"{_public(config.remote_cache)}: not used: {_key_fault(config.remote_key)}"
    return cache.state()


def flush(seconds: float) -> bool:
    """Wait until what was put and released so far is there, or failed; False if it is not after so many seconds."""
    return _background.flush(seconds)


def _key_fault(key: str) -> str:
    """What is wrong with a key; nothing for a good one."""
    if not key:
        return "there is no key: nothing unsigned is loaded, so set DYNAJIT_REMOTE_KEY to the same secret everywhere"
    if len(key.encode()) < signed.MIN_KEY_BYTES:
        return f"DYNAJIT_REMOTE_KEY is shorter than {signed.MIN_KEY_BYTES} bytes, so that it could be guessed"
    return ""


@functools.cache
def _opened(url: str, key: str) -> RemoteCache | None:
    fault = _key_fault(key)
    if fault:  # cached, so that it is said once
        counters.count("remote", "no key")
        logs.warn("remote", f"the remote cache {_public(url)} is not used: {fault}")
        return None
    return RemoteCache(url, key.encode())


def _public(url: str) -> str:
    """The URL without user, password and query."""
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]


def _within(seconds: float, question: Callable[[], _T]) -> _T:
    """What the function returns or raises; TimeoutError without arguments if it takes longer, which it may for ever: a
    file system that hangs can't be interrupted."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # handed to the thread that waits
            answer.set_exception(error)

    threading.Thread(target=run, name="dynajit-remote", daemon=True).start()
    return answer.result(seconds)


class _Background:
    """A thread that does one thing after another, begun with the first."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[Callable[[], None]] = queue.Queue(_MAX_QUEUED)
        self.thread: threading.Thread | None = None
        self.lock = threading.Lock()

    def add(self, job: Callable[[], None]) -> None:
        """Do it after what was added before; not at all where too much is."""
        with self.lock:
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="dynajit-remote-put", daemon=True)
                self.thread.start()
        try:
            self.jobs.put_nowait(job)
        except queue.Full:
            counters.count("remote", "not written: too many at once")

    def _run(self) -> None:
        while True:
            self.jobs.get()()

    def flush(self, seconds: float) -> bool:
        """Wait for what was added so far."""
        if self.thread is None:
            return True
        done = threading.Event()
        self.add(done.set)
        return done.wait(seconds)


_background = _Background()


@atexit.register
def _ended() -> None:
    flush(EXIT_S)


@on_fork
def _forked() -> None:
    """A child has none of the threads, nor may it share connections."""
    global _background
    _background = _Background()
    _opened.cache_clear()


__all__ = ["RemoteCache", "RemoteUnavailable", "current", "flush", "state"]
