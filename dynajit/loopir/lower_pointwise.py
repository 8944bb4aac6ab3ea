"""Lowerings of ATen ops that compute each element from the elements at the same place.

In and out: see `registry.py`. Arithmetic is done in the result's dtype (float32 for bfloat16 and float16) and rounded
to it after each op, as in eager. One more op: a row of `_elementwise`, or a function below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dynajit.loopir.build import apply, convert, like, number, rsqrt, select
from dynajit.loopir.builder import Builder, Number, check_dtype
from dynajit.loopir.index import Index, mod
from dynajit.loopir.nodes import Const, Pointwise, Scalar, View, position
from dynajit.loopir.ops import FLOATS, INTS, MATH_FUNCTIONS
from dynajit.loopir.registry import NotLowered, lowering
from dynajit.loopir.size import RuntimeFloat, Size, hint_of
from dynajit.op_facts import always_fits, compute_dtype

aten = torch.ops.aten
Operand = View | Number
Axes = tuple[Index, ...]


def _is_float(x: View) -> bool:
    return x.dtype.is_floating_point


def _own_dtype(x: View) -> torch.dtype:
    return compute_dtype(check_dtype(x.dtype))


def _elementwise(
    body: Callable[..., Scalar],
    *targets: Any,
    only: Callable[[View], bool] | None = None,
    dtype: Callable[[View], torch.dtype] | None = None,
) -> None:
    """Lower these ops: an element of the result is `body` of those of the arguments. `only`: the first arguments that
    it is for. `dtype`: of the first argument, what elements are taken in, if not in the result's."""

    @lowering(*targets)
    def lower(build: Builder, x: View, *others: Operand) -> View:
        if only is not None and not only(x):
            raise NotLowered
        return build.elementwise(body, x, *others, dtype=None if dtype is None else dtype(x))


# ---- one argument, float result (integers are converted to the default dtype, which is the result's)

for _name in (*MATH_FUNCTIONS, "sqrt"):
    _elementwise(partial(apply, _name), getattr(aten, _name).default)
_elementwise(rsqrt, aten.rsqrt.default)
_elementwise(lambda a: apply("div", like(1, a), a), aten.reciprocal.default)


def sigmoid(a: Scalar) -> Scalar:
    """1 / (1 + exp(-a))"""
    return _times_sigmoid(like(1, a), a)


def _times_sigmoid(x: Scalar, a: Scalar) -> Scalar:
    """x / (1 + exp(-a)), by the exponential of what is not positive, which never becomes infinite. Where that of -a
    does, eager has zero. In float64 that is no gain."""
    if a.dtype is torch.float64:
        return apply("div", x, apply("add", like(1, a), apply("exp", apply("neg", a))))
    size = apply("abs", a)
    most = like(math.log(torch.finfo(a.dtype).max), a)
    e = select(apply("ge", size, most), like(0, a), apply("exp", apply("neg", size)))
    above = select(apply("ge", a, like(0, a)), x, apply("mul", x, e) if not isinstance(x, Const) else e)
    return apply("div", above, apply("add", like(1, a), e))


_elementwise(sigmoid, aten.sigmoid.default)
_elementwise(lambda a: _times_sigmoid(a, a), aten.silu.default)


@lowering(aten.gelu.default)
def _gelu(build: Builder, x: View, approximate: str = "none") -> View:
    return build.elementwise(_gelu_tanh if approximate == "tanh" else _gelu_erf, x)


def _gelu_erf(a: Scalar) -> Scalar:
    erf = apply("erf", apply("mul", a, like(math.sqrt(0.5), a)))
    return apply("mul", apply("mul", a, like(0.5, a)), apply("add", like(1, a), erf))


def _gelu_tanh(a: Scalar) -> Scalar:
    cube = apply("mul", apply("mul", a, a), a)
    inner = apply("mul", like(math.sqrt(2 / math.pi), a), apply("add", a, apply("mul", like(0.044715, a), cube)))
    return apply("mul", apply("mul", like(0.5, a), a), apply("add", like(1, a), apply("tanh", inner)))


# ---- one argument, same dtype


_elementwise(partial(apply, "neg"), aten.neg.default)
_elementwise(partial(apply, "abs"), aten.abs.default, only=lambda x: x.dtype not in (torch.uint8, torch.bool))
for _name in ("floor", "ceil", "trunc", "round"):
    _elementwise(partial(apply, _name), getattr(aten, _name).default, only=_is_float)
_elementwise(lambda a: apply("sub", a, apply("trunc", a)), aten.frac.default, only=_is_float)
_elementwise(lambda a: apply("maximum", a, like(0, a)), aten.relu.default)


@lowering(aten.threshold_backward.default)
def _threshold_backward(build: Builder, grad: View, x: View, threshold: Number) -> View:
    return build.elementwise(lambda g, a: select(apply("le", a, like(threshold, a)), like(0, g), g), grad, x)


@lowering(aten.leaky_relu.default)
def _leaky_relu(build: Builder, x: View, slope: Number = 0.01) -> View:
    return build.elementwise(lambda a: select(apply("gt", a, like(0, a)), a, apply("mul", a, like(slope, a))), x)


def _clamped(a: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    if low is not None:
        a = apply("maximum", a, low)
    return a if high is None else apply("minimum", a, high)


@lowering(aten.clamp.default, aten.clamp.Tensor, aten.hardtanh.default)
def _clamp(build: Builder, x: View, low: Operand | None = None, high: Operand | None = None) -> View:
    if build.origin.op.startswith("aten.hardtanh"):
        low, high = (-1 if low is None else low), (1 if high is None else high)
    bounds = [bound for bound in (low, high) if bound is not None]
    return build.elementwise(
        lambda a, *rest: _clamped(a, rest[0] if low is not None else None, rest[-1] if high is not None else None),
        x,
        *bounds,
    )


for _name, _packet in (("maximum", aten.clamp_min), ("minimum", aten.clamp_max)):
    _elementwise(partial(apply, _name), getattr(aten, _name).default, _packet.default, _packet.Tensor)
for _compared, _packet in (("ge", aten.fmax), ("le", aten.fmin)):
    # the one that is a number, where the other is none
    _elementwise(
        lambda a, b, compared=_compared: select(apply("or", apply(compared, a, b), apply("ne", b, b)), a, b),
        _packet.default,
        only=_is_float,
    )
_elementwise(partial(apply, "copysign"), aten.copysign.Tensor, only=_is_float)


# ---- arithmetic


def _scaled(b: Scalar, alpha: Number) -> Scalar:
    return b if alpha == 1 else apply("mul", like(alpha, b), b)


def _arithmetic(build: Builder, alpha: Number) -> None:
    if build.out.dtype is torch.bool:
        raise NotLowered("arithmetic on bool")
    if type(alpha) is bool or (isinstance(alpha, (float, RuntimeFloat)) and not build.out.dtype.is_floating_point):
        raise NotLowered("an alpha that eager refuses")


def _times_alpha(build: Builder, b: Scalar, alpha: Number) -> Scalar:
    """Eager rounds alpha to the result's dtype."""
    return b if alpha == 1 else apply("mul", convert(number(alpha, build.out.dtype), b.dtype), b)


def _plus_scaled(build: Builder, name: str, a: Scalar, b: Scalar, alpha: Number) -> Scalar:
    """a + alpha * b, or a - alpha * b. The CPU's kernels in eager make one operation of it, which rounds once."""
    if alpha == 1 or build.program.device.type != "cpu" or b.dtype not in FLOATS:
        return apply(name, a, _times_alpha(build, b, alpha))
    scale = convert(number(alpha, build.out.dtype), b.dtype)
    return apply("fma", scale if name == "add" else apply("neg", scale), b, a)


@lowering(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(build: Builder, x: Operand, y: Operand, alpha: Number = 1) -> View:
    _arithmetic(build, alpha)
    name = build.origin.op.split(".")[1]
    return build.elementwise(lambda a, b: _plus_scaled(build, name, a, b, alpha), x, y)


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def _rsub(build: Builder, x: View, y: Operand, alpha: Number = 1) -> View:
    _arithmetic(build, alpha)
    return build.elementwise(lambda a, b: _plus_scaled(build, "sub", b, a, alpha), x, y)


@lowering(aten.mul.Tensor, aten.mul.Scalar)
def _mul(build: Builder, x: View, y: Operand) -> View:
    name = "and" if build.out.dtype is torch.bool else "mul"
    return build.elementwise(lambda a, b: apply(name, a, b), x, y, exact=1)


@lowering(aten.div.Tensor, aten.div.Scalar)
def _div(build: Builder, x: View, y: Operand) -> View:
    return build.elementwise(lambda a, b: apply("div", a, b), x, y, exact=1)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(build: Builder, x: View, y: Operand, rounding_mode: str | None = None) -> View:
    if rounding_mode is None:
        return _div(build, x, y)
    if build.out.dtype in FLOATS and rounding_mode == "trunc":
        return build.elementwise(lambda a, b: apply("trunc", apply("div", a, b)), x, y)
    _constant_divisor(build, y)
    name = "intdiv" if rounding_mode == "trunc" else "floordiv"
    return build.elementwise(lambda a, b: apply(name, a, b), x, y)


@lowering(aten.floor_divide.default, aten.floor_divide.Scalar, aten.remainder.Scalar)
def _floor_divide(build: Builder, x: View, y: Operand) -> View:
    _constant_divisor(build, y)
    name = "intmod" if build.origin.op.startswith("aten.remainder") else "floordiv"
    return build.elementwise(lambda a, b: apply(name, a, b), x, y)


def _constant_divisor(build: Builder, y: Operand) -> None:
    """Integer division by a tensor may divide by zero, which eager reports, or overflow: the dispatcher's affair."""
    dtype = build.out.dtype
    if dtype not in INTS or isinstance(y, View) or not 1 <= y <= torch.iinfo(dtype).max:
        raise NotLowered


@lowering(aten.pow.Tensor_Scalar)
def _pow_scalar(build: Builder, x: View, exponent: Number) -> View:
    if isinstance(exponent, RuntimeFloat):
        raise NotLowered("eager has other ways for some exponents")
    if build.out.dtype in INTS:
        if exponent not in (1, 2, 3):
            raise NotLowered
    elif not build.out.dtype.is_floating_point or (build.out.dtype is torch.float16 and exponent % 1 != 0):
        raise NotLowered  # eager's float16 goes another way
    if exponent not in _PLAIN_POWERS:
        _faster_in_torch(build, "pow")
    # eager's CPU kernels of float16 round the result alone
    inner = build.program.device.type == "cpu" and build.out.dtype is torch.float16
    return build.elementwise(lambda a: _power(a, exponent, build.out.dtype, a.dtype if inner else build.out.dtype), x)


# Elements from which a call of torch's kernel pays, where that is faster than the C library.
WORTH_A_CALL = 128
# Powers of 10 that float32 has.
_MAX_DECIMALS = 10
_PLAIN_POWERS = (1, 2, 3, 0.5, -0.5, -1, -2)


def _faster_in_torch(build: Builder, name: str) -> None:
    """On CPUs torch's kernels compute these by vectors, where the C library takes one element at a time (`fmod`) or
    three times as long (`pow` of float64). A call of torch's costs what a hundred elements cost."""
    slow = name == "fmod" or (name == "pow" and build.out.dtype is torch.float64)
    elements = math.prod(hint_of(size) for size in build.out.shape)
    if slow and build.program.device.type == "cpu" and elements >= WORTH_A_CALL:
        raise NotLowered


def _power(a: Scalar, exponent: Number, dtype: torch.dtype, between: torch.dtype) -> Scalar:
    """The special cases of eager, where the square is rounded to the dtype `between`; then the general function."""
    square = convert(convert(apply("mul", a, a), between), a.dtype)
    if exponent == 1:
        return a
    if exponent == 2:
        return square
    if exponent == 3:
        return apply("mul", square, a)
    if exponent == 0.5:
        return apply("sqrt", a)
    if exponent == -0.5:
        return rsqrt(a)
    if exponent == -1:
        return apply("div", like(1, a), a)
    if exponent == -2:
        return apply("div", like(1, a), square)
    return apply("pow", a, convert(number(exponent, dtype), a.dtype))


@lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar, aten.atan2.default, aten.fmod.Tensor, aten.fmod.Scalar)
def _binary_float(build: Builder, x: Operand, y: Operand) -> View:
    if not build.out.dtype.is_floating_point:
        raise NotLowered
    name = build.origin.op.split(".")[1]
    _faster_in_torch(build, name)
    return build.elementwise(lambda a, b: apply(name, a, b), x, y)


def fused(build: Builder, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
    """a * b + c, which compilers make one operation of in eager's kernels for CPUs: it rounds once."""
    if build.program.device.type == "cpu" and c.dtype in FLOATS:
        return apply("fma", a, b, c)
    return apply("add", c, apply("mul", a, b))


@lowering(aten.addcmul.default)
def _addcmul(build: Builder, x: View, a: View, b: View, value: Number = 1) -> View:
    return build.elementwise(lambda s, u, v: fused(build, _scaled(u, value), v, s), x, a, b)


@lowering(aten.addcdiv.default)
def _addcdiv(build: Builder, x: View, a: View, b: View, value: Number = 1) -> View:
    if not build.out.dtype.is_floating_point:
        raise NotLowered
    return build.elementwise(lambda s, u, v: apply("add", s, apply("div", _scaled(u, value), v)), x, a, b)


@lowering(aten.linalg_cross.default)
def _cross(build: Builder, x: View, y: View, *, dim: int = -1) -> View:
    """Each of the three of the other two. Of its products eager's kernel rounds one; both where it has 16 bits."""
    dtype = check_dtype(build.out.dtype)
    dim %= len(build.out.shape)

    def body(axes: Axes) -> Scalar:
        def at(value: View, step: int) -> Scalar:
            place = (*axes[:dim], mod(axes[dim] + step, 3), *axes[dim + 1 :])
            return build.argument(value, place, dtype)

        def rounded(one: Scalar, other: Scalar) -> Scalar:
            return convert(convert(apply("mul", one, other), dtype), one.dtype)

        less = rounded(at(x, 2), at(y, 1))
        if dtype in FLOATS:
            return fused(build, at(x, 1), at(y, 2), apply("neg", less))
        return apply("sub", rounded(at(x, 1), at(y, 2)), less)

    return build.result(body)


@lowering(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(build: Builder, x: View, end: View, weight: Operand) -> View:
    """From the nearer end: a weight of 1 gives `end` itself. A number is not rounded to the dtype of 16 bits."""
    if not build.out.dtype.is_floating_point:
        raise NotLowered

    def body(s: Scalar, e: Scalar, w: Scalar) -> Scalar:
        if isinstance(w, Const):
            near: Scalar = number(abs(w.value) < 0.5, torch.bool)
            factor = select(near, w, like(w.value - 1, w))
        else:
            near = apply("lt", apply("abs", w), like(0.5, w))
            factor = select(near, w, apply("sub", w, like(1, w)))
        return fused(build, factor, apply("sub", e, s), select(near, s, e))

    return build.elementwise(body, x, end, weight, exact=-1 if isinstance(weight, View) else 2)


def _log_of_sum(build: Builder, a: Scalar, b: Scalar, exponential: str) -> Scalar:
    """log(e^a + e^b), or of powers of 2, without any of them; of two equal infinities that one."""
    most = apply("maximum", a, b)
    rest = apply("log1p", apply(exponential, apply("neg", apply("abs", apply("sub", a, b)))))
    total = apply("add", most, rest) if exponential == "exp" else fused(build, rest, like(1 / math.log(2), a), most)
    same = apply("and", apply("eq", a, b), apply("eq", apply("abs", a), like(math.inf, a)))
    return select(same, a, total)


@lowering(aten.logaddexp.default, aten.logaddexp2.default)
def _logaddexp(build: Builder, x: View, y: View) -> View:
    if not build.out.dtype.is_floating_point:
        raise NotLowered
    exponential = "exp2" if build.origin.op.startswith("aten.logaddexp2") else "exp"
    return build.elementwise(lambda a, b: _log_of_sum(build, a, b, exponential), x, y)


_elementwise(partial(apply, "hypot"), aten.hypot.default, only=_is_float)


@lowering(aten.round.decimals)
def _round_decimals(build: Builder, x: View, *, decimals: int) -> View:
    if build.out.dtype not in FLOATS or abs(decimals) > _MAX_DECIMALS:
        raise NotLowered
    first, second = ("mul", "div") if decimals >= 0 else ("div", "mul")
    power = 10.0 ** abs(decimals)
    return build.elementwise(
        lambda a: apply(second, apply("round", apply(first, a, like(power, a))), like(power, a)), x
    )


# ---- comparison, logic, selection


def _promoted(x: Operand, y: Operand) -> torch.dtype:
    """The dtype in which torch compares two operands: the higher category wins, then tensors with dimensions."""

    def sample(value: Operand) -> Any:
        if isinstance(value, (Size, RuntimeFloat)):
            return 0 if isinstance(value, Size) else 0.0
        return torch.empty([0] * len(value.shape), dtype=value.dtype) if isinstance(value, View) else value

    return check_dtype(torch.result_type(sample(x), sample(y)))


def _register_comparison(name: str) -> None:
    packet = getattr(aten, name)

    @lowering(packet.Tensor, packet.Scalar)
    def lower(build: Builder, x: View, y: Operand) -> View:
        same = isinstance(y, View) and x.dtype is y.dtype
        dtype = _promoted(x, y) if not same else x.dtype
        if not isinstance(y, View) and dtype in INTS and not _fits(y, dtype):
            raise NotLowered("number out of the dtype's range")
        return build.elementwise(lambda a, b: apply(name, a, b), x, y, dtype=dtype)


def _fits(value: Number, dtype: torch.dtype) -> bool:
    info = torch.iinfo(dtype)
    return info.min <= value <= info.max


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register_comparison(_name)


for _name in ("and", "or", "xor", "not"):
    _elementwise(partial(apply, _name), getattr(aten, f"logical_{_name}").default, dtype=lambda x: torch.bool)


def _register_bitwise(name: str) -> None:
    packet = getattr(aten, f"bitwise_{name}")

    @lowering(packet.Tensor, packet.Scalar)
    def lower(build: Builder, x: View, y: Operand) -> View:
        if build.out.dtype in INTS and not isinstance(y, View) and not _fits(y, build.out.dtype):
            raise NotLowered
        return build.elementwise(lambda a, b: apply(name, a, b), x, y)


for _name in ("and", "or", "xor"):
    _register_bitwise(_name)
_elementwise(lambda a: apply("not" if a.dtype is torch.bool else "invert", a), aten.bitwise_not.default)
_elementwise(lambda a: apply("ne", a, a), aten.isnan.default, dtype=_own_dtype)
for _target, _infinite in (
    (aten.isinf.default, lambda a: apply("eq", apply("abs", a), like(math.inf, a))),
    (aten.isposinf.default, lambda a: apply("eq", a, like(math.inf, a))),
    (aten.isneginf.default, lambda a: apply("eq", a, like(-math.inf, a))),
):
    _elementwise(_infinite, _target, only=_is_float, dtype=_own_dtype)


_elementwise(
    lambda a: apply("lt", apply("copysign", like(1, a), a), like(0, a)),
    aten.signbit.default,
    only=_is_float,
    dtype=_own_dtype,
)
_elementwise(
    lambda a: select(apply("ne", a, a), a, select(apply("lt", a, like(0, a)), like(math.pi, a), like(0, a))),
    aten.angle.default,
    only=_is_float,
)


def _sign(a: Scalar) -> Scalar:
    """0 of NaN and of both zeros."""
    zero = like(0, a)
    below = select(apply("lt", a, zero), like(-1, a), zero)
    return select(apply("gt", a, zero), like(1, a), below)


_elementwise(_sign, aten.sign.default, aten.sgn.default, only=lambda x: x.dtype is not torch.bool)


def _where(build: Builder, condition: View, x: Operand, y: Operand) -> View:
    if condition.dtype is not torch.bool:
        raise NotLowered
    dtype = check_dtype(build.out.dtype)
    return build.result(
        lambda axes: select(
            build.element(condition, axes), build.argument(x, axes, dtype), build.argument(y, axes, dtype)
        )
    )


@lowering(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where_op(build: Builder, condition: View, x: Operand, y: Operand) -> View:
    return _where(build, condition, x, y)


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(build: Builder, x: View, mask: View, value: Operand) -> View:
    if isinstance(value, View) and build.program.device.type == "cpu" and not _is_held(value, x.dtype):
        raise NotLowered("a value that may not fit the dtype, which eager reports")
    return _where(build, mask, value, x)


def _is_held(value: View, dtype: torch.dtype) -> bool:
    """Whether the dtype can hold the only element of `value`."""
    if always_fits(value.dtype, dtype):
        return True
    known = value.root.body if isinstance(value.root, Pointwise) else None
    if not isinstance(known, Const):
        return False
    if not dtype.is_floating_point:
        return type(known.value) is int and _fits(known.value, dtype)
    return not math.isfinite(known.value) or abs(known.value) <= torch.finfo(dtype).max


# ---- copies and conversions


@lowering(aten.clone.default, aten.lift_fresh_copy.default, aten.lift_fresh.default)
def _clone(build: Builder, x: View, memory_format: Any = None) -> View:
    return build.result(lambda axes: build.element(x, axes), moved=True)


@lowering(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def _to_copy(build: Builder, x: View | Number, *args: Any, **kwargs: Any) -> View:
    if kwargs.get("pin_memory"):
        raise NotLowered
    if not isinstance(x, View):  # numbers stand for tensors where vmap puts them beside batched ones
        return build.result(lambda axes: build.argument(x, axes, build.out.dtype))
    return build.result(lambda axes: build.element(x, axes), moved=True)


@lowering(aten.copy.default)
def _copy(build: Builder, x: View, source: View, non_blocking: bool = False) -> View:
    return build.result(lambda axes: convert(build.element(source, axes), x.dtype), moved=True)


# ---- constants


def _filled(build: Builder, value: Number) -> View:
    if not isinstance(value, (bool, int, float, Size, RuntimeFloat)):
        raise NotLowered
    dtype = check_dtype(build.out.dtype)
    if dtype in INTS and not isinstance(value, Size) and (isinstance(value, float) or not _fits(value, dtype)):
        raise NotLowered
    return build.result(lambda axes: number(value, dtype))


@lowering(aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar)
def _full(build: Builder, like_or_size: Any, *args: Any, **kwargs: Any) -> View:
    return _filled(build, args[-1] if args else kwargs["fill_value"])


@lowering(aten.scalar_tensor.default)
def _scalar_tensor(build: Builder, value: Number, **kwargs: Any) -> View:
    return _filled(build, value)


def _register_filled(name: str, value: int) -> None:
    @lowering(*(getattr(aten, form).default for form in (name, f"{name}_like", f"new_{name}")))
    def lower(build: Builder, *args: Any, **kwargs: Any) -> View:
        return _filled(build, value if build.out.dtype is not torch.bool else bool(value))


_register_filled("zeros", 0)
_register_filled("ones", 1)


@lowering(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(build: Builder, *args: Number, **kwargs: Any) -> View:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else kwargs.get("step", 1))
    if build.out.dtype is not torch.int64 or not all(type(x) in (int, Size) for x in (start, step)):
        raise NotLowered
    first: Any = start
    by: Any = step
    return build.result(lambda axes: position(axes[0] * by + first))
