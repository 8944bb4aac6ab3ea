"""An operator's call of a user's special method, in plain Python, so that a break in there can be gone on from.

In: the bound method, the other operand, and the operands with what is tried if the method gives NotImplemented. Out:
the operator's result. `remaining` makes the functions that try the rest for real; their models are in `operators.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple


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


@functools.cache
def remaining(symbol: str, ways: tuple[Way, ...], tried: int) -> Callable[[Any, Any], Any]:
    """What an operator still does when so many ways were `tried`: a function of its operands, with a model of its own
    for each number of them."""

    def rest(left: Any, right: Any) -> Any:
        for of_left, method in ways:
            owner, other = (left, right) if of_left else (right, left)
            found = getattr(type(owner), method, None)
            result = NotImplemented if found is None else found(owner, other)
            if result is not NotImplemented:
                return result
        if symbol in ("==", "!="):
            return (left is right) == (symbol == "==")
        kinds = f"'{type(left).__name__}' and '{type(right).__name__}'"
        if symbol in ("<", "<=", ">", ">="):
            raise TypeError(f"'{symbol}' not supported between instances of {kinds}")
        raise TypeError(f"unsupported operand type(s) for {symbol}: {kinds}")

    return rest
