"""Elements that change places along a dimension of unknown size."""

from __future__ import annotations

import torch

import dynajit


def test_roll_with_a_dynamic_size() -> None:
    compiled = dynajit.compile(lambda x: torch.roll(x * 2, 1, 0), dynamic=True)
    for size in (4, 3, 5):
        x = torch.randn(size, 2)
        assert torch.equal(compiled(x), torch.roll(x * 2, 1, 0))
