"""What code found where it read state that Python code shares with the program, and whether it would find the same now.

In: functions. Out: `StateSnapshot`: each variable, attribute and container that they may read, by `shared_state`, with
what is there. What is traced once and runs often relies on it, as guards do; but it may be asked long after the call
that guards stood before, when nothing is left of that but the snapshot.
"""

from __future__ import annotations

import collections
import contextvars
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from dynajit.graph.shared_state import SharedState, is_of_library, names_of, shared_state
from dynajit.guards.kinds_object import const_equal

_ABSENT: Any = object()
_NUMBERS = (bool, int, float, complex, str, bytes)


class _Place(NamedTuple):
    """One piece of state: what reads it of its owner by its name, and what was there."""

    read: Callable[[Any, Any], Any]
    owner: Any
    name: Any
    found: Any
    #: whether it is a variable of a module or a class
    is_variable: bool = False

    def is_set_by_code(self) -> bool:
        """Whether the program sets it as it runs, as far as its module tells: all but variables that no function of
        the module stores."""
        if not self.is_variable:
            return True
        module = self.owner
        if isinstance(module, type):
            functions = [each for each in vars(module).values() if isinstance(each, types.FunctionType)]
            module = functions[0].__globals__ if functions else {}
        defined = [each for each in module.values() if getattr(each, "__module__", "") == module.get("__name__")]
        classes = (vars(each).values() for each in defined if isinstance(each, type))
        state = SharedState()
        for each in itertools.chain(defined, *classes):
            if isinstance(each, types.FunctionType):
                state.of_code(each.__code__)
        return not module or self.name in state.writes


class StateSnapshot:
    """The state that functions read, as it is where this is made.

    Attributes:
        known: whether all of their code was found; if not, they may read anything.
    """

    def __init__(self, functions: Iterable[Any]) -> None:
        state = shared_state(functions)
        self.known = state.known
        places: dict[tuple[Any, int, Any], _Place] = {}
        for found in state.found if state.known else ():
            for place in _places(found, state.reads):
                if not _is_code(place.found):
                    places.setdefault((place.read, id(place.owner), place.name), place)
        self._places = places

    def __bool__(self) -> bool:
        """Whether they read any."""
        return bool(self._places) or not self.known

    def holds(self) -> bool:
        """Whether each place has what it had."""
        return self.known and all(
            _is_same(place.read(place.owner, place.name), place.found) for place in self._places.values()
        )

    def is_set_by_code(self) -> bool:
        """Whether the program sets any of it as it runs."""
        return any(place.is_set_by_code() for place in self._places.values())

    def shares_with(self, other: StateSnapshot) -> bool:
        """Whether both read one piece that the program sets as it runs."""
        return any(self._places[key].is_set_by_code() for key in self._places.keys() & other._places.keys())


def _places(found: Any, names: set[str]) -> Iterator[_Place]:
    """The pieces of state of one object that code reaches."""
    if isinstance(found, types.FunctionType):
        if not is_of_library(found.__module__):
            for cell in found.__closure__ or ():
                yield _Place(_contents, cell, None, _contents(cell, None))
            variables = found.__globals__
            yield from (_variable(variables, name) for name in names_of(found.__code__) if name in variables)
    elif isinstance(found, types.ModuleType):
        yield from (_variable(vars(found), name) for name in names if name in vars(found))
    elif isinstance(found, (list, tuple, set, frozenset, dict, collections.deque)):
        if not isinstance(found, tuple):
            yield _Place(_items, found, None, _items(found, None))
    elif isinstance(found, contextvars.ContextVar):
        yield _Place(_value, found, None, _value(found, None))
    elif not isinstance(found, (types.MethodType, staticmethod, classmethod, property)):
        yield from _attributes(found, names)


def _attributes(found: Any, names: set[str]) -> Iterator[_Place]:
    is_class = isinstance(found, type)
    classes = (found if is_class else type(found)).__mro__
    own = None if is_class else getattr(found, "__dict__", None)
    for name in names:
        owner = next((each for each in classes if name in vars(each)), None)
        value = _ABSENT if owner is None else vars(owner)[name]
        if isinstance(value, types.MemberDescriptorType) and not is_class:
            yield _Place(_slot, found, value, _slot(found, value))
            continue
        if isinstance(own, dict) and (name in own or (owner is not None and not _is_code(value))):
            yield _Place(_item, own, name, _item(own, name))
        if owner is not None and not is_of_library(owner.__module__):
            yield _Place(_item_of_class, owner, name, value, is_variable=True)


def _variable(variables: dict[str, Any], name: str) -> _Place:
    return _Place(_item, variables, name, _item(variables, name), is_variable=True)


def _item_of_class(owner: type, name: str) -> Any:
    return vars(owner).get(name, _ABSENT)


def _item(variables: Any, name: str) -> Any:
    return variables.get(name, _ABSENT)


def _contents(cell: types.CellType, _: Any) -> Any:
    return _ABSENT if cell == types.CellType() else cell.cell_contents


def _slot(owner: Any, descriptor: Any) -> Any:
    try:
        return descriptor.__get__(owner)
    except AttributeError:
        return _ABSENT


def _value(variable: contextvars.ContextVar[Any], _: Any) -> Any:
    return variable.get(_ABSENT)


def _items(container: Any, _: Any) -> tuple[Any, ...]:
    if isinstance(container, dict):
        return (*container.keys(), *container.values())
    return tuple(container)


_CODE: tuple[type, ...] = (
    *(types.ModuleType, type, types.FunctionType, types.MethodType, types.BuiltinFunctionType),
    *(property, staticmethod, classmethod, torch._ops.OpOverload, torch._ops.OpOverloadPacket),
    *(types.GetSetDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType),
)


def _is_code(found: Any) -> bool:
    """Whether this is a name of code: what runs, and no state that it reads."""
    return isinstance(found, _CODE)


def _is_same(now: Any, before: Any) -> bool:
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    if type(now) is tuple:
        return len(now) == len(before) and all(map(_is_same, now, before))
    return type(now) in _NUMBERS and const_equal(now, before)
