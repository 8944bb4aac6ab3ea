"""CPython 3.11: raw opcodes to canonical ones and back.

In: opcode names and arguments as `dis` of 3.11 knows them. Out: TABLE, LOWER and the few facts of `common.Target`.
"""

from __future__ import annotations

from typing import Final

from dynajit.bytecode.common import (
    COMPARE_ARGS,
    COMPARE_SYMBOLS,
    Decoding,
    Kind,
    Lower,
    Names,
    RawOp,
    lower_int,
    one,
    same,
    same_lower,
)
from dynajit.bytecode.common import LOWER as COMMON_LOWER
from dynajit.bytecode.common import TABLE as COMMON_TABLE

_SAME: Final[Names] = {
    Kind.NONE: "UNARY_POSITIVE LIST_TO_TUPLE IMPORT_STAR PREP_RERAISE_STAR ASYNC_GEN_WRAP PRINT_EXPR YIELD_VALUE",
    Kind.NAME: "LOAD_ATTR LOAD_METHOD",
    Kind.CELL: "LOAD_CLASSDEREF",
}


def _lower_call(arg: tuple[int, tuple[str, ...]]) -> tuple[RawOp, ...]:
    argc, kwnames = arg
    call = (RawOp("PRECALL", Kind.INT, argc), RawOp("CALL", Kind.INT, argc))
    return (RawOp("KW_NAMES", Kind.CONST, kwnames), *call) if kwnames else call


TABLE: Final[dict[str, Decoding]] = {
    **COMMON_TABLE,
    **same({**_SAME, Kind.FORWARD: "JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP"}),
    **{
        f"POP_JUMP_{way.name}_IF_{test}": Decoding(f"POP_JUMP_IF_{test}", way)
        for way in (Kind.FORWARD, Kind.BACKWARD)
        for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")
    },
    "PRECALL": Decoding("NOP"),
    "COMPARE_OP": one("COMPARE_OP", COMPARE_SYMBOLS.__getitem__),
}

LOWER: Final[dict[str, Lower]] = {
    **COMMON_LOWER,
    **same_lower(_SAME),
    "CALL": _lower_call,
    "COMPARE_OP": lower_int("COMPARE_OP", COMPARE_ARGS.__getitem__),
    # 3.11's LOAD_FAST checks by itself
    "LOAD_FAST_CHECK": lambda arg: (RawOp("LOAD_FAST", Kind.LOCAL, arg),),
    "RETURN_CONST": lambda arg: (RawOp("LOAD_CONST", Kind.CONST, arg), RawOp("RETURN_VALUE")),
}

LANDINGS: Final[dict[str, tuple[RawOp, ...]]] = {}
JUMP_PREFIXES: Final[dict[str, tuple[RawOp, ...]]] = {}
NULL_AFTER_CALLABLE: Final = False
LOCALS_ARE_ANEW: Final = False
