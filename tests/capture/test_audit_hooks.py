"""Functions that the interpreter itself calls while a program runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import dynajit

_heard: list[int] | None = None


def _listener(event: str, args: tuple[object, ...]) -> None:
    if _heard is not None and event == "dynajit.test":
        _heard.append(len(args))


@pytest.fixture(scope="module")
def _hook() -> None:
    sys.addaudithook(_listener)  # there for good


@contextmanager
def _listening() -> Iterator[list[int]]:
    global _heard
    _heard = []
    try:
        yield _heard
    finally:
        _heard = None


@pytest.mark.usefixtures("_hook")
def test_an_audit_hook_is_not_compiled() -> None:
    def f(x: Tensor) -> Tensor:
        x = x + 1
        sys.audit("dynajit.test", 1, 2)
        return x * 2

    with _listening() as heard:
        report = dynajit.explain(f, backend="eager")(torch.ones(3))
    assert heard == [2]
    torch.testing.assert_close(report.result, torch.full((3,), 4.0))
    assert _listener.__name__ not in {frame.code_name for frame in report.frames}
