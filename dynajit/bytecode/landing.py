"""What an instruction that called a function makes of what the function returns.

In: nothing. Out: `Landing`s, one for each way; a break inside of a called function can be gone on from in both frames
where one of them fits the caller's instruction. `x.a = y` calls a setter and drops what it returns; `if x:` calls
`__bool__` and looks at what that returns; `Class()` calls `__init__`, and gives the object.

Add a way: a `Landing` here, and who calls passes it along (`direct=` of `Tracer.call`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

_CALLS: Final = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX", "CALL_INNER"})
_OPERATORS: Final = frozenset(
    {"BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", "CALL_INTRINSIC_1"}
)
_WRITES: Final = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"})
_TESTS: Final = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT", "TO_BOOL"})


class Landing(NamedTuple):
    """One way.

    Attributes:
        ops: the caller's instructions that it fits.
        result: "push" what the function returns, push it as a "callable" with the NULL beside it, "drop" it, or run the
            instruction "again" on it.
        finish: what is returned goes through this function first.
        under: what the instruction pushes below it.
        inverted: the way of the same instruction with `not`.
    """

    ops: frozenset[str]
    result: Literal["push", "callable", "drop", "again"] = "push"
    finish: Callable[[Any], Any] | None = None
    under: Any = None
    inverted: Landing | None = None

    def at(self, op: str, arg: Any) -> Landing | None:
        """What the caller's instruction makes of what the callee returns; None if it does not fit."""
        if op == "CALL_INNER":
            return self
        if self.inverted is not None and arg:
            return self.inverted
        if self is READ and (op == "LOAD_METHOD" or (op == "LOAD_SUPER_ATTR" and arg[1])):
            return _CALLABLE
        return self if op in self.ops else None

    def over(self, value: Any) -> Landing:
        """With `value` below."""
        return self._replace(under=value)

    @property
    def bare(self) -> Landing:
        """As it is where what is below lies on the stack already."""
        return CALLED if self.plain else self._replace(under=None)

    @property
    def plain(self) -> bool:
        """The function's result is pushed as it is."""
        return self.result == "push" and self.finish is None


def _nothing(found: Any) -> Any:
    if found is not None:
        raise TypeError(f"__init__() should return None, not '{type(found).__name__}'")


def _truth_value(found: Any) -> Any:
    if type(found) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(found).__name__}")
    return found


def _is_in(found: Any) -> Any:
    return bool(found)


def _is_not_in(found: Any) -> Any:
    return not found


def _iterator(found: Any) -> Any:
    if not hasattr(type(found), "__next__"):
        raise TypeError(f"iter() returned non-iterator of type '{type(found).__name__}'")
    return found


CALLED: Final = Landing(_CALLS)
READ: Final = Landing(frozenset({"LOAD_ATTR", "LOAD_SUPER_ATTR"}))
INDEXED: Final = Landing(frozenset({"BINARY_SUBSCR", "BINARY_SLICE"}))
OPERATED: Final = Landing(_OPERATORS)
_CALLABLE: Final = Landing(frozenset({"LOAD_METHOD", "LOAD_SUPER_ATTR"}), "callable")
DROPPED: Final = Landing(_WRITES, "drop")
INITIALISED: Final = Landing(_CALLS, "drop", _nothing)
TESTED: Final = Landing(_TESTS, "again", _truth_value)
_NOT_CONTAINED: Final = Landing(frozenset({"CONTAINS_OP"}), "push", _is_not_in)
CONTAINED: Final = Landing(frozenset({"CONTAINS_OP"}), "push", _is_in, inverted=_NOT_CONTAINED)
ITERATED: Final = Landing(frozenset({"GET_ITER"}), "push", _iterator)
ENTERED: Final = Landing(frozenset({"BEFORE_WITH"}))
