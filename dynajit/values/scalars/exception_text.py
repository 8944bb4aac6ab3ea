"""Texts of exceptions that CPython's releases word differently.

In: what the text is about. Out: the text of the running Python, learnt by making it raise once. One more: a function
that provokes the exception with names of ours and puts the caller's in.
"""

from __future__ import annotations

import functools
from typing import Any, Final

_PLAIN: Final[Any] = object


@functools.cache
def _no_place(changed_hooks: bool) -> str:
    probe = type("dynajit_class", (), {"__slots__": (), **({"__setattr__": _plainly} if changed_hooks else {})})()
    try:
        probe.dynajit_name = None
    except AttributeError as error:
        return str(error)
    raise AssertionError("an attribute that has no place was set")


def _plainly(self: object, name: str, value: object) -> None:
    object.__setattr__(self, name, value)


def no_place_for_attribute(cls: type, name: str) -> str:
    """What AttributeError says where an object has neither a slot nor a dict for `name`."""
    # since 3.13 more is said of classes that leave setting and deleting to object
    changed_hooks = (cls.__setattr__, cls.__delattr__) != (_PLAIN.__setattr__, _PLAIN.__delattr__)
    return _no_place(changed_hooks).replace("dynajit_class", cls.__name__).replace("dynajit_name", name)


@functools.cache
def names_what_is_written() -> bool:
    """Whether an AttributeError of setting or deleting says `name` and `obj`, too (since 3.12)."""
    probe: Any = object()
    try:
        probe.dynajit_name = None
    except AttributeError as error:
        return error.name == "dynajit_name"
    raise AssertionError("an attribute that has no place was set")


@functools.cache
def _too_many(kind: type) -> str:
    try:
        one, two, three, four, five = kind((0,) * 7)
    except ValueError as error:
        return str(error)
    raise AssertionError("seven values were unpacked into five names", one, two, three, four, five)


def too_many_to_unpack(kind: type, expected: int, found: int) -> str:
    """What ValueError says where an object of class `kind` with `found` items is unpacked into `expected` names."""
    # since 3.14 the number found is told where it is known without iterating
    text = _too_many(kind if kind in (list, tuple) else iter)
    return text.replace("5", "{expected}").replace("7", "{found}").format(expected=expected, found=found)
