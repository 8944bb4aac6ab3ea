"""CPython 3.13: raw opcodes to canonical ones and back.

In: opcode names and arguments as `dis` of 3.13 knows them. Out: TABLE, LOWER and the few facts of `common.Target`.
What is new since 3.12: the NULL of a call stands above the callable; conditional jumps and UNARY_NOT want an exact
bool, which TO_BOOL or COMPARE_OP's flag makes; two loads or stores of locals share an instruction; keyword names of a
call are on the stack.
"""

from __future__ import annotations

from typing import Final

from dynajit.bytecode.common import (
    COMPARE_ARGS,
    COMPARE_SYMBOLS,
    CONVERSIONS,
    Canonical,
    Decoding,
    Kind,
    Lower,
    Names,
    RawOp,
    Tables,
    custom,
    lower_int,
    one,
    same,
    same_lower,
)
from dynajit.bytecode.py312 import COMPARE_MASKS
from dynajit.bytecode.py312 import LOWER as LOWER_312
from dynajit.bytecode.py312 import TABLE as TABLE_312

_GONE: Final = ("KW_NAMES", "FORMAT_VALUE", "LOAD_CLOSURE")
_SAME: Final[Names] = {Kind.NONE: "TO_BOOL", Kind.INT: "CALL_KW SET_FUNCTION_ATTRIBUTE"}


def _load_fast(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    name = tables.localsplus[arg]
    return (("LOAD_CLOSURE" if name in tables.cells else "LOAD_FAST", name),)


def pair(first: str, second: str) -> Decoding:
    """Two locals in one instruction, the first in the high four bits."""

    def convert(tables: Tables, arg: int) -> tuple[Canonical, ...]:
        high, low = tables.localsplus[arg >> 4], tables.localsplus[arg & 15]
        ops = ((first, high), (second, low))
        # a cell that is loaded as a local is loaded to be captured
        return tuple(("LOAD_CLOSURE" if op == "LOAD_FAST" and n in tables.cells else op, n) for op, n in ops)

    return custom(convert)


def _compare(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    compare = ("COMPARE_OP", COMPARE_SYMBOLS[arg >> 5])
    return (compare, ("TO_BOOL", None)) if arg & 16 else (compare,)


def _lower_call(arg: tuple[int, tuple[str, ...]]) -> tuple[RawOp, ...]:
    argc, kwnames = arg
    if kwnames:
        return (RawOp("LOAD_CONST", Kind.CONST, kwnames), RawOp("CALL_KW", Kind.INT, argc))
    return (RawOp("CALL", Kind.INT, argc),)


def _lower_make_function(flags: int) -> tuple[RawOp, ...]:
    attributes = (RawOp("SET_FUNCTION_ATTRIBUTE", Kind.INT, flag) for flag in (8, 4, 2, 1) if flags & flag)
    return (RawOp("MAKE_FUNCTION"), *attributes)


def _lower_format(arg: tuple[str | None, bool]) -> tuple[RawOp, ...]:
    conversion, has_spec = arg
    swap = (RawOp("SWAP", Kind.INT, 2),) if has_spec else ()
    convert = (RawOp("CONVERT_VALUE", Kind.INT, CONVERSIONS.index(conversion)),)
    formatting = RawOp("FORMAT_WITH_SPEC" if has_spec else "FORMAT_SIMPLE")
    return (*swap, *convert, *swap, formatting) if conversion else (formatting,)


TABLE: Final[dict[str, Decoding]] = {
    **{name: decoding for name, decoding in TABLE_312.items() if name not in _GONE},
    **same(_SAME),
    "LOAD_FAST": custom(_load_fast),
    "LOAD_FAST_LOAD_FAST": pair("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": pair("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": pair("STORE_FAST", "STORE_FAST"),
    "END_FOR": one("END_FOR", lambda arg: 1),
    "MAKE_FUNCTION": custom(lambda tables, arg: (("MAKE_FUNCTION", 0),)),
    "CALL": one("CALL", lambda arg: (arg, ())),
    "COMPARE_OP": custom(_compare),
    "CONVERT_VALUE": one("CONVERT_VALUE", CONVERSIONS.__getitem__),
    "FORMAT_SIMPLE": custom(lambda tables, arg: (("FORMAT_VALUE", (None, False)),)),
    "FORMAT_WITH_SPEC": custom(lambda tables, arg: (("FORMAT_VALUE", (None, True)),)),
}

LOWER: Final[dict[str, Lower]] = {
    **LOWER_312,
    **same_lower(_SAME),
    "LOAD_CLOSURE": lambda name: (RawOp("LOAD_FAST", Kind.CELL, name),),
    "MAKE_FUNCTION": _lower_make_function,
    "CALL": _lower_call,
    "COMPARE_OP": lower_int("COMPARE_OP", lambda symbol: COMPARE_ARGS[symbol] << 5 | COMPARE_MASKS[symbol]),
    "CONVERT_VALUE": lower_int("CONVERT_VALUE", CONVERSIONS.index),
    "FORMAT_VALUE": _lower_format,
    "UNARY_NOT": lambda arg: (RawOp("TO_BOOL"), RawOp("UNARY_NOT")),
}

#: FOR_ITER's jump finds END_FOR and POP_TOP (which the interpreter then skips); SEND leaves the receiver to END_SEND
LANDINGS: Final[dict[str, tuple[RawOp, ...]]] = {
    "FOR_ITER": (RawOp("END_FOR"), RawOp("POP_TOP")),
    "SEND": (RawOp("END_SEND"),),
}
JUMP_PREFIXES: Final[dict[str, tuple[RawOp, ...]]] = {
    "POP_JUMP_IF_TRUE": (RawOp("TO_BOOL"),),
    "POP_JUMP_IF_FALSE": (RawOp("TO_BOOL"),),
}
NULL_AFTER_CALLABLE: Final = True
LOCALS_ARE_ANEW: Final = True
