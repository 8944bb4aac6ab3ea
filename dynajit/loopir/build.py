"""Building scalar expressions: conversion, promotion, and the small simplifications that are always right.

In:  scalar expressions and Python numbers.
Out: scalar expressions in the grammar of `nodes.py`. One more simplification: in `convert` or `apply`, if it changes no
     bit of the result.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable

import torch

from dynajit.loopir import nodes
from dynajit.loopir.index import constant
from dynajit.loopir.nodes import Const, Op, Scalar
from dynajit.loopir.ops import FLOATS_OF_8_BITS, OPS
from dynajit.loopir.size import RuntimeFloat, Size
from dynajit.op_facts import LOW_PRECISION


def number(value: bool | float | Size | RuntimeFloat, dtype: torch.dtype) -> Scalar:
    """A Python number as an expression; for bfloat16 and float16 rounded to them."""
    if isinstance(value, RuntimeFloat):
        bits = nodes.position(constant(value.bits))  # type: ignore[arg-type]
        return convert(value.device_value or nodes.op("from_bits", (bits,), torch.float64), dtype)
    if isinstance(value, Size):
        return convert(nodes.position(constant(value)), dtype)  # type: ignore[arg-type]
    if dtype in LOW_PRECISION or dtype is torch.float32:
        value = rounded(float(value), dtype)
    elif isinstance(value, int):
        value = _wrapped(value, dtype)  # as torch does where a negative number meets bytes
    return nodes.const(value, dtype)


def rounded(value: float, dtype: torch.dtype) -> float:
    """The number nearest to it that a float32, or a float of fewer bits, can hold. No operation of torch's sees the
    modes that are on: a fake mode takes a hundred times as long."""
    single = ctypes.c_float(value).value
    if dtype is torch.float32:
        return single
    with torch._C._DisableTorchDispatch():
        return float(torch.tensor(single, dtype=torch.float32).to(dtype))


def convert(x: Scalar, dtype: torch.dtype) -> Scalar:
    """`x` as that dtype, with the meaning of `Tensor.to`."""
    if x.dtype is dtype:
        return x
    # A float constant may not fit an integer dtype: left to the machine, as in eager.
    if (
        isinstance(x, Const)
        and dtype not in FLOATS_OF_8_BITS
        and (dtype.is_floating_point or not x.dtype.is_floating_point)
    ):
        return number(_wrapped(x.value, dtype), dtype)
    if isinstance(x, Op) and x.name == "convert" and _exact(x.arguments[0].dtype, x.dtype):
        # Going through a wider type changes nothing.
        return convert(x.arguments[0], dtype)
    return nodes.op("convert", (x,), dtype)


# Of numbers that a 16-bit float can hold these make such numbers.
_CHOICES = frozenset({"where", "guard", "maximum", "minimum", "abs", "neg", "floor", "ceil", "trunc", "round"})


def fits(x: Scalar, dtype: torch.dtype, depth: int = 6) -> bool:
    """Is it certain that the 16-bit float dtype can hold it, so that rounding changes nothing?"""
    if x.dtype in (dtype, torch.bool):
        return True
    if isinstance(x, Const):
        return x.dtype is torch.float32 and rounded(float(x.value), dtype) == x.value
    if not isinstance(x, Op) or not depth or x.dtype is not torch.float32:
        return False
    if x.name == "convert":
        return fits(x.arguments[0], dtype, depth - 1)
    chosen = x.arguments[1:] if x.name in ("where", "guard") else x.arguments
    return x.name in _CHOICES and all(fits(argument, dtype, depth - 1) for argument in chosen)


def _wrapped(value: bool | float, dtype: torch.dtype) -> bool | float:
    if dtype is torch.bool or dtype.is_floating_point:
        return value
    bits = torch.iinfo(dtype).bits
    whole = int(value) & ((1 << bits) - 1)
    return whole - (1 << bits) if dtype.is_signed and whole >= 1 << (bits - 1) else whole


_EXACT = {
    torch.bool: {
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.bfloat16, torch.float16, torch.float32, torch.float64,
    },
    torch.bfloat16: {torch.float32, torch.float64},
    torch.float16: {torch.float32, torch.float64},
    torch.float32: {torch.float64},
    torch.int8: {torch.int16, torch.int32, torch.int64, torch.float32, torch.float64},
    torch.uint8: {torch.int16, torch.int32, torch.int64, torch.float32, torch.float64},
    torch.int16: {torch.int32, torch.int64, torch.float32, torch.float64},
    torch.int32: {torch.int64, torch.float64},
}  # fmt: skip


def _exact(source: torch.dtype, target: torch.dtype) -> bool:
    """Does each value of `source` exist in `target`?"""
    return target in _EXACT.get(source, ())


def apply(name: str, *arguments: Scalar) -> Scalar:
    """The operation on arguments that already have its dtype (`where`: condition first)."""
    operation = OPS[name]
    dtype = arguments[-1].dtype
    return nodes.op(name, arguments, torch.bool if operation.result == "bool" else dtype)


def rsqrt(x: Scalar) -> Scalar:
    """1 / sqrt(x)"""
    return apply("div", like(1, x), apply("sqrt", x))


def added(terms: Iterable[Scalar]) -> Scalar:
    """The sum of at least one term, from the first to the last."""
    return functools.reduce(functools.partial(apply, "add"), terms)


def like(value: float | Size, x: Scalar) -> Scalar:
    """The number in the dtype of `x`."""
    return number(value, x.dtype)


def select(condition: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
    """`condition ? then : otherwise`."""
    if isinstance(condition, Const):
        return then if condition.value else otherwise
    return nodes.op("where", (condition, then, otherwise), then.dtype)
