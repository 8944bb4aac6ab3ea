"""An operator's call of a user's special method, in plain Python, so that a break in there can be gone on from.

In: the bound method, the other operand, and the operands with what is tried if the method gives NotImplemented. Out:
the operator's result. `remaining` makes the functions that try the rest for real; their models are in `operators.py`.
"""

from __future__ import annotations

import functools
import operator
import types
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dynajit.guards.source import HEAP_TYPE

#: what the special methods of binary operators are called
NAMES = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul"}
NAMES |= {"<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor"}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "divmod()": divmod,
    **{symbol: getattr(operator, f"__{name}__") for symbol, name in NAMES.items()},
    **{f"{symbol}=": getattr(operator, f"__i{name}__") for symbol, name in NAMES.items()},
}
_SEQUENCES = (list, tuple, str, bytes, bytearray, deque)


class Way(NamedTuple):
    """One method that an operator tries: of the left operand or of the right one."""

    of_left: bool
    method: str


def attempt(method: Callable[[Any], Any], other: Any, rest: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """What the method gives, or what the rest gives if it declines."""
    found = method(other)
    if found is NotImplemented:
        return rest(left, right)
    return found


def repeats_only(kind: type, method: str, other: type) -> bool:
    """Whether the class's method is a sequence's repetition, which operators don't try as a method, and the other
    operand is no count."""
    found = getattr(kind, method, None) if method in ("__mul__", "__rmul__", "__imul__") else None
    of_sequence = isinstance(found, types.WrapperDescriptorType) and issubclass(found.__objclass__, _SEQUENCES)
    return of_sequence and not hasattr(other, "__index__")


def refuse(symbol: str, left: type, right: type) -> None:
    """Raise what the operator raises for instances of classes whose methods have all declined: in this CPython's words,
    which are those of a sequence if one is among them."""
    _OPERATORS[symbol](_stand_in(left, symbol), _stand_in(right, symbol))


def _stand_in(kind: type, symbol: str) -> Any:
    sequence = next((base for base in _SEQUENCES if issubclass(kind, base)), None)
    if sequence is not None and symbol[0] in "+*":
        return sequence()
    outside = not kind.__flags__ & HEAP_TYPE and kind.__module__ != "builtins"  # their names in C say the module too
    return type(f"{kind.__module__}.{kind.__name__}" if outside else kind.__name__, (), {})()


@functools.cache
def remaining(symbol: str, ways: tuple[Way, ...], tried: int) -> Callable[[Any, Any], Any]:
    """What an operator still does when so many ways were `tried`: a function of its operands, with a model of its own
    for each number of them."""

    def rest(left: Any, right: Any) -> Any:
        for of_left, method in ways:
            owner, other = (left, right) if of_left else (right, left)
            found = getattr(type(owner), method, None)
            if found is None or repeats_only(type(owner), method, type(other)):
                continue
            result = found(owner, other)
            if result is not NotImplemented:
                return result
        if symbol in ("==", "!="):
            return (left is right) == (symbol == "==")
        kinds = f"'{type(left).__name__}' and '{type(right).__name__}'"
        if symbol in ("<", "<=", ">", ">="):
            raise TypeError(f"'{symbol}' not supported between instances of {kinds}")
        if symbol == "+=" and isinstance(left, list):
            return list.__iadd__(left, right)
        refuse(symbol, type(left), type(right))
        raise TypeError(f"unsupported operand type(s) for {symbol}: {kinds}")

    return rest
