"""clients.py: what it takes for equal to eager, and what not."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import clients

A, B = torch.arange(1.0, 5.0), torch.arange(4)


def test_rounding_is_no_difference() -> None:
    tree = {"loss": 2.5, "values": [A, (B, "text", None)]}
    near = {"loss": 2.5 + 1e-6, "values": [A * (1 + 1e-6), (B, "text", None)]}
    assert clients.differs([*clients.leaves(near)], [*clients.leaves(tree)]) == ""


def test_differences_are_named() -> None:
    for other in (A * 1.01, A.double(), A[:3], torch.where(A > 2, torch.nan, A)):
        assert clients.differs([B, other], [B, A]).startswith("value 1: ")
    assert clients.differs([B + 1], [B]) == "value 0: 100.0% of the integers differ"
    assert "instead of" in clients.differs(["one"], ["two"])
    assert clients.differs([A], [A, A]) == "1 values instead of 2"


def test_parameters_have_to_move_as_eagers() -> None:
    start, end = [A.double()], [A.double() + 1e-3]
    assert clients.moved_elsewhere([start, end], [start, end]) == ""
    assert "elsewhere" in clients.moved_elsewhere([start, start], [start, end])
    assert "elsewhere" in clients.moved_elsewhere([start, end], [start, start])
