"""The canonical instruction set: what every supported CPython's bytecode is decoded to.

In: nothing. Out: `stack_effect(op, arg, jump)` for each canonical op, `stack_shape` (pops, pushes), and the sets that
say how control leaves an instruction. The canonical stack is CPython's own, slot by slot, NULLs included.

To add an op: one line in EFFECTS (and in JUMPS or TERMINATORS where control does not just fall through), then map to
it in the py3NN modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

Shape = tuple[int, int]


class Effect(NamedTuple):
    """Slots popped and pushed; either fixed or computed from (arg, jump)."""

    pops: int
    pushes: int
    compute: Callable[[Any, bool], Shape] | None = None


def _of(compute: Callable[[Any, bool], Shape]) -> Effect:
    return Effect(0, 0, compute)


def _build(arg: Any, jump: bool) -> Shape:
    return arg, 1


def _load_global(arg: Any, jump: bool) -> Shape:
    return 0, 2 if arg[1] else 1


def _load_super_attr(arg: Any, jump: bool) -> Shape:
    return 3, 2 if arg[1] else 1


def _call(arg: Any, jump: bool) -> Shape:
    return arg[0] + 2, 1


def _call_function_ex(arg: Any, jump: bool) -> Shape:
    # NULL, callable, positional arguments and, with has_kwargs, keyword arguments
    return (4 if arg else 3), 1


def _make_function(arg: Any, jump: bool) -> Shape:
    return 1 + bin(arg & 0x0F).count("1"), 1


def _jump_or_pop(arg: Any, jump: bool) -> Shape:
    return (1, 1) if jump else (1, 0)


def _for_iter(arg: Any, jump: bool) -> Shape:
    return (1, 0) if jump else (1, 2)


def _format_value(arg: Any, jump: bool) -> Shape:
    return (2 if arg[1] else 1), 1


def _unpack_ex(arg: Any, jump: bool) -> Shape:
    return 1, arg[0] + arg[1] + 1


#: Canonical op → effect. LIST_APPEND and its kin take the depth of the container as arg; they pop only the value.
EFFECTS: Final[dict[str, Effect]] = {
    "NOP": Effect(0, 0),
    "RESUME": Effect(0, 0),
    "MAKE_CELL": Effect(0, 0),
    "COPY_FREE_VARS": Effect(0, 0),
    "SETUP_ANNOTATIONS": Effect(0, 0),
    "POP_TOP": Effect(1, 0),
    "PUSH_NULL": Effect(0, 1),
    "COPY": _of(lambda n, jump: (n, n + 1)),
    "SWAP": _of(lambda n, jump: (n, n)),
    "LOAD_CONST": Effect(0, 1),
    "LOAD_FAST": Effect(0, 1),
    "LOAD_FAST_CHECK": Effect(0, 1),
    "LOAD_FAST_AND_CLEAR": Effect(0, 1),
    "STORE_FAST": Effect(1, 0),
    "DELETE_FAST": Effect(0, 0),
    "LOAD_CLOSURE": Effect(0, 1),
    "LOAD_DEREF": Effect(0, 1),
    "LOAD_CLASSDEREF": Effect(0, 1),
    "STORE_DEREF": Effect(1, 0),
    "DELETE_DEREF": Effect(0, 0),
    "LOAD_GLOBAL": _of(_load_global),
    "STORE_GLOBAL": Effect(1, 0),
    "DELETE_GLOBAL": Effect(0, 0),
    "LOAD_NAME": Effect(0, 1),
    "LOAD_LOCALS": Effect(0, 1),
    "LOAD_FROM_DICT_OR_GLOBALS": Effect(1, 1),
    "LOAD_FROM_DICT_OR_DEREF": Effect(1, 1),
    "STORE_NAME": Effect(1, 0),
    "DELETE_NAME": Effect(0, 0),
    "LOAD_ATTR": Effect(1, 1),
    "LOAD_METHOD": Effect(1, 2),
    "LOAD_SUPER_ATTR": _of(_load_super_attr),
    "STORE_ATTR": Effect(2, 0),
    "DELETE_ATTR": Effect(1, 0),
    "BINARY_OP": Effect(2, 1),
    "BINARY_SUBSCR": Effect(2, 1),
    "STORE_SUBSCR": Effect(3, 0),
    "DELETE_SUBSCR": Effect(2, 0),
    "BINARY_SLICE": Effect(3, 1),
    "STORE_SLICE": Effect(4, 0),
    "UNARY_NEGATIVE": Effect(1, 1),
    "UNARY_POSITIVE": Effect(1, 1),
    "UNARY_NOT": Effect(1, 1),
    "UNARY_INVERT": Effect(1, 1),
    "TO_BOOL": Effect(1, 1),
    "COMPARE_OP": Effect(2, 1),
    "IS_OP": Effect(2, 1),
    "CONTAINS_OP": Effect(2, 1),
    "BUILD_TUPLE": _of(_build),
    "BUILD_LIST": _of(_build),
    "BUILD_SET": _of(_build),
    "BUILD_STRING": _of(_build),
    "BUILD_SLICE": _of(_build),
    "BUILD_MAP": _of(lambda n, jump: (2 * n, 1)),
    "BUILD_CONST_KEY_MAP": _of(lambda n, jump: (n + 1, 1)),
    "LIST_EXTEND": _of(lambda n, jump: (n + 1, n)),
    "SET_UPDATE": _of(lambda n, jump: (n + 1, n)),
    "DICT_UPDATE": _of(lambda n, jump: (n + 1, n)),
    "DICT_MERGE": _of(lambda n, jump: (n + 1, n)),
    "LIST_APPEND": _of(lambda n, jump: (n + 1, n)),
    "SET_ADD": _of(lambda n, jump: (n + 1, n)),
    "MAP_ADD": _of(lambda n, jump: (n + 2, n)),
    "LIST_TO_TUPLE": Effect(1, 1),
    # strings, interpolations → template; value, its text and, if arg[1], format → interpolation (3.14+)
    "BUILD_TEMPLATE": Effect(2, 1),
    "BUILD_INTERPOLATION": _of(lambda arg, jump: (2 + arg[1], 1)),
    "CONVERT_VALUE": Effect(1, 1),
    "FORMAT_VALUE": _of(_format_value),
    "UNPACK_SEQUENCE": _of(lambda n, jump: (1, n)),
    "UNPACK_EX": _of(_unpack_ex),
    "GET_ITER": Effect(1, 1),
    "FOR_ITER": _of(_for_iter),
    # pops arg slots; FOR_ITER's target lies after it, so it never runs
    "END_FOR": _of(lambda n, jump: (n, 0)),
    "GET_LEN": Effect(1, 2),
    "MATCH_MAPPING": Effect(1, 2),
    "MATCH_SEQUENCE": Effect(1, 2),
    "MATCH_KEYS": Effect(2, 3),
    "MATCH_CLASS": Effect(3, 1),
    "JUMP": Effect(0, 0),
    "POP_JUMP_IF_TRUE": Effect(1, 0),
    "POP_JUMP_IF_FALSE": Effect(1, 0),
    "POP_JUMP_IF_NONE": Effect(1, 0),
    "POP_JUMP_IF_NOT_NONE": Effect(1, 0),
    "JUMP_IF_TRUE_OR_POP": _of(_jump_or_pop),
    "JUMP_IF_FALSE_OR_POP": _of(_jump_or_pop),
    "CALL": _of(_call),
    # The rest of a callee, called in a continuation of its caller: callable, NULL, arguments. No Python has it.
    "CALL_INNER": _of(lambda arg, jump: (arg[0] + 2, 1)),
    # callable, NULL or self, arg arguments, tuple of keyword names (3.13+)
    "CALL_KW": _of(lambda argc, jump: (argc + 3, 1)),
    "CALL_FUNCTION_EX": _of(_call_function_ex),
    "CALL_INTRINSIC_1": Effect(1, 1),
    "CALL_INTRINSIC_2": Effect(2, 1),
    "MAKE_FUNCTION": _of(_make_function),
    # value, function → function (3.13+); the flag: defaults (1), keyword defaults (2), annotations (4), closure (8)
    "SET_FUNCTION_ATTRIBUTE": Effect(2, 1),
    "LOAD_BUILD_CLASS": Effect(0, 1),
    "LOAD_ASSERTION_ERROR": Effect(0, 1),
    "IMPORT_NAME": Effect(2, 1),
    "IMPORT_FROM": Effect(1, 2),
    "IMPORT_STAR": Effect(1, 0),
    "RETURN_VALUE": Effect(1, 0),
    "RETURN_CONST": Effect(0, 0),
    "RAISE_VARARGS": _of(lambda n, jump: (n, 0)),
    # RERAISE(n) takes the exception; with n it also reads the saved instruction position n slots below, and leaves it
    "RERAISE": _of(lambda n, jump: (n + 1, n)),
    "PUSH_EXC_INFO": Effect(1, 2),
    "POP_EXCEPT": Effect(1, 0),
    "CHECK_EXC_MATCH": Effect(2, 2),
    "CHECK_EG_MATCH": Effect(2, 2),
    "PREP_RERAISE_STAR": Effect(2, 1),
    "BEFORE_WITH": Effect(1, 2),
    # with arg (3.14+) __exit__ takes two slots: function and self or NULL
    "WITH_EXCEPT_START": _of(lambda arg, jump: (5, 6) if arg else (4, 5)),
    # object → special method named by arg, and self or NULL (3.14+)
    "LOAD_SPECIAL": Effect(1, 2),
    "CLEANUP_THROW": Effect(3, 2),
    "RETURN_GENERATOR": Effect(0, 1),
    "YIELD_VALUE": Effect(1, 1),
    "SEND": _of(lambda target, jump: (2, 1) if jump else (2, 2)),
    "END_SEND": Effect(2, 1),
    "GET_YIELD_FROM_ITER": Effect(1, 1),
    "GET_AWAITABLE": Effect(1, 1),
    "BEFORE_ASYNC_WITH": Effect(1, 2),
    "GET_AITER": Effect(1, 1),
    "GET_ANEXT": Effect(1, 2),
    "END_ASYNC_FOR": Effect(2, 0),
    "ASYNC_GEN_WRAP": Effect(1, 1),
    "PRINT_EXPR": Effect(1, 0),
    # An opcode nobody mapped: arg is (raw opname, raw arg). Its effect is unknown; whoever meets it must stop.
    "UNKNOWN": Effect(0, 0),
}

#: Ops with a `target`.
JUMPS: Final = frozenset(
    {
        "JUMP",
        "POP_JUMP_IF_TRUE",
        "POP_JUMP_IF_FALSE",
        "POP_JUMP_IF_NONE",
        "POP_JUMP_IF_NOT_NONE",
        "JUMP_IF_TRUE_OR_POP",
        "JUMP_IF_FALSE_OR_POP",
        "FOR_ITER",
        "SEND",
    }
)

#: Ops after which the next instruction does not run.
TERMINATORS: Final = frozenset({"JUMP", "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})

#: Ops whose arg names a fast local.
LOCAL_OPS: Final = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "STORE_FAST", "DELETE_FAST"})

#: Ops whose arg names a cell or free variable.
CELL_OPS: Final = frozenset(
    {
        "LOAD_CLOSURE",
        "MAKE_CELL",
        "LOAD_DEREF",
        "LOAD_CLASSDEREF",
        "LOAD_FROM_DICT_OR_DEREF",
        "STORE_DEREF",
        "DELETE_DEREF",
    }
)


def stack_shape(op: str, arg: Any, jump: bool = False) -> Shape:
    """(slots popped, slots pushed) by `op`; `jump` asks for the taken branch. KeyError for an op that is not
    canonical."""
    effect = EFFECTS[op]
    if effect.compute is not None:
        return effect.compute(arg, jump)
    return effect.pops, effect.pushes


def stack_effect(op: str, arg: Any, jump: bool = False) -> int:
    """Net change of the stack's depth by `op`."""
    pops, pushes = stack_shape(op, arg, jump)
    return pushes - pops
