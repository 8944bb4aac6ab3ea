"""In which order a set gives its members: that follows from how it came to be, and not from what it has.

In:  what the program did with a set while tracing, as a chain of `History`. Out: `replayed`, a real set with which the
same was done, so that it has the same order; `recipe`, the same in constants, by which generated code makes such a set
(`carried_out`) or changes one from outside (`change`). Of a set from outside its order and the size of its table are
known and guarded: where that has gaps decides about what is added, and can't be seen.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dynajit.guards.source import Source
from dynajit.report.shown import short
from dynajit.values.containers.keys import UserKey
from dynajit.values.core.value import NotReal, Tracer, Value
from dynajit.values.scalars.constant import is_literal, literal_identity

# Methods that take one member, not a set of them.
_OF_ONE = ("add", "discard")
# What leaves its set as it is, by what it is called in a history; `a | b` and the like with a view of a dictionary.
_GIVES_ANOTHER: dict[str, Callable[..., Any]] = {
    "made": lambda found, kind: kind(found),
    "copy": lambda found: found.copy(),
    "deepcopy": lambda found, kind: kind([*found]),
    "|": operator.or_,
    "&": operator.and_,
    "-": operator.sub,
    "^": operator.xor,
    "union": lambda found, *others: found.union(*others),
    "intersection": lambda found, *others: found.intersection(*others),
    "difference": lambda found, *others: found.difference(*others),
    "symmetric_difference": lambda found, other: found.symmetric_difference(other),
}


_ITSELF = object()  # the set whose method is called, as its argument: CPython looks for that


class History(NamedTuple):
    """How a set came to be.

    method: what was called last; "": the set came from outside, or was made of `given`, or nothing is known.
    given: the call's arguments: histories of sets, or members by their hash keys; a dict where CPython sees one. Or the
        one member that it is about, or a class.
    before: what the set was until then. real: a set from outside. make: what made it of `given`: its class, or a
        function that gives a view of a dictionary.
    """

    method: str = ""
    given: tuple[Any, ...] = ()
    before: History | None = None
    real: Any = None
    make: Callable[[Any], Any] = set

    def then(self, method: str, *given: Any) -> History:
        return History(method, given, self)


Steps = tuple[tuple[str, tuple[Any, ...]], ...]


class Recipe(NamedTuple):
    """A history in real objects: what it begins with is `make(given)`, or `given` itself; then methods are called."""

    make: Callable[[Any], Any] | None
    given: Any
    steps: Steps

    def changed_first(self) -> int:
        """How many methods change the set from outside that it begins with, before one gives another set."""
        in_place = (name not in _GIVES_ANOTHER for name, _ in self.steps)
        return len([*itertools.takewhile(bool, in_place)]) if self.make is None else 0


UNKNOWN = History()


def made_of(entries: Mapping[Any, Value], kind: type = set, as_dict: bool = False) -> History:
    """Of a set that the class was asked to make of these, given one by one or as a dict."""
    return History(given=(dict(entries) if as_dict else tuple(entries.items()),), make=kind)


def view_of(entries: Mapping[Any, Value], what: str, is_plain: bool) -> History:
    """Of the keys, items or values of a dict, which is none of a subclass if it `is_plain`."""
    return History(given=(tuple(entries.items()),), make=functools.partial(_view, what, dict if is_plain else _Other))


class _Other(dict[Any, Any]):
    """Not the class that CPython knows the table of."""


def _view(what: str, kind: type[dict[Any, Any]], members: Sequence[Any]) -> Any:
    if what == "keys":
        return kind.fromkeys(members).keys()
    return kind(members).items() if what == "items" else kind(enumerate(members)).values()


def from_outside(kind: Any, real: Any) -> History:
    """Of a set or frozenset that is nothing of the trace's; of an instance of a subclass, whose methods are not to run,
    of a set like it, or else its order."""
    if type(real) is not kind:
        order = [*kind.__iter__(real)]
        made = kind(order)
        real = made if [*made] == order and made.__sizeof__() == kind.__sizeof__(real) else order
    return History(real=real)


def of_own(kind: Any, real: Any, entries: Mapping[Any, Value]) -> History:
    """Of a set that was computed while tracing, and that nobody else changes."""
    own = all(map(is_known, real)) and is_like(kind([*real]), real)
    return made_of(entries, kind) if own else from_outside(kind, real)


def copied_like(kind: Any, real: Any) -> Any:
    """Another set of the same order. Raises NotReal where none is found."""
    for made in (kind([*real]), kind(real)):
        if all(map(operator.is_, made, real)) and made.__sizeof__() == real.__sizeof__():
            return made
    raise NotReal("a set whose order a copy does not have")


def guard_members(tx: Tracer, kind: Any, real: Any, source: Source) -> None:
    """Guard on the members of a set, their order and the size of the table. There is no copy of the set: its members
    may have another order."""
    holds = functools.partial(has_members, kind, tuple(kind.__iter__(real)), kind.__sizeof__(real))
    tx.guard(source, "PREDICATE", holds, f"is {short(real)}")


def has_members(kind: Any, members: tuple[Any, ...], size: int, found: Any) -> bool:
    """Whether it is a set of that kind with these members in this order, in a table of so many bytes."""
    if kind.__sizeof__(found) != size:
        return False
    if all(map(operator.is_, members, kind.__iter__(found))) and kind.__len__(found) == len(members):
        return True
    return bool(literal_identity(members) == literal_identity(tuple(kind.__iter__(found))))


def as_given(value: Value, table: dict[Any, Value]) -> Any:
    """What a set's method or constructor is given, as a history has it; `table`: its members."""
    kind = value.py_type()
    if kind in (set, frozenset):
        return getattr(value, "history", None) or from_outside(kind, value.real())
    return table if kind is dict else tuple(table.items())


def is_known(member: Any) -> bool:
    """Whether a member's hash is the same wherever it is: a literal, or a tuple of those."""
    return all(map(is_known, member)) if type(member) is tuple else is_literal(member)


def real_member(key: Any, member: Value) -> Any:
    """What stands for a member in a real set. Raises NotReal."""
    return key if isinstance(key, UserKey) else member.real()


def replayed(history: History) -> Any:
    """A set of the same members in the same order, which belongs to the history; None if the order is not known. Raises
    NotReal."""
    found = _recipe(history, real_member)
    return None if found is None or found.changed_first() else carried_out(found)


def recipe(history: History) -> Recipe | None:
    """By which generated code makes the set, of constants; None if it might have another order, or another table, which
    decides about the order of what is added later. Raises NotReal."""
    known, found = replayed(history), _recipe(history, _literal)
    if known is None or found is None:
        return None
    if found.make is None and type(found.given) is not frozenset:  # a set from outside, which may change or go
        found = found._replace(make=set, given=tuple(found.given))
    return found if is_like(carried_out(found), known) else None


def changes_of(history: History) -> Steps | None:
    """What `change` does to the set from outside that the history begins with; None if it is made otherwise. Raises
    NotReal."""
    found = _recipe(history, _literal)
    if found is None or found.make is not None or found.changed_first() < len(found.steps):
        return None
    return found.steps


def is_like(one: Any, other: Any) -> bool:
    """Whether two sets of literals have the same order, and tables of one size."""
    return [*one] == [*other] and one.__sizeof__() == other.__sizeof__()


def _literal(key: Any, member: Value) -> Any:
    real = real_member(key, member)
    if not is_known(real):
        raise NotReal("a set of objects")
    return real


def _recipe(history: History, member: Callable[[Any, Value], Any]) -> Recipe | None:
    """`member`: what stands for a member; `_literal` if generated code is to have the recipe."""
    steps: list[tuple[str, Any]] = []
    while history.before is not None:
        is_of_one = history.method in _OF_ONE
        given = [history.given] if is_of_one else history.given
        arguments = [_ITSELF if each is history.before else _argument(each, member) for each in given]
        if any(argument is None for argument in arguments):
            return None
        steps.append((history.method, arguments[0] if is_of_one else tuple(arguments)))
        history = history.before
    steps.reverse()
    if type(history.real) is list and steps:
        return None
    if history.real is not None:
        return Recipe(None, history.real, tuple(steps))
    return None if history is UNKNOWN else Recipe(history.make, _argument(history.given[0], member), tuple(steps))


def _argument(given: Any, member: Callable[[Any, Value], Any]) -> Any:
    if type(given) is History:
        if member is _literal:
            return recipe(given)
        found = _recipe(given, member)
        return None if found is None or found.changed_first() or type(found.given) is list else found
    if type(given) is dict:
        return {member(key, value): None for key, value in given.items()}
    return given if callable(given) else tuple(member(key, value) for key, value in given)


def carried_out(recipe: Recipe) -> Any:
    """The set that a recipe makes; in generated code, too."""
    made = recipe.given if recipe.make is None else recipe.make(recipe.given)
    for name, given in recipe.steps:
        arguments = _arguments(made, given)
        if name in _GIVES_ANOTHER:
            made = _GIVES_ANOTHER[name](made, *arguments)
        else:
            getattr(made, name)(*arguments)
    return made


def change(real: set[Any], steps: Steps) -> None:
    """Do to a set from outside what the program did; in generated code. No code of a subclass runs."""
    for name, given in steps:
        getattr(set, name)(real, *_arguments(real, given))


def _arguments(made: Any, given: tuple[Any, ...]) -> list[Any]:
    return [made if each is _ITSELF else carried_out(each) if type(each) is Recipe else each for each in given]
