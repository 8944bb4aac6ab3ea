"""CPython 3.14: raw opcodes to canonical ones and back.

In: opcode names and arguments as `dis` of 3.14 knows them. Out: TABLE, LOWER and the few facts of `common.Target`.
What is new since 3.13: small integers and some builtins have loads of their own; loads may borrow; indexing is a
BINARY_OP; `with` looks its two methods up by LOAD_SPECIAL, which leaves two slots for each; CALL_FUNCTION_EX always
has a slot for keyword arguments; template strings are new.
"""

from __future__ import annotations

import builtins
from typing import Any, Final

from dynajit.bytecode.common import (
    BINARY_ARGS,
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
from dynajit.bytecode.common import binary_op as common_binary_op
from dynajit.bytecode.py313 import JUMP_PREFIXES as JUMP_PREFIXES
from dynajit.bytecode.py313 import LOCALS_ARE_ANEW as LOCALS_ARE_ANEW
from dynajit.bytecode.py313 import LOWER as LOWER_313
from dynajit.bytecode.py313 import NULL_AFTER_CALLABLE as NULL_AFTER_CALLABLE
from dynajit.bytecode.py313 import TABLE as TABLE_313
from dynajit.bytecode.py313 import pair

_GONE: Final = frozenset(
    {"BINARY_SUBSCR", "BEFORE_WITH", "BEFORE_ASYNC_WITH", "BUILD_CONST_KEY_MAP", "LOAD_ASSERTION_ERROR", "RETURN_CONST"}
)
_SAME: Final[Names] = {Kind.NONE: "BUILD_TEMPLATE"}
#: BINARY_OP's argument for container[key]
_SUBSCRIPT: Final = len(BINARY_ARGS)
#: LOAD_COMMON_CONSTANT's argument → object (Include/internal/pycore_opcode_utils.h); 0 is AssertionError
_COMMON_CONSTANTS: Final = (AssertionError, NotImplementedError, tuple, builtins.all, builtins.any)
#: LOAD_SPECIAL's argument → method
_SPECIAL: Final = ("__enter__", "__exit__", "__aenter__", "__aexit__")


def _binary_op(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    return (("BINARY_SUBSCR", None),) if arg == _SUBSCRIPT else common_binary_op(tables, arg)


def _common_constant(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    if arg >= len(_COMMON_CONSTANTS):
        return (("UNKNOWN", ("LOAD_COMMON_CONSTANT", arg)),)
    return (("LOAD_CONST", _COMMON_CONSTANTS[arg]),) if arg else (("LOAD_ASSERTION_ERROR", None),)


def _lower_call_function_ex(has_kwargs: Any) -> tuple[RawOp, ...]:
    call = RawOp("CALL_FUNCTION_EX")
    return (call,) if has_kwargs else (RawOp("PUSH_NULL"), call)


TABLE: Final[dict[str, Decoding]] = {
    **{name: decoding for name, decoding in TABLE_313.items() if name not in _GONE},
    **same(_SAME),
    "LOAD_FAST_BORROW": TABLE_313["LOAD_FAST"],
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": pair("LOAD_FAST", "LOAD_FAST"),
    "LOAD_SMALL_INT": one("LOAD_CONST", int),
    "LOAD_COMMON_CONSTANT": custom(_common_constant),
    "LOAD_SPECIAL": one("LOAD_SPECIAL", _SPECIAL.__getitem__),
    "WITH_EXCEPT_START": one("WITH_EXCEPT_START", lambda arg: True),
    "BINARY_OP": custom(_binary_op),
    # the slot on top is NULL where there are no keyword arguments
    "CALL_FUNCTION_EX": one("CALL_FUNCTION_EX", lambda arg: True),
    "BUILD_INTERPOLATION": one("BUILD_INTERPOLATION", lambda arg: (CONVERSIONS[arg >> 2], bool(arg & 1))),
    "POP_ITER": Decoding("POP_TOP"),
    "NOT_TAKEN": Decoding("NOP"),
}

LOWER: Final[dict[str, Lower]] = {
    **{name: lower for name, lower in LOWER_313.items() if name not in _GONE},
    **same_lower(_SAME),
    "BINARY_SUBSCR": lambda arg: (RawOp("BINARY_OP", Kind.INT, _SUBSCRIPT),),
    "LOAD_ASSERTION_ERROR": lambda arg: (RawOp("LOAD_COMMON_CONSTANT", Kind.INT, 0),),
    "LOAD_SPECIAL": lower_int("LOAD_SPECIAL", _SPECIAL.index),
    "CALL_FUNCTION_EX": _lower_call_function_ex,
    # bit 1, which CPython's compiler sets, says nothing
    "BUILD_INTERPOLATION": lower_int("BUILD_INTERPOLATION", lambda arg: CONVERSIONS.index(arg[0]) << 2 | 2 | arg[1]),
    # n would read where the exception was first raised, a tagged number that only the interpreter can put on the stack;
    # it is for frame.f_lineno, and tracebacks have their line already
    "RERAISE": lambda arg: (RawOp("RERAISE", Kind.INT, 0),),
    "RETURN_CONST": lambda arg: (RawOp("LOAD_CONST", Kind.CONST, arg), RawOp("RETURN_VALUE")),
}

#: FOR_ITER's jump finds END_FOR (which the interpreter then skips) and POP_ITER; SEND leaves the receiver to END_SEND
LANDINGS: Final[dict[str, tuple[RawOp, ...]]] = {
    "FOR_ITER": (RawOp("END_FOR"), RawOp("POP_ITER")),
    "SEND": (RawOp("END_SEND"),),
}
