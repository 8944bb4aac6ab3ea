"""A function that calls itself without end, with a break in each call: the same exception, and nothing stays alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

import dynajit


class Kept:
    """What each call holds."""


def test_recursion_without_end_around_a_break_raises_and_leaves_nothing() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        last = None

        def inner() -> None:
            nonlocal last
            kept = Kept()
            last = weakref.ref(kept)
            inner()

        try:
            inner()
        except RecursionError:
            assert last is not None and last() is not None
        return x + 1, last

    y, last = dynajit.compile(fn, backend="eager")(torch.ones(2))
    gc.collect()
    assert y.tolist() == [2.0, 2.0] and last() is None
