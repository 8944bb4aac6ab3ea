"""Lowerings of batch norm in training and of its gradient: statistics and what is made of them, in one kernel.

In and out: see `registry.py`. Statistics of bfloat16 and float16 are float32; the variance is that of distances to the
mean, in a second loop. On CPUs sums are of float64, as in eager: the terms of a gradient cancel each other.
One more normalisation: a function made of `build.reduce` and `build.map`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dynajit.loopir.build import apply, convert, like, number, rsqrt
from dynajit.loopir.builder import Builder, check_dtype
from dynajit.loopir.index import Index
from dynajit.loopir.lower_reduction import count_of
from dynajit.loopir.nodes import Scalar, View
from dynajit.loopir.registry import NotLowered, lowering
from dynajit.op_facts import compute_dtype

aten = torch.ops.aten
Axes = tuple[Index, ...]


def _channels(x: View) -> list[int]:
    """The dimensions that statistics are over."""
    if len(x.shape) < 2:
        raise NotLowered
    return [dim for dim in range(len(x.shape)) if dim != 1]


def _sum_dtype(build: Builder, dtype: torch.dtype) -> torch.dtype:
    """What sums over a channel are computed in."""
    return torch.float64 if build.program.device.type == "cpu" else dtype


def _of_channel(build: Builder, value: View, axes: Axes, dtype: torch.dtype) -> Scalar:
    """The element of a tensor with one for each channel."""
    return convert(build.element(value, (axes[1],)), dtype)


@lowering(aten._native_batch_norm_legit_functional.default)
def _batch_norm(
    build: Builder,
    x: View,
    weight: View | None,
    bias: View | None,
    running_mean: View,
    running_var: View,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[View, ...]:
    if not training or not x.dtype.is_floating_point:
        raise NotLowered
    dtype = compute_dtype(check_dtype(x.dtype))
    if x.dtype is not dtype:
        raise NotLowered  # torch's fake statistics have another dtype than its real ones
    dims = _channels(x)
    count = count_of(x, dims)
    wide = _sum_dtype(build, dtype)
    total = build.reduce("sum", x, dims, False, wide)
    mean = build.map(lambda s: convert(apply("div", s, like(count, s)), dtype), total, dtype=wide)
    squares = build.reduce("sum", _squares(build, x, mean, dtype), dims, False, wide)
    spread = build.map(lambda s: apply("div", s, like(count, s)), squares, dtype=dtype)
    rstd = build.map(
        lambda s: convert(rsqrt(apply("add", s, like(eps, s))), dtype),
        spread,
        dtype=wide,
    )
    outs = build.out
    variance = build.map(lambda s: apply("div", s, like(count - 1, s)), squares, dtype=dtype)
    return (
        _normalised(build, x, mean, rstd, weight, bias, dtype),
        build.as_result(mean, outs[1]),
        build.as_result(rstd, outs[2]),
        build.as_result(_mixed(build, running_mean, mean, momentum, dtype), outs[3]),
        build.as_result(_mixed(build, running_var, variance, momentum, dtype), outs[4]),
    )


def _normalised(
    build: Builder, x: View, mean: View, rstd: View, weight: View | None, bias: View | None, dtype: torch.dtype
) -> View:
    """x * scale + shift, with eager's bits."""
    out = build.out[0]
    scale = rstd if weight is None else build.map(lambda r, w: apply("mul", r, w), rstd, weight, dtype=dtype)

    def multiply_add(a: Scalar, b: Scalar, c: Scalar) -> Scalar:
        if build.program.device.type == "cpu":
            return apply("fma", a, b, c)
        return apply("add", apply("mul", a, b), c)

    shift = build.map(
        lambda m, s, b: multiply_add(apply("neg", m), s, b), mean, scale, 0 if bias is None else bias, dtype=dtype
    )

    def body(axes: Axes) -> Scalar:
        a = convert(build.element(x, axes), dtype)
        factor, summand = (_of_channel(build, each, axes, dtype) for each in (scale, shift))
        return convert(multiply_add(a, factor, summand), out.dtype)

    return build.pointwise(tuple(out.shape), body, tuple(out.stride()))


def _distance(build: Builder, x: View, mean: View, axes: Axes, dtype: torch.dtype) -> Scalar:
    return apply("sub", convert(build.element(x, axes), dtype), _of_channel(build, mean, axes, dtype))


def _squares(build: Builder, x: View, mean: View, dtype: torch.dtype) -> View:
    def body(axes: Axes) -> Scalar:
        distance = _distance(build, x, mean, axes, dtype)
        return apply("mul", distance, distance)

    return build.pointwise(x.shape, body)


def _mixed(build: Builder, running: View, new: View, momentum: float, dtype: torch.dtype) -> View:
    return build.map(
        lambda r, n: apply("add", apply("mul", n, like(momentum, n)), apply("mul", r, like(1 - momentum, r))),
        running,
        new,
        dtype=dtype,
    )


@lowering(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    build: Builder,
    grad: View,
    x: View,
    weight: View | None,
    running_mean: View | None,
    running_var: View | None,
    save_mean: View | None,
    save_rstd: View | None,
    training: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[View | None, ...]:
    if not x.dtype.is_floating_point:
        raise NotLowered
    dtype = compute_dtype(check_dtype(x.dtype))
    dims = _channels(x)
    count = count_of(x, dims)
    mean, spread = (save_mean, save_rstd) if training else (running_mean, running_var)
    if mean is None or spread is None or not mean.shape or not spread.shape:
        raise NotLowered
    rstd = spread
    if not training:
        rstd = build.map(lambda v: rsqrt(apply("add", v, like(eps, v))), spread, dtype=dtype)

    wide = _sum_dtype(build, dtype)

    def product(axes: Axes) -> Scalar:
        return apply("mul", convert(build.element(grad, axes), wide), _distance(build, x, mean, axes, wide))

    def rounded(value: View) -> View:
        return build.map(lambda s: s, value, dtype=dtype)

    total = rounded(build.reduce("sum", grad, dims, False, wide))
    dot = rounded(build.reduce("sum", build.pointwise(x.shape, product), dims, False, wide))
    parts = number(1, dtype) if not training else apply("div", number(1, dtype), number(count, dtype))

    def gradient(axes: Axes) -> Scalar:
        g = convert(build.element(grad, axes), dtype)
        r = _of_channel(build, rstd, axes, dtype)
        if training:
            slope = apply("mul", apply("mul", apply("mul", _of_channel(build, dot, axes, dtype), parts), r), r)
            g = apply("sub", g, apply("mul", _of_channel(build, total, axes, dtype), parts))
            g = apply("sub", g, apply("mul", _distance(build, x, mean, axes, dtype), slope))
        g = apply("mul", g, r)
        if weight is not None:
            g = apply("mul", g, _of_channel(build, weight, axes, dtype))
        return convert(g, build.out[0].dtype)

    results: list[View | None] = [None, None, None]
    if output_mask[0]:
        results[0] = build.pointwise(tuple(build.out[0].shape), gradient, tuple(build.out[0].stride()))
    if output_mask[1]:
        scaled = build.map(lambda d, r: apply("mul", d, r), dot, rstd, dtype=dtype)
        results[1] = build.as_result(scaled, build.out[1])
    if output_mask[2]:
        results[2] = build.as_result(total, build.out[2])
    return tuple(results)
