"""Phases: a nested one is taken out of the one around it; nothing outside a collection."""

import threading
from collections.abc import Iterator

import pytest

from dynajit.report import phases


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    fake = Clock()
    monkeypatch.setattr(phases, "time", fake)
    yield fake


def test_nested_phases_exclude_children(clock: Clock) -> None:
    with phases.collect() as measured:
        with phases.timer("backend"):
            clock.now += 1
            with phases.timer("c_compile"):
                clock.now += 5
            clock.now += 2
        with phases.timer("backend"):
            clock.now += 10
        clock.now += 100
    assert measured == {"backend": 13.0, "c_compile": 5.0}


def test_a_compile_inside_a_compile_has_its_own(clock: Clock) -> None:
    with phases.collect() as outer, phases.timer("interpretation"):
        clock.now += 1
        with phases.collect() as inner:
            clock.now += 7
            with phases.timer("guards"):
                clock.now += 3
        clock.now += 1
    assert outer == {"interpretation": 2.0}
    assert inner == {"guards": 3.0}


def test_outside_a_collection_nothing_happens() -> None:
    with phases.timer("guards"):
        pass
    with phases.collect() as measured:
        pass
    assert measured == {}


def test_an_exception_still_counts(clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError), phases.collect() as measured, phases.timer("backend"):
        clock.now += 4
        raise ZeroDivisionError
    assert measured == {"backend": 4.0}
    with phases.collect() as again, phases.timer("guards"):
        clock.now += 1
    assert again == {"guards": 1.0}


def test_threads_do_not_mix(clock: Clock) -> None:
    def other() -> None:
        with phases.timer("guards"):
            clock.now += 1

    with phases.collect() as measured:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert measured == {}
