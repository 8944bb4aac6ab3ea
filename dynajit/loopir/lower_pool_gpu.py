"""Lowerings of max pooling on GPUs, where each result reads its window and each gradient the windows it was in.

In and out: see `registry.py`. On CPUs torch's own kernels do well. One more kind of pooling: a function here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dynajit.loopir import nodes
from dynajit.loopir.build import apply, convert, select
from dynajit.loopir.builder import Builder, check_dtype, dense_stride
from dynajit.loopir.index import Index, floordiv, mod
from dynajit.loopir.lower_pieces import all_of, below, from_, guard
from dynajit.loopir.nodes import Scalar, View, position
from dynajit.loopir.registry import NotLowered
from dynajit.loopir.windows import Axes, Windows
from dynajit.op_facts import compute_dtype


def _check(x: View, windows: Windows) -> None:
    """Refuse windows that kernels of ours are not for."""
    if (
        windows.dilation != (1, 1)
        or not all(type(length) is int for length in x.shape)
        or not x.dtype.is_floating_point
    ):
        raise NotLowered


def max_pool(build: Builder, x: View, windows: Windows) -> tuple[View, View]:
    """The greatest of each window, and its place."""
    _check(x, windows)
    height, width = x.shape[-2:]
    dtype = compute_dtype(check_dtype(x.dtype))
    lowest = nodes.const(float("-inf"), dtype)

    def places(axes: Axes) -> Iterator[tuple[Scalar, list[Scalar], Scalar]]:
        """The window's elements, the conditions under which each is one, and where it is, row by row."""
        for y, z in windows.places(axes):
            inside = [from_(y, 0), below(y, height), from_(z, 0), below(z, width)]
            held = [condition for condition in inside if condition is not None]
            element = convert(build.element(x, (*axes[:-2], y, z)), dtype)
            yield guard(held, element, lowest), held, position(y * width + z)

    def value(axes: Axes) -> Scalar:
        best: Scalar = lowest
        for element, _, _ in places(axes):
            best = element if best is lowest else apply("maximum", best, element)
        return convert(best, build.out[0].dtype)

    def where(axes: Axes) -> Scalar:
        best: Scalar = lowest
        found: Scalar = none
        for element, inside, at in places(axes):
            # the first of the greatest, the last NaN; the first of all where none is more than minus infinity
            taken = apply("or", apply("gt", element, best), apply("ne", element, element))
            if found is none and not inside:
                taken = nodes.const(True, torch.bool)
            elif best is lowest or _unsure(found, none):
                taken = apply("or", taken, all_of([apply("lt", found, nodes.const(0, torch.int64)), *inside]))
            best, found = select(taken, element, best), select(taken, at, found)
        return found

    none = nodes.const(-1, torch.int64)
    values, indices = build.out
    greatest = build.pointwise(values.shape, value, dense_stride(values))
    return greatest, build.pointwise(indices.shape, where, dense_stride(indices))


def _unsure(found: Scalar, none: Scalar) -> bool:
    """May no element have been found yet?"""
    while isinstance(found, nodes.Op) and found.name == "where":
        found = found.arguments[2]
    return found is none


def max_pool_backward(build: Builder, grad: View, x: View, windows: Windows, indices: View) -> View:
    """Each place of the input looks for the windows that it may be the greatest of."""
    _check(x, windows)
    size, step, pad = windows.kernel, windows.stride, windows.padding
    width, dtype = x.shape[-1], compute_dtype(check_dtype(x.dtype))
    zero = nodes.const(0, dtype)

    def candidates(place: Index, dim: int) -> Iterator[tuple[Index, list[Scalar]]]:
        """The windows along one dimension that the place may lie in, and the conditions that there is such a one."""
        last = floordiv(place + pad[dim], step[dim])
        for back in range(-(-size[dim] // step[dim])):
            window = last + -back
            # the place's distance from the window's start
            within = below(mod(place + pad[dim], step[dim]) + back * step[dim], size[dim])
            conditions = [from_(window, 0), below(window, grad.shape[dim - 2]), within]
            yield window, [condition for condition in conditions if condition is not None]

    def body(axes: Axes) -> Scalar:
        own = position(axes[-2] * width + axes[-1])
        total: Scalar = zero
        for y, in_y in candidates(axes[-2], 0):
            for z, in_z in candidates(axes[-1], 1):
                where = (*axes[:-2], y, z)
                chosen = apply("eq", build.element(indices, where), own)
                part = select(chosen, convert(build.element(grad, where), dtype), zero)
                total = apply("add", total, guard([*in_y, *in_z], part, zero))
        return total

    return build.result(body)
