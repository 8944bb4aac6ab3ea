"""What compiled code relies on, asked again before each use.

In: facts that the interpreter relied on. Out: `failing(globals_, args)`: the first guard that no longer holds.
"""

from collections.abc import Callable
from typing import Any

import torch


class Guards:
    """A list of checks, with the words that reports use."""

    def __init__(self) -> None:
        self.alive: list[Any] = []  # no other object gets the place of one that is guarded
        self.checks: list[tuple[str, Callable[[dict[str, Any], tuple[Any, ...]], bool]]] = []

    def argument(self, place: int, value: Any) -> None:
        """A tensor has what the graph depends on; a number or text is equal; anything else is that object."""
        seen = _seen(value)
        self.alive += [] if isinstance(value, torch.Tensor) else [value]
        self.checks.append((f"argument {place} is {seen}", lambda _, args: _seen(args[place]) == seen))

    def global_(self, name: str, value: Any) -> None:
        """The global variable, or the builtin function, still is this object."""
        self.checks.append((f"global {name} is {value!r}", lambda globals_, _: globals_.get(name, value) is value))

    def failing(self, globals_: dict[str, Any], args: tuple[Any, ...]) -> str | None:
        """The first guard that does not hold, in words; None if all do."""
        return next((words for words, holds in self.checks if not holds(globals_, args)), None)


def _seen(value: Any) -> tuple[Any, ...]:
    if type(value) is torch.Tensor:
        return value.dtype, value.device, value.shape, value.is_contiguous(), value.requires_grad, value.is_neg()
    # repr tells 0.0 from -0.0, and nan is nan
    return type(value), repr(value) if type(value) in (int, float, str, bool) else id(value)
