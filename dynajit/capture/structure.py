"""What modules have in common for which one variant may serve.

In: a module. Out: its structure, something to compare and hash: classes, constants, what its tensors are like but for
their data, and which of its places hold one object. What can't be told by its contents counts by identity. It says for
which modules sharing is worth it; whether a variant fits is for its guards to say.
"""

from __future__ import annotations

import collections
import typing
import weakref
from collections.abc import Hashable
from typing import Any

import torch

from dynajit.guards.source import HEAP_TYPE

VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
TENSORS = (torch.Tensor, torch.nn.Parameter)
MAX_OBJECTS = 100_000
MAX_DEPTH = 100
_ITEMS = (list, tuple, set, frozenset)
_MAPPINGS = (dict, collections.OrderedDict)
_BASES = (object, typing.Generic)


class Structure:
    """`of` a module. `named`: the objects that count by identity."""

    def __init__(self) -> None:
        self.named: list[weakref.ref[Any]] = []
        self._places: dict[int, int] = {}

    def of(self, value: Any, depth: int = 0) -> Hashable:
        """What is equal for objects of equal structure. Raises TypeError for one that is too large, or counts by
        identity and can't be referenced weakly."""
        kind = type(value)
        if kind in VALUES:
            return kind, repr(value) if kind in (float, complex) else value
        if kind in _MAPPINGS and not value:  # most of those that a module has
            return kind
        if id(value) in self._places:
            return "place", self._places[id(value)]
        self._places[id(value)] = len(self._places)
        if len(self._places) > MAX_OBJECTS or depth > MAX_DEPTH:
            raise TypeError("too large")
        if kind in TENSORS and value.layout is torch.strided:
            facts = value.dtype, str(value.device), value.requires_grad, value.is_leaf
            return kind, *facts, tuple(value.shape), value.stride()
        if kind in _ITEMS:
            return kind, tuple(self.of(item, depth + 1) for item in value)
        if kind in _MAPPINGS:
            keys = (key if type(key) is str else self.of(key, depth + 1) for key in value)
            return kind, (*keys,), tuple(self.of(item, depth + 1) for item in value.values())
        if all(base.__flags__ & HEAP_TYPE or base in _BASES for base in kind.__mro__) and kind.__dictoffset__:
            return self._identity(kind), self.of(object.__getattribute__(value, "__dict__"), depth + 1)
        return self._identity(value)

    def _identity(self, value: Any) -> Hashable:
        self.named.append(weakref.ref(value))
        return id(value)
