"""A kernel: loops, and what is computed in which of them.

`Kernel`: axes, and sections. A section is a list of row values (one for each point of the outer axes) and then a loop
over the inner axes that accumulates reductions and stores elements. Expressions are scalar expressions of the loop IR
in which reads have become `Load` (memory at an address), `Local` (a row value) or `Scratch` (kept from an earlier loop
over the same row). A kernel without reductions is one section.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from dynajit.loopir import nodes
from dynajit.loopir.index import Axis, Index
from dynajit.loopir.nodes import Op, Reduction, Scalar, Tensor, scalars_in
from dynajit.loopir.ops import CHECKS
from dynajit.schedule.fuse import Group


class Load(Scalar):
    """The element of `tensor`'s memory at `address`."""

    __slots__ = ("address", "tensor")
    tensor: Tensor
    address: Index


class LoadAt(Op):
    """The element of `tensor`'s memory at the address that the argument evaluates to. `name` is "fetch". `even` is the
    part of the address that only indices decide."""

    __slots__ = ("even", "tensor")
    tensor: Tensor
    even: Index


class Local(Scalar):
    """The row value of `tensor` at the row at hand."""

    __slots__ = ("tensor",)
    tensor: Tensor


class Scratch(Scalar):
    """The element of `tensor` at the point at hand, kept in an array that is as long as the row."""

    __slots__ = ("tensor",)
    tensor: Tensor


@dataclass(slots=True)
class Store:
    """`value` goes to `tensor`'s memory at `address`."""

    tensor: Tensor
    address: Index
    value: Scalar


@dataclass(slots=True)
class Update:
    """`value` is combined into `tensor`'s memory by `kind`. The address is `even`, which indices decide, and the sum of
    `uneven`."""

    tensor: Tensor
    kind: str
    even: Index
    uneven: list[Scalar]
    value: Scalar


@dataclass(slots=True)
class Section:
    """Row values in order, stores of row values, then one loop over the inner axes."""

    rows: list[tuple[Tensor, Scalar]] = field(default_factory=list)
    row_stores: list[Store] = field(default_factory=list)
    reductions: list[tuple[Reduction, Scalar]] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    kept: list[tuple[Tensor, Scalar]] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)

    @property
    def loops(self) -> bool:
        """Is there anything to do in the inner loop?"""
        return bool(self.reductions or self.stores or self.kept or self.updates)

    def values(self) -> list[Scalar]:
        """The expressions in the loop."""
        return [
            *(store.value for store in self.stores),
            *(value for _, value in self.kept),
            *(value for _, value in self.reductions),
        ]


@dataclass(slots=True)
class Kernel:
    """One kernel. `mode` "row": the inner axes are looped over for each row, vectorised along the last of them;
    "column": a block of the last outer axis is vectorised and the inner axes run outside of it."""

    group: Group
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    mode: str
    sections: list[Section]
    reads: list[Tensor]
    writes: list[Tensor]
    scratch: list[Tensor]
    cost: int
    fused: list[Tensor]  # all tensors computed, inlined ones too, in graph order
    across: Axis | None = None  # of the outer axes, the one along which much of what is read lies: worth tiles
    bounds: tuple[Scalar, ...] = ()  # between which the inner axis runs, where that is not all of it
    # tensors that are the rest of another's memory from some element on: pieces of a loop that was unrolled are equal
    # but for these numbers
    parts: dict[Tensor, tuple[Tensor, int]] = field(default_factory=dict)

    def all_stores(self) -> Iterator[Store]:
        """Every store."""
        for section in self.sections:
            yield from section.row_stores
            yield from section.stores

    def expressions(self) -> Iterator[Scalar]:
        """Every expression."""
        for section in self.sections:
            yield from (value for _, value in section.rows)
            yield from (store.value for store in section.row_stores)
            yield from (value for _, value in section.reductions)
            yield from (store.value for store in section.stores)
            yield from (value for _, value in section.kept)
            for update in section.updates:
                yield from (nodes.position(update.even), *update.uneven, update.value)
        yield from self.bounds

    def scalars(self) -> set[Scalar]:
        """All parts of its expressions."""
        return {node for value in self.expressions() for node in scalars_in(value)}

    @property
    def checked(self) -> bool:
        """Whether it has to tell that all was well."""
        return any(isinstance(node, Op) and node.name in CHECKS for node in self.scalars())


def points_of(axes: tuple[Axis, ...]) -> int:
    """Points of these axes."""
    return math.prod(axis.size for axis in axes)


def load(tensor: Tensor, address: Index, dtype: torch.dtype | None = None) -> Load:
    """The element at the address; with a dtype, its bits as one of these."""
    key = ("load", tensor, address, dtype)
    return nodes.interned(Load, key, tensor=tensor, address=address, dtype=dtype or tensor.dtype)


def load_at(tensor: Tensor, address: Scalar, even: Index, dtype: torch.dtype | None = None) -> Scalar:
    """The element where the address evaluates to; with a dtype, its bits as one of these."""
    key, dtype = ("load at", tensor, address, dtype), dtype or tensor.dtype
    return nodes.interned(LoadAt, key, name="fetch", arguments=(address,), tensor=tensor, even=even, dtype=dtype)


def local(tensor: Tensor) -> Scalar:
    """The row value of the tensor at the row at hand."""
    return nodes.interned(Local, (Local, tensor), tensor=tensor, dtype=tensor.dtype)
