"""What the py3NN modules share: how a raw opcode's argument is read and written, and the opcodes that mean the same
in every known CPython.

In: raw opcode names and integer arguments. Out: `Decoding` (raw → canonical) and `RawOp` (canonical → raw) records,
`TABLE` and `LOWER` with the entries of 3.11 and 3.12, of which newer Pythons keep most and say which they don't. To
map an opcode that one Python has and another does not, put it into that Python's own module.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import CodeType
from typing import Any, Final, NamedTuple, Protocol


class Kind(enum.IntEnum):
    """What an integer argument stands for."""

    NONE = 0
    INT = 1
    CONST = 2
    LOCAL = 3
    CELL = 4
    NAME = 5
    FORWARD = 6
    BACKWARD = 7
    CUSTOM = 8


class Tables:
    """The tables of one code object that arguments index into."""

    __slots__ = ("cells", "consts", "kwnames", "localsplus", "names")

    def __init__(self, code: CodeType) -> None:
        varnames = code.co_varnames
        self.consts = code.co_consts
        self.names = code.co_names
        # One array of slots: locals, then cells that are not locals too, then free variables (Objects/codeobject.c,
        # "localsplus").
        self.localsplus = (*varnames, *(n for n in code.co_cellvars if n not in varnames), *code.co_freevars)
        self.cells = frozenset(code.co_cellvars).union(code.co_freevars)
        #: keyword names that the next CALL takes
        self.kwnames: tuple[str, ...] = ()


Canonical = tuple[str, Any]
Custom = Callable[[Tables, int], tuple[Canonical, ...]]


class Decoding(NamedTuple):
    """How one raw opcode is decoded. With Kind.CUSTOM `custom` gives the canonical instructions, else `op` and the
    argument's kind do."""

    op: str
    kind: Kind = Kind.NONE
    custom: Custom | None = None


class RawOp(NamedTuple):
    """One raw instruction to be emitted: the argument is (index of `value` in the table of `kind`) << shift | low."""

    opname: str
    kind: Kind = Kind.NONE
    value: Any = None
    shift: int = 0
    low: int = 0


Lower = Callable[[Any], tuple[RawOp, ...]]


class Target(Protocol):
    """What a py3NN module offers."""

    TABLE: dict[str, Decoding]
    LOWER: dict[str, Lower]
    #: canonical jump → raw instructions that must stand where it jumps to, and only take away what it left on the
    #: stack. Canonical FOR_ITER and SEND leave nothing and have the instruction behind as their target.
    LANDINGS: dict[str, tuple[RawOp, ...]]
    #: canonical jump → raw instructions that make what it tests fit for it
    JUMP_PREFIXES: dict[str, tuple[RawOp, ...]]
    #: True where the NULL of a plain call stands above the callable (3.13+) rather than below
    NULL_AFTER_CALLABLE: bool
    LOCALS_ARE_ANEW: bool  # each locals() of a function gives a dictionary of its own (PEP 667)


_NUMBER_OPERATORS: Final = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")
#: BINARY_OP's argument → symbol (Include/opcode.h, NB_ADD …)
BINARY_SYMBOLS: Final[tuple[str, ...]] = _NUMBER_OPERATORS + tuple(s + "=" for s in _NUMBER_OPERATORS)
BINARY_ARGS: Final[dict[str, int]] = {symbol: i for i, symbol in enumerate(BINARY_SYMBOLS)}
COMPARE_SYMBOLS: Final[tuple[str, ...]] = ("<", "<=", "==", "!=", ">", ">=")
COMPARE_ARGS: Final[dict[str, int]] = {symbol: i for i, symbol in enumerate(COMPARE_SYMBOLS)}
CONVERSIONS: Final[tuple[str | None, ...]] = (None, "s", "r", "a")
#: a jump that is read, and never written
NO_INTERRUPT: Final = "JUMP_BACKWARD_NO_INTERRUPT"

#: names of opcodes by what their argument stands for
Names = dict[Kind, str]

_SAME: Final[Names] = {
    Kind.NONE: "NOP POP_TOP PUSH_NULL STORE_SUBSCR DELETE_SUBSCR UNARY_NEGATIVE UNARY_NOT UNARY_INVERT GET_ITER "
    "GET_LEN MATCH_MAPPING MATCH_SEQUENCE MATCH_KEYS LOAD_BUILD_CLASS RETURN_VALUE PUSH_EXC_INFO POP_EXCEPT "
    "CHECK_EXC_MATCH CHECK_EG_MATCH WITH_EXCEPT_START RETURN_GENERATOR GET_YIELD_FROM_ITER GET_AITER GET_ANEXT "
    "END_ASYNC_FOR SETUP_ANNOTATIONS BINARY_SUBSCR BEFORE_WITH BEFORE_ASYNC_WITH LOAD_ASSERTION_ERROR",
    Kind.INT: "COPY SWAP RESUME COPY_FREE_VARS BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_STRING BUILD_SLICE "
    "LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE LIST_APPEND SET_ADD MAP_ADD UNPACK_SEQUENCE MATCH_CLASS "
    "RAISE_VARARGS RERAISE BUILD_CONST_KEY_MAP MAKE_FUNCTION GET_AWAITABLE",
    Kind.LOCAL: "LOAD_FAST STORE_FAST DELETE_FAST",
    Kind.CELL: "MAKE_CELL LOAD_DEREF STORE_DEREF DELETE_DEREF LOAD_CLOSURE",
    Kind.NAME: "STORE_GLOBAL DELETE_GLOBAL LOAD_NAME STORE_NAME DELETE_NAME STORE_ATTR DELETE_ATTR IMPORT_NAME "
    "IMPORT_FROM",
    Kind.CONST: "LOAD_CONST",
}


def same(names: Names) -> dict[str, Decoding]:
    """Decodings of opcodes whose canonical name is the raw one."""
    return {name: Decoding(name, kind) for kind, several in names.items() for name in several.split()}


def same_lower(names: Names) -> dict[str, Lower]:
    """The way back for `same`."""

    def lower(name: str, kind: Kind) -> Lower:
        if kind is Kind.NONE:
            fixed = (RawOp(name),)
            return lambda arg: fixed
        return lambda arg: (RawOp(name, kind, arg),)

    return {name: lower(name, kind) for kind, several in names.items() for name in several.split()}


def kw_names(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    """KW_NAMES: the names of a call's keyword arguments, noted for the call after it."""
    tables.kwnames = tables.consts[arg]
    return (("NOP", None),)


def call_after_kw_names(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    """CALL, with the names noted."""
    kwnames, tables.kwnames = tables.kwnames, ()
    return (("CALL", (arg, kwnames)),)


def custom(function: Custom) -> Decoding:
    """A decoding computed by `function(tables, arg)`."""
    return Decoding("", Kind.CUSTOM, function)


def one(op: str, convert: Callable[[int], Any]) -> Decoding:
    """A decoding to `op` whose argument is `convert(raw argument)`."""
    return custom(lambda tables, arg: ((op, convert(arg)),))


def lower_int(opname: str, convert: Callable[[Any], int] = int) -> Lower:
    """Emit `opname` with the integer `convert(canonical argument)`."""
    return lambda arg: (RawOp(opname, Kind.INT, convert(arg)),)


def binary_op(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    """BINARY_OP's number to its symbol; a number from a newer Python is kept as UNKNOWN."""
    if arg < len(BINARY_SYMBOLS):
        return (("BINARY_OP", BINARY_SYMBOLS[arg]),)
    return (("UNKNOWN", ("BINARY_OP", arg)),)


def load_global(tables: Tables, arg: int) -> tuple[Canonical, ...]:
    """LOAD_GLOBAL's low bit asks for a NULL."""
    return (("LOAD_GLOBAL", (tables.names[arg >> 1], bool(arg & 1))),)


TABLE: Final[dict[str, Decoding]] = {
    **same({**_SAME, Kind.FORWARD: "FOR_ITER SEND"}),
    "JUMP_FORWARD": Decoding("JUMP", Kind.FORWARD),
    "JUMP_BACKWARD": Decoding("JUMP", Kind.BACKWARD),
    NO_INTERRUPT: Decoding("JUMP", Kind.BACKWARD),
    "LOAD_GLOBAL": custom(load_global),
    "BINARY_OP": custom(binary_op),
    "IS_OP": one("IS_OP", bool),
    "CONTAINS_OP": one("CONTAINS_OP", bool),
    "UNPACK_EX": one("UNPACK_EX", lambda arg: (arg & 0xFF, arg >> 8)),
    "KW_NAMES": custom(kw_names),
    "CALL": custom(call_after_kw_names),
    "CALL_FUNCTION_EX": one("CALL_FUNCTION_EX", lambda arg: bool(arg & 1)),
    "FORMAT_VALUE": one("FORMAT_VALUE", lambda arg: (CONVERSIONS[arg & 3], bool(arg & 4))),
}

LOWER: Final[dict[str, Lower]] = {
    **same_lower(_SAME),
    "LOAD_GLOBAL": lambda arg: (RawOp("LOAD_GLOBAL", Kind.NAME, arg[0], 1, int(arg[1])),),
    "BINARY_OP": lower_int("BINARY_OP", BINARY_ARGS.__getitem__),
    "IS_OP": lower_int("IS_OP"),
    "CONTAINS_OP": lower_int("CONTAINS_OP"),
    "UNPACK_EX": lower_int("UNPACK_EX", lambda arg: arg[0] | arg[1] << 8),
    "CALL_FUNCTION_EX": lower_int("CALL_FUNCTION_EX"),
    "FORMAT_VALUE": lower_int("FORMAT_VALUE", lambda arg: CONVERSIONS.index(arg[0]) | (4 if arg[1] else 0)),
}
