"""CPython 3.12: raw opcodes to canonical ones and back.

In: opcode names and arguments as `dis` of 3.12 knows them. Out: TABLE, LOWER and the few facts of `common.Target`.
"""

from __future__ import annotations

from typing import Final

from dynajit.bytecode.common import (
    COMPARE_ARGS,
    COMPARE_SYMBOLS,
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
from dynajit.bytecode.common import LOWER as COMMON_LOWER
from dynajit.bytecode.common import TABLE as COMMON_TABLE

_SAME: Final[Names] = {
    Kind.NONE: "BINARY_SLICE STORE_SLICE END_SEND CLEANUP_THROW LOAD_LOCALS",
    # of YIELD_VALUE the depth of the stack of exception blocks
    Kind.INT: "YIELD_VALUE",
    Kind.CONST: "RETURN_CONST",
    Kind.LOCAL: "LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR",
    Kind.NAME: "LOAD_FROM_DICT_OR_GLOBALS",
    Kind.CELL: "LOAD_FROM_DICT_OR_DEREF",
}
_JUMPS: Final = "POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE"

#: intrinsics that older Pythons had as opcodes, or that are operators
_INTRINSIC_OPS: Final = {
    1: "PRINT_EXPR",
    2: "IMPORT_STAR",
    4: "ASYNC_GEN_WRAP",
    5: "UNARY_POSITIVE",
    6: "LIST_TO_TUPLE",
}
INTRINSICS_1: Final[tuple[str, ...]] = (
    "INTRINSIC_1_INVALID",
    "INTRINSIC_PRINT",
    "INTRINSIC_IMPORT_STAR",
    "INTRINSIC_STOPITERATION_ERROR",
    "INTRINSIC_ASYNC_GEN_WRAP",
    "INTRINSIC_UNARY_POSITIVE",
    "INTRINSIC_LIST_TO_TUPLE",
    "INTRINSIC_TYPEVAR",
    "INTRINSIC_PARAMSPEC",
    "INTRINSIC_TYPEVARTUPLE",
    "INTRINSIC_SUBSCRIPT_GENERIC",
    "INTRINSIC_TYPEALIAS",
)
INTRINSICS_2: Final[tuple[str, ...]] = (
    "INTRINSIC_2_INVALID",
    "INTRINSIC_PREP_RERAISE_STAR",
    "INTRINSIC_TYPEVAR_WITH_BOUND",
    "INTRINSIC_TYPEVAR_WITH_CONSTRAINTS",
    "INTRINSIC_SET_FUNCTION_TYPE_PARAMS",
    "INTRINSIC_SET_TYPEPARAM_DEFAULT",
)
#: IMPORT_STAR and PRINT_EXPR pop their operand; the intrinsics push a None that the compiler pops next, so they stay
#: intrinsics
_KEPT: Final = frozenset({"PRINT_EXPR", "IMPORT_STAR"})


def intrinsic_1(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    """CALL_INTRINSIC_1 to the canonical op it stands for, or to its name."""
    op = _INTRINSIC_OPS.get(arg)
    if op is not None and op not in _KEPT:
        return ((op, None),)
    if arg < len(INTRINSICS_1):
        return (("CALL_INTRINSIC_1", INTRINSICS_1[arg]),)
    return (("UNKNOWN", ("CALL_INTRINSIC_1", arg)),)


def intrinsic_2(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    """CALL_INTRINSIC_2, likewise."""
    if arg == 1:
        return (("PREP_RERAISE_STAR", None),)
    if arg < len(INTRINSICS_2):
        return (("CALL_INTRINSIC_2", INTRINSICS_2[arg]),)
    return (("UNKNOWN", ("CALL_INTRINSIC_2", arg)),)


def _lower_intrinsic(number: int, opname: str = "CALL_INTRINSIC_1") -> Lower:
    return lambda arg: (RawOp(opname, Kind.INT, number),)


LOWER_INTRINSICS: Final[dict[str, Lower]] = {
    "CALL_INTRINSIC_1": lower_int("CALL_INTRINSIC_1", INTRINSICS_1.index),
    "CALL_INTRINSIC_2": lower_int("CALL_INTRINSIC_2", INTRINSICS_2.index),
    "ASYNC_GEN_WRAP": _lower_intrinsic(4),
    "UNARY_POSITIVE": _lower_intrinsic(5),
    "LIST_TO_TUPLE": _lower_intrinsic(6),
    "PREP_RERAISE_STAR": _lower_intrinsic(1, "CALL_INTRINSIC_2"),
    "PRINT_EXPR": lambda arg: (RawOp("CALL_INTRINSIC_1", Kind.INT, 1), RawOp("POP_TOP")),
    "IMPORT_STAR": lambda arg: (RawOp("CALL_INTRINSIC_1", Kind.INT, 2), RawOp("POP_TOP")),
}


def _lower_call(arg: tuple[int, tuple[str, ...]]) -> tuple[RawOp, ...]:
    argc, kwnames = arg
    call = RawOp("CALL", Kind.INT, argc)
    return (RawOp("KW_NAMES", Kind.CONST, kwnames), call) if kwnames else (call,)


def load_attr(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    """LOAD_ATTR's low bit makes it LOAD_METHOD."""
    return (("LOAD_METHOD" if arg & 1 else "LOAD_ATTR", tables.names[arg >> 1]),)


def load_super_attr(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    """Low bit: pushes method and self; next bit: two-argument super."""
    return (("LOAD_SUPER_ATTR", (tables.names[arg >> 2], bool(arg & 1), bool(arg & 2))),)


def _lower_super_attr(arg: tuple[str, bool, bool]) -> tuple[RawOp, ...]:
    name, is_method, two_arguments = arg
    return (RawOp("LOAD_SUPER_ATTR", Kind.NAME, name, 2, int(is_method) | 2 * int(two_arguments)),)


# The low four bits are a mask for the specialising interpreter: which of unordered (1), less (2), greater (4), equal
# (8) make the comparison true.
COMPARE_MASKS: Final = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}


def _compare(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    return (("COMPARE_OP", COMPARE_SYMBOLS[arg >> 4]),)


TABLE: Final[dict[str, Decoding]] = {
    **COMMON_TABLE,
    **same({**_SAME, Kind.FORWARD: _JUMPS}),
    "END_FOR": one("END_FOR", lambda arg: 2),
    "CALL_INTRINSIC_1": custom(intrinsic_1),
    "CALL_INTRINSIC_2": custom(intrinsic_2),
    "COMPARE_OP": custom(_compare),
    "LOAD_ATTR": custom(load_attr),
    "LOAD_SUPER_ATTR": custom(load_super_attr),
}

LOWER: Final[dict[str, Lower]] = {
    **COMMON_LOWER,
    **LOWER_INTRINSICS,
    **same_lower(_SAME),
    "END_FOR": lambda arg: (RawOp("END_FOR"),),
    "CALL": _lower_call,
    "COMPARE_OP": lower_int("COMPARE_OP", lambda symbol: COMPARE_ARGS[symbol] << 4 | COMPARE_MASKS[symbol]),
    "LOAD_ATTR": lambda arg: (RawOp("LOAD_ATTR", Kind.NAME, arg, 1, 0),),
    "LOAD_METHOD": lambda arg: (RawOp("LOAD_ATTR", Kind.NAME, arg, 1, 1),),
    "LOAD_SUPER_ATTR": _lower_super_attr,
}

#: FOR_ITER's jump must find an END_FOR (which the interpreter then skips); SEND leaves the receiver to END_SEND
LANDINGS: Final[dict[str, tuple[RawOp, ...]]] = {"FOR_ITER": (RawOp("END_FOR"),), "SEND": (RawOp("END_SEND"),)}
JUMP_PREFIXES: Final[dict[str, tuple[RawOp, ...]]] = {}
NULL_AFTER_CALLABLE: Final = False
LOCALS_ARE_ANEW: Final = False
