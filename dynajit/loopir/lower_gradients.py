"""Lowerings of the gradients of activations, in the order of operations of eager's kernels for CPUs.

In and out: see `registry.py`. Another order rounds and overflows elsewhere. One more op: a row of `_gradient`, and its
name in `_OF_KERNELS` in `aot/decompositions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dynajit.loopir.build import apply, convert, like, select
from dynajit.loopir.builder import Builder, Number
from dynajit.loopir.lower_pointwise import fused, sigmoid
from dynajit.loopir.nodes import Scalar, View
from dynajit.loopir.registry import NotLowered, lowering

aten = torch.ops.aten


def _gradient(*targets: Any) -> Callable[[Callable[..., Scalar]], Callable[..., Scalar]]:
    """Lower these ops by a function of the builder, an element of each tensor, and numbers."""

    def register(body: Callable[..., Scalar]) -> Callable[..., Scalar]:
        @lowering(*targets)
        def lower(build: Builder, grad: View, x: View, *numbers: Number) -> View:
            if not build.out.dtype.is_floating_point:
                raise NotLowered
            return build.elementwise(lambda g, a: body(build, g, a, *numbers), grad, x)

        return body

    return register


def _product(first: Scalar, *others: Scalar) -> Scalar:
    for other in others:
        first = apply("mul", first, other)
    return first


def _rest(a: Scalar) -> Scalar:
    """1 - a"""
    return apply("sub", like(1, a), a)


def _less_square(build: Builder, a: Scalar) -> Scalar:
    """1 - a * a"""
    return fused(build, apply("neg", a), a, like(1, a))


@_gradient(aten.sigmoid_backward.default)
def _sigmoid(build: Builder, g: Scalar, y: Scalar) -> Scalar:
    if build.out.dtype is not torch.float16:
        return _product(g, _rest(y), y)

    def rounded(a: Scalar) -> Scalar:  # the only one of these kernels that rounds to float16 on the way
        return convert(convert(a, torch.float16), a.dtype)

    return _product(rounded(_product(g, rounded(_rest(y)))), y)


@_gradient(aten.tanh_backward.default)
def _tanh(build: Builder, g: Scalar, y: Scalar) -> Scalar:
    return apply("mul", g, _less_square(build, y))


@_gradient(aten.silu_backward.default)
def _silu(build: Builder, g: Scalar, a: Scalar) -> Scalar:
    s = sigmoid(a)
    return _product(g, s, fused(build, a, _rest(s), like(1, a)))


@_gradient(aten.mish_backward.default)
def _mish(build: Builder, g: Scalar, a: Scalar) -> Scalar:
    t = apply("tanh", apply("log1p", apply("exp", a)))
    return apply("mul", g, fused(build, _product(a, sigmoid(a)), _less_square(build, t), t))


@_gradient(aten.hardswish_backward.default)
def _hardswish(build: Builder, g: Scalar, a: Scalar) -> Scalar:
    """Of what is not a number: none."""
    slope = apply("add", apply("div", a, like(3, a)), like(0.5, a))
    above = select(apply("ge", a, like(3, a)), g, apply("mul", g, slope))
    return select(apply("le", a, like(-3, a)), like(0, g), above)
