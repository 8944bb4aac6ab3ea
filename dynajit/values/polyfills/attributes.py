"""What reading an attribute runs of the program's code, in plain Python, so that a break in there can be gone on from.

In: the object, the name, and the methods that its class has. Out: the attribute. AttributeErrors that leave the reading
get the object and the name, as `PyObject_GetAttr` gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def from_fallback(fallback: Callable[[Any, str], Any], obj: Any, name: str) -> Any:
    """`obj.name`, of a class whose `__getattr__` is asked."""
    try:
        return fallback(obj, name)
    except AttributeError as error:
        name_error(error, obj, name)
        raise


def from_property(get: Callable[[Any], Any], obj: Any, name: str) -> Any:
    """`obj.name`, a property, whose AttributeError has `__getattr__` asked."""
    try:
        try:
            return get(obj)
        except AttributeError:
            pass
        return ask_fallback(obj, name)
    except AttributeError as error:
        name_error(error, obj, name)
        raise


def ask_fallback(obj: Any, name: str) -> Any:
    """`obj.name`, of a class whose `__getattr__` comes after all else. Has a model of its own."""
    return type(obj).__getattr__(obj, name)


def name_error(error: Any, obj: Any, name: str) -> None:
    """Give an AttributeError that has none the object and the name. Has a model for errors made while tracing."""
    if error.name is None and error.obj is None:
        error.name, error.obj = name, obj


def has_attribute(obj: Any, name: str) -> bool:
    """`hasattr(obj, name)`"""
    try:
        getattr(obj, name)
    except AttributeError:
        return False
    return True


def attribute_or(obj: Any, name: str, default: Any) -> Any:
    """`getattr(obj, name, default)`"""
    try:
        return getattr(obj, name)
    except AttributeError:
        return default


def restore_state(made: Any, state: Any) -> None:
    """What `copy` does with a state."""
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state is not None:
        made.__dict__.update(state)
    if slots is not None:
        for name, value in slots.items():
            setattr(made, name, value)
