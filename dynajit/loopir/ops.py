"""The table of scalar operations, and that of reductions.

In:  an operation's name.
Out: how many arguments, what dtypes, what it costs, its meaning (a torch function, for the tests' interpreter), its
     text in C and in Triton. One more operation: one line here; where a text calls a function of its own, that one's
     text in `codegen/c/mathlib.py` or in `HELPERS` of `codegen/triton/functions.py`.

Texts: `{0}` `{1}` `{2}` are the arguments. In C `{t}` is the type's suffix for library functions ("f" or ""), `{T}` the
type, `{name}_{s}` a function of the C library part, where s is f32 or f64. In Triton `lib` is CUDA's library: without
fast-math flags its results are those of eager's kernels; division and square root round to nearest as there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dynajit.loopir.philox import uniform
from dynajit.op_facts import LOW_PRECISION

FLOATS = frozenset({torch.float32, torch.float64})
INTS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
BOOL = frozenset({torch.bool})
NUMBERS = FLOATS | INTS
ANY = NUMBERS | BOOL
SUPPORTED = ANY | LOW_PRECISION
# Of these there is no arithmetic, in eager neither: they are copied and converted.
FLOATS_OF_8_BITS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
STORED = SUPPORTED | FLOATS_OF_8_BITS
# Functions of one float that ATen and C's library have under the same name.
MATH_FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc"),
)


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One operation. `result` is "same" (as the arguments) or "bool"; `types` are the arguments' dtypes it is for. A
    text is empty where there is none or the printer has a rule of its own."""

    arity: int
    types: frozenset[torch.dtype]
    result: str
    cost: int
    reference: Callable[..., Any]
    c: str
    triton: str | None = None  # None: as in C
    triton_for: Mapping[torch.dtype, str] = field(default_factory=dict)  # where that differs
    c_int: str = ""  # for integers and bool, where that differs
    helper: str = ""  # function of the C library part that the text calls

    def text(self, dtype: torch.dtype) -> str:
        """The C text for arguments of that dtype."""
        return self.c_int if self.c_int and not dtype.is_floating_point else self.c

    def triton_text(self, dtype: torch.dtype) -> str:
        """The Triton text for arguments of that dtype; empty if there is none."""
        return self.triton_for.get(dtype) or (self.c if self.triton is None else self.triton)


def _floats(
    cost: int, reference: Callable[..., Any], c: str, triton: str | None = None, single: str = "", arity: int = 1
) -> ScalarOp:
    """An operation on floats; `single`: its Triton text for float32, where that differs."""
    name, calls, _ = c.partition("_{s}(")
    other = {torch.float32: single} if single else {}
    return ScalarOp(arity, FLOATS, "same", cost, reference, c, triton, other, helper=name if calls else "")


def _library(cost: int, reference: Callable[..., Any], arity: int = 1) -> ScalarOp:
    """A function of one name in torch, the C library part and CUDA's library."""
    name, arguments = reference.__name__, ", ".join(f"{{{at}}}" for at in range(arity))
    return _floats(cost, reference, f"{name}_{{s}}({arguments})", f"lib.{name}({arguments})", arity=arity)


def _compare(reference: Callable[..., Any], sign: str, of_bools: str = "") -> ScalarOp:
    """`of_bools`: in Triton, where true is -1; the order of truth values is that of 0 and 1."""
    other = {torch.bool: of_bools} if of_bools else {}
    return ScalarOp(2, ANY, "bool", 1, reference, f"({{0}} {sign} {{1}})", triton_for=other)


def _extreme(reference: Callable[..., Any], sign: str, of_bools: str) -> ScalarOp:
    """The greater or the lesser; NaN in either argument is the result."""
    return ScalarOp(
        2,
        ANY,
        "same",
        2,
        reference,
        f"(({{0}} {sign} {{1}} || {{0}} != {{0}}) ? {{0}} : {{1}})",
        f"tl.{reference.__name__}({{0}}, {{1}}, propagate_nan=tl.PropagateNan.ALL)",
        {torch.bool: of_bools},
        c_int=f"({{0}} {sign} {{1}} ? {{0}} : {{1}})",
    )


# Operations after which a kernel has to tell whether all was well.
CHECKS = frozenset({"inside", "wrapped"})


def _placed(place: torch.Tensor, size: torch.Tensor, wrap: int) -> torch.Tensor:
    place = torch.where(place < 0, place + size * wrap, place)
    if ((place < 0) | (place >= size)).any():
        raise IndexError("an index is outside of its tensor")
    return place


_LIBRARY = (
    *(_library(10, torch.exp), _library(12, torch.exp2), _library(14, torch.expm1)),
    *(_library(12, torch.log), _library(14, torch.log2), _library(14, torch.log10), _library(14, torch.log1p)),
    *(_library(14, torch.sin), _library(14, torch.cos), _library(20, torch.tan)),
    *(_library(20, torch.asin), _library(20, torch.acos), _library(20, torch.atan), _library(25, torch.atan2, 2)),
    *(_library(20, torch.sinh), _library(20, torch.cosh), _library(12, torch.tanh)),
    *(_library(25, torch.asinh), _library(25, torch.acosh), _library(25, torch.atanh)),
    *(_library(14, torch.erf), _library(25, torch.erfc), _library(30, torch.pow, 2), _library(20, torch.fmod, 2)),
    _library(12, torch.hypot, 2),
)
# Whether a division of integers by a constant, towards zero, is one more than that towards minus infinity.
_INEXACT = "(({0} % {1} != 0) & (({0} % {1} < 0) != ({1} < 0)))"

OPS: dict[str, ScalarOp] = {
    "add": ScalarOp(2, NUMBERS, "same", 1, torch.add, "({0} + {1})"),
    "sub": ScalarOp(2, NUMBERS, "same", 1, torch.sub, "({0} - {1})"),
    "mul": ScalarOp(2, NUMBERS, "same", 1, torch.mul, "({0} * {1})"),
    "div": _floats(4, torch.true_divide, "({0} / {1})", single="tl.div_rn({0}, {1})", arity=2),
    # As `div`, for a divisor that is the same for many and between 1 and 2^24 (or NaN), and a dividend up to it.
    "ratio": _floats(3, torch.true_divide, "ratio_{s}({0}, {1})", "({0} / {1})", "tl.div_rn({0}, {1})", arity=2),
    # a * b + c, rounded once where the machine can: what torch's kernels make of it. For CPUs.
    "fma": _floats(
        1, lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype), "fma_{s}({0}, {1}, {2})", "", arity=3
    ),
    # Minus in Triton is 0 - x, which loses the sign of zero.
    "neg": ScalarOp(1, NUMBERS, "same", 1, torch.neg, "(-{0})", "(0 - {0})", dict.fromkeys(FLOATS, "({0} * -1.0)")),
    "abs": ScalarOp(
        1, NUMBERS, "same", 1, torch.abs, "__builtin_fabs{t}({0})", "tl.abs({0})", c_int="({0} < 0 ? -{0} : {0})"
    ),
    "maximum": _extreme(torch.maximum, ">", "({0} | {1})"),
    "minimum": _extreme(torch.minimum, "<", "({0} & {1})"),
    "eq": _compare(torch.eq, "=="),
    "ne": _compare(torch.ne, "!="),
    "lt": _compare(torch.lt, "<", "(({0} == 0) & {1})"),
    "le": _compare(torch.le, "<=", "(({0} == 0) | {1})"),
    "gt": _compare(torch.gt, ">", "({0} & ({1} == 0))"),
    "ge": _compare(torch.ge, ">=", "({0} | ({1} == 0))"),
    "and": ScalarOp(2, INTS | BOOL, "same", 1, torch.bitwise_and, "({0} & {1})"),
    "or": ScalarOp(2, INTS | BOOL, "same", 1, torch.bitwise_or, "({0} | {1})"),
    "xor": ScalarOp(2, INTS | BOOL, "same", 1, torch.bitwise_xor, "({0} ^ {1})"),
    "invert": ScalarOp(1, INTS, "same", 1, torch.bitwise_not, "(~{0})"),
    "not": ScalarOp(1, BOOL, "same", 1, torch.logical_not, "(!{0})", "({0} == 0)"),
    "where": ScalarOp(3, ANY, "same", 1, torch.where, "({0} ? {1} : {2})", "tl.where({0}, {1}, {2})"),
    # As `where`, but what is not chosen is not evaluated: it may read outside of a tensor.
    "guard": ScalarOp(3, ANY, "same", 1, torch.where, ""),
    # Division of integers by a constant that is not zero (and not -1): towards zero, and towards minus infinity.
    "intdiv": ScalarOp(
        2, INTS, "same", 4, lambda a, b: torch.div(a, b, rounding_mode="trunc"), "({0} / {1})", "({0} // {1})"
    ),
    "floordiv": ScalarOp(
        2,
        INTS,
        "same",
        6,
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        f"({{0}} / {{1}} - {_INEXACT})",
        "dj_floordiv({0}, {1})",
    ),
    "intmod": ScalarOp(
        2, INTS, "same", 6, torch.remainder, f"({{0}} % {{1}} + ({_INEXACT} ? {{1}} : 0))", "dj_intmod({0}, {1})"
    ),
    "sqrt": _floats(4, torch.sqrt, "__builtin_sqrt{t}({0})", "tl.sqrt({0})", "tl.sqrt_rn({0})"),
    "floor": _floats(1, torch.floor, "__builtin_floor{t}({0})", "tl.floor({0})"),
    "ceil": _floats(1, torch.ceil, "__builtin_ceil{t}({0})", "tl.ceil({0})"),
    "trunc": _floats(1, torch.trunc, "__builtin_trunc{t}({0})", "lib.trunc({0})"),
    "round": _floats(1, torch.round, "__builtin_rint{t}({0})", "lib.rint({0})"),
    "copysign": _floats(1, torch.copysign, "__builtin_copysign{t}({0}, {1})", "lib.copysign({0}, {1})", arity=2),
    **{operation.helper: operation for operation in _LIBRARY},
    # A place (of int64) in so many: itself, and from the end where `wrapped` is told to. Outside, the kernel fails.
    "inside": ScalarOp(2, INTS, "same", 2, lambda place, size: _placed(place, size, 0), ""),
    "wrapped": ScalarOp(2, INTS, "same", 3, lambda place, size: _placed(place, size, 1), ""),
    # A number of the generator's state: the number itself, and the address of what is added to it, or 0.
    "state": ScalarOp(2, INTS, "same", 0, lambda value, at: value, "", "dj_state({0}, {1})"),
    # A float32 above 0 and up to 1, for the generator's seed and offset: see `philox.py`. For GPUs.
    "uniform": ScalarOp(5, INTS, "any", 60, uniform, ""),
    # An element of a tensor where values say (`nodes.Fetch`), and of its memory (`schedule.loops.LoadAt`).
    "fetch": ScalarOp(-1, INTS, "any", 4, lambda *arguments: None, ""),
    # Any dtype to any: the result's type is known to the printer.
    "convert": ScalarOp(1, STORED, "any", 1, torch.Tensor.to, ""),
    # The float64 that has the bits of an int64: a Python float that is known when the graph runs (`size.py`).
    "from_bits": ScalarOp(
        1,
        frozenset({torch.int64}),
        "any",
        0,
        lambda bits: bits.view(torch.float64),
        "((union {{ int64_t bits; double value; }}){{{0}}}).value",
        "({0}).to(tl.int64).to(tl.float64, bitcast=True)",
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
# Further kinds of reduction, on GPUs: the mean, and squared distances to it added up. One loop finds both.
MOMENTS = ("mean", "squared_deviations")
