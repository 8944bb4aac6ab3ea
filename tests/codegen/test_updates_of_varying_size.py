"""Parts of inputs that are written in place, in graphs of symbolic sizes."""

from __future__ import annotations

import torch

import dynajit


def test_a_part_of_an_input_of_a_size_that_varies() -> None:
    def fn(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x[[0]] = 0.5
        x.index_copy_(0, at, x[1:2] * 2)
        return x + 1

    compiled = dynajit.compile(fn, fullgraph=True)
    for size in (4, 5, 7):
        ours, theirs = torch.ones(size, size), torch.ones(size, size)
        at = torch.tensor([2])
        torch.testing.assert_close(compiled(ours, at), fn(theirs, at))
        torch.testing.assert_close(ours, theirs)
