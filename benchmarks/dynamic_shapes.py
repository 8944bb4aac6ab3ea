"""Many sizes, few compiles: a model called with 20 batch and sequence sizes.

Prints how often it was compiled, and for three of the sizes the time of a call, interleaved: compiled with symbolic
sizes, compiled for this size alone, eager. `python benchmarks/dynamic_shapes.py [calls]`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dynajit
from dynajit.report import records

SIZES = [(2 + i % 7, 16 + 4 * (i * 5 % 13)) for i in range(20)]


class Block(nn.Module):
    """Layer norm, GELU, two linear layers, a residual connection."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def milliseconds(fn: Callable[..., Any], x: torch.Tensor) -> float:
    """One call."""
    begin = time.perf_counter()
    fn(x)
    return (time.perf_counter() - begin) * 1e3


def main(calls: int = 30) -> None:
    """Compile, compare with eager, measure."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).eval()
    compiled = dynajit.compile(model)
    seen: list[records.CompileRecord] = []
    with torch.no_grad(), records.listen(seen.append):
        for sizes in SIZES:
            x = torch.randn(*sizes, 256)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)
    print(f"{len(SIZES)} sizes, {len(seen)} compiles")
    with torch.no_grad():
        for sizes in SIZES[3:6]:
            x = torch.randn(*sizes, 256)
            static = dynajit.compile(model, dynamic=False)
            static(x)
            rows = [[milliseconds(fn, x) for fn in (compiled, static, model)] for _ in range(calls)]
            symbolic_ms, static_ms, eager_ms = (statistics.median(column) for column in zip(*rows, strict=True))
            print(
                f"{sizes}: symbolic {symbolic_ms:.3f} ms, static {static_ms:.3f} ms "
                f"(ratio {symbolic_ms / static_ms:.2f}), eager {eager_ms:.3f} ms"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
