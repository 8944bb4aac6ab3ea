"""The collector's thresholds are the program's own outside of captures."""

from __future__ import annotations

import gc
import threading

import torch

import dynajit
from dynajit.capture import collector


def test_thresholds_are_high_inside_and_restored() -> None:
    before = gc.get_threshold()
    with collector.relaxed():
        inside = gc.get_threshold()
        with collector.relaxed():
            assert gc.get_threshold() == inside
        assert gc.get_threshold() == inside
    assert inside[2] > before[2]
    assert gc.get_threshold() == before


def test_a_program_without_automatic_collection_keeps_it_so() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0, 3, 5)
    try:
        with collector.relaxed():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_what_the_program_sets_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with collector.relaxed():
            gc.set_threshold(900, 9, 9)
        assert gc.get_threshold() == (900, 9, 9)
    finally:
        gc.set_threshold(*before)


def test_threads_leave_in_any_order() -> None:
    before = gc.get_threshold()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector.relaxed():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with collector.relaxed():
        thread.start()
        entered.wait()
    assert gc.get_threshold() != before
    leave.set()
    thread.join()
    assert gc.get_threshold() == before


def test_a_capture_leaves_no_trace() -> None:
    before = gc.get_threshold()
    dynajit.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert gc.get_threshold() == before
