"""Equal `compile` calls share one session, and so its variants.

In: what is compiled, and the choices. Out: the session that an equal call made before, or a new one. Functions are
equal that have the same code and the like in their cells and defaults; modules, and methods of theirs, that have the
same class and structure; what variants read of these is guarded. A session is kept as long as all that made the call
is there: the code, class or object, the modules that it closes over, the backend, the guard filter. They are held
weakly, also by the session itself once the user has dropped the compiled objects (`Session.park`).
"""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch

from dynajit.capture.session import Choices, Owner, Session, is_lasting, sharing
from dynajit.capture.structure import TENSORS, VALUES, Structure
from dynajit.config import config, fields

# sessions of one code or class that no user has an object of: so many are kept, and then one is taken over by the next
# function, or dropped for the next module
MAX_PARKED = 4
MAX_ITEMS = 16  # of a container that is looked at
# what is compiled by these, in these modes and without these options knows nothing of where a module's tensors are, and
# of what is in them
_BACKENDS = ("eager", "aot_eager", "codegen")
_MODES = (None, "default", "max-autotune-no-cudagraphs")
_OPTIONS = ("freezing", "triton.cudagraphs")


class Shared(NamedTuple):
    """A session that `compile` calls find: with the objects that it dies with, and those that its key names by identity
    alone."""

    session: Session
    held: list[weakref.ref[Any]]
    named: list[weakref.ref[Any]]


_alone = threading.local()  # `on`: whether the thread's calls of `compile` share nothing
# by what is compiled and how, then by what its cells and defaults hold
_sessions: dict[Hashable, dict[Hashable, Shared]] = {}


def shared_session(target: Any, choices: Choices, make: Callable[[Choices], Session]) -> tuple[Session, Owner]:
    """The session of all `compile` calls of such targets with equal choices under equal settings, which `make` makes
    for the first, and its owner. What can't be referenced weakly or compared gets a session of its own at each call."""
    key = _Key(choices)
    try:
        alike = key.of_call(target)
    except TypeError:
        alike = None
    if alike is None or getattr(_alone, "on", False):
        session = make(choices)
        return session, session.owner()
    with sharing:
        known = _sessions.setdefault(alike, {})
        contents = tuple(key.contents)
        key.places.append((alike, contents))
        found = known.get(contents)
        gone = found is not None and any(reference() is None for reference in (*found.held, *found.named))
        if found is None or gone:
            found = _taken_over(known, contents if gone else None, choices, key.of_modules)
        if found is None:
            # dropping the last one takes the table with it
            known = _sessions.setdefault(alike, known)
            found = known[contents] = Shared(make(choices), key.held, key.named)
            found.session.unlink = lambda: _forget(alike, contents)
        owner = found.session.owner()
        found.session.choices = choices
    return found.session, owner


def _taken_over(known: dict[Hashable, Shared], gone: Hashable, choices: Choices, of_modules: bool) -> Shared | None:
    """One of the sessions that nobody uses, if there are many or that of the contents `gone` was for objects that are
    no more, where others have their addresses now: functions are made anew of one code, and what varies is found to. It
    is the one with most variants, which knows best what varies. Where too many variants are an error it is dropped
    instead when it is full; that of a module always."""
    parked = [shared for shared in known.values() if shared.session.is_parked()]
    stale = known.get(gone)
    dropped = [stale] if stale is not None else []
    if len(parked) >= MAX_PARKED or stale in parked:
        best = max(reversed(parked), key=lambda shared: shared.session.most_variants())
        if not of_modules and (not choices.fullgraph or best.session.most_variants() < config.recompile_limit):
            return best
        # modules are let go of by the garbage collector, many at once
        dropped += parked[: 1 - MAX_PARKED] if of_modules else [best]
    for shared in dropped:
        shared.session.unshare()
        shared.session.park()
    return None


def _forget(alike: Hashable, contents: Hashable) -> None:
    known = _sessions.get(alike, {})
    known.pop(contents, None)
    if not known:
        _sessions.pop(alike, None)


@contextlib.contextmanager
def unshared() -> Iterator[None]:
    """The thread's calls of `compile` get sessions of their own, so that what they compile is seen to be compiled."""
    former = getattr(_alone, "on", False)
    _alone.on = True
    try:
        yield
    finally:
        _alone.on = former


def forget_shared() -> None:
    """Later calls of `compile` share nothing with those before."""
    for known in list(_sessions.values()):
        for shared in list(known.values()):
            shared.session.unshare()
            shared.session.park()


class _Key:
    """What makes one `compile` call equal to another: `of_call`, and the contents of the function's cells and defaults
    that it comes upon."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.held: list[weakref.ref[Any]] = []
        self.named: list[weakref.ref[Any]] = []
        self.contents: list[Hashable] = []
        # where the session is found, for when something that it is held by goes
        self.places: list[tuple[Hashable, Hashable]] = []
        # under these no variant is for several sizes, or too many are an error
        self.sizes_count = choices.fullgraph or choices.dynamic is False
        self.inside: list[int] = []
        self.of_modules = False
        settings, options = choices.settings, choices.settings["options"] or {}
        self.modules_alike = (
            (not isinstance(settings["backend"], str) or settings["backend"] in _BACKENDS)
            and settings["mode"] in _MODES
            and not any(options.get(name) for name in _OPTIONS)
        )

    def of_call(self, target: Any) -> Hashable:
        """What is equal for equal calls. Raises TypeError for what can't be compared."""
        choices = self.choices
        called = [part for part in (choices.backend, choices.guard_filter) if part is not None]
        named = isinstance(choices.settings["backend"], str)
        return (
            self.target(target),
            tuple(self.identity(part) for part in called),
            _value(
                [
                    named,
                    choices.backend_name,
                    choices.fullgraph,
                    choices.dynamic,
                    choices.options,
                    choices.verify,
                    choices.background,
                ]
            ),
            tuple(repr(getattr(config, name)) for name in fields()),
        )

    def target(self, target: Any) -> Hashable:
        """A function's code, with its cells and defaults among the contents; any other object itself."""
        if type(target) is types.MethodType:
            return self.target(target.__func__), self.owner(target.__self__)
        if isinstance(target, torch.nn.Module):
            return self.owner(target)
        plain = type(target) is types.FunctionType and not hasattr(target, "_dynajit_disable")
        if plain and is_lasting(target.__globals__):
            try:
                self.contents.append(self.function(target))
                return self.identity(target.__code__)
            except TypeError:  # something in it can't be compared
                for found in (self.held, self.named, self.contents):
                    found.clear()
        return self.identity(target)

    def owner(self, target: Any) -> Hashable:
        """A module's class, with its structure among the contents; any other object itself."""
        if self.modules_alike and isinstance(target, torch.nn.Module) and not hasattr(target, "_dynajit_disable"):
            structure = Structure()
            with contextlib.suppress(TypeError):
                self.contents.append(structure.of(target))
                self.named += structure.named
                self.of_modules = True
                return self.identity(type(target))
        return self.identity(target)

    def function(self, function: types.FunctionType) -> Hashable:
        """What functions of one code differ by."""
        cells = function.__closure__ or ()
        return (
            id(function.__code__),
            tuple(self.cell(cell) for cell in cells),
            self.content(function.__defaults__),
            self.content(function.__kwdefaults__),
        )

    def entered(self, value: Any, inner: Callable[[Any], Hashable]) -> Hashable:
        """What `inner` finds, or where around it the same object was met."""
        if id(value) in self.inside:
            return "recursion", self.inside.index(id(value))
        self.inside.append(id(value))
        found = inner(value)
        self.inside.pop()
        return found

    def items(self, value: Any) -> Hashable:
        """What lists, tuples and dictionaries differ by."""
        kind = type(value)
        items = value.items() if kind is dict else value
        return kind, tuple(self.content(tuple(item) if kind is dict else item) for item in items)

    def cell(self, cell: types.CellType) -> Hashable:
        """What is in a cell, if anything is."""
        try:
            value = cell.cell_contents
        except ValueError:
            return "empty"
        return self.content(value)

    def content(self, value: Any) -> Hashable:
        """What is equal for objects that one variant may be for: constants that are equal, functions of one code,
        tensors alike but for their data; or the same object."""
        kind = type(value)
        if kind in VALUES:
            return kind, repr(value)
        if kind in TENSORS:
            shape = tuple(value.shape) if self.sizes_count else value.dim()
            return kind, value.dtype, str(value.device), value.requires_grad, shape
        if kind is types.FunctionType:
            self.named.append(weakref.ref(value.__code__))
            return self.entered(value, self.function)
        if kind is types.MethodType:
            return self.content(value.__func__), self.content(value.__self__)
        if kind in (list, tuple, dict) and len(value) <= MAX_ITEMS:
            return self.entered(value, self.items)
        if isinstance(value, torch.nn.Module):  # whose parameters are no longer used then
            return self.identity(value)
        self.named.append(weakref.ref(value))
        return id(value)

    def identity(self, value: Any) -> Hashable:
        """What is equal for the same object, which is noticed when it goes. Raises TypeError."""
        if type(value) is types.MethodType:  # made anew by each access
            return self.identity(value.__func__), self.identity(value.__self__)
        places = self.places
        self.held.append(weakref.ref(value, lambda reference: _gone(reference, places)))
        return id(value)


def _value(value: Any) -> Any:
    """What is equal for equal constants and containers of them. Raises TypeError for others."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes):
        return kind, repr(value)
    if kind in (list, tuple):
        return kind, tuple(map(_value, value))
    if kind is dict:
        return kind, tuple((_value(name), _value(item)) for name, item in value.items())
    raise TypeError


def _gone(reference: weakref.ref[Any], places: list[tuple[Hashable, Hashable]]) -> None:
    """An object that a session is found by is no more."""
    for alike, contents in places:
        found = _sessions.get(alike, {}).get(contents)
        if found is not None and any(reference is held for held in found.held):
            found.session.unshare()
            found.session.park()
