"""What a trace relies on of Python's own library and torch, which hardly anybody changes while the process lives.

In: classes and modules of these in which something was looked up, and what was found; code that was traced; why the
trace holds in this process alone (an address, the order of a set of texts). Out: `Assumptions`; `Facts`, all that is
looked at in this process, by one guard. A change is seen by versions that CPython keeps anyway (`csrc/guards/assumed.c`).
What is kept for another process (`kept/`) has to hold there, too.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

from dynajit import _C

#: what is found under a name under which there is nothing
ABSENT: Any = object()
Names = dict[str, Any]


class Assumptions:
    """Append-only; what was rolled back stays, which is too much and never too little.

    Attributes:
        classes: classes of trusted modules in which attributes were looked up, by id.
        attributes: (class, what it was found to have, inherited or not, under which names), by the class's id.
        members: (namespace, its module's name, what was found there), by the namespace's id.
        imports: modules that are loaded, by the names that the program imports.
        codes: the code that was traced, with its globals, by id.
        only_here: why this trace says nothing of another process; "" if it does.
    """

    def __init__(self) -> None:
        self.classes: dict[int, type] = {}
        self.attributes: dict[int, tuple[type, Names]] = {}
        self.members: dict[int, tuple[dict[str, Any], str, Names]] = {}
        self.imports: dict[str, types.ModuleType] = {}
        self.codes: dict[int, tuple[types.CodeType, dict[str, Any]]] = {}
        self.only_here = ""
        #: classes and names that were looked up, library or not
        self.looked_up: set[tuple[int, str]] = set()

    def of_import(self, name: str, module: types.ModuleType) -> None:
        """The module is loaded under the name."""
        self.imports[name] = module

    def of_class(self, kind: type) -> None:
        """An attribute of the class was looked up, there or not."""
        self.classes[id(kind)] = kind

    def of_attribute(self, kind: type, name: str, found: Any) -> None:
        """A class that lives as long as the process has this attribute, its own or a base's; or has none (ABSENT)."""
        self.attributes.setdefault(id(kind), (kind, {}))[1][name] = found

    def of_member(self, namespace: dict[str, Any], module: str, name: str, found: Any) -> None:
        """The module, whose namespace it is, has this under the name; or has nothing (ABSENT)."""
        self.members.setdefault(id(namespace), (namespace, module, {}))[2][name] = found

    def of_code(self, code: types.CodeType, globals_: dict[str, Any]) -> None:
        """The code was traced."""
        self.codes[id(code)] = code, globals_

    def of_process(self, why: str) -> None:
        """The trace has something in it that is another one in each process."""
        self.only_here = self.only_here or why

    def facts(self) -> Facts:
        """What a guard looks at."""
        loaded: list[Any] = [(sys.modules, "sys.modules", self.imports)] if self.imports else []
        return Facts([*self.attributes.values()], [*self.members.values(), *loaded])


class Facts:
    """What classes and namespaces have under which names."""

    def __init__(self, classes: list[tuple[type, Names]], namespaces: list[tuple[dict[str, Any], str, Names]]) -> None:
        self.in_c = _C.Assumed(
            tuple((kind, _facts(names)) for kind, names in classes),
            tuple((namespace, _facts(names)) for namespace, _, names in namespaces),
        )
        self._classes = [(kind, _ids(names)) for kind, names in classes]
        self._namespaces = [(namespace, module, _ids(names)) for namespace, module, names in namespaces]

    def __len__(self) -> int:
        return sum(len(row[-1]) for row in (*self._classes, *self._namespaces))

    def changed(self) -> str | None:
        """The first that does not hold, in words; the Python twin of the leaf."""
        for kind, names in self._classes:
            for name, then in names.items():
                if id(attribute_of(kind, name)) != then:
                    return _told(f"{kind.__module__}.{kind.__qualname__}.{name}", then, attribute_of(kind, name))
        for namespace, module, names in self._namespaces:
            for name, then in names.items():
                if id(namespace.get(name, ABSENT)) != then:
                    return _told(f"{module}.{name}", then, namespace.get(name, ABSENT))
        return None


def attribute_of(kind: type, name: str) -> Any:
    """The attribute as it is in the class that has it, by the method resolution order; or ABSENT."""
    for base in kind.__mro__:
        names = type.__dict__["__dict__"].__get__(base)  # type: ignore[attr-defined]
        if name in names:
            return names[name]
    return ABSENT


def _facts(names: Names) -> tuple[tuple[Any, ...], ...]:
    """As C takes them: functions, which hold what the program has put into their cells, are not kept alive."""
    return tuple(
        (name,)
        if found is ABSENT
        else (name, weakref.ref(found), True)
        if type(found) is types.FunctionType
        else (name, found)
        for name, found in names.items()
    )


def _ids(names: Names) -> dict[str, int]:
    return {name: id(found) for name, found in names.items()}


def _told(place: str, then: int, now: Any) -> str:
    if now is ABSENT:
        return f"{place} is gone"
    return f"{place} was {'added' if then == id(ABSENT) else 'replaced'}"


_here = threading.local()


@contextlib.contextmanager
def recording(assumed: Assumptions) -> Iterator[None]:
    """What this thread looks up in classes is noted there."""
    before = current()
    _here.assumed = assumed
    try:
        yield
    finally:
        _here.assumed = before


def current() -> Assumptions | None:
    """Where the thread's look-ups are noted; None: nowhere, nothing is traced."""
    return getattr(_here, "assumed", None)
