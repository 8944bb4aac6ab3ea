"""What a trace relies on of Python's own library and torch, which hardly anybody changes while the process lives.

In: classes and modules of these in which something was looked up, and what was found; code that was traced; why the
trace holds in this process alone (an address, the order of a set of texts). Out: `Assumptions`; `Facts`, all that is
looked at here, by one guard. A change is seen by versions that CPython keeps anyway (`csrc/guards/assumed.c`).
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
#: (name,): nothing; (name, what is there); (name, a weak reference to it, True)
Fact = tuple[Any, ...]


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
        #: functions that are called as they are, of which it was noted what they look up
        self.looked_into: set[types.FunctionType] = set()

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
        self._classes = [(kind, _facts(names)) for kind, names in classes]
        self._namespaces = [(namespace, module, _facts(names)) for namespace, module, names in namespaces]
        of_namespaces = tuple((namespace, facts) for namespace, _, facts in self._namespaces)
        self.in_c = _C.Assumed(tuple(self._classes), of_namespaces)
        self._count = sum(len(facts) for _, facts in (*self._classes, *of_namespaces))

    def __len__(self) -> int:
        return self._count

    def changed(self) -> str | None:
        """The first that does not hold, in words; the Python twin of the leaf."""
        for kind, facts in self._classes:
            for fact in facts:
                told = _told(fact, attribute_of(kind, fact[0]))
                if told is not None:
                    return f"{kind.__module__}.{kind.__qualname__}.{told}"
        for namespace, module, facts in self._namespaces:
            for fact in facts:
                told = _told(fact, namespace.get(fact[0], ABSENT))
                if told is not None:
                    return f"{module}.{told}"
        return None


def attribute_of(kind: type, name: str) -> Any:
    """The attribute as it is in the class that has it, by the method resolution order; or ABSENT."""
    for base in kind.__mro__:
        names = type.__dict__["__dict__"].__get__(base)  # type: ignore[attr-defined]
        if name in names:
            return names[name]
    return ABSENT


def _facts(names: Names) -> tuple[Fact, ...]:
    """As C takes them: functions, which hold what the program has put into their cells, are not kept alive."""
    return tuple(
        (name,)
        if found is ABSENT
        else (name, weakref.ref(found), True)
        if type(found) is types.FunctionType
        else (name, found)
        for name, found in names.items()
    )


def _told(fact: Fact, now: Any) -> str | None:
    """What is different now, if anything is."""
    name, *then = fact
    if not then:
        return None if now is ABSENT else f"{name} was added"
    found = then[0]() if len(then) > 1 else then[0]
    if now is found and (now is not None or len(then) == 1):
        return None
    return f"{name} is gone" if now is ABSENT else f"{name} was replaced"


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
