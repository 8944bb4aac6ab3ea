"""Where the windows of a pooling are.

In:  the pooled value and the operator's arguments. Out: `Windows`: for an element of the result the places of its
     window. Raises `NotLowered` for windows that are left to the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dynajit.loopir.builder import Builder
from dynajit.loopir.index import Index
from dynajit.loopir.nodes import Value
from dynajit.loopir.registry import NotLowered

Axes = tuple[Index, ...]
# By type of device: larger windows are left to the operator. Written out, they make a kernel longer than it is worth;
# on CPUs those of so many places still take half of the operator's time or less.
MAX_PLACES = {"cpu": 64, "cuda": 25}


def _pair(values: int | Sequence[int], otherwise: tuple[int, int]) -> tuple[int, int]:
    if isinstance(values, int):
        return values, values
    if not values:
        return otherwise
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


class Windows:
    """Where the windows of a pooling are."""

    def __init__(self, build: Builder, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> None:
        self.x = x
        self.kernel = _pair(kernel, (1, 1))
        self.stride = _pair(stride, self.kernel)
        self.padding = _pair(padding, (0, 0))
        self.dilation = _pair(dilation, (1, 1))
        self.size = x.shape[-2:]
        if len(x.shape) not in (3, 4) or self.kernel[0] * self.kernel[1] > MAX_PLACES[build.program.device.type]:
            raise NotLowered
        if not all(isinstance(size, int) for size in self.size):
            raise NotLowered
        if self.dilation != (1, 1) and self.padding != (0, 0):
            raise NotLowered

    def at(self, axes: Axes, dim: int, step: int) -> Index:
        """The row or column that is the `step`-th of the window of the element at the axes."""
        start = axes[dim - 2] * self.stride[dim]
        return start + (step * self.dilation[dim] - self.padding[dim])

    def places(self, axes: Axes) -> Iterator[tuple[Index, Index]]:
        """Rows and columns of the window, in order."""
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                yield self.at(axes, 0, i), self.at(axes, 1, j)
