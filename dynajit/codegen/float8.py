"""Floats of 8 bits: the names of the functions that convert them, and the numbers in those, for C and Triton alike.

In:  `float8_e4m3fn` or `float8_e5m2`. Out: `from_name` and `to_name`, functions from and to a float32 (a language puts
     its prefix before them), and `ENCODINGS`, with which templates of their texts are filled.
Rounding is to nearest, ties to even: below the least normal number the addition of a power of two does it. What is too
large is infinity in e5m2; in e4m3, which has none, NaN, or saturated, as torch's release has it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dynajit.torch_compat import FLOAT8_E4M3FN_SATURATES


class Encoding(NamedTuple):
    """The numbers that a conversion from float32 needs, as both languages write them."""

    name: str
    added: str  # to what lies below `least`; its last bits are then the result's
    half: str  # of the last bit that is kept, less one
    shift: int  # bits that are dropped
    bias: int  # between the exponents, shifted
    least: str  # bits of the least normal number
    most: str  # bits of the least number that is too large
    infinity: str


ENCODINGS = (
    Encoding("e4m3", "16384.0", "0x7ffff", 20, 960, "0x3c800000", "0x43f00000", "0x7f"),
    Encoding("e5m2", "128.0", "0xfffff", 21, 448, "0x38800000", "0x47800000", "0x7c"),
)
_NAMES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def encoding_of(dtype: torch.dtype) -> str | None:
    """The encoding's name; None for any other dtype."""
    return _NAMES.get(dtype)


def from_name(dtype: torch.dtype) -> str:
    """The function from that dtype to float32."""
    return f"from_{_NAMES[dtype]}"


def to_name(dtype: torch.dtype) -> str:
    """The function from float32 to that dtype."""
    saturated = dtype is torch.float8_e4m3fn and FLOAT8_E4M3FN_SATURATES
    return f"to_{_NAMES[dtype]}{'_saturated' if saturated else ''}"
