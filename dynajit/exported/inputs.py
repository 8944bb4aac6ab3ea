"""What an exported program takes: its signature, and the check of each call against it.

In:  the signature as JSON (`exporting.py` makes it). Out: `Inputs.check(args, kwargs)`: the tensors in the order of the
     signature, laid out as the plan expects them, and the numbers of the symbolic sizes. ArtifactError names the
     argument, what it is and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynajit import symbols
from dynajit.exc import ArtifactError
from dynajit.exported import trees
from dynajit.report.shown import dtype_name


class Inputs:
    """The signature. `gradients`: of each tensor, whether it requires a gradient; None where that does not matter.
    `data`:

    names: of the parameters, for arguments given by place. structure: parameter -> structure. leaves: for each tensor
    path, dtype, sizes and strides (numbers, or trees of symbols), whether the program writes it. symbols: name -> the
    leaf and dimension that tell it, least and greatest value, the user's name for it. relations: what has to hold.
    """

    def __init__(self, data: Mapping[str, Any], gradients: Sequence[bool] | None = None) -> None:
        self.names: list[str] = list(data["names"])
        self.structure: dict[str, Any] = dict(data["structure"])
        self.leaves = [_Leaf(*row) for row in data["leaves"]]
        for leaf, gradient in zip(self.leaves, gradients, strict=True) if gradients is not None else ():
            leaf.gradient = bool(gradient)
        self.symbols = {str(name): tuple(row) for name, row in data["symbols"].items()}
        self.relations = [tree_of_data(relation) for relation in data["relations"]]
        if not all(type(name) is str for name in self.names):
            raise ValueError("a parameter without a name")
        if sum(map(trees.check, self.structure.values())) != len(self.leaves):
            raise ValueError("its tensors are not those of its structure")
        known = self.symbols.keys()
        for leaf in self.leaves:
            for size in (*leaf.shape, *leaf.stride):
                if not known >= set(symbols.names_in(size)):
                    raise ValueError("a size of unknown symbols")
        for at, dim, low, high, shown in self.symbols.values():
            if self.leaves[at].shape[dim] not in known or type(low) is not int or type(shown) is not str:
                raise ValueError("a symbol that no tensor tells")
            if not (high is None or type(high) is int):
                raise ValueError("a symbol without a bound")

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[torch.Tensor], dict[str, int]]:
        """The tensors and the sizes of a call."""
        leaves: list[torch.Tensor] = []
        for name, value in self._by_name(args, kwargs):
            leaves += trees.match(self.structure[name], value, name)
        for leaf, tensor in zip(self.leaves, leaves, strict=True):
            leaf.check_kind(tensor)
        sizes = {name: leaves[at].shape[dim] for name, (at, dim, *_) in self.symbols.items()}
        for name, (at, dim, low, high, shown) in self.symbols.items():
            if sizes[name] < low or (high is not None and sizes[name] > high):
                bound = f"at least {low}" if high is None else f"{low} to {high}"
                raise ArtifactError(
                    f"{self.leaves[at].path}: size {sizes[name]} in dimension {dim} ({shown}); expected is {bound}"
                )
        for tree in self.relations:
            if not symbols.value_of(tree, sizes):
                shown_names = {
                    name: f"{self.leaves[at].path}.size({dim})" for name, (at, dim, *_) in self.symbols.items()
                }
                numbers = ", ".join(f"{shown_names[name]} is {sizes[name]}" for name in symbols.names_in(tree))
                raise ArtifactError(f"expected is {symbols.readable(tree, shown_names)}; {numbers}")
        found = [leaf.laid_out(tensor, sizes) for leaf, tensor in zip(self.leaves, leaves, strict=True)]
        self._refuse_overlaps(found)
        return found, sizes

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        if len(args) > len(self.names):
            raise ArtifactError(
                f"{len(args)} arguments are given; expected are at most {len(self.names)}: {self.names}"
            )
        given = dict(zip(self.names, args, strict=False))
        twice = given.keys() & kwargs.keys()
        unknown = [name for name in kwargs if name not in self.structure]
        if twice or unknown:
            raise ArtifactError(
                f"argument {[*sorted(twice), *unknown][0]!r} is not expected; expected are {list(self.structure)}"
            )
        given.update(kwargs)
        missing = [name for name in self.structure if name not in given]
        if missing:
            raise ArtifactError(f"the argument {missing[0]!r} is missing; expected are {list(self.structure)}")
        more = [name for name in given if name not in self.structure]
        if more:
            raise ArtifactError(
                f"the argument {more[0]!r} was not given at export; expected are {list(self.structure)}"
            )
        return [(name, given[name]) for name in self.structure]

    def _refuse_overlaps(self, leaves: list[torch.Tensor]) -> None:
        if not any(leaf.written for leaf in self.leaves):
            return
        for at, (leaf, tensor) in enumerate(zip(self.leaves, leaves, strict=True)):
            for other, seen in enumerate(leaves):
                if leaf.written and other != at and _memory(tensor) & _memory(seen):
                    raise ArtifactError(f"{leaf.path} is written and shares memory with {self.leaves[other].path}")


class _Leaf:
    """One tensor of the signature."""

    def __init__(self, path: str, dtype: str, shape: list[Any], stride: list[Any], written: bool) -> None:
        self.path = str(path)
        self.dtype = getattr(torch, dtype)
        self.shape = [tree_of_data(size) for size in shape]
        self.stride = [tree_of_data(size) for size in stride]
        self.written = bool(written)
        self.gradient: bool | None = None
        if not isinstance(self.dtype, torch.dtype) or len(self.shape) != len(self.stride):
            raise ValueError("a tensor of no dtype, or of other strides than sizes")

    def check_kind(self, tensor: torch.Tensor) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
            raise ArtifactError(f"{self.path}: expected is a strided torch.Tensor, not {type(tensor).__name__}")
        if tensor.dtype != self.dtype or tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
            raise ArtifactError(f"{self.path}: {_shown(tensor)} is given; expected is {self._expected()}")
        same = all(type(size) is str or size == found for size, found in zip(self.shape, tensor.shape, strict=False))
        if tensor.dim() != len(self.shape) or not same:
            raise ArtifactError(f"{self.path}: {_shown(tensor)} is given; expected is {self._expected()}")

        if self.gradient is not None and torch.is_grad_enabled() and tensor.requires_grad != self.gradient:
            found, expected = ("does not", "does") if self.gradient else ("does", "does not")
            raise ArtifactError(f"{self.path} {found} require a gradient; expected is a tensor that {expected}")

    def laid_out(self, tensor: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        """The tensor, or a copy with the strides that the plan is for."""
        shape = tuple(symbols.value_of(size, sizes) for size in self.shape)
        stride = tuple(symbols.value_of(step, sizes) for step in self.stride)
        if tuple(tensor.shape) != shape or not all(type(step) is int for step in stride):
            raise ArtifactError(f"{self.path}: {_shown(tensor)} is given; expected are the sizes {list(shape)}")
        pairs = zip(shape, tensor.stride(), stride, strict=True)
        if 0 in shape or all(size == 1 or found == wanted for size, found, wanted in pairs):
            return tensor
        if self.written:
            raise ArtifactError(
                f"{self.path} is written, and has strides {list(tensor.stride())}; expected are {list(stride)}"
            )
        return torch.empty_strided(shape, stride, dtype=tensor.dtype).copy_(tensor)

    def _expected(self) -> str:
        sizes = ", ".join(size if type(size) is str else str(size) for size in self.shape)
        return f"{dtype_name(self.dtype)}[{sizes}] on cpu"


def tree_of_data(data: Any) -> symbols.Tree:
    """A tree from JSON, whose tuples are lists there. Raises ValueError for what is none."""
    if isinstance(data, list):
        name, *parts = data
        if name not in symbols.OPERATIONS:
            raise ValueError(f"an operation {name!r} on sizes")
        return (name, *map(tree_of_data, parts))
    if type(data) not in (int, float, bool, str):
        raise ValueError("a size that is no number")
    return data  # type: ignore[no-any-return]


def _shown(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)} on {tensor.device}"


def _memory(tensor: torch.Tensor) -> set[int]:
    return {tensor.untyped_storage().data_ptr()} if tensor.numel() else set()
