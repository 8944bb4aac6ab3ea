"""Equal `compile` calls share one session, and so its variants.

In: what is compiled, and the choices. Out: the session that an equal call made before, or a new one. It is kept as long
as all that made the call is there: the function or module, the backend, the guard filter. They are held weakly, also by
the session itself once the user has dropped the compiled objects (`Session.park`).
"""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from dynajit.capture.session import Choices, Owner, Session, sharing
from dynajit.config import config, fields

_alone = threading.local()  # `on`: whether the thread's calls of `compile` share nothing
_sessions: dict[Any, tuple[Session, list[weakref.ref[Any]]]] = {}


def shared_session(target: Any, choices: Choices, make: Callable[[Choices], Session]) -> tuple[Session, Owner]:
    """The session of all `compile` calls of this target with equal choices under equal settings, which `make` makes for
    the first, and its owner. What can't be referenced weakly or compared gets a session of its own at each call."""
    held: list[weakref.ref[Any]] = []
    keys: list[Any] = []
    try:
        key = _key(target, choices, held, keys)
    except TypeError:
        key = None
    if key is None or getattr(_alone, "on", False):
        session = make(choices)
        return session, session.owner()
    keys.append(key)
    with sharing:
        found = _sessions.get(key)
        if found is not None and any(reference() is None for reference in found[1]):
            found[0].unshare()
            found = None
        if found is None:
            found = _sessions[key] = make(choices), held
            found[0].unlink = lambda: _sessions.pop(key, None)
        session = found[0]
        owner = session.owner()
        session.choices = choices
    return session, owner


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
    for session, _ in list(_sessions.values()):
        session.unshare()
        session.park()


def _key(target: Any, choices: Choices, held: list[weakref.ref[Any]], keys: list[Any]) -> Any:
    called = [part for part in (target, choices.backend, choices.guard_filter) if part is not None]
    named = isinstance(choices.settings["backend"], str)
    return (
        tuple(_identity(part, held, keys) for part in called),
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


def _identity(value: Any, held: list[weakref.ref[Any]], keys: list[Any]) -> Any:
    """What is equal for the same object, which is noticed when it goes. Raises TypeError."""
    if type(value) is types.MethodType:  # made anew by each access
        return _identity(value.__func__, held, keys), _identity(value.__self__, held, keys)
    held.append(weakref.ref(value, lambda reference: _gone(reference, keys)))
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


def _gone(reference: weakref.ref[Any], keys: list[Any]) -> None:
    """An object that a session is found by is no more."""
    for key in keys:
        found = _sessions.get(key)
        if found is not None and any(reference is held for held in found[1]):
            found[0].unshare()
            found[0].park()
