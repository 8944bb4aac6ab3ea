"""Which ATen op is lowered by which function.

In:  `@lowering(aten.exp.default, ...)` above a function `(build: Builder, *args, **kwargs) -> Value | tuple[Value,
     ...]` whose arguments are the op's, with `Value`s for tensors.
Out: `LOWERINGS`. A function raises `NotLowered` where it is not sure to give eager's result: the op is then called
     through the dispatcher. One more op: one function in the `lower_*.py` it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LOWERINGS: dict[Any, Callable[..., Any]] = {}


class NotLowered(Exception):
    """This use of the op (dtype, layout, argument) is left to the dispatcher."""


def lowering(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function for these op overloads."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            assert target not in LOWERINGS, f"two lowerings of {target}"
            LOWERINGS[target] = function
        return function

    return register
