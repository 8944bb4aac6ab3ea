"""torch.Tensor as torch has it, and what a program has put into it since.

In: the classes that `TensorVal` stands for. Out: `tensor_facts`, that they have what they have, for a guard; methods
that are the program's (`is_programs`), which are traced as any other function; and whether something else was replaced
(`is_changed`): what operators and attributes do is known here only as torch has it.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from dynajit.guards.assumed import ABSENT, Facts, Names, attribute_of
from dynajit.values.objects.lookup import is_trusted, lookup_type

_CLASSES = (torch.Tensor, torch.nn.Parameter)
# what classes would be asked for first, if they had it
_ASKED_FIRST = ("__getattr__", "__set_name__")


def _names_of(kind: type) -> Names:
    names = {name for base in kind.__mro__ for name in vars(base)}
    return {name: attribute_of(kind, name) for name in sorted({*names, *_ASKED_FIRST})}


_AS_IMPORTED: dict[type, Names] = {kind: _names_of(kind) for kind in _CLASSES}
#: of methods, as they are in the class
METHOD_KINDS = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)


def is_programs(kind: type, name: str) -> bool:
    """Whether the class of a tensor has a method of that name that a program has put there."""
    found: Any = lookup_type(kind, name)[0]
    own = type(found) is types.FunctionType and found is not _AS_IMPORTED.get(kind, {}).get(name)
    return own and not is_trusted(found.__globals__.get("__name__"))


class _Now:
    """What the classes have; and whether some of it can't be followed."""

    def __init__(self) -> None:
        names = {kind: {name: attribute_of(kind, name) for name in known} for kind, known in _AS_IMPORTED.items()}
        self.facts = Facts([*names.items()], [])
        self.replaced = [
            (kind, name)
            for kind, known in _AS_IMPORTED.items()
            for name, then in known.items()
            if names[kind][name] is not then
        ]
        self.changed = not all(
            _is_followed(name, names[kind][name], _AS_IMPORTED[kind]) for kind, name in self.replaced
        )


def _is_followed(name: str, now: Any, then: Names) -> bool:
    """Whether one method written in Python took the place of another: no special one, which torch calls itself, nor one
    that may be used while tracing."""
    both = type(now) is type(then.get(name, ABSENT)) is types.FunctionType
    return both and not name.startswith("__")


_now: list[_Now] = []


def _state() -> _Now:
    if not _now or not _now[0].facts.in_c.check():
        _now[:] = [_Now()]
    return _now[0]


def tensor_facts() -> Facts:
    """That the classes have under the names they were made with what they have now."""
    return _state().facts


def is_replaced() -> bool:
    """Whether any of it is not what torch put there."""
    return bool(_state().replaced)


def is_changed() -> bool:
    """Whether operators or attributes of tensors do something else than torch's: no trace tells what they do."""
    return _state().changed
