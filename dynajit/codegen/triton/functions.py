"""The Triton text of scalar operations and reductions, and the helper functions that it calls.

In:  an operation's name and its arguments' dtype. Out: a format string (`operation`), how elements are combined
     (`reduction`), a function's text (`HELPERS`). `Unprintable` for what has no text: the op it comes from is then left
     to torch.
One more operation: a line in `loopir.ops`; a helper function: its text in `HELPERS` under the name the line calls.
Constants are 0-dimensional tensors of the right dtype.
"""

from __future__ import annotations

import math
import re

import torch

from dynajit.codegen import float8
from dynajit.codegen.dtypes import DTYPES
from dynajit.codegen.triton import mathlib
from dynajit.loopir.nodes import Number, Tensor
from dynajit.loopir.ops import OPS, REDUCTIONS
from dynajit.op_facts import LOW_PRECISION

TYPES = {dtype: names.triton for dtype, names in DTYPES.items()}
# What a value of that dtype is in an expression.
VALUE_TYPES = TYPES | {torch.bfloat16: "tl.float32", torch.float16: "tl.float32"}
_TO_8_BITS = """
@triton.jit
def dj_to_{name}(x):
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    small = (tl.abs(x) + {added}).to(tl.uint32, bitcast=True) & 0xFF
    normal = ((size + {half} + ((size >> {shift}) & 1)) >> {shift}) - {bias}
    large = tl.where(size > 0x7F800000, 0x7F, {infinity})
    found = tl.where(size < {least}, small, tl.where(size < {most}, normal, large))
    return (found | ((bits >> 24) & 0x80)).to(tl.uint8)
"""
# In one instruction of the machine's, which Triton looks at as a function of float32.
_ROUNDED = """
@triton.jit
def dj_round_{name}(x):
    return tl.inline_asm_elementwise("{{ {code} }}", "=f,f", [x], tl.float32, is_pure=True, pack=1)
"""


_COMBINED = """
@triton.jit
def dj_{name}(a, b):
    return {value}
"""
_COMBINING = {
    "max": "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "min": "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "mul": "a * b",
    "add": "a + b",
    "or": "a | b",
    "and": "a & b",
}


class Unprintable(Exception):
    """There is no Triton text for this; `what` says for what."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


HELPERS: dict[str, str] = {
    **mathlib.TEXT,
    "dj_state": """
@triton.jit
def dj_state(value, at):
    where = at.to(tl.int64).to(tl.pointer_type(tl.int64))
    return value.to(tl.int64) + tl.load(where, mask=at != 0, other=0)
""",
    # Four numbers of 32 bits, as `loopir.philox`.
    "dj_philox": """
@triton.jit
def dj_philox(seed, offset, thread, step):
    counter = (offset >> 2) + step + (thread * 0).to(tl.int64)
    a, b, c = counter.to(tl.uint32), (counter >> 32).to(tl.uint32), thread.to(tl.uint32)
    d = c * 0
    one, two = tl.full([], 0xD2511F53, tl.uint32), tl.full([], 0xCD9E8D57, tl.uint32)
    first, second = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        left, right = tl.umulhi(a, one), tl.umulhi(c, two)
        b, d, a, c = c * two, a * one, right ^ b ^ first, left ^ d ^ second
        first += 0x9E3779B9
        second += 0xBB67AE85
    return a, b, c, d
""",
    "dj_unit": """
@triton.jit
def dj_unit(word):
    return word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
""",
    "dj_uniform": """
@triton.jit
def dj_uniform(seed, offset, thread, step, word):
    a, b, c, d = dj_philox(seed, offset, thread, step)
    return dj_unit(tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d)))
""",
    # Of a tile that ends in (n, 2, 2), neighbours that have the same thread and step: the words in order.
    "dj_uniform_fours": """
@triton.jit
def dj_uniform_fours(seed, offset, threads, steps):
    threads, _ = tl.split(threads)
    threads, _ = tl.split(threads)
    steps, _ = tl.split(steps)
    steps, _ = tl.split(steps)
    a, b, c, d = dj_philox(seed, offset, threads, steps)
    return tl.join(tl.join(dj_unit(a), dj_unit(c)), tl.join(dj_unit(b), dj_unit(d)))
""",
    # The kernel fails, as one of torch's does that finds an index outside of its tensor.
    "dj_refuse": """
@triton.jit
def dj_refuse(bad):
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $1, 0; @p trap; mov.u32 $0, $1; }",
        "=r,r", [bad.to(tl.int32)], tl.int32, is_pure=False, pack=1,
    )
""",
    # To a half and back by machine code that Triton doesn't look into.
    "dj_round_f16": _ROUNDED.format(name="f16", code=".reg .b16 half; cvt.rn.f16.f32 half, $1; cvt.f32.f16 $0, half;"),
    "dj_round_bf16": _ROUNDED.format(
        name="bf16",
        code=".reg .b16 half, zero; cvt.rn.bf16.f32 half, $1; mov.b16 zero, 0; mov.b32 $0, {zero, half};",
    ),
    **{f"dj_to_{encoding.name}": _TO_8_BITS.format(**encoding._asdict()) for encoding in float8.ENCODINGS},
    "dj_to_e4m3_saturated": """
@triton.jit
def dj_to_e4m3_saturated(x):
    found = dj_to_e4m3(x)
    return tl.where(((found & 0x7F) == 0x7F) & (x == x), found - 1, found)
""",
    "dj_from_e4m3": """
@triton.jit
def dj_from_e4m3(x):
    size = (x & 0x7F).to(tl.uint32)
    normal = ((size << 20) + 0x3C000000).to(tl.float32, bitcast=True)
    found = tl.where(size < 8, size.to(tl.float32) * 0.001953125, tl.where(size == 0x7F, float("nan"), normal))
    return tl.where(x < 0x80, found, found * -1.0)
""",
    "dj_from_e5m2": """
@triton.jit
def dj_from_e5m2(x):
    return (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
""",
    "dj_floordiv": """
@triton.jit
def dj_floordiv(a, b):
    q = a // b
    return tl.where(a - q * b < 0, q - 1, q)
""",
    "dj_intmod": """
@triton.jit
def dj_intmod(a, b):
    r = a - a // b * b
    return tl.where(r < 0, r + b, r)
""",
    **{f"dj_{name}": _COMBINED.format(name=name, value=value) for name, value in _COMBINING.items()},
}


def parameter_type(tensor: Tensor) -> str:
    """What a kernel's signature has for the tensor."""
    return "i64" if isinstance(tensor, Number) else DTYPES[tensor.dtype].pointer


def operation(name: str, dtype: torch.dtype) -> str:
    """The format string of an operation whose (last) argument has that dtype."""
    text = OPS[name].triton_text(dtype)
    if not text:
        raise Unprintable(f"operation {name} on {dtype}")
    return text


def conversion(source: torch.dtype, target: torch.dtype, value: str) -> str:
    """`value` as that dtype, with the meaning of `Tensor.to`. To bfloat16 and float16 is rounded; the value stays a
    float32."""
    if float8.encoding_of(source) is not None:
        value, source = f"dj_{float8.from_name(source)}({value})", torch.float32
    if float8.encoding_of(target) is not None:
        return f"dj_{float8.to_name(target)}({value}.to(tl.float32))"
    if target is torch.bool:
        return f"({value} != 0)"
    if target in LOW_PRECISION:
        single = value if source in LOW_PRECISION | {torch.float32} else f"{value}.to(tl.float32)"
        return f"{single}.to({TYPES[target]}).to(tl.float32)"
    if source.is_floating_point and target in (torch.uint8, torch.int8, torch.int16):
        return f"{value}.to(tl.int32).to({TYPES[target]})"
    return f"{value}.to({VALUE_TYPES[target]})"


def reduction(kind: str, dtype: torch.dtype) -> tuple[str, str]:
    """How a tile is combined along axis `{axis}`, and how two values are."""
    if kind == "sum":
        return "tl.reduce({0}, {axis}, dj_add)", "({0} + {1})"
    if kind not in REDUCTIONS:
        raise Unprintable(f"reduction {kind}")
    combine = REDUCTIONS[kind].combine
    if dtype is torch.bool:
        helper = {"maximum": "dj_or", "minimum": "dj_and"}.get(combine)
    else:
        helper = {"maximum": "dj_max", "minimum": "dj_min", "mul": "dj_mul", "add": "dj_add"}.get(combine)
    if helper is None:
        raise Unprintable(f"reduction {kind} of {dtype}")
    if dtype is torch.bool:  # whole numbers: there is no exchange of single bits between threads
        return f"(tl.reduce({{0}}.to(tl.int32), {{axis}}, {helper}) != 0)", operation(combine, dtype)
    return f"tl.reduce({{0}}, {{axis}}, {helper})", operation(combine, dtype)


def scan(kind: str) -> str:
    """The helper function that combines two values of a running sum or product."""
    return {"sum": "dj_add", "prod": "dj_mul"}[kind]


def number(value: bool | float, dtype: torch.dtype) -> str:
    """A constant as a 0-dimensional tensor."""
    if dtype.is_floating_point:
        value = float(value)
        text = f'float("{value}")' if math.isnan(value) or math.isinf(value) else repr(value)
    else:
        text = str(int(value))
    return f"tl.full([], {text}, {VALUE_TYPES[dtype]})"


def with_helpers(text: str) -> str:
    """A kernel's text after those of the helper functions that it calls."""
    return "".join(HELPERS[name] + "\n" for name in helpers_in(text)) + text


def helpers_in(text: str) -> list[str]:
    """The helper functions that a kernel's text calls, each after those it calls itself."""
    found: dict[str, None] = {}

    def visit(part: str) -> None:
        for name in re.findall(r"\bdj_\w+", part):
            if name in HELPERS and name not in found:
                body = HELPERS[name].replace(f"def {name}(", "")
                visit(re.sub(rf"\b{name}\b", "", body))
                found[name] = None

    visit(text)
    return list(found)
