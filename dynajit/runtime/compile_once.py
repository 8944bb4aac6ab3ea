"""One process compiles an entry of the artifact store; the others wait for it, or compile it too after a bound.

In:  the store's folder, the entry's name, how to look for it.
Out: `claimed(...)`, a context manager: the entry if another process made it meanwhile, else None, and whoever enters
     makes it. Processes of one machine wait at a lock file of the folder (flock, which ends with its process), machines
     at a claim on the remote cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dynajit.report import logs
from dynajit.report.counters import counters
from dynajit.runtime import remote_cache
from dynajit.runtime.remote_cache import RemoteCache

LOCKS = "locks"
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.01, 0.5


@contextlib.contextmanager
def claimed(folder: Path, name: str, look: Callable[[], Path | None], travels: bool) -> Iterator[Path | None]:
    """Hold the right to make the entry `name`; `look` finds it where another process has made it. travels: whether it
    goes to other machines."""
    deadline = time.monotonic() + remote_cache.CLAIM_S
    with _lock_file(folder / LOCKS / name, deadline) as waited:
        found = look() if waited else None
        remote = remote_cache.current() if found is None and travels else None
        own = remote is not None and remote.claim(name)
        try:
            if remote is not None and not own:
                found = _made_elsewhere(remote, name, look, deadline)
                own = found is None  # a claim that nobody came back to is taken away
            elif found is None:
                found = look()  # another process may have made it, and given up its right, since it was looked for
            if waited or found is not None:
                _tell(name, found)
            yield found
        finally:
            if remote is not None and own:
                remote.release_later(name)


def _made_elsewhere(remote: RemoteCache, name: str, look: Callable[[], Path | None], deadline: float) -> Path | None:
    """The entry that another machine makes; None if it gave up, or takes too long."""
    for pause in _pauses(deadline):
        time.sleep(pause)
        found = look()
        if found is not None or remote.claim(name):
            return found if found is not None else look()
    return None


@contextlib.contextmanager
def _lock_file(path: Path, deadline: float) -> Iterator[bool]:
    """Hold the lock, if it can be had in time; whether another process had it before."""
    waited = False
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:  # a folder that can't be written: everybody compiles
        yield waited
        return
    held = False
    try:
        for pause in _pauses(deadline):
            held = _try_lock(handle)
            if held:
                break
            waited = True
            time.sleep(pause)
        yield waited
    finally:
        if held:
            with contextlib.suppress(OSError):  # whoever opened it meanwhile looks for the entry first
                path.unlink()
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child that was forked meanwhile has it too
        os.close(handle)


def _try_lock(handle: int) -> bool:
    """Whether the lock is this process's; a file system that knows no locks gives it to everybody."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _pauses(deadline: float) -> Iterator[float]:
    pause = _FIRST_PAUSE_S
    while time.monotonic() < deadline:
        yield pause
        pause = min(pause * 1.5, _MAX_PAUSE_S)


def _tell(name: str, found: Path | None) -> None:
    outcome = "waited for" if found is not None else "waited in vain"
    counters.count("remote", outcome)
    logs.emit("remote", f"{name}: {outcome}")
