"""Which computed tensors hold the same elements in the same layout.

In:  a computed tensor. Out: `Same.first(tensor)`: the first tensor seen that equals it, itself if there is none.
Models write some things once for each of their layers, as the mask that attention adds. What a call only reads need be
computed once.
"""

from __future__ import annotations

from collections.abc import Hashable

from dynajit.loopir.nodes import Const, Fetch, Op, Pointwise, Position, Read, Scalar, Scan, Tensor


class Same:
    """The tensors of one program, by what they are made of."""

    def __init__(self) -> None:
        self._tensors: dict[Hashable, Tensor] = {}
        self._first: dict[Tensor, Tensor] = {}
        self._numbers: dict[Hashable, int] = {}
        self._scalars: dict[Scalar, int] = {}

    def first(self, tensor: Tensor) -> Tensor:
        """The first tensor that equals this one."""
        found = self._first.get(tensor)
        if found is None:
            found = tensor
            if isinstance(tensor, Pointwise) and not isinstance(tensor, Scan):
                key = (tensor.shape, tensor.stride, tensor.dtype, self._number(tensor.body))
                found = self._tensors.setdefault(key, tensor)
            self._first[tensor] = found
        return found

    def _number(self, scalar: Scalar) -> int:
        """Equal expressions have equal numbers."""
        found = self._scalars.get(scalar)
        if found is None:
            found = self._numbers.setdefault(self._key(scalar), len(self._numbers))
            self._scalars[scalar] = found
        return found

    def _key(self, scalar: Scalar) -> Hashable:
        if isinstance(scalar, Read):
            return "read", self.first(scalar.tensor), scalar.position
        if isinstance(scalar, Op):
            of = self.first(scalar.tensor) if isinstance(scalar, Fetch) else None
            return scalar.name, of, scalar.dtype, tuple(map(self._number, scalar.arguments))
        if isinstance(scalar, Const):
            return "const", repr(scalar.value), scalar.dtype
        if isinstance(scalar, Position):
            return "position", scalar.index
        return id(scalar)
