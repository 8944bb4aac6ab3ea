"""Guards: one thing each that a trace relied on.

In: a source, the name of a kind, what the kind compares with. Out: for each kind the guard program's leaf (`encode`),
its Python twin (`check`), words for logs (`describe`) and for a recompile (`explain`). The twin is the oracle in tests.
To add a kind: a class behind `@guard_kind("NAME")` in the kinds_*.py file that fits, and a leaf in guard_program.c.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from dynajit.guards.source import AttrSource, Source
from dynajit.report.records import FrameLoc
from dynajit.report.shown import short

FIRST, EARLY, USUAL, LAST = range(4)


class GuardKind:
    """What all guards of a kind share. `params` is what `normalize` returned."""

    name: str = ""
    rank: int = USUAL  # where it stands in the program
    reads_source: bool = True
    form: type | None = None  # of the only parameter, as the guard keeps it
    runs_code: bool = False  # whether the check may run code of the program's, such as a key's `__eq__`
    shown: str = ""  # the guard as an expression in the source's `name` and in the parameters, `p`
    failed: str = ""  # what is different now, in the same, where that says no more of the object

    def normalize(self, *params: Any) -> tuple[Any, ...]:
        """Check the parameters and bring them into the form that the guard keeps."""
        if self.form is None:
            return params
        (param,) = params
        return (self.form(param),)

    def key(self, params: tuple[Any, ...]) -> Hashable:
        """Guards on one source with equal keys are one guard. The parameters, where their equality is that."""
        return params

    def encode(self, params: tuple[Any, ...]) -> tuple[str, object]:
        """The leaf's name and payload: the kind's name and its only parameter, where a kind doesn't say otherwise."""
        return self.name, params[0] if params else None

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        """The Python twin of the leaf."""
        raise NotImplementedError

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        """The guard as an expression in the source's name."""
        return self.shown.format(name=name, p=params)

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        """What is different now: the expression's old and new value."""
        if self.failed:
            return self.failed.format(name=name, p=params)
        return f"{self.describe(name, params)} does not hold for {short(value)}"

    def sources(self, params: tuple[Any, ...]) -> tuple[Source, ...]:
        """Further sources that the guard reads."""
        return ()

    def pins(self, params: tuple[Any, ...]) -> bool:
        """Whether the guard holds for a single number, text or object."""
        return False

    def looks_alike(self, value: Any, params: tuple[Any, ...]) -> bool:
        """Whether the object that fails the guard looks like the wanted one, and differs by its identity alone."""
        return False


kinds: dict[str, GuardKind] = {}


def guard_kind(name: str) -> Callable[[type[GuardKind]], type[GuardKind]]:
    """Register a kind under its name."""

    def register(cls: type[GuardKind]) -> type[GuardKind]:
        assert name not in kinds, name
        cls.name = name
        kinds[name] = cls()
        return cls

    return register


class Guard:
    """One guard, frozen: `Guard(source, "TYPE", list)`. The kinds and their parameters:

    TYPE(type), ID(obj), EQUALS(const), LEN(n), DICT_KEYS(keys), DICT_CONTAINS(key), DICT_MISSING(key),
    SET_EQUALS(consts), HAS_NO_INSTANCE_ATTR(name), HAS_NO_TYPE_ATTR(name) (the source is the class), NO_HOOKS(),
    TENSOR(example, sizes=None, strides=None), NOT_ALIASED(*other sources), SAME_OBJECT(other source),
    GLOBAL_STATE() and ASSUMED(facts) (source None), CELL_EMPTY(), PREDICATE(callable, text),
    RELATION(tree, names, other sources, note) (the sources lead to the numbers that the tree's names stand for).
    """

    __slots__ = ("identity", "kind", "params", "source", "user_loc")
    source: Source | None
    kind: str
    params: tuple[Any, ...]
    user_loc: FrameLoc | None
    identity: tuple[str, Source | None, Hashable]

    def __init__(self, source: Source | None, kind: str, *params: Any, user_loc: FrameLoc | None = None) -> None:
        model = kinds.get(kind)
        if model is None:
            raise ValueError(f"no guard kind is called {kind!r}; the kinds are {', '.join(sorted(kinds))}")
        if (source is None) == model.reads_source:
            raise ValueError(f"a {kind} guard {'needs a' if source is None else 'has no'} source")
        kept = model.normalize(*params)
        put = object.__setattr__
        put(self, "source", source)
        put(self, "kind", kind)
        put(self, "params", kept)
        put(self, "user_loc", user_loc)
        put(self, "identity", (kind, source, model.key(kept)))

    def moved(self, source: Source, user_loc: FrameLoc | None) -> Guard:
        """The same of another object; of a kind that reads one source."""
        made = object.__new__(Guard)
        put = object.__setattr__
        kind, _, key = self.identity
        for name, value in zip(
            Guard.__slots__, ((kind, source, key), kind, self.params, source, user_loc), strict=True
        ):
            put(made, name, value)
        return made

    def of_class(self, kind: type) -> Guard:
        """A guard on the class alone of what is there."""
        return Guard(self.source, "TYPE", kind, user_loc=self.user_loc)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"guards are frozen; {name} can't be set")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __repr__(self) -> str:
        return f"<Guard {self.kind}: {self.describe()}>"

    def pinned(self) -> Source | None:
        """Where the number, text or object is, if the guard holds for a single one."""
        source = self.source
        if not kinds[self.kind].pins(self.params):
            return None
        return source.base if isinstance(source, AttrSource) and source.attr == "__code__" else source

    def sources(self) -> tuple[Source, ...]:
        """All sources the guard reads, its own first."""
        own = () if self.source is None else (self.source,)
        return own + kinds[self.kind].sources(self.params)

    def describe(self) -> str:
        """The guard as an expression."""
        return kinds[self.kind].describe(self._name(), self.params)

    def check(self, value: Any) -> bool:
        """The Python twin: whether the guard holds for the object its source leads to now."""
        return kinds[self.kind].check(value, self.params)

    def looks_alike(self, value: Any) -> bool:
        """Whether what fails the guard is another object that looks like the one it wants: made anew, perhaps."""
        return kinds[self.kind].looks_alike(value, self.params)

    def explain_failure(self, value: Any) -> str:
        """What differs from what the trace relied on."""
        return kinds[self.kind].explain(self._name(), value, self.params)

    def _name(self) -> str:
        return "" if self.source is None else self.source.name()


class Held:
    """An object remembered by identity: weakly where it can be, so that a guard keeps no model alive.

    `weakly=False` is for what lives for ever anyway.
    """

    __slots__ = ("_strong", "_weak", "id", "is_singleton", "text")

    def __init__(self, obj: Any, weakly: bool = True) -> None:
        self.id = id(obj)
        self.text = short(obj)
        self.is_singleton = obj is None or type(obj) is bool
        self._weak: weakref.ref[Any] | None = None
        self._strong: Any = None
        with contextlib.suppress(TypeError):  # ints, tuples, None: kept strongly
            self._weak = weakref.ref(obj) if weakly else None
        if self._weak is None:
            self._strong = obj

    def get(self) -> Any:
        """The object, or None where it is gone."""
        return self._strong if self._weak is None else self._weak()

    def is_gone(self) -> bool:
        """Whether the program has let go of it."""
        return self._weak is not None and self._weak() is None

    def is_(self, obj: object) -> bool:
        """Whether it is this object."""
        return (self._strong if self._weak is None else self._weak()) is obj and (obj is not None or self._weak is None)

    def encode(self, name: str) -> tuple[str, object]:
        """The strong leaf, or its weak form."""
        return (name, self._strong) if self._weak is None else (f"{name}_WEAK", self._weak)


def names(sources: Sequence[Source]) -> str:
    """Source names, with commas."""
    return ", ".join(source.name() for source in sources)
