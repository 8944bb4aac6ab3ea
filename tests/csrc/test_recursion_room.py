"""While dynajit compiles, the thread has more room for frames; the program's own limit is what it set."""

import subprocess
import sys
import textwrap
import threading

import pytest

import dynajit
from dynajit import _C


def deep(depth: int) -> int:
    return 0 if depth == 0 else 1 + deep(depth - 1)


@pytest.fixture(autouse=True)
def limit_of_before():
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


def test_there_is_room_inside_only() -> None:
    before = sys.getrecursionlimit()
    assert _C.call_deep(lambda: deep(before + 1500)) == before + 1500
    with pytest.raises(ValueError):
        _C.call_deep(lambda: int("x"))
    assert sys.getrecursionlimit() == before
    with pytest.raises(RecursionError):
        deep(before + 1500)


def test_a_limit_that_is_set_inside_stays() -> None:
    mine = sys.getrecursionlimit() + 7
    _C.call_deep(lambda: sys.setrecursionlimit(mine))
    assert sys.getrecursionlimit() == mine
    assert deep(mine - 200) == mine - 200
    with pytest.raises(RecursionError):
        deep(mine)


def test_other_threads_have_no_more_room() -> None:
    limit = sys.getrecursionlimit()
    found: list[object] = []

    def other() -> None:
        try:
            found.append(deep(limit + 100))
        except RecursionError as error:
            found.append(type(error))

    def run() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    _C.call_deep(run)
    assert found == [RecursionError]


_DEEP = """
    import sys, threading
    from dynajit import _C

    def deep(depth):
        return 0 if depth == 0 else 1 + deep(depth - 1)

    def capturing():
        _C.set_callback(lambda *of_a_frame: None)
        started.set()
        ended.wait()
        _C.set_callback(None)

    started, ended = threading.Event(), threading.Event()
    other = threading.Thread(target=capturing)
    other.start()
    started.wait()
    assert _C.hook_installed()
    assert _C.call_deep(lambda: deep(6000)) == 6000
    sys.setrecursionlimit(150_000)
    assert deep(100_000) == 100_000
    assert _C.hook_installed()
    ended.set()
    other.join()
    assert not _C.hook_installed()
    print("ended")
"""


def test_deep_where_another_thread_captures() -> None:
    """The evaluator is every thread's, and each call is one in C then: it goes before C's stack is full. In a process
    of its own, for where torch.compile once failed torch's evaluator stays, and does not go."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(_DEEP)], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "ended", done.stderr[-2000:]


def test_compiling_at_the_end_of_the_programs_room() -> None:
    """The program sets its limit to what it needs just now; what is compiled there doesn't notice."""

    def lowered() -> list[object]:
        limit = sys.getrecursionlimit()
        depth = 1
        while True:
            try:
                sys.setrecursionlimit(depth)
                break
            except RecursionError:
                depth += 1
        seen: list[object] = []
        try:
            sys.setrecursionlimit(depth + 10)

            def endless() -> None:
                try:
                    _ = 1 / 0
                except ZeroDivisionError:
                    endless()

            try:
                endless()
            except RecursionError as error:
                seen.append(type(error))
        finally:
            sys.setrecursionlimit(limit)
        seen.append(sys.getrecursionlimit() == limit)
        return seen

    assert dynajit.compile(lowered, backend="eager")() == lowered() == [RecursionError, True]
