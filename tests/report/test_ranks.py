"""What ranks leave for each other: a store that does not answer holds up no compile."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import dynajit
from dynajit import torch_compat
from dynajit.report import ranks


class Silent:
    """A store whose server is gone: what is left there waits until `answers` is set."""

    def __init__(self) -> None:
        self.asked, self.answers = 0, threading.Event()

    def set(self, key: str, value: str) -> None:
        self.asked += 1
        assert self.answers.wait(60)


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    store, x = Silent(), torch.ones(3)
    monkeypatch.setattr(ranks, "_job", lambda: (0, 2))
    monkeypatch.setattr(ranks, "_watching", True)
    monkeypatch.setattr(ranks, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(torch_compat, "group_store", lambda: store)

    def f(x: torch.Tensor, k: int) -> Any:
        return x * k, k

    try:
        for k in range(2):
            assert dynajit.compile(f, dynamic=False)(x, k)[1] == k
        assert store.asked == 1
    finally:
        store.answers.set()
    assert ranks._waiting is not None
    ranks._waiting.join(60)
    dynajit.reset()
    dynajit.compile(f)(x, 5)
    assert store.asked == 3
