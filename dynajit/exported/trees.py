"""Arguments and results as tensors and a structure that can be written down.

In:  what a call takes or gives: tensors in lists, tuples, named tuples, dictionaries and their like, beside constants.
Out: `flatten`: the tensors, and the structure as JSON; `match`: the tensors of another call, if it is built the same;
     `rebuild`: the structure with tensors. It needs no classes of the program's: named tuples are made anew, and
     mappings with attributes, as transformers' outputs, become an `Output`.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch

from dynajit.exc import ArtifactError, ExportError

Structure = Any
TENSOR = "tensor"


class Output(collections.OrderedDict[str, Any]):
    """A mapping whose items are attributes too, and have places as those of a tuple."""

    def __getitem__(self, key: Any) -> Any:
        return tuple(self.values())[key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to_tuple(self) -> tuple[Any, ...]:
        """The items, in order."""
        return tuple(self.values())


def flatten(value: Any, path: str, leaves: list[tuple[str, torch.Tensor]]) -> Structure:
    """The structure of a value; its tensors are appended to `leaves`, each with how to reach it. Raises ExportError."""
    if isinstance(value, torch.Tensor):
        leaves.append((path, value))
        return TENSOR
    if value is None or type(value) in (bool, int, str):
        return ["constant", value]
    if type(value) is float:
        return ["constant", value if math.isfinite(value) else {"float": repr(value)}]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = [flatten(getattr(value, name), f"{path}.{name}", leaves) for name in value._fields]
        return ["named", type(value).__name__, list(value._fields), *items]
    if isinstance(value, (tuple, list)):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, *(flatten(item, f"{path}[{at}]", leaves) for at, item in enumerate(value))]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        kind = "output" if dataclasses.is_dataclass(value) or isinstance(value, Output) else "dict"
        items = [flatten(item, f"{path}[{key!r}]", leaves) for key, item in value.items()]
        return [kind, list(value), *items]
    raise ExportError(f"{path} is a {type(value).__name__}, which has no form in a file")


def constant(structure: Structure) -> Any:
    """The value of a constant of the structure."""
    _, value = structure
    return float(value["float"]) if isinstance(value, dict) else value


def match(structure: Structure, value: Any, path: str) -> Iterator[Any]:
    """The tensors of a value that has this structure. Raises ArtifactError, naming what differs and how."""
    if structure == TENSOR:
        if not isinstance(value, torch.Tensor):
            raise ArtifactError(f"{path}: expected is a tensor, not {type(value).__name__} {value!r:.80}")
        yield value
        return
    kind, *rest = structure
    if kind == "constant":
        wanted = constant(structure)
        if type(value) is not type(wanted) or repr(value) != repr(wanted):
            raise ArtifactError(
                f"{path}: expected is {wanted!r}, which the program was exported for, not {value!r:.80}"
            )
    elif kind in ("list", "tuple", "named"):
        items = rest[2:] if kind == "named" else rest
        if not isinstance(value, (list, tuple)) or len(value) != len(items):
            given = f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else type(value).__name__
            raise ArtifactError(
                f"{path}: expected is a {'tuple' if kind == 'named' else kind} of {len(items)}, not {given}"
            )
        for at, (item, part) in enumerate(zip(items, value, strict=True)):
            yield from match(item, part, f"{path}[{at}]")
    else:
        keys, *items = rest
        if not isinstance(value, dict) or set(value) != set(keys):
            found = str(list(value)) if isinstance(value, dict) else type(value).__name__
            raise ArtifactError(f"{path}: expected is a dictionary with the keys {keys}, not {found}")
        for key, item in zip(keys, items, strict=True):
            yield from match(item, value[key], f"{path}[{key!r}]")


def rebuild(structure: Structure, leaves: Iterator[Any]) -> Any:
    """A value of this structure."""
    if structure == TENSOR:
        return next(leaves)
    kind, *rest = structure
    if kind == "constant":
        return constant(structure)
    if kind == "named":
        name, fields, *items = rest
        return collections.namedtuple(name, fields)(*(rebuild(item, leaves) for item in items))
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](rebuild(item, leaves) for item in rest)
    keys, *items = rest
    pairs = [(key, rebuild(item, leaves)) for key, item in zip(keys, items, strict=True)]
    return Output(pairs) if kind == "output" else dict(pairs)


def check(structure: Structure) -> int:
    """How many tensors the structure has. Raises ValueError, TypeError or KeyError if it is none."""
    if structure == TENSOR:
        return 1
    kind, *rest = structure
    if kind == "constant":
        constant(structure)
        return 0
    if kind == "named":
        name, fields, *rest = rest
        collections.namedtuple(name, fields)
        rest = [fields, *rest]
    elif kind in ("list", "tuple"):
        return sum(map(check, rest))
    elif kind not in ("dict", "output"):
        raise ValueError(f"a structure of kind {kind!r}")
    keys, *items = rest
    if len(keys) != len(items) or not all(type(key) is str for key in keys):
        raise ValueError("a structure with other keys than items")
    return sum(map(check, items))
