"""Where the windows of a pooling are.

In:  the shape of what is pooled and the operator's arguments. Out: `Windows`: for an element of the result the places
     of its window. Raises `NotLowered` for windows that are left to the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dynajit.loopir.builder import Builder
from dynajit.loopir.index import Index
from dynajit.loopir.nodes import Shape
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

    def __init__(self, build: Builder, shape: Shape, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> None:
        self.kernel = _pair(kernel, (1, 1))
        self.stride = _pair(stride, self.kernel)
        self.padding = _pair(padding, (0, 0))
        self.dilation = _pair(dilation, (1, 1))
        self.size = shape[-2:]
        if len(shape) not in (3, 4) or self.kernel[0] * self.kernel[1] > MAX_PLACES[build.program.device.type]:
            raise NotLowered
        if not all(isinstance(size, int) for size in self.size):
            raise NotLowered
        if self.dilation != (1, 1) and self.padding != (0, 0):
            raise NotLowered

    def counts(self) -> list[int]:
        """How many windows lie in each of the two dimensions, whole."""
        reach = [step * (size - 1) + 1 for step, size in zip(self.dilation, self.kernel, strict=True)]
        sizes = zip(self.size, self.padding, reach, self.stride, strict=True)
        return [(size + 2 * pad - span) // step + 1 for size, pad, span, step in sizes]

    def at(self, axes: Axes, dim: int, step: int) -> Index:
        """The row or column that is the `step`-th of the window of the element at the axes."""
        start = axes[dim - 2] * self.stride[dim]
        return start + (step * self.dilation[dim] - self.padding[dim])

    def places(self, axes: Axes) -> Iterator[tuple[Index, Index]]:
        """Rows and columns of the window, in order."""
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                yield self.at(axes, 0, i), self.at(axes, 1, j)
