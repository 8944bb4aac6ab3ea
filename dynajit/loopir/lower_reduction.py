"""Lowerings of reductions and of the normalisations that are made of them.

In and out: see `registry.py`. Sums of bfloat16 and float16 are carried in float32. One more op: a function below, made
of `build.reduce`, `build.map` and, for results, `build.as_result`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from dynajit.loopir.build import apply, convert, like, number, rsqrt, select
from dynajit.loopir.builder import Builder, Number, check_dtype
from dynajit.loopir.index import contiguous_strides, linearise
from dynajit.loopir.nodes import Scalar, View, position
from dynajit.loopir.ops import MOMENTS
from dynajit.loopir.registry import NotLowered, lowering
from dynajit.loopir.size import is_symbolic
from dynajit.op_facts import LOW_PRECISION, compute_dtype

aten = torch.ops.aten
Dims = Sequence[int] | int | None


def _dims(dims: Dims, x: View) -> list[int]:
    rank = len(x.shape)
    if dims is None or (not isinstance(dims, int) and not dims):
        return list(range(rank))
    return [dims] if isinstance(dims, int) else list(dims)


def count_of(x: View, dims: Sequence[int]) -> int:
    """How many elements there are along these dimensions."""
    total = 1
    for dim in {dim % len(x.shape) for dim in dims} if x.shape else ():
        total *= x.shape[dim]
    return total


def _reduced(build: Builder, kind: str, x: View, dims: Dims, keepdim: bool) -> View:
    dtype = compute_dtype(check_dtype(build.out.dtype))
    if dtype is torch.bool:
        raise NotLowered
    return build.reduce(kind, x, _dims(dims, x), keepdim, dtype)


def _register_total(kind: str, of_dims: Any) -> None:
    @lowering(of_dims)
    def along(build: Builder, x: View, dims: Dims, keepdim: bool = False, dtype: Any = None) -> View:
        return build.as_result(_reduced(build, kind, _rounded(build, x), dims, keepdim))

    @lowering(getattr(aten, kind).default)
    def whole(build: Builder, x: View, dtype: Any = None) -> View:
        return build.as_result(_reduced(build, kind, _rounded(build, x), None, False))

    @lowering(getattr(aten, f"cum{kind}").default)
    def running(build: Builder, x: View, dim: int, dtype: Any = None) -> View:
        return _scan(build, kind, x, dim)


def _rounded(build: Builder, x: View) -> View:
    """What eager adds up or multiplies where the result is to be bfloat16 or float16: numbers of that dtype."""
    dtype = build.out.dtype
    return build.map(lambda a: a, x, dtype=dtype) if dtype in LOW_PRECISION and x.dtype is not dtype else x


_register_total("sum", aten.sum.dim_IntList)
_register_total("prod", aten.prod.dim_int)


@lowering(aten.mean.dim)
def _mean_dims(build: Builder, x: View, dims: Dims, keepdim: bool = False, dtype: Any = None) -> View:
    total = _reduced(build, "sum", x, dims, keepdim)
    count = count_of(x, _dims(dims, x))
    return build.elementwise(lambda a: apply("div", a, like(count, a)), total, dtype=total.dtype)


@lowering(aten.mean.default)
def _mean_all(build: Builder, x: View, dtype: Any = None) -> View:
    return _mean_dims(build, x, None)


# ---- places of extremes


def _place_of(build: Builder, x: View, extreme: View, dims: Sequence[int], keepdim: bool) -> View:
    """The first place along `dims` where x is its extreme (kept dimensions), or not a number."""
    narrow = torch.int32 if count_of(x, dims) < 1 << 31 else torch.int64
    sizes = [x.shape[dim] for dim in dims]

    def body(axes: Any) -> Scalar:
        wide = compute_dtype(x.dtype)
        a = convert(build.element(x, axes), wide)
        m = convert(build.element(extreme, axes), wide)
        here = apply("eq", a, m)
        if a.dtype.is_floating_point:
            here = apply("or", here, apply("ne", a, a))
        number_of = convert(position(linearise([axes[dim] for dim in dims], contiguous_strides(sizes))), narrow)
        return select(here, number_of, like(torch.iinfo(narrow).max, number_of))

    found = build.reduce("min", build.pointwise(x.shape, body), dims, keepdim, narrow)
    return build.map(lambda a: a, found, dtype=torch.int64)


def _with_place(build: Builder, kind: str, x: View, dim: int, keepdim: bool) -> tuple[View, View]:
    if not all(type(size) is int for size in x.shape):
        raise NotLowered
    values, indices = build.out
    if not x.shape:
        zero = build.pointwise((), lambda axes: number(0, torch.int64))
        return build.pointwise((), lambda axes: build.element(x, axes)), zero
    dim %= len(x.shape)
    kept = build.reduce(kind, x, [dim], True, check_dtype(x.dtype))
    places = _place_of(build, x, kept, [dim], keepdim)
    return build.as_result(build.reshape(kept, tuple(values.shape)), values), build.as_result(places, indices)


def _arg(build: Builder, kind: str, x: View, dim: int | None, keepdim: bool) -> View:
    if not x.shape or not all(type(size) is int for size in x.shape):
        raise NotLowered
    dims = list(range(len(x.shape))) if dim is None else [dim % len(x.shape)]
    kept = build.reduce(kind, x, dims, True, check_dtype(x.dtype))
    return build.as_result(_place_of(build, x, kept, dims, keepdim))


def _register_extreme(kind: str, truth: Any) -> None:
    packet = getattr(aten, kind)

    @lowering(getattr(aten, f"a{kind}").default, packet.default)
    def extreme(build: Builder, x: View, dims: Dims = None, keepdim: bool = False) -> View:
        return build.as_result(build.reduce(kind, x, _dims(dims, x), keepdim, check_dtype(x.dtype)))

    @lowering(packet.dim)
    def with_place(build: Builder, x: View, dim: int, keepdim: bool = False) -> tuple[View, View]:
        return _with_place(build, kind, x, dim, keepdim)

    @lowering(getattr(aten, f"arg{kind}").default)
    def place(build: Builder, x: View, dim: int | None = None, keepdim: bool = False) -> View:
        return _arg(build, kind, x, dim, keepdim)

    @lowering(truth.dim, truth.dims, truth.default)
    def of_truth(build: Builder, x: View, dims: Dims = None, keepdim: bool = False) -> View:
        if build.out.dtype is not torch.bool:
            raise NotLowered  # uint8 gives uint8
        return build.as_result(build.reduce(kind, x, _dims(dims, x), keepdim, torch.bool))


_register_extreme("max", aten.any)
_register_extreme("min", aten.all)


@lowering(aten.aminmax.default)
def _aminmax(build: Builder, x: View, *, dim: int | None = None, keepdim: bool = False) -> tuple[View, View]:
    least, greatest = (
        build.as_result(build.reshape(reduced, tuple(out.shape)), out)
        for reduced, out in (
            (build.reduce(kind, x, _dims(dim, x), keepdim, check_dtype(x.dtype)), out)
            for kind, out in zip(("min", "max"), build.out, strict=True)
        )
    )
    return least, greatest


# ---- running sums and products


def _scan(build: Builder, kind: str, x: View, dim: int) -> View:
    dtype = check_dtype(build.out.dtype)
    if dtype is torch.bool:
        raise NotLowered
    if not x.shape:
        return build.result(lambda axes: convert(build.element(x, axes), dtype))
    on_cpu = build.program.device.type == "cpu"
    if x.shape[dim] == 1:  # on CPUs a sum begins with 0, which a negative zero does not change
        begun = (lambda a: apply("add", like(0, a), a)) if kind == "sum" and on_cpu else lambda a: a
        wide = compute_dtype(dtype)
        return build.result(lambda axes: begun(convert(convert(build.element(x, axes), dtype), wide)))
    dim %= len(x.shape)
    if on_cpu and build.out.stride()[dim] == 1 and (kind != "sum" or dtype is torch.float64):
        # Groups of neighbours are added up by themselves, which of float64 would show.
        raise NotLowered("along a row, where one product waits for the one before, eager's loop is as fast")
    return build.scan(kind, x, dim)


# ---- variance and normalisations


def _mean_and_squares(build: Builder, x: View, dims: Sequence[int], dtype: torch.dtype) -> tuple[View, View]:
    """Mean, and sum of squared distances to it, with the reduced dimensions kept."""
    if build.program.device.type == "cuda":
        mean, squares = (build.reduce(kind, x, dims, True, dtype) for kind in MOMENTS)
        return mean, squares
    count = count_of(x, dims)
    total = build.reduce("sum", x, dims, True, dtype)
    mean = build.map(lambda a: apply("div", a, like(count, a)), total, dtype=dtype)
    squares = build.map(lambda a, m: apply("mul", apply("sub", a, m), apply("sub", a, m)), x, mean, dtype=dtype)
    return mean, build.reduce("sum", squares, dims, True, dtype)


def _variance(
    build: Builder, x: View, dims: Dims, correction: Number | None, root: bool, with_mean: bool = False
) -> tuple[View, View]:
    """The variance, or its root, and the mean, with the reduced dimensions kept."""
    if not x.dtype.is_floating_point:
        raise NotLowered
    on_cpu = build.program.device.type == "cpu"
    # as eager's kernel for CPUs has it: squares of float32 overflow beyond 1e19
    dtype = torch.float64 if on_cpu else compute_dtype(check_dtype(x.dtype))
    chosen = _dims(dims, x)
    less = 1 if correction is None else correction
    left = count_of(x, chosen) - (int(less) if less == int(less) else less)
    may_be_none = not left >= 0 and is_symbolic([left])
    left = left if may_be_none else max(left, 0)
    mean, squares = _mean_and_squares(build, x, chosen, dtype)

    def result(s: Scalar) -> Scalar:
        freedom = apply("maximum", like(left, s), like(0, s)) if may_be_none else like(left, s)
        variance = apply("div", s, freedom)
        return apply("sqrt", variance) if root else variance

    if with_mean and on_cpu:
        mean = _none_after_infinity(build, x, mean, chosen)
    return build.map(result, squares, dtype=dtype), mean


def _none_after_infinity(build: Builder, x: View, mean: View, dims: Sequence[int]) -> View:
    """Eager's kernel moves its mean from element to element, so that it is no number after one that is infinite."""
    reduced = {dim % len(x.shape) for dim in dims} if x.shape else set()
    zero = number(0, mean.dtype)

    def but_the_last(axes: Any) -> Scalar:
        wide = convert(build.element(x, axes), mean.dtype)
        before = [apply("ne", position(axes[dim]), number(x.shape[dim] - 1, torch.int64)) for dim in sorted(reduced)]
        return select(functools.reduce(partial(apply, "or"), before), wide, zero) if before else zero

    rest = build.reduce("sum", build.pointwise(x.shape, but_the_last), dims, True, mean.dtype)
    infinite = partial(apply, "eq", number(math.inf, mean.dtype))
    return build.map(
        lambda m, r: select(infinite(apply("abs", r)), number(math.nan, mean.dtype), m), mean, rest, dtype=mean.dtype
    )


def _register_variance(name: str, root: bool) -> None:
    @lowering(getattr(aten, name).correction)
    def alone(
        build: Builder, x: View, dims: Dims = None, *, correction: Number | None = None, keepdim: bool = False
    ) -> View:
        variance, _ = _variance(build, x, dims, correction, root)
        return build.as_result(build.reshape(variance, tuple(build.out.shape)))

    @lowering(getattr(aten, f"{name}_mean").correction)
    def with_mean(
        build: Builder, x: View, dims: Dims = None, *, correction: Number | None = None, keepdim: bool = False
    ) -> tuple[View, View]:
        found = _variance(build, x, dims, correction, root, True)
        first, second = (
            build.as_result(build.reshape(value, tuple(out.shape)), out)
            for value, out in zip(found, build.out, strict=True)
        )
        return first, second


_register_variance("var", False)
_register_variance("std", True)


@lowering(aten.native_layer_norm.default)
def _native_layer_norm(
    build: Builder, x: View, normalized_shape: Sequence[int], weight: View | None, bias: View | None, eps: float
) -> tuple[View, View, View]:
    dtype = compute_dtype(check_dtype(x.dtype))
    dims = list(range(len(x.shape) - len(normalized_shape), len(x.shape)))
    count = count_of(x, dims)
    mean, squares = _mean_and_squares(build, x, dims, dtype)
    rstd = build.map(
        lambda s: rsqrt(apply("add", apply("div", s, like(count, s)), like(eps, s))),
        squares,
        dtype=dtype,
    )
    affine = [tensor for tensor in (weight, bias) if tensor is not None]

    def normalised(axes: Any) -> Any:
        a, m, r, *rest = (build.argument(arg, axes, dtype) for arg in (x, mean, rstd, *affine))
        y = apply("mul", apply("sub", a, m), r)
        if weight is not None:
            y = apply("mul", y, rest[0])
        return convert(y if bias is None else apply("add", y, rest[-1]), build.out[0].dtype)

    shape = tuple(build.out[0].shape)
    result = build.pointwise(shape, normalised, tuple(build.out[0].stride()))
    return result, build.as_result(mean, build.out[1]), build.as_result(rstd, build.out[2])


@lowering(aten._softmax.default)
def _softmax(build: Builder, x: View, dim: int, half_to_float: bool) -> View:
    exponentials, total = _exponentials(build, x, dim)[1:]
    return build.elementwise(lambda e, s: apply("ratio", e, s), exponentials, total, dtype=total.dtype)


@lowering(aten._safe_softmax.default)
def _safe_softmax(build: Builder, x: View, dim: int, dtype: torch.dtype | None = None) -> View:
    greatest, exponentials, total = _exponentials(build, x, dim, "max")

    def body(e: Scalar, s: Scalar, m: Scalar) -> Scalar:
        return select(apply("eq", m, like(float("-inf"), m)), like(0, e), apply("div", e, s))

    return build.elementwise(body, exponentials, total, greatest, dtype=total.dtype)


@lowering(aten._log_softmax.default)
def _log_softmax(build: Builder, x: View, dim: int, half_to_float: bool) -> View:
    greatest, _, total = _exponentials(build, x, dim)
    shifted = build.map(lambda a, m: apply("sub", a, m), x, greatest, dtype=total.dtype)
    return build.elementwise(lambda a, s: apply("sub", a, apply("log", s)), shifted, total, dtype=total.dtype)


def _exponentials(build: Builder, x: View, dim: int, kind: str = "peak") -> tuple[View, View, View]:
    """The greatest of x, the exponentials of x minus that, and their sum along `dim`, which is NaN if one of x is."""
    if not x.dtype.is_floating_point:
        raise NotLowered
    dtype = compute_dtype(check_dtype(x.dtype))
    dims = [dim] if x.shape else []
    greatest = build.reduce(kind, x, dims, True, dtype)
    shifted = build.map(lambda a, m: apply("sub", a, m), x, greatest, dtype=dtype)
    exponentials = build.map(lambda a: apply("exp", a), shifted, dtype=dtype)
    return greatest, exponentials, build.reduce("sum", exponentials, dims, True, dtype)


@lowering(aten._softmax_backward_data.default)
def _softmax_backward(build: Builder, grad: View, output: View, dim: int, input_dtype: torch.dtype) -> View:
    dtype = compute_dtype(check_dtype(output.dtype))
    weighted = build.map(lambda g, y: apply("mul", g, y), grad, output, dtype=dtype)
    total = build.reduce("sum", weighted, [dim] if output.shape else [], True, dtype)
    return build.elementwise(lambda g, y, s: apply("mul", apply("sub", g, s), y), grad, output, total, dtype=dtype)


@lowering(aten._log_softmax_backward_data.default)
def _log_softmax_backward(build: Builder, grad: View, output: View, dim: int, input_dtype: torch.dtype) -> View:
    dtype = compute_dtype(check_dtype(output.dtype))
    total = build.reduce("sum", grad, [dim] if output.shape else [], True, dtype)
    return build.elementwise(
        lambda g, y, s: apply("sub", g, apply("mul", apply("exp", y), s)), grad, output, total, dtype=dtype
    )
