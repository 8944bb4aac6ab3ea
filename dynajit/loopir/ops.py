"""The table of scalar operations, and that of reductions.

In:  an operation's name.
Out: how many arguments, what dtypes, what it costs, its meaning (a torch function, for the reference interpreter),
     its C text. One more operation: one line here; where C needs a function of its own, its text in
     `codegen/c/mathlib.py`.

C text: `{0}` `{1}` `{2}` are the arguments, `{t}` the C type's suffix for library functions ("f" or ""), `{T}` the C
type, `{name}_{s}` a function of the C library part, where s is f32 or f64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dynajit.loopir.philox import uniform

FLOATS = frozenset({torch.float32, torch.float64})
INTS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
BOOL = frozenset({torch.bool})
LOW_PRECISION = frozenset({torch.bfloat16, torch.float16})
NUMBERS = FLOATS | INTS
ANY = NUMBERS | BOOL
SUPPORTED = ANY | LOW_PRECISION
# Of these there is no arithmetic, in eager neither: they are copied and converted.
FLOATS_OF_8_BITS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
STORED = SUPPORTED | FLOATS_OF_8_BITS


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One operation. `result` is "same" (as the arguments) or "bool"; `types` are the arguments' dtypes it is for."""

    arity: int
    types: frozenset[torch.dtype]
    result: str
    cost: int
    reference: Callable[..., Any]
    c: str
    c_int: str = ""  # for integers and bool, where that differs
    helper: str = ""  # function of the C library part that the text calls

    def text(self, dtype: torch.dtype) -> str:
        """The C text for arguments of that dtype."""
        return self.c_int if self.c_int and not dtype.is_floating_point else self.c


def _floats(cost: int, reference: Callable[..., Any], c: str, helper: str = "", arity: int = 1) -> ScalarOp:
    return ScalarOp(arity, FLOATS, "same", cost, reference, c, helper=helper)


def _compare(reference: Callable[..., Any], sign: str) -> ScalarOp:
    return ScalarOp(2, ANY, "bool", 1, reference, f"({{0}} {sign} {{1}})")


# Operations after which a kernel has to tell whether all was well.
CHECKS = frozenset({"inside", "wrapped"})


def _placed(place: torch.Tensor, size: torch.Tensor, wrap: int) -> torch.Tensor:
    place = torch.where(place < 0, place + size * wrap, place)
    if ((place < 0) | (place >= size)).any():
        raise IndexError("an index is outside of its tensor")
    return place


OPS: dict[str, ScalarOp] = {
    "add": ScalarOp(2, NUMBERS, "same", 1, torch.add, "({0} + {1})"),
    "sub": ScalarOp(2, NUMBERS, "same", 1, torch.sub, "({0} - {1})"),
    "mul": ScalarOp(2, NUMBERS, "same", 1, torch.mul, "({0} * {1})"),
    "div": _floats(4, torch.true_divide, "({0} / {1})", arity=2),
    # As `div`, for a divisor that is the same for many and between 1 and 2^24 (or NaN), and a dividend up to it.
    "ratio": _floats(3, torch.true_divide, "ratio_{s}({0}, {1})", "ratio", arity=2),
    # a * b + c, rounded once where the machine can: what torch's kernels make of it. For CPUs.
    "fma": _floats(
        1, lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype), "fma_{s}({0}, {1}, {2})", "fma", arity=3
    ),
    "neg": ScalarOp(1, NUMBERS, "same", 1, torch.neg, "(-{0})"),
    "abs": ScalarOp(1, NUMBERS, "same", 1, torch.abs, "__builtin_fabs{t}({0})", "({0} < 0 ? -{0} : {0})"),
    # NaN in either argument is the result.
    "maximum": ScalarOp(
        2, ANY, "same", 2, torch.maximum, "(({0} > {1} || {0} != {0}) ? {0} : {1})", "({0} > {1} ? {0} : {1})"
    ),
    "minimum": ScalarOp(
        2, ANY, "same", 2, torch.minimum, "(({0} < {1} || {0} != {0}) ? {0} : {1})", "({0} < {1} ? {0} : {1})"
    ),
    "eq": _compare(torch.eq, "=="),
    "ne": _compare(torch.ne, "!="),
    "lt": _compare(torch.lt, "<"),
    "le": _compare(torch.le, "<="),
    "gt": _compare(torch.gt, ">"),
    "ge": _compare(torch.ge, ">="),
    "and": ScalarOp(2, INTS | BOOL, "same", 1, torch.bitwise_and, "({0} & {1})"),
    "or": ScalarOp(2, INTS | BOOL, "same", 1, torch.bitwise_or, "({0} | {1})"),
    "xor": ScalarOp(2, INTS | BOOL, "same", 1, torch.bitwise_xor, "({0} ^ {1})"),
    "invert": ScalarOp(1, INTS, "same", 1, torch.bitwise_not, "(~{0})"),
    "not": ScalarOp(1, BOOL, "same", 1, torch.logical_not, "(!{0})"),
    "where": ScalarOp(3, ANY, "same", 1, torch.where, "({0} ? {1} : {2})"),
    # As `where`, but what is not chosen is not evaluated: it may read outside of a tensor.
    "guard": ScalarOp(3, ANY, "same", 1, torch.where, ""),
    # Division of integers by a constant that is not zero (and not -1): towards zero, and towards minus infinity.
    "intdiv": ScalarOp(2, INTS, "same", 4, lambda a, b: torch.div(a, b, rounding_mode="trunc"), "({0} / {1})"),
    "floordiv": ScalarOp(
        2,
        INTS,
        "same",
        6,
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "({0} / {1} - (({0} % {1} != 0) & (({0} % {1} < 0) != ({1} < 0))))",
    ),
    "intmod": ScalarOp(
        2,
        INTS,
        "same",
        6,
        torch.remainder,
        "({0} % {1} + ((({0} % {1} != 0) & (({0} % {1} < 0) != ({1} < 0))) ? {1} : 0))",
    ),
    "sqrt": _floats(4, torch.sqrt, "__builtin_sqrt{t}({0})"),
    "floor": _floats(1, torch.floor, "__builtin_floor{t}({0})"),
    "ceil": _floats(1, torch.ceil, "__builtin_ceil{t}({0})"),
    "trunc": _floats(1, torch.trunc, "__builtin_trunc{t}({0})"),
    "round": _floats(1, torch.round, "__builtin_rint{t}({0})"),
    "copysign": _floats(1, torch.copysign, "__builtin_copysign{t}({0}, {1})", arity=2),
    "exp": _floats(10, torch.exp, "exp_{s}({0})", "exp"),
    "exp2": _floats(12, torch.exp2, "exp2_{s}({0})", "exp2"),
    "expm1": _floats(14, torch.expm1, "expm1_{s}({0})", "expm1"),
    "log": _floats(12, torch.log, "log_{s}({0})", "log"),
    "log2": _floats(14, torch.log2, "log2_{s}({0})", "log2"),
    "log10": _floats(14, torch.log10, "log10_{s}({0})", "log10"),
    "log1p": _floats(14, torch.log1p, "log1p_{s}({0})", "log1p"),
    "sin": _floats(14, torch.sin, "sin_{s}({0})", "sin"),
    "cos": _floats(14, torch.cos, "cos_{s}({0})", "cos"),
    "tan": _floats(20, torch.tan, "tan_{s}({0})", "tan"),
    "asin": _floats(20, torch.asin, "asin_{s}({0})", "asin"),
    "acos": _floats(20, torch.acos, "acos_{s}({0})", "acos"),
    "atan": _floats(20, torch.atan, "atan_{s}({0})", "atan"),
    "sinh": _floats(20, torch.sinh, "sinh_{s}({0})", "sinh"),
    "cosh": _floats(20, torch.cosh, "cosh_{s}({0})", "cosh"),
    "tanh": _floats(12, torch.tanh, "tanh_{s}({0})", "tanh"),
    "asinh": _floats(25, torch.asinh, "asinh_{s}({0})", "asinh"),
    "acosh": _floats(25, torch.acosh, "acosh_{s}({0})", "acosh"),
    "atanh": _floats(25, torch.atanh, "atanh_{s}({0})", "atanh"),
    "erf": _floats(14, torch.erf, "erf_{s}({0})", "erf"),
    "erfc": _floats(25, torch.erfc, "erfc_{s}({0})", "erfc"),
    "pow": _floats(30, torch.pow, "pow_{s}({0}, {1})", "pow", arity=2),
    "fmod": _floats(20, torch.fmod, "fmod_{s}({0}, {1})", "fmod", arity=2),
    "atan2": _floats(25, torch.atan2, "atan2_{s}({0}, {1})", "atan2", arity=2),
    # A place (of int64) in so many: itself, and from the end where `wrapped` is told to. Outside, the kernel fails.
    "inside": ScalarOp(2, INTS, "same", 2, lambda place, size: _placed(place, size, 0), "INSIDE({0}, {1})"),
    "wrapped": ScalarOp(2, INTS, "same", 3, lambda place, size: _placed(place, size, 1), "WRAPPED({0}, {1})"),
    # A number of the generator's state: the number itself, and the address of what is added to it, or 0.
    "state": ScalarOp(2, INTS, "same", 0, lambda value, at: value, ""),
    # A float32 above 0 and up to 1, for the generator's seed and offset: see `philox.py`. For GPUs.
    "uniform": ScalarOp(5, INTS, "any", 60, uniform, ""),
    # An element of a tensor where values say (`nodes.Fetch`), and of its memory (`schedule.loops.LoadAt`).
    "fetch": ScalarOp(-1, INTS, "any", 4, lambda *arguments: None, ""),
    # Any dtype to any: the result's C type is known to the printer.
    "convert": ScalarOp(1, STORED, "any", 1, torch.Tensor.to, ""),
    # The float64 that has the bits of an int64: a Python float that is known when the graph runs (`size.py`).
    "from_bits": ScalarOp(
        1,
        frozenset({torch.int64}),
        "any",
        0,
        lambda bits: bits.view(torch.float64),
        "((union {{ int64_t bits; double value; }}){{{0}}}).value",
    ),
}


@dataclass(frozen=True, slots=True)
class ReduceOp:
    """How elements are combined: `combine` a scalar operation, `start` the value for no elements."""

    combine: str
    start: Callable[[torch.dtype], bool | int | float]


def _lowest(dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return False
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return True
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


REDUCTIONS: dict[str, ReduceOp] = {
    "sum": ReduceOp("add", lambda dtype: 0),
    "prod": ReduceOp("mul", lambda dtype: 1),
    "max": ReduceOp("maximum", _lowest),
    # As `max`, but where some are NaN it may be the greatest of the others: cheaper, where NaNs show by other means.
    "peak": ReduceOp("maximum", _lowest),
    "min": ReduceOp("minimum", _highest),
}
