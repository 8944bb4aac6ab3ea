"""The recursion limit is the program's own again when no thread compiles any more."""

import sys
import threading

import pytest

from dynajit.interp.recursion import with_deep_recursion


def test_the_limit_is_raised_inside_only() -> None:
    before = sys.getrecursionlimit()
    assert with_deep_recursion(sys.getrecursionlimit) >= 20000
    with pytest.raises(ValueError):
        with_deep_recursion(lambda: int("x"))
    assert sys.getrecursionlimit() == before


def test_threads_that_overlap_leave_the_limit_as_it_was() -> None:
    before = sys.getrecursionlimit()
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with_deep_recursion(lambda: (first_in.set(), second_in.wait()))
        first_out.set()

    def second() -> None:
        first_in.wait()
        with_deep_recursion(lambda: (second_in.set(), first_out.wait()))

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getrecursionlimit() == before
