"""What the languages of kernels call the dtypes: one more dtype is one more row.

In:  nothing. Out: `DTYPES`: the types of an element in C and Triton, and of a pointer in a Triton kernel's signature.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class DtypeNames(NamedTuple):
    """An element's types, as memory holds it."""

    c: str
    triton: str
    pointer: str


DTYPES = {
    torch.float32: DtypeNames("float", "tl.float32", "*fp32"),
    torch.float64: DtypeNames("double", "tl.float64", "*fp64"),
    torch.bfloat16: DtypeNames("uint16_t", "tl.bfloat16", "*bf16"),
    torch.float16: DtypeNames("uint16_t", "tl.float16", "*fp16"),
    torch.bool: DtypeNames("uint8_t", "tl.int1", "*u8"),
    torch.uint8: DtypeNames("uint8_t", "tl.uint8", "*u8"),
    torch.int8: DtypeNames("int8_t", "tl.int8", "*i8"),
    torch.int16: DtypeNames("int16_t", "tl.int16", "*i16"),
    torch.int32: DtypeNames("int32_t", "tl.int32", "*i32"),
    torch.int64: DtypeNames("int64_t", "tl.int64", "*i64"),
    torch.float8_e4m3fn: DtypeNames("uint8_t", "tl.uint8", "*u8"),
    torch.float8_e5m2: DtypeNames("uint8_t", "tl.uint8", "*u8"),
}
