"""A value of the program's in few characters, for messages and the names of guards.

In: any object. Out: text; no code of the program's runs, and no value is too large to be shown.
"""

from __future__ import annotations

import enum
import os
import types
from typing import Any

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
_MAX_BITS = 512
_BRACKETS: dict[type, str] = {tuple: "()", list: "[]", set: "{}", frozenset: "{}"}
_MAX_ITEMS = 6


def dtype_name(dtype: object) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def short(value: Any, limit: int = 80) -> str:
    """Types and functions by name, constants by repr, lists and their like by items, other objects by their type."""
    if issubclass(type(value), type):  # isinstance() would run a user's `__getattribute__`
        try:
            module = type.__dict__["__module__"].__get__(value)
        except AttributeError:
            module = None
        name: str = type.__dict__["__qualname__"].__get__(value)
        return name if type(module) is not str or module == "builtins" else f"{module}.{name}"
    if type(value) is int and value.bit_length() > _MAX_BITS:
        return f"an int of {value.bit_length()} bits"  # sys.set_int_max_str_digits forbids more
    if type(value) in _CONSTANTS:
        text = repr(value[:limit]) if isinstance(value, (str, bytes)) else repr(value)
        whole = len(text) <= limit and not (isinstance(value, (str, bytes)) and len(value) > limit)
        return text if whole else text[: limit - 3] + "..."
    if type(value) in _BRACKETS and value:
        items = tuple(value)
        if all(type(item) in _CONSTANTS for item in items):
            return _items(items, _BRACKETS[type(value)], limit)
    if type(value) is types.FunctionType:
        code = value.__code__
        return f"function {value.__qualname__} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    if type(value) is types.CodeType:
        return f"code of {value.co_name} ({os.path.basename(value.co_filename)}:{value.co_firstlineno})"
    if type(value) is types.BuiltinFunctionType:
        return f"built-in {value.__name__}"
    if issubclass(type(value), enum.Enum):
        name = object.__getattribute__(value, "__dict__").get("_name_")
        return f"{short(type(value))}.{name}" if type(name) is str else f"an unnamed member of {short(type(value))}"
    return f"an object of type {short(type(value))}"


def _items(items: tuple[Any, ...], brackets: str, limit: int) -> str:
    """Constants in a container."""
    shown = [short(item, limit // 2) for item in items[:_MAX_ITEMS]] + ["..."] * (len(items) > _MAX_ITEMS)
    text = ", ".join(shown)
    return brackets[0] + (text if len(text) <= limit else text[: limit - 3] + "...") + brackets[1]


def apart(old: Any, new: Any) -> tuple[str, str]:
    """Two values that aren't the same, in few characters that aren't the same either."""
    then, now = short(old), short(new)
    if then != now:
        return then, now
    if type(old) is not type(new):
        return f"{then} of type {short(type(old))}", f"{now} of type {short(type(new))}"
    if type(old) in (str, bytes):
        at = next((at for at, (one, other) in enumerate(zip(old, new)) if one != other), min(len(old), len(new)))
        return f"{then} with {old[at : at + 9]!r} at {at}", f"{now} with {new[at : at + 9]!r} at {at}"
    return then, f"another one ({now})"
