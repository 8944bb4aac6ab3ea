"""In which order a set gives its members: that follows from how it came to be, and not from what it has.

In:  what the program did with a set while tracing, as a chain of `History`. Out: `replayed`, a real set with which the
same was done, so that it has the same order. Of a set from outside only its own order is known: where its table has
gaps, or how large that is, decides about what is added, and can't be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dynajit.values.containers.keys import UserKey
from dynajit.values.core.value import Value

# Methods that take one member, not a set of them.
_OF_ONE = ("add", "discard")
# Methods that leave their set as it is.
_GIVES_ANOTHER = ("union", "intersection", "difference", "symmetric_difference")
# A copy of a set's table, and a set to which its members were added one by one.
_COPIES: dict[str, Callable[[Any], Any]] = {"copy": lambda found: found, "deepcopy": list}


class History(NamedTuple):
    """How a set came to be.

    method: what was called last; "": the set came from outside, or was made of `given` one by one, or nothing is known.
    given: the call's arguments: histories of sets, or members by their hash keys; a dict where CPython sees one. Or the
        one member that it is about.
    before: what the set was until then. real: a set from outside.
    """

    method: str = ""
    given: tuple[Any, ...] = ()
    before: History | None = None
    real: Any = None

    def then(self, method: str, *given: Any) -> History:
        return History(method, given, self)


UNKNOWN = History()


def made_of(entries: Mapping[Any, Value]) -> History:
    """Of a set to which these were added one after the other."""
    return History(given=(tuple(entries.items()),))


def from_outside(kind: Any, real: Any) -> History:
    """Of a set or frozenset that is nothing of the trace's; of an instance of a subclass, whose methods are not to run,
    its order."""
    return History(real=real if type(real) is kind else list(kind.__iter__(real)))


def as_given(value: Value, table: dict[Any, Value]) -> Any:
    """What a set's method or constructor is given, as a history has it; `table`: its members."""
    kind = value.py_type()
    if kind in (set, frozenset):
        return getattr(value, "history", None) or from_outside(kind, value.real())
    return table if kind is dict else tuple(table.items())


def real_member(key: Any, member: Value) -> Any:
    """What stands for a member in a real set. Raises NotReal."""
    return key if isinstance(key, UserKey) else member.real()


def replayed(history: History) -> Any:
    """A set of the same members in the same order, which belongs to the history; None if the order is not known. Raises
    NotReal."""
    steps = []
    while history.before is not None:
        steps.append(history)
        history = history.before
    if history is UNKNOWN:
        return None
    is_own = history.real is None
    found = set(_members(history.given[0])) if is_own else history.real
    if steps and type(found) is list:
        return None
    for step in reversed(steps):
        if step.method in _OF_ONE:
            arguments = _members(step.given)
        else:
            arguments = [replayed(each) if type(each) is History else _members(each) for each in step.given]
            if any(argument is None for argument in arguments):
                return None
        if step.method in _COPIES:
            found, is_own = set(_COPIES[step.method](found)), True
        elif step.method in _GIVES_ANOTHER:
            found, is_own = getattr(found, step.method)(*arguments), True
        elif is_own:
            getattr(found, step.method)(*arguments)
        else:
            return None
    return found


def _members(given: Any) -> Any:
    if type(given) is dict:
        return {real_member(key, member): None for key, member in given.items()}
    return [real_member(key, member) for key, member in given]


__all__ = ["UNKNOWN", "History", "as_given", "from_outside", "made_of", "real_member", "replayed"]
