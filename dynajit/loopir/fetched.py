"""Elements at places that are themselves computed: what gather, indexing, embedding and losses by class read.

In:  a value and, for each of its dimensions, an index or an int64 expression.
Out: an expression: a `Fetch` from memory (`fetched`), or what the element is computed from there (`fetched_through`),
     so that a tensor of which few elements are read this way is never made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dynajit.loopir import nodes
from dynajit.loopir.build import added, apply, number
from dynajit.loopir.index import Atom, Axis, Div, Index, axes_of, constant, substitute
from dynajit.loopir.nodes import (
    Fetch,
    Op,
    Pointwise,
    Position,
    Read,
    Scalar,
    Tensor,
    View,
    axes_for,
    axis_of,
    position,
)
from dynajit.loopir.ops import CHECKS
from dynajit.loopir.registry import NotLowered

Place = Index | Scalar

# So many nodes are computed again for an element that is read; an expression of more is read from memory.
_MAX_NODES = 64


class _Places:
    """Where each axis of a tensor is: at an index, or at an expression."""

    def __init__(self, shape: Sequence[int], at: Sequence[Place]) -> None:
        self.static: dict[Atom, Index] = {}
        self.dynamic: dict[Axis, Scalar] = {}
        for own, where in zip(axes_for(tuple(shape)), at, strict=True):
            axis = axis_of(own)
            if axis is None:
                continue
            if isinstance(where, Index):
                self.static[axis] = where
            else:
                self.dynamic[axis] = where

    def of(self, index: Index) -> Place:
        """The index with these in place of the axes."""
        return _scalar(index, self.static, self.dynamic) if self.is_dynamic(index) else substitute(index, self.static)

    def is_dynamic(self, index: Index) -> bool:
        """Does the index depend on an expression?"""
        return bool(axes_of(index) & self.dynamic.keys())


def fetched(x: View, at: Sequence[Place]) -> Scalar:
    """The element of `x` at that place of each of its dimensions, from memory."""
    places = _Places(x.shape, at)
    found = [_as_scalar(places.of(index)) for index in x.position]
    for own, where in zip(axes_for(tuple(x.shape)), at, strict=True):
        if axis_of(own) is None and isinstance(where, Op) and where.name in CHECKS:
            # no position has a dimension of size one: a place in it is zero, or refused
            if not found:
                raise NotLowered
            found[-1] = apply("add", found[-1], where)
    return nodes.fetch(x.root, tuple(found))


def fetched_through(x: View, at: Sequence[Place]) -> Scalar:
    """As `fetched`; the element of a tensor that is computed elementwise is computed again from what it is made of."""
    places = _Places(x.shape, at)
    found = _Through().element(x.root, [places.of(index) for index in x.position])
    read = set(nodes.scalars_in(found))
    # what is the same everywhere is computed without its place, which would not be checked
    return found if all(isinstance(place, Index) or place in read for place in at) else fetched(x, at)


def _as_scalar(place: Place) -> Scalar:
    return position(place) if isinstance(place, Index) else place


class _Through:
    """Expressions of elements at computed places."""

    def __init__(self) -> None:
        self._left = _MAX_NODES

    def element(self, tensor: Tensor, at: Sequence[Place]) -> Scalar:
        """The element of `tensor` there."""
        if all(isinstance(place, Index) for place in at):
            return nodes.read(tensor, tuple(at))  # type: ignore[arg-type]
        if isinstance(tensor, Pointwise):
            left = self._left
            found = self._moved(tensor.body, _Places(tensor.shape, at), {})
            if found is not None:
                return found
            self._left = left
        return nodes.fetch(tensor, tuple(_as_scalar(place) for place in at))

    def _moved(self, node: Scalar, places: _Places, seen: dict[Scalar, Scalar]) -> Scalar | None:
        """`node` with the axes of its tensor at those places; None where that is too much."""
        if node in seen:
            return seen[node]
        self._left -= 1
        if self._left < 0:
            return None
        made: Scalar
        if isinstance(node, Read):
            made = self.element(node.tensor, [places.of(index) for index in node.position])
        elif isinstance(node, Position):
            made = _as_scalar(places.of(node.index))
        elif isinstance(node, Op):
            arguments = [self._moved(argument, places, seen) for argument in node.arguments]
            if None in arguments:
                return None
            moved: tuple[Scalar, ...] = tuple(arguments)  # type: ignore[arg-type]
            if isinstance(node, Fetch):
                made = nodes.fetch(node.tensor, moved)
            else:
                made = nodes.op(node.name, moved, node.dtype)
        else:
            made = node
        seen[node] = made
        return made


def _scalar(index: Index, static: Mapping[Atom, Index], dynamic: Mapping[Axis, Scalar]) -> Scalar:
    """An index as an expression, with indices and expressions for its axes."""
    if not axes_of(index) & dynamic.keys():
        return position(substitute(index, static))
    terms: list[Scalar] = []
    rest = constant(index.constant)
    for atom, factor in index.terms:
        if isinstance(atom, Axis) and atom not in dynamic:
            rest = rest + static[atom] * factor
            continue
        term = _atom(atom, static, dynamic)
        terms.append(term if factor == 1 else apply("mul", term, number(factor, torch.int64)))
    total = added(terms)
    return total if not rest.terms and rest.constant == 0 else apply("add", total, position(rest))


def _atom(atom: Atom, static: Mapping[Atom, Index], dynamic: Mapping[Axis, Scalar]) -> Scalar:
    if isinstance(atom, Axis):
        return dynamic[atom]
    inside = _scalar(atom.index, static, dynamic)
    return apply("intdiv" if isinstance(atom, Div) else "intmod", inside, number(atom.divisor, torch.int64))
