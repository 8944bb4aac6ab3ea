"""What each rank of a job did, told where a collective fails because they did not meet.

In:  `compiling(record)` around each compile; exceptions of graphs that hold collectives, and those that nobody catches
(`failed`). Out: one report in the log of one rank: where each rank was, what it raised, is compiling or compiled last,
and what only some ranks compiled. Ranks leave what they do in the store of the job's group, when they compile and when
they raise: a step that does neither does nothing here. Of a rank that is gone the last thing that it left is told.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from dynajit import torch_compat
from dynajit.op_facts import starts_collective
from dynajit.report import logs
from dynajit.report.records import CompileRecord

_KEY = "dynajit/ranks"
_RECENT = 8  # compiles that are told
_MAX_REPORTED = 16  # exceptions that are left in the store: a program may raise as it pleases
_PATIENCE_S, _PERIOD_S = 2.0, 0.1  # for what others leave, once a collective has failed here
_ONE_FAILURE_S = 60.0  # failures of so many seconds are told once
_OURS = ("/dynajit/", "/torch/")

_recent: collections.deque[str] = collections.deque(maxlen=_RECENT)
_told = 0
_last_error = 0  # the `id` of the exception that was seen last: it passes through several calls
_watching = False
_waiting: threading.Thread | None = None  # for a store that does not answer


@contextlib.contextmanager
def compiling(record: CompileRecord) -> Iterator[None]:
    """Inside, this rank is compiling the frame, for all that others know."""
    if _job() is None:
        yield
        return
    _watch()
    frame = f"{record.compile_id} {record.code_name} ({record.filename}:{record.firstlineno})"
    _bounded(lambda: _leave({"does": f"is compiling {frame}"}))
    try:
        yield
    finally:
        if record.graphs:
            sent = ", ".join(_collectives(record)) or "no collectives"
            _recent.append(f"{frame}: {len(record.graphs)} graphs with {sent}, {len(record.breaks)} breaks")
        _bounded(lambda: _leave({}))


def failed(error: BaseException) -> None:
    """An exception leaves a graph or the program. If a collective failed, one rank tells of all of them."""
    global _told, _last_error
    job = _job()
    if job is None or not isinstance(error, Exception) or id(error) == _last_error:
        return
    _last_error = id(error)
    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
    said = {"raised": f"{text}, {_place(error)}"}
    if not _is_of_collective(error):
        _told += 1
        if _told <= _MAX_REPORTED:
            _bounded(lambda: _leave(said))
        return
    _bounded(lambda: _report(*job, said))


def _job() -> tuple[int, int] | None:
    """This process's rank and how many there are, in a job of several."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = distributed.get_world_size()
    return (distributed.get_rank(), size) if size > 1 else None


def _watch() -> None:
    """Have exceptions that nobody catches told here: those that backward raises come through no compiled call."""
    global _watching
    if _watching:
        return
    _watching = True
    former = sys.excepthook

    def uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        failed(error)
        former(kind, error, trace)

    sys.excepthook = uncaught


def _collectives(record: CompileRecord) -> list[str]:
    """The collectives of the frame's graphs, in order."""
    nodes = [node for graph in record.graphs for node in graph.graph_module.graph.nodes if node.op == "call_function"]
    named = [(node, getattr(node.target, "__name__", "")) for node in nodes if starts_collective(node.target)]
    return [str(node.args[0]) if name == "collective" else name.partition(".")[0] for node, name in named]


def _is_of_collective(error: Exception) -> bool:
    """Whether the error is torch.distributed's. Gloo's errors are RuntimeErrors that name its source files."""
    kinds: Any = getattr(sys.modules["torch.distributed"], "DistError", ())
    return isinstance(error, kinds) or (type(error) is RuntimeError and ("gloo" in str(error) or "pair" in str(error)))


def _place(error: Exception) -> str:
    """The program's innermost line that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _OURS)] or list(frames)
    return f"in {own[-1].name} ({own[-1].filename}:{own[-1].lineno})" if own else "in code without lines"


# ------------------------------------------------------------------------------------------------ the group's store


def _leave(said: dict[str, str]) -> None:
    """Put what this rank does where others find it; a store that is gone takes nothing."""
    job, store = _job(), torch_compat.group_store()
    if job is None or store is None:
        return
    entry = {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time(), "recent": [*_recent], **said}
    with contextlib.suppress(RuntimeError):
        store.set(f"{_KEY}/{job[0]}", json.dumps(entry))


def _found(store: Any, rank: int) -> dict[str, Any] | None:
    key = f"{_KEY}/{rank}"
    if not store.check([key]):
        return None
    entry: dict[str, Any] = json.loads(store.get(key))
    return entry


def _bounded(work: Callable[[], None]) -> None:
    """Do it in a thread, and wait for it no longer than twice the patience: the store's server may be gone.

    While a thread still waits for an answer, nothing more is asked: compiles don't wait one after the other.
    """
    global _waiting
    if _waiting is not None and _waiting.is_alive():
        return
    _waiting = threading.Thread(target=work, name="dynajit ranks", daemon=True)
    _waiting.start()
    _waiting.join(2 * _PATIENCE_S)


def _report(rank: int, size: int, said: dict[str, str]) -> None:
    """Wait until all ranks have failed, too, or for some time; one of them tells."""
    begin = time.time()
    _leave(said)
    store = torch_compat.group_store()
    try:
        if store is None or not _is_mine(store, rank, begin):
            return
        while time.time() < begin + _PATIENCE_S:
            entries = [_found(store, each) for each in range(size)]
            if all(entry is not None and "raised" in entry for entry in entries):
                break
            time.sleep(_PERIOD_S)
    except RuntimeError as error:
        logs.warn("ranks", f"{said['raised']}; the group's store can't be asked what others do: {error}")
        return
    logs.warn("ranks", _text(rank, said["raised"], entries))


def _is_mine(store: Any, rank: int, now: float) -> bool:
    """Whether this rank is the one that tells of this failure."""
    key = f"{_KEY}/told"
    before = store.get(key).decode() if store.check([key]) else ""
    if before and now - float(before.partition(" ")[2]) < _ONE_FAILURE_S:
        return False
    mine = f"{rank} {now}"
    return bool(store.compare_set(key, before, mine).decode() == mine)


def _text(rank: int, raised: str, entries: list[dict[str, Any] | None]) -> str:
    lines = [f"a collective failed: the ranks did not meet. On rank {rank}: {raised}. What each rank does:"]
    lines += [f"  rank {each}: {_said(entry)}" for each, entry in enumerate(entries)]
    known = {each: entry["recent"] for each, entry in enumerate(entries) if entry is not None}
    for compiled in dict.fromkeys(text for recent in known.values() for text in recent):
        having = [each for each, recent in known.items() if compiled in recent]
        if len(having) < len(known):
            lines.append(f"  only on {_ranks(having)}: {compiled}")
    return "\n".join(lines)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _said(entry: dict[str, Any] | None) -> str:
    """A rank's line."""
    if entry is None:
        return "has compiled nothing"
    seconds = max(0.0, time.time() - entry["time"])
    compiled = f"; compiled last {entry['recent'][-1]}" if entry["recent"] else ""
    gone = ""
    if entry["host"] == socket.gethostname() and not _runs(entry["pid"]):
        gone = f"its process ({entry['pid']}) is gone; "
    if "raised" in entry:
        return f"{gone}raised {entry['raised']}, {seconds:.1f} s ago{compiled}"
    if "does" in entry:
        return f"{gone}{entry['does']}, for {seconds:.1f} s{compiled}"
    return f"{gone}has neither compiled nor raised for {seconds:.1f} s{compiled}"


def _runs(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:
        return True
