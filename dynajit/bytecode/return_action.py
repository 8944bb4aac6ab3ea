"""What an instruction that called a function makes of what the function returns.

In: nothing. Out: `ReturnAction`s, one for each way; where one fits the caller's instruction, both frames can be resumed
after a break inside of a called function. `x.a = y` drops what a setter returns; `if x:` looks at what `__bool__`
returns; `Class()` gives the object, not what `__init__` returns; `len(x)` what `__len__` does, if it is a length.

Add a way: a `ReturnAction` here, and who calls passes it along (`direct=` of `Tracer.call`; a model of a builtin is a
`tail_call`, and asks `after` whether it is the call at hand).
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

_CALLS: Final = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX", "CALL_INNER"})
_OPERATORS: Final = frozenset(
    {"BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", "CALL_INTRINSIC_1"}
)
_WRITES: Final = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"})
_TESTS: Final = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT", "TO_BOOL"})
_CHOICES: Final = frozenset({"JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"})
_SUBSCRIPTS: Final = frozenset({"BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR"})
_FORMATS: Final = frozenset({"FORMAT_VALUE", "CONVERT_VALUE"})


class ReturnAction(NamedTuple):
    """One way.

    Attributes:
        ops: the caller's instructions that it fits.
        result: "push" what the function returns, push it as a "callable" with the NULL beside it, "drop" it, run the
            instruction "again" with it in the place of its topmost operand, or "decide" with it whether to jump and
            keep the operand.
        finish: what is returned goes through this function first, the rule of the method's slot.
        takes: results of exactly this type are taken by `finish` as they are.
        under: what the instruction pushes below it.
        inverted: the way of the same instruction with `not`.
        others: the ways of other instructions.
    """

    ops: frozenset[str]
    result: Literal["push", "callable", "drop", "again", "decide"] = "push"
    finish: Callable[[Any], Any] | None = None
    takes: type | None = None
    under: Any = None
    inverted: ReturnAction | None = None
    others: tuple[ReturnAction, ...] = ()

    def at(self, op: str, arg: Any) -> ReturnAction | None:
        """What the caller's instruction makes of what the callee returns; None if it does not fit."""
        if op == "CALL_INNER":
            return self
        if self.inverted is not None and arg:
            return self.inverted
        if self is READ and (op == "LOAD_METHOD" or (op == "LOAD_SUPER_ATTR" and arg[1])):
            return _CALLABLE
        return next((way for way in (self, *self.others) if op in way.ops), None)

    def over(self, value: Any) -> ReturnAction:
        """With `value` below."""
        return self._replace(under=value)

    @property
    def bare(self) -> ReturnAction:
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


def _length(found: Any) -> int:
    length = operator.index(found)
    if length < 0:
        raise ValueError("__len__() should return >= 0")
    if length > sys.maxsize:
        raise OverflowError("cannot fit 'int' into an index-sized integer")
    return length if type(length) is int else int(length)


def _hinted(found: Any) -> Any:
    if found is NotImplemented:
        return found
    if not isinstance(found, int):
        raise TypeError(f"__length_hint__ must be an integer, not {type(found).__name__}")
    if found > sys.maxsize or found < -sys.maxsize - 1:
        raise OverflowError("Python int too large to convert to C ssize_t")
    if found < 0:
        raise ValueError("__length_hint__() should return >= 0")
    return found if type(found) is int else int(found)


def _is_long(found: Any) -> bool:
    return _length(found) > 0


def _integer(found: Any) -> int:
    if type(found) is int:
        return found
    return int(_Integer(found))


def _keep(self: Any, found: Any) -> None:
    self.found = found


def _kept(self: Any) -> Any:
    return self.found


# whatever CPython makes of what a method returned that it should not have
_Integer: Any = type("_Integer", (), {"__init__": _keep, "__int__": _kept})
_Complex: Any = type("_Complex", (), {"__init__": _keep, "__complex__": _kept})


_Index: Any = type("_Index", (), {"__init__": _keep, "__index__": _kept})


def _number(found: Any) -> int:
    return found if type(found) is int else operator.index(_Index(found))


def _complex(found: Any) -> complex:
    return found if type(found) is complex else complex(_Complex(found))


def _hash(found: Any) -> int:
    if not isinstance(found, int):
        raise TypeError("__hash__ method should return an integer")
    if not -sys.maxsize - 1 <= found <= sys.maxsize:
        return hash(found)
    return -2 if found == -1 else int(found)


def _strung(found: Any) -> Any:
    if not isinstance(found, str):
        raise TypeError(f"__str__ returned non-string (type {type(found).__name__})")
    return found


def _represented(found: Any) -> Any:
    if not isinstance(found, str):
        raise TypeError(f"__repr__ returned non-string (type {type(found).__name__})")
    return found


def _formatted(found: Any) -> Any:
    if not isinstance(found, str):
        raise TypeError(f"__format__ must return a str, not {type(found).__name__}")
    return found


def _is_in(found: Any) -> Any:
    return bool(found)


def _is_not_in(found: Any) -> Any:
    return not found


def _iterator(found: Any) -> Any:
    if not hasattr(type(found), "__next__"):
        raise TypeError(f"iter() returned non-iterator of type '{type(found).__name__}'")
    return found


CALLED: Final = ReturnAction(_CALLS)
READ: Final = ReturnAction(frozenset({"LOAD_ATTR", "LOAD_SUPER_ATTR"}))
INDEXED: Final = ReturnAction(frozenset({"BINARY_SUBSCR", "BINARY_SLICE"}))
OPERATED: Final = ReturnAction(_OPERATORS)
_CALLABLE: Final = ReturnAction(frozenset({"LOAD_METHOD", "LOAD_SUPER_ATTR"}), "callable")
DROPPED: Final = ReturnAction(_WRITES, "drop")
INITIALISED: Final = ReturnAction(_CALLS, "drop", _nothing)
_DECIDED: Final = ReturnAction(_CHOICES, "decide", _truth_value, bool)
TESTED: Final = ReturnAction(_TESTS, "again", _truth_value, bool, others=(_DECIDED,))
TESTED_LENGTH: Final = ReturnAction(_TESTS, "again", _length, others=(ReturnAction(_CHOICES, "decide", _length),))
_NOT_CONTAINED: Final = ReturnAction(frozenset({"CONTAINS_OP"}), "push", _is_not_in)
CONTAINED: Final = ReturnAction(frozenset({"CONTAINS_OP"}), "push", _is_in, inverted=_NOT_CONTAINED)
ITERATED: Final = ReturnAction(frozenset({"GET_ITER"}), "push", _iterator)
ENTERED: Final = ReturnAction(frozenset({"BEFORE_WITH"}))
INDEX: Final = ReturnAction(_SUBSCRIPTS, "again", _number, int)

# What builtin functions make of it that ask an object's class for a special method, where such a function is what the
# instruction calls, or does what it does.
MEASURED: Final = ReturnAction(_CALLS, "push", _length)
HINTED: Final = ReturnAction(_CALLS, "push", _hinted)
MEASURED_TRUTH: Final = ReturnAction(_CALLS, "push", _is_long)
TRUTH: Final = ReturnAction(_CALLS, "push", _truth_value, bool)
HASHED: Final = ReturnAction(_CALLS, "push", _hash)
ITERATOR: Final = ReturnAction(_CALLS, "push", _iterator)
NUMBER: Final = ReturnAction(_CALLS, "push", _number, int)
COMPLEX: Final = ReturnAction(_CALLS, "push", _complex, complex)
INTEGER: Final = ReturnAction(_CALLS, "push", _integer, int)
STRUNG: Final = ReturnAction(_CALLS | _FORMATS, "push", _strung, str)
REPRESENTED: Final = ReturnAction(_CALLS | _FORMATS, "push", _represented, str)
FORMATTED: Final = ReturnAction(_CALLS | _FORMATS, "push", _formatted, str)


@functools.cache
def floating(name: str) -> ReturnAction:
    """What `float` makes of what the `__float__` of a class of this name returns."""

    def check(found: Any) -> Any:
        return found if type(found) is float else float(wrong(found))

    # which raises, or warns, as CPython does, and says the class's name
    wrong = type(name, (), {"__init__": _keep, "__float__": _kept})
    return ReturnAction(_CALLS, "push", check, float)


def after(direct: ReturnAction | None, action: ReturnAction) -> ReturnAction | None:
    """`action` where the model of a builtin function is the call at hand itself, or does what the instruction at hand
    does (it took `direct`); else None."""
    return action if direct is CALLED or direct is FORMATTED else None
