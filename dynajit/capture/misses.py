"""What the variants that a call missed tell about the next one.

In: the variants of a code object, and which guard of each failed for the call at hand. Out: which numbers, texts and
objects the next variant is not to rely on, how many variants count for the limit, and whether none fits ever again.
"""

from __future__ import annotations

import collections
import functools
import types
import warnings
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dynajit import _C
from dynajit.capture import unfit
from dynajit.capture.session import Session
from dynajit.capture.variants import VariantData, is_eager, n_parameters
from dynajit.config import config
from dynajit.exc import RecompileLimitExceeded
from dynajit.graph.seen import NO_SIZE, Seen, Sized, is_argument
from dynajit.guards.guard import Guard
from dynajit.guards.kinds_relation import settled_float, settles
from dynajit.guards.program import CallValues, GuardSet
from dynajit.guards.source import CallSource, LocalSource, SizeSource, Source
from dynajit.interp.decisions import Place
from dynajit.report.counters import counters
from dynajit.report.shown import short

# each variant that was asked, and which of its guards failed; less than zero: none
Reasons = Sequence[tuple[_C.Variant, int]]
# a value is not relied on any more that this many variants relied on and that is another one again: when so many
# variants are left to the frame, or earlier if a loop counts with it
MANY_VALUES, LAST_VARIANTS = 3, 2
MANY_COUNTS = 2
MANY_OBJECTS = 3
# the same where none of these variants was ever run again: of numbers and texts, and of all that the function itself
# has put there
MANY_STATES = 4
# ways that variants went at a place that is passed again and again, such as a loop's `if`: so many, or one less where
# nothing ever went one of them again; one more of objects' types, of which there are few
MANY_WAYS = 3
# sets of keyword arguments that have a limit of variants each
MAX_ROLES = 4
# variants of a function that makes classes, none of which was ever run again
MAX_MADE_ANEW = 2
# Those that a warning was given of, by identity: an address alone may be a later one's.
_warned_codes: weakref.WeakValueDictionary[int, types.CodeType] = weakref.WeakValueDictionary()


class Miss(NamedTuple):
    """A variant that a call missed: its guard `failed` does not hold for what the call has."""

    variant: _C.Variant
    failed: int
    call: CallValues

    @property
    def data(self) -> VariantData:
        """The variant's."""
        return self.variant.data  # type: ignore[no-any-return]

    @property
    def guard(self) -> Guard:
        """The one that failed."""
        return self.data.guards[self.failed]


def misses_of(own: list[_C.Variant], reasons: Reasons, values: tuple[Any, ...], globals_: dict[str, Any]) -> list[Miss]:
    """Those of the frame's `own` variants. They hold what their guards read: not to be kept while a frame is traced."""
    call = CallValues(values, globals_)
    return [
        Miss(variant, index, call)
        for variant, index in reasons
        if variant in own and index >= 0 and isinstance(variant.data, VariantData)
    ]


def other_roles(own: list[_C.Variant], values: tuple[Any, ...]) -> int:
    """How many of the variants are for calls that give other keyword arguments by `**kwargs`, and come again: to a
    variant that was run again, or to one more, such as that for other sizes."""
    held = [(tuple(variant.data.role), variant.hits) for variant in own if isinstance(variant.data, VariantData)]
    uses: collections.Counter[tuple[tuple[int, Guard], ...]] = collections.Counter()
    for role, hits in held:
        uses[role] += 1 + bool(hits)
    return sum(uses[role] > 1 and not all(guard.check(values[place]) for place, guard in role) for role, _ in held)


def note_what_varies(seen: Seen, own: list[_C.Variant], misses: list[Miss], last: bool, part: bool) -> None:
    """Where numbers, texts, objects and lengths are that many variants rely on, and that are other ones now; where one
    variant is enough, since it took one of what varies; where values sent the variants too many ways.

    `last`: few variants are left to the frame; `part`: it is a part of a function.
    """
    tally = _Tally(part)
    for miss in misses:
        tally.note(miss, last)
    seen.varying.update(tally.varying(seen, last))
    seen.settled.update(_settled_numbers(misses))
    seen.varying_places.update(_varying_places(own, last))


class _Tally:
    """What variants relied on that did not fit, by how many of them."""

    def __init__(self, part: bool) -> None:
        self._part = part
        self._found: collections.Counter[Source] = collections.Counter()
        # of them what the function itself had left there for a call that none of the variants was ever run again for
        self._left: collections.Counter[Source] = collections.Counter()
        # and what it was given, of these variants
        self._given: collections.Counter[Source] = collections.Counter()
        self._lengths: dict[CallSource, set[int]] = collections.defaultdict(set)
        # of what is no longer but shorter, too
        self._others: dict[CallSource, set[int]] = collections.defaultdict(set)
        # where an object of a value of its own was relied on
        self._made: set[Source] = set()
        # where anything else is than a variant that was never run again relies on
        self._differing: set[Source] = set()
        # parameters of modules that have other sizes, by how many variants: those that were run again don't count
        self._resized: dict[Source, Sized] = {}
        self._sizes: collections.Counter[Source] = collections.Counter()
        # where no symbol can help, so that fewer variants are enough
        self._hopeless: set[Source] = set()

    def note(self, miss: Miss, last: bool) -> None:
        """Add what the variant relied on, and the call does not have."""
        guard, changes = miss.guard, miss.data.changes
        source, fresh = guard.pinned(), not miss.variant.hits
        failed = set() if source is None else {source}
        differing = failed | miss.data.guards.differing(miss.call) if last or fresh else failed
        self._found.update(differing if last else failed)
        self._differing.update(differing)
        if fresh:
            self._left.update(each for each in differing if self._is_own(each, changes))
            self._given.update(each for each in differing if not self._is_own(each, changes))
        if source is not None:
            if self._is_hopeless(guard, source):
                self._hopeless.add(source)
            if guard.kind == "PREDICATE":
                self._made.add(source)
        if last or fresh:
            self._note_sizes(miss)
        self._note_lengths(miss, last)

    def _is_hopeless(self, guard: Guard, source: Source) -> bool:
        """Whether no symbol takes the number: a complex or a large one; a float, or a size, of which something takes
        one number alone."""
        wanted = guard.params[0] if guard.params else None
        if guard.kind == "EQUALS":
            return type(wanted) is complex or (type(wanted) is int and abs(wanted) >= NO_SIZE)
        return guard.kind == "RELATION" and (settled_float(wanted) or isinstance(source, SizeSource))

    def _note_sizes(self, miss: Miss) -> None:
        for found in map(Sized._make, miss.data.guards.resized(miss.call)):
            self._resized[found.source] = found.merged(self._resized.get(found.source, found))
            self._sizes[found.source] += MANY_STATES if self._is_own(found.source, miss.data.changes) else 1

    def _note_lengths(self, miss: Miss, last: bool) -> None:
        guards = miss.data.guards
        outgrown = guards.outgrown(miss.failed, miss.call)
        if outgrown is not None:
            length, count = outgrown
            self._lengths[length].add(count)
            if self._is_kept(length, () if miss.variant.hits else miss.data.changes):
                self._hopeless.add(length)
        if last or self._part:
            # several lengths may vary at once: each is found before the frame has no variant left
            for length, count in guards.other_lengths(miss.call, None if last else miss.failed):
                self._others[length].add(count)

    def varying(self, seen: Seen, last: bool) -> list[Source]:
        """Where no variant is to rely on what is there any more. Numbers and texts that differ are known to vary from
        now on, though the next trace may end before it reads them."""
        self._found.update({source: len(counts) for source, counts in self._lengths.items()})
        for place, tensor in self._resized.items():
            if self._sizes[place] >= (MANY_VALUES if last else MANY_STATES):
                seen.expect_sizes(tensor)
        soon, numbers, expected = seen.counters | self._hopeless, seen.numbers(), set(seen.expected())
        seen.differ(self._differing)
        many_numbers = MANY_COUNTS if self._part else MANY_VALUES  # sizes of zero and one are variants of their own
        found = [
            source
            for source, count in self._found.items()
            if (last and count >= MANY_VALUES)
            or (source in soon and count >= MANY_COUNTS)
            or ((source in self._lengths or source in self._made) and seen.is_result(source))
        ]
        others = self._others.items()
        found += [source for source, counts in others if len(counts) >= MANY_VALUES or seen.is_result(source)]
        found += [source for source, n in self._given.items() if n >= MANY_STATES and source in expected]
        left = self._left.items()
        return found + [source for source, n in left if n >= (many_numbers if source in numbers else MANY_STATES)]

    def _is_own(self, source: Source, changes: Collection[Source]) -> bool:
        """Whether what is there is of the function's own making: left by the call before or, of a part, by what ran
        before it, as the names of stack slots tell."""
        root = source.root()
        on_stack = self._part and isinstance(root, LocalSource) and not root.local_name.isidentifier()
        return on_stack or source.leads_through(changes)

    def _is_kept(self, length: CallSource, changes: Collection[Source]) -> bool:
        """Whether the program keeps the container from call to call: no argument or, of what has other states, too,
        changed by the function itself."""
        container = length.base
        assert container is not None
        if self._part or container.leads_through(changes):
            return True
        return length.of is not dict.__len__ and not is_argument(container)


def _settled_numbers(misses: list[Miss]) -> set[Source]:
    """Sizes and numbers known to vary, of which variants that do not fit take one alone, or those alone that give one
    result, such as a number of parts. What compares them has a variant for each outcome; an operation that needs one is
    not given another."""
    guards = (miss.guard for miss in misses)
    return {
        guard.source
        for guard in guards
        if guard.kind == "RELATION" and guard.source is not None and settles(guard.params)
    }


def _varying_places(own: list[_C.Variant], last: bool) -> set[Place]:
    """Where values that vary sent the variants too many ways: the next one is to end the graph there."""
    ways: collections.defaultdict[Place, dict[tuple[Any, ...], bool]] = collections.defaultdict(dict)
    alone = 0
    for variant in own:
        if isinstance(variant.data, VariantData) and variant.data.ways:
            alone += not variant.hits and not all(of_type for of_type, _ in variant.data.ways)
            for place, way in variant.data.ways.items():
                ways[place][way] = ways[place].get(way, False) or bool(variant.hits)
    last = last or alone >= MANY_STATES
    known = ((place, found) for place, found in ways.items() if len(found) > 1)
    # what is gone again each way, such as a prompt's and a token's, is as many variants as there are ways
    return {
        place
        for place, found in known
        if _are_many(found, place[0]) or (last and not place[0] and not all(found.values()))
    }


def _are_many(ways: Mapping[tuple[Any, ...], bool], of_type: bool) -> bool:
    """Whether there will be ever more ways through a place; for each, whether anything went it again. It is passed
    again and again, and not with one outcome each time."""
    mixed = any(len({*way}) > 1 for way in ways) or (not of_type and len({*map(len, ways)}) > 1)
    return mixed and len(ways) + (not any(ways.values())) >= MANY_WAYS + of_type


def note_objects_made_anew(session: Session, seen: Seen, misses: list[Miss]) -> None:
    """Objects that variants told by their identity, and in whose place others are now: told by their contents the next
    time. Where that was no help the object is left out of the graph. Dictionaries by numbers that are others now: told
    by where the entries stand."""
    found: collections.Counter[Source] = collections.Counter()
    gone: set[Source] = set()
    for miss in misses:
        renumbered = miss.data.guards.renumbered(miss.failed, miss.call)
        if renumbered is not None:
            seen.renumbered.add(renumbered)
        missed = miss.data.guards.made_anew(miss.failed, miss.call)
        if missed is not None:
            found[missed.source] += 1
            if missed.gone and missed.source in miss.data.made_anew:
                gone.add(missed.source)
    seen.made_anew.update(found)
    if not session.choices.fullgraph:
        seen.varying.update(source for source, count in found.items() if source in gone or count >= MANY_OBJECTS)


def never_fits_again(session: Session, misses: list[Miss]) -> bool:
    """Whether calls bring a class of their own each, made by the function itself: no variant for one was ever run
    again. What else calls differ in has variants besides."""
    if session.choices.fullgraph:
        return False
    found = [(miss.data.guards.class_made_anew(miss.failed, miss.call), miss.variant.hits) for miss in misses]
    names = [short(cls) for cls, _ in found if cls is not None]
    if len(names) < MAX_MADE_ANEW or any(hits for cls, hits in found if cls is not None):
        return False
    session.classes_made_anew.update(names)
    return True


def given_made_anew(code: types.CodeType, values: tuple[Any, ...], names: set[str]) -> GuardSet:
    """Guards that hold where the parameters are instances of such classes that are so now, or such classes."""
    guards = GuardSet()
    for index, (name, value) in enumerate(zip(code.co_varnames[: n_parameters(code)], values, strict=False)):
        found = _class_name(value)
        if found in names:
            source, text = LocalSource(index, name), f"has a class {found} that is made anew"
            guards.add(Guard(source, "PREDICATE", functools.partial(_has_class, found), text))
    return guards


def _has_class(name: str, value: Any) -> bool:
    return _class_name(value) == name


def _class_name(value: Any) -> str:
    """How the class of a parameter is shown, or the parameter, if it is a class."""
    kind = type(value)
    return short(value if issubclass(kind, type) else kind)


def recompile_reason(code: types.CodeType, own: list[_C.Variant], misses: list[Miss]) -> str | None:
    """Which guards failed, by variant; None where nothing was compiled so far."""
    texts = []
    if all(map(is_eager, own)):
        return None
    for miss in misses:
        guards = miss.data.guards
        texts.append(f"{miss.data.compile_id} {guards.failure_reason(miss.failed, miss.call)}")
        if guards.holds(miss.failed, miss.call):
            unfit.report(code, texts[-1])
    return "; ".join(texts) if texts else None


def give_up(session: Session, code: types.CodeType, why: str | None, count: int, full: bool) -> None:
    """The frame has been compiled too often, and is run eagerly from now on: say which guard keeps failing."""
    limit = "config.recompile_limit" if full else "its classes are made anew at each call"
    told = f"was compiled {count} times ({limit}); calls that fit none of these variants run eagerly"
    if not count:
        told = "runs eagerly where it is given objects whose classes are made anew at each call"
    place = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
    text = f"{place} {told}. The last guards to fail: {why}"
    if session.choices.fullgraph:
        raise RecompileLimitExceeded(code.co_name, config.recompile_limit, (why or "").split("; "))
    if id(code) not in _warned_codes:
        _warned_codes[id(code)] = code
        warnings.warn(f"dynajit: {text}", stacklevel=3)
    counters["recompile_limit"][code.co_name] += 1
