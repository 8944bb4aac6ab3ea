"""Constants as JSON, and back: what files of programs and of compiled variants hold of them.

In:  numbers, texts, what torch names, and what is made of these. Out: `encode`, the value itself, or a list that begins
     with what it is; `decode`, the value that was written. `NotData` for what has no such form.
One more kind: a line in each.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import torch

_NAMED = (torch.dtype, torch.memory_format, torch.layout)
_ALONE = {"ellipsis": Ellipsis, "not implemented": NotImplemented}


class NotData(Exception):
    """Something has no form as data, or data is not as it was written; the text says what."""


def encode(value: Any, part: Callable[[Any], Any] | None = None) -> Any:
    """JSON for a constant; `part` encodes what it is made of. Raises NotData."""
    kind, part = type(value), part or encode
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else ["float", repr(value)]
    if kind is complex:
        return ["complex", repr(value)]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if value is Ellipsis or value is NotImplemented:
        return ["ellipsis" if value is Ellipsis else "not implemented"]
    if kind is slice:
        return ["slice", *map(part, (value.start, value.stop, value.step))]
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    if kind in (tuple, torch.Size):
        return ["tuple" if kind is tuple else "Size", *map(part, value)]
    if kind is frozenset:
        return ["frozenset", *sorted(map(part, value), key=repr)]
    if isinstance(value, _NAMED):
        return ["torch", str(value).removeprefix("torch.")]
    if kind is torch.device:
        return ["device", str(value)]
    raise NotData(f"a {kind.__qualname__} is no constant")


def decode(data: Any, part: Callable[[Any], Any] | None = None) -> Any:
    """The constant that was written. Raises NotData, or ValueError, TypeError or AttributeError, for what is none."""
    if not isinstance(data, list):
        if data is None or type(data) in (bool, int, str, float):
            return data
        raise NotData(f"a value of type {type(data).__name__}")
    (kind, *rest), part = data, part or decode
    match kind:
        case "float" | "complex":
            return {"float": float, "complex": complex}[kind](text(*rest))
        case "bytes":
            return base64.b64decode(text(*rest))
        case "ellipsis" | "not implemented":
            return _ALONE[kind]
        case "slice" | "range":
            return {"slice": slice, "range": range}[kind](*map(part, rest))
        case "tuple" | "Size" | "frozenset":
            return {"tuple": tuple, "Size": torch.Size, "frozenset": frozenset}[kind](map(part, rest))
        case "torch":
            found = getattr(torch, word(*rest))
            if isinstance(found, _NAMED):
                return found
        case "device":
            return torch.device(text(*rest))
    raise NotData(f"a value of kind {kind!r}")


def text(value: Any) -> str:
    """The value, which has to be a text. Raises NotData."""
    if type(value) is not str:
        raise NotData(f"{type(value).__name__} where a text is")
    return value


def word(value: Any) -> str:
    """The value, which has to be a name. Raises NotData."""
    if not text(value).isidentifier():
        raise NotData(f"{value!r} where a name is")
    return value  # type: ignore[no-any-return]
