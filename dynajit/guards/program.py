"""From a trace's guards to the guard program, and back to words.

In: guards, in the order in which the trace came to rely on them. Out: `_C.GuardProgram`, which checks them over a
frame's locals in C; the same check in Python; the reason why one failed. A guard's index is its place in the set,
whatever the order in the program. To change the order in the program: `_ordered`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dynajit import _C
from dynajit.exc import ConfigError
from dynajit.guards.guard import EARLY, USUAL, Guard, Held, kinds
from dynajit.guards.kinds_tensor import resized
from dynajit.guards.source import (
    CallSource,
    Environment,
    Source,
    TogetherSource,
    Unreachable,
    _LocalSlot,
    length_source,
)
from dynajit.report.shown import short


class MadeAnew(NamedTuple):
    """Where an object is that was another one when a trace was made, and whether that one is gone."""

    source: Source
    gone: bool


class GuardSet:
    """Guards, append-only but for taking back the last ones."""

    def __init__(self, guards: Iterable[Guard] = ()) -> None:
        self._guards: list[Guard] = []
        self._index: dict[Guard, int] = {}
        for guard in guards:
            self.add(guard)

    def add(self, guard: Guard) -> None:
        """Append, unless an equal one is there."""
        if guard not in self._index:
            self._index[guard] = len(self._guards)
            self._guards.append(guard)

    def __len__(self) -> int:
        return len(self._guards)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards)

    def __getitem__(self, index: int) -> Guard:
        return self._guards[index]

    def __contains__(self, guard: object) -> bool:
        return guard in self._index

    def since(self, n: int) -> list[Guard]:
        """Those after the first n."""
        return self._guards[n:]

    def truncate(self, n: int) -> None:
        """Back to the first n guards."""
        for guard in self._guards[n:]:
            del self._index[guard]
        del self._guards[n:]

    def filtered(self, keep: Callable[[list[Guard]], Sequence[bool]]) -> GuardSet:
        """The guards that a user's function wants kept; torch's modes are always guarded. Raises ConfigError where the
        function raises, or doesn't answer for each."""
        try:
            wanted = list(keep(list(self._guards)))
        except Exception as error:
            told = f"guard_filter_fn raised {type(error).__name__}: {error}"
            raise ConfigError(f"{told}. What it is given are dynajit's guards, with kind, source and params") from error
        if len(wanted) != len(self._guards):
            raise ConfigError(f"guard_filter_fn gave {len(wanted)} answers for {len(self._guards)} guards")
        return GuardSet(guard for guard, kept in zip(self, wanted, strict=True) if kept or guard.kind == "GLOBAL_STATE")

    def loosened(self, sources: Collection[Source | None]) -> GuardSet:
        """The guards, but of these tensors' metadata only the class is left."""
        if not sources:
            return self
        return GuardSet(
            guard.of_class(guard.params[0].type) if guard.kind == "TENSOR" and guard.source in sources else guard
            for guard in self
        )

    def of_any_value(self) -> GuardSet:
        """The guards, but of numbers and texts only the class is left, and torch may be in any mode."""
        return GuardSet(
            guard.of_class(type(guard.params[0]))
            if guard.kind == "EQUALS" and type(guard.params[0]) is not bool
            else guard
            for guard in self
            if guard.kind not in ("RELATION", "GLOBAL_STATE")
        )

    def copy(self) -> GuardSet:
        """A set with the same guards."""
        other = GuardSet()
        other._guards = list(self._guards)
        other._index = dict(self._index)
        return other

    def build(
        self, n_locals: int, globals: dict[str, Any] | None = None, inputs: Sequence[Source] = ()
    ) -> _C.GuardProgram:
        """The program over n_locals locals and, for GlobalSource, the frame's globals. What `inputs` lead to is handed
        to the variant: the program has read it already."""
        builder = _Builder(n_locals)
        for index in self._ordered():
            builder.add(index, self._guards[index])
        slots = tuple(builder.slot(source, len(self._guards) - 1) for source in inputs)
        return _C.GuardProgram(builder.instructions, n_locals, globals, slots)

    def check_python(self, locals: Sequence[object], globals: dict[str, Any] | None = None) -> int:
        """What the program's check gives, by the Python twins."""
        call = CallValues(locals, globals)
        for index in self._ordered():
            guard = self._guards[index]
            try:
                value = call.value(guard)
            except Unreachable:
                return index
            if not guard.check(value):
                return index
        return -1

    def holds(self, index: int, call: CallValues) -> bool:
        """Whether guard `index` holds for these locals, by its Python twin; False where that would run code of the
        program's."""
        guard = self._guards[index]
        try:
            return not kinds[guard.kind].runs_code and guard.check(call.value(guard))
        except Unreachable:
            return False

    def failure_reason(self, index: int, call: CallValues) -> str:
        """Why guard `index` failed for these locals: what was relied on, what is there now, the user's line."""
        guard = self._guards[index]
        try:
            text = guard.explain_failure(call.value(guard))
        except Unreachable as error:
            text = f"{error} can't be reached any more; the guard was {guard.describe()}"
        if self.holds(index, call):
            text = f"{guard.describe()} failed, and holds"
        if guard.user_loc is not None:
            text += f"  ({guard.user_loc.filename}:{guard.user_loc.lineno})"
        return text

    def made_anew(self, index: int, call: CallValues) -> MadeAnew | None:
        """Where guard `index` met another object that looks like the one it wants; None if it failed for other
        reasons. Classes are `class_made_anew`'s."""
        failed = self._guards[index]
        # what can't be reached may be an entry of a dictionary whose keys are guarded later
        keys = (guard for guard in self._guards if guard.kind == "DICT_KEYS" and _leads_through(failed, guard))
        for guard in (failed, *keys):
            source = guard.pinned()
            with contextlib.suppress(Unreachable):
                value = call.value(guard)
                if source is None or issubclass(type(value), type) or not guard.looks_alike(value):
                    return None
                wanted = guard.params[0]
                return MadeAnew(source, isinstance(wanted, Held) and wanted.is_gone())
        return None

    def renumbered(self, index: int, call: CallValues) -> Source | None:
        """Where guard `index` met a dictionary with as many keys as it wants, of which all are numbers, but others."""
        guard = self._guards[index]
        if guard.kind != "DICT_KEYS":
            return None
        with contextlib.suppress(Unreachable):
            found, wanted = call.value(guard), guard.params[0]
            if type(found) in (dict, OrderedDict) and len(found) == len(wanted):
                return guard.source if all(type(key) is int for key in (*found, *wanted)) else None
        return None

    def outgrown(self, index: int, call: CallValues) -> tuple[CallSource, int] | None:
        """The length's source, and how long it was to be, where guard `index` met a container that is longer now, one
        that was computed and has another length, or a dictionary with other keys."""
        guard = self._guards[index]
        source = guard.source
        if guard.kind == "DICT_KEYS" and source is not None:
            with contextlib.suppress(Unreachable):
                if issubclass(type(call.value(guard)), dict):
                    return length_source(source, dict.__len__), id(guard.params[0])
            return None
        found = _length(guard, call)
        if found is None:
            return None
        length, now, wanted = found
        other = now != wanted if guard.kind == "LEN" and isinstance(source, CallSource) else now > wanted
        return (length, wanted) if other else None

    def other_lengths(self, call: CallValues, index: int | None = None) -> Iterator[tuple[CallSource, int]]:
        """The lengths' sources, and how long it was to be, of lists, tuples and deques that are longer or shorter now;
        with an index only what that guard says."""
        for guard in self._guards if index is None else (self._guards[index],):
            found = _length(guard, call)
            if found is not None and found[0].of is not dict.__len__ and found[1] != found[2]:
                yield found[0], found[2]

    def resized(self, call: CallValues) -> Iterator[tuple[Source, list[int | None], list[int | None]]]:
        """Where modules' parameters are that have other sizes than guards want: their sizes and strides, None for those
        that differ."""
        for guard in self._guards:
            if guard.kind == "TENSOR" and guard.source is not None:
                with contextlib.suppress(Unreachable):
                    found = resized(call.value(guard), guard.params[0])
                    if found is not None:
                        yield (guard.source, *found)

    def differing(self, call: CallValues) -> set[Source]:
        """Where numbers, texts and objects are, of which guards want others: the guard that failed may be on what
        follows from one of them."""
        found: set[Source] = set()
        of_other_types: set[Source] = set()  # of which nothing can be asked that the guards asked
        for guard in self._guards:
            source = guard.pinned()
            if (source is None and guard.kind != "TYPE") or kinds[guard.kind].runs_code:
                continue
            if any(each not in of_other_types and each.leads_through(of_other_types) for each in guard.sources()):
                continue
            with contextlib.suppress(Unreachable):
                if not guard.check(call.value(guard)):
                    if source is None:
                        of_other_types.update(guard.sources())
                    else:
                        found.add(source)
        return found

    def class_made_anew(self, index: int, call: CallValues) -> type | None:
        """The class that guard `index` met in the place of another one of the same name: a class statement, or a call
        that makes a class, ran again."""
        guard = self._guards[index]
        if guard.kind not in ("ID", "TYPE"):
            return None
        try:
            value = call.value(guard)
        except Unreachable:
            return None
        found = value if guard.kind == "ID" else type(value)
        return found if issubclass(type(found), type) and short(found) == guard.params[0].text else None

    def _ordered(self) -> list[int]:
        """Guard indices as the program runs them: modes, guards on arguments that are likeliest to fail, the others as
        they came, then what needs many objects or Python."""

        def rank(index: int) -> int:
            guard = self._guards[index]
            kind_rank = kinds[guard.kind].rank
            # a tensor deep in a structure may be reached only after guards on what it is in
            if kind_rank == EARLY and not isinstance(guard.source, _LocalSlot):
                return USUAL
            return kind_rank

        return sorted(range(len(self._guards)), key=rank)


def _length(guard: Guard, call: CallValues) -> tuple[CallSource, int, int] | None:
    """Of a guard on a container's length: the length's source, what it is now, and what the guard wants."""
    source = guard.source
    counts = guard.kind == "EQUALS" and isinstance(source, CallSource) and source.of is deque.__len__
    if source is None or not (counts or guard.kind == "LEN"):
        return None
    with contextlib.suppress(Unreachable):
        found, wanted = call.value(guard), guard.params[0]
        if isinstance(source, CallSource) and counts:
            return source, found, wanted
        for kind in (list, dict, tuple):
            if issubclass(type(found), kind):
                return length_source(source, kind.__len__), kind.__len__(found), wanted
    return None


def _leads_through(guard: Guard, other: Guard) -> bool:
    """Whether the source leads through the object of another guard."""
    return guard.source is not None and guard.source.leads_through((other.source,))  # type: ignore[arg-type]


class _Builder:
    """Instructions; each source gets one slot, filled before its first use."""

    def __init__(self, n_locals: int) -> None:
        self.instructions: list[tuple[str, int, int, int, object]] = []
        self._n_locals = n_locals
        self._n_slots = n_locals
        self._slots: dict[Source, int] = {}
        self._specs: dict[Hashable, object] = {}

    def add(self, index: int, guard: Guard) -> None:
        slots = [self.slot(source, index) for source in guard.sources()]
        name, payload = kinds[guard.kind].encode(guard.params)
        first = slots[0] if slots else -1
        if name == "NOT_ALIASED":
            payload = tuple(slots)
        elif name == "TENSOR":
            # equal ones are one object, which stays in the cache
            payload = self._specs.setdefault(kinds[guard.kind].key(guard.params), payload)
        elif name in ("RELATION", "PREDICATE_OF_MANY"):
            payload = (payload, tuple(slots))
        self.instructions.append((name, index, first, slots[1] if name == "SAME_OBJECT" else -1, payload))

    def slot(self, source: Source, index: int) -> int:
        """Where a source's object will be; `index` is the guard to name if it can't be reached."""
        slot = self._slots.get(source)
        if slot is not None:
            return slot
        if isinstance(source, _LocalSlot):
            if not 0 <= source.index < self._n_locals:
                raise ValueError(f"{source.name()} is local {source.index}, and there are {self._n_locals}")
            slot = source.index
        else:
            base = -1 if source.base is None else self.slot(source.base, index)
            access = source.access()
            assert access is not None
            if isinstance(source, TogetherSource):
                access = (access[0], tuple(self.slot(member, index) for member in source.members))
            slot = self._n_slots
            self._n_slots += 1
            self.instructions.append((access[0], index, slot, base, access[1]))
        self._slots[source] = slot
        return slot


class CallValues:
    """What sources lead to at one call, each read once.

    Args:
        locals: the values of the frame's parameters and free variables.
        globals: the frame's globals.
    """

    def __init__(self, locals: Sequence[object], globals: dict[str, Any] | None = None) -> None:
        self._environment = Environment(locals, globals if globals is not None else {})
        self._objects: dict[Source, Any] = {}

    def value(self, guard: Guard) -> Any:
        """What the guard's check takes: an object, or a list of them for kinds with several sources.

        Raises:
            Unreachable: a source leads nowhere.
        """
        objects = [self._read(source) for source in guard.sources()]
        if kinds[guard.kind].sources(guard.params):
            return objects
        return objects[0] if objects else None

    def _read(self, source: Source) -> Any:
        if source not in self._objects:
            if isinstance(source, TogetherSource):
                self._objects[source] = tuple(map(self._read, source.members))
                return self._objects[source]
            base = None if source.base is None else self._read(source.base)
            self._objects[source] = source.read(base, self._environment)
        return self._objects[source]
