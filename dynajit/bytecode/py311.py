"""CPython 3.11: raw opcodes to canonical ones and back.

In: opcode names and arguments as `dis` of 3.11 knows them. Out: TABLE, LOWER and the few facts of `common.Target`.
"""

from __future__ import annotations

from typing import Final

from dynajit.bytecode.common import (
    COMPARE_ARGS,
    COMPARE_SYMBOLS,
    CONVERSIONS,
    Decoding,
    Kind,
    Lower,
    RawOp,
    call_after_kw_names,
    custom,
    kw_names,
    lower_int,
    one,
    same,
    same_lower,
)
from dynajit.bytecode.common import LOWER as COMMON_LOWER
from dynajit.bytecode.common import TABLE as COMMON_TABLE

_NONE: Final = (
    "BINARY_SUBSCR UNARY_POSITIVE LIST_TO_TUPLE IMPORT_STAR PREP_RERAISE_STAR BEFORE_WITH BEFORE_ASYNC_WITH "
    "ASYNC_GEN_WRAP PRINT_EXPR LOAD_ASSERTION_ERROR YIELD_VALUE"
)
_INT: Final = "BUILD_CONST_KEY_MAP MAKE_FUNCTION GET_AWAITABLE"
_NAME: Final = "LOAD_ATTR LOAD_METHOD"
_CELL: Final = "LOAD_CLOSURE LOAD_CLASSDEREF"


def _lower_call(arg: tuple[int, tuple[str, ...]]) -> tuple[RawOp, ...]:
    argc, kwnames = arg
    call = (RawOp("PRECALL", Kind.INT, argc), RawOp("CALL", Kind.INT, argc))
    return (RawOp("KW_NAMES", Kind.CONST, kwnames), *call) if kwnames else call


#: (raw name, canonical name, kind) of jumps
_JUMPS: Final = (
    ("JUMP_FORWARD", "JUMP", Kind.FORWARD),
    ("JUMP_BACKWARD", "JUMP", Kind.BACKWARD),
    ("JUMP_BACKWARD_NO_INTERRUPT", "JUMP", Kind.BACKWARD),
    ("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_TRUE", Kind.FORWARD),
    ("POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE", Kind.BACKWARD),
    ("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_FALSE", Kind.FORWARD),
    ("POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE", Kind.BACKWARD),
    ("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_IF_NONE", Kind.FORWARD),
    ("POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE", Kind.BACKWARD),
    ("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE", Kind.FORWARD),
    ("POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE", Kind.BACKWARD),
    ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_TRUE_OR_POP", Kind.FORWARD),
    ("JUMP_IF_FALSE_OR_POP", "JUMP_IF_FALSE_OR_POP", Kind.FORWARD),
    ("FOR_ITER", "FOR_ITER", Kind.FORWARD),
    ("SEND", "SEND", Kind.FORWARD),
)

TABLE: Final[dict[str, Decoding]] = {
    **COMMON_TABLE,
    **same(_NONE, Kind.NONE),
    **same(_INT, Kind.INT),
    **same(_NAME, Kind.NAME),
    **same(_CELL, Kind.CELL),
    **{raw: Decoding(op, kind) for raw, op, kind in _JUMPS},
    "PRECALL": Decoding("NOP"),
    "KW_NAMES": custom(kw_names),
    "CALL": custom(call_after_kw_names),
    "CALL_FUNCTION_EX": one("CALL_FUNCTION_EX", lambda arg: bool(arg & 1)),
    "COMPARE_OP": one("COMPARE_OP", COMPARE_SYMBOLS.__getitem__),
    "FORMAT_VALUE": one("FORMAT_VALUE", lambda arg: (CONVERSIONS[arg & 3], bool(arg & 4))),
}

LOWER: Final[dict[str, Lower]] = {
    **COMMON_LOWER,
    **same_lower(_NONE, Kind.NONE),
    **same_lower(_INT, Kind.INT),
    **same_lower(_NAME, Kind.NAME),
    **same_lower(_CELL, Kind.CELL),
    "CALL": _lower_call,
    "CALL_FUNCTION_EX": lower_int("CALL_FUNCTION_EX"),
    "COMPARE_OP": lower_int("COMPARE_OP", COMPARE_ARGS.__getitem__),
    "FORMAT_VALUE": lower_int("FORMAT_VALUE", lambda arg: CONVERSIONS.index(arg[0]) | (4 if arg[1] else 0)),
    # 3.11's LOAD_FAST checks by itself
    "LOAD_FAST_CHECK": lambda arg: (RawOp("LOAD_FAST", Kind.LOCAL, arg),),
    "RETURN_CONST": lambda arg: (RawOp("LOAD_CONST", Kind.CONST, arg), RawOp("RETURN_VALUE")),
}

LANDINGS: Final[dict[str, tuple[RawOp, ...]]] = {}
JUMP_PREFIXES: Final[dict[str, tuple[RawOp, ...]]] = {}
NULL_AFTER_CALLABLE: Final = False
LOCALS_ARE_ANEW: Final = False

_JUMP_NAMES: Final[dict[tuple[str, bool], str]] = {
    (op, kind is Kind.BACKWARD): raw for raw, op, kind in _JUMPS if raw != "JUMP_BACKWARD_NO_INTERRUPT"
}


def jump_opname(op: str, backward: bool) -> str | None:
    """The raw name of canonical jump `op`, or None where 3.11 has none for that direction."""
    return _JUMP_NAMES.get((op, backward))
