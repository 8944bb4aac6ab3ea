"""Functions that break again and again, and never meet a tensor: their rest runs eagerly.

In: for each capture whose it was and whether it met a tensor. Out: `given_up`, which the capture of a part (what goes
on after a break, the body of a loop) asks first, and `budget`, how many instructions without a tensor are traced. What
a part calls is captured all the same, and so is the part itself if it is given a tensor.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from dynajit import _C
from dynajit.interp.machine import IDLE_START

# Captures of one function and its parts without a tensor, until it is given up.
MAX_IDLE = 16
# For each of them fewer instructions are traced, down to this part of what the first may take.
_LEAST_SHARE = 16

Key = tuple[str, int, str]


class Idle:
    """One session's functions."""

    def __init__(self) -> None:
        # captures without a tensor; -1: there was one with
        self._counts: dict[Key, int] = {}

    @staticmethod
    def _key(code: types.CodeType) -> Key:
        """A function and its parts, which are other code objects at the same place."""
        return code.co_filename, code.co_firstlineno, code.co_qualname

    def note(self, code: types.CodeType, met_tensors: bool) -> None:
        """A capture of the function, or of a part, has ended."""
        key = self._key(code)
        before = self._counts.get(key, 0)
        self._counts[key] = -1 if met_tensors or before < 0 else before + 1

    def given_up(self, code: types.CodeType) -> bool:
        """Whether it is not worth it."""
        return self._counts.get(self._key(code), 0) >= MAX_IDLE

    def budget(self, code: types.CodeType) -> int:
        """Instructions to trace without a tensor."""
        return IDLE_START // min(max(1, 1 + self._counts.get(self._key(code), 0)), _LEAST_SHARE)

    def clear(self) -> None:
        self._counts.clear()


def holds_tensors(value: Any, depth: int = 2) -> bool:
    """Whether a parameter is a tensor or a module, or a small container or object that holds one; asked without running
    code of the value's class."""
    kind = type(value)
    if issubclass(kind, (torch.Tensor, torch.nn.Module)):
        return True
    if depth == 0 or issubclass(kind, (type, types.ModuleType, str)):
        return False
    if issubclass(kind, (list, tuple)):
        return any(
            holds_tensors(item, depth - 1)
            for item in (list if issubclass(kind, list) else tuple).__getitem__(value, slice(16))
        )
    found = value if kind is dict else _C.generic_getattr(value, "__dict__", None)
    return type(found) is dict and any(holds_tensors(item, depth - 1) for item in [*found.values()][:32])
