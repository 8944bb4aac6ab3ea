"""What a frame's variants tell about the next one.

In: the variants of a code object, and which guard of each failed for the call at hand. Out: which numbers, texts and
objects the next variant is not to rely on, how many variants count for the limit, and whether none fits ever again.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import types
import warnings
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dynajit import _C
from dynajit.bytecode import Emitter, build_copy, decode
from dynajit.bytecode.decode import name_of_keywords
from dynajit.bytecode.part import Part, copy_of
from dynajit.capture import unfit
from dynajit.capture.session import Session
from dynajit.config import config
from dynajit.exc import RecompileLimitExceeded
from dynajit.graph.seen import NO_SIZE, Seen, Sized, is_argument
from dynajit.guards.guard import Guard
from dynajit.guards.kinds_relation import settled_float, settles
from dynajit.guards.program import GuardSet
from dynajit.guards.source import CallSource, LocalSource, SizeSource, Source
from dynajit.interp.decisions import Place
from dynajit.report.counters import counters
from dynajit.report.shown import short
from dynajit.resume.emit import Entered

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
# sets of keyword arguments that have a limit of variants each, and what tells them apart
MAX_ROLES = 4
ROLE_GUARDS = frozenset({"DICT_KEYS", "DICT_CONTAINS", "DICT_MISSING", "LEN"})
# variants of a function that makes classes, none of which was ever run again
MAX_MADE_ANEW = 2
# Those that a warning was given of, by identity: an address alone may be a later one's.
_warned_codes: weakref.WeakValueDictionary[int, types.CodeType] = weakref.WeakValueDictionary()


@dataclasses.dataclass
class VariantData:
    """What a variant keeps for reports."""

    guards: GuardSet
    compile_id: str
    eager: bool = False
    # where objects were told by their contents
    made_anew: frozenset[Source] = frozenset()
    # which keyword arguments it is for
    role: Sequence[tuple[int, Guard]] = ()
    # what it leaves changed for the next call
    changes: frozenset[Source] = frozenset()
    # which way it goes where values that vary decide it
    ways: Mapping[Place, tuple[bool, ...]] = dataclasses.field(default_factory=dict)
    # if it calls no graph, the parts that it leads to
    parts: Sequence[Entered] | None = None


def eager_variant(
    session: Session,
    code: types.CodeType,
    part: Part | None,
    guards: GuardSet,
    globals_: dict[str, Any],
    compile_id: str,
    last: bool = False,
) -> _C.Variant:
    """Runs the code, or what it stands for, as it is; what it calls is still captured. `last`: where none of the
    others that are not asked last fits."""
    copy = copy_of(code, part)
    _C.mark_ours(copy)
    function = types.FunctionType(copy, globals_, code.co_name)
    data = VariantData(guards, compile_id, True)
    return _C.Variant(guards.build(n_given(code), globals_), function, True, globals_, data, session, last)


def detached_variant(session: Session, code: types.CodeType, function: types.FunctionType) -> _C.Variant:
    """The frame is torch.compile's: run it with capture off, though not hidden from torch's own frame hook."""
    decoded = decode(code)
    copy = types.FunctionType(build_copy(decoded), function.__globals__, code.co_name)
    _C.mark_ours(copy.__code__)
    names = [*decoded.params, *decoded.freevars]
    emit = Emitter()
    emit.begin_call(lambda: emit.load_const(_C.call_eager))
    emit.load_const(copy)
    for name in names:
        emit.load_fast(name)
    emit.build_tuple(len(names))
    emit.end_call(2)
    emit.return_value()
    made = types.FunctionType(emit.assemble(code.co_name, names, (), code), function.__globals__, code.co_name)
    _C.mark_ours(made.__code__)
    guards = GuardSet()
    data = VariantData(guards, "", True)
    program = guards.build(len(names), function.__globals__)
    variant = _C.Variant(program, made, True, function.__globals__, data, session)
    _C.add_variant(code, variant)
    session.touch(code)
    return variant


def n_given(code: types.CodeType) -> int:
    """How many values guards of the code are asked about: its parameters, then its free variables."""
    return _n_parameters(code) + len(code.co_freevars)


def _n_parameters(code: types.CodeType) -> int:
    flags = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + flags


def made_for(session: Session, code: types.CodeType) -> list[_C.Variant]:
    """The session's variants of the code; of those that run the same function under other guards, one."""
    return [*{id(variant.function): variant for variant in _C.variants(code) if variant.key is session}.values()]


def other_roles(own: list[_C.Variant], values: tuple[Any, ...]) -> int:
    """How many of the variants are for calls that give other keyword arguments by `**kwargs`, and come again: to a
    variant that was run again, or to one more, such as that for other sizes."""
    held = [(tuple(variant.data.role), variant.hits) for variant in own if isinstance(variant.data, VariantData)]
    uses: collections.Counter[tuple[tuple[int, Guard], ...]] = collections.Counter()
    for role, hits in held:
        uses[role] += 1 + bool(hits)
    return sum(uses[role] > 1 and not all(guard.check(values[place]) for place, guard in role) for role, _ in held)


def role_of(code: types.CodeType, guards: GuardSet) -> list[tuple[int, Guard]]:
    """The guards on which keyword arguments there are, each with the place of `**kwargs` among the parameters."""
    named = name_of_keywords(code)
    if named is None:
        return []
    return [
        (guard.source.index, guard)
        for guard in guards
        if guard.kind in ROLE_GUARDS and isinstance(guard.source, LocalSource) and guard.source.local_name == named
    ]


def note_what_varies(
    seen: Seen,
    own: list[_C.Variant],
    reasons: Reasons,
    last: bool,
    part: bool,
    values: tuple[Any, ...],
    globals_: dict[str, Any],
) -> None:
    """Where numbers, texts, objects and lengths are that many variants rely on, and that are other ones now; where one
    variant is enough, since it took one of what varies; where values sent the variants too many ways.

    `last`: few variants are left to the frame; `part`: it is a part of a function.
    """
    misses = _Misses(part)
    for variant, index in reasons:
        if variant in own and index >= 0 and isinstance(variant.data, VariantData):
            misses.note(variant, index, last, values, globals_)
    seen.varying.update(misses.varying(seen, last))
    seen.settled.update(_settled_numbers(own, reasons))
    seen.restless.update(_restless_places(own, last))


class _Misses:
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

    def note(
        self, variant: _C.Variant, index: int, last: bool, values: tuple[Any, ...], globals_: dict[str, Any]
    ) -> None:
        """The variant's guard `index` failed."""
        guards, changes = variant.data.guards, variant.data.changes
        guard = guards[index]
        source, fresh = guard.pinned(), not variant.hits
        failed = set() if source is None else {source}
        differing = failed | guards.differing(values, globals_) if last or fresh else failed
        self._found.update(differing if last else failed)
        self._differing.update(differing)
        if fresh:
            self._left.update(each for each in differing if self._is_own(each, changes))
            self._given.update(each for each in differing if not self._is_own(each, changes))
        if source is not None and guard.kind == "EQUALS":
            wanted = guard.params[0]
            if type(wanted) is complex or (type(wanted) is int and abs(wanted) >= NO_SIZE):
                self._hopeless.add(source)
        settled = source is not None and guard.kind == "RELATION"
        if settled and (settled_float(guard.params[0]) or isinstance(source, SizeSource)):
            self._hopeless.add(source)  # a float, or a size, of which something takes one number alone
        self._note_sizes(variant.data, last or fresh, values, globals_)
        self._note_lengths(variant, index, last, values, globals_)
        if source is not None and guard.kind == "PREDICATE":
            self._made.add(source)

    def _note_sizes(self, data: VariantData, counts: bool, values: tuple[Any, ...], globals_: dict[str, Any]) -> None:
        for found in map(Sized._make, data.guards.resized(values, globals_) if counts else ()):
            self._resized[found.source] = found.merged(self._resized.get(found.source, found))
            self._sizes[found.source] += MANY_STATES if self._is_own(found.source, data.changes) else 1

    def _note_lengths(
        self, variant: _C.Variant, index: int, last: bool, values: tuple[Any, ...], globals_: dict[str, Any]
    ) -> None:
        guards = variant.data.guards
        outgrown = guards.outgrown(index, values, globals_)
        if outgrown is not None:
            length, count = outgrown
            self._lengths[length].add(count)
            if self._is_kept(length, () if variant.hits else variant.data.changes):
                self._hopeless.add(length)
        if last or self._part:
            # several lengths may vary at once: each is found before the frame has no variant left
            for length, count in guards.other_lengths(values, globals_, None if last else index):
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


def _settled_numbers(own: list[_C.Variant], reasons: Reasons) -> set[Source]:
    """Sizes and numbers known to vary, of which variants that do not fit take one alone, or those alone that give one
    result, such as a number of parts. What compares them has a variant for each outcome; an operation that needs one is
    not given another."""
    found: set[Source] = set()
    for variant, index in reasons:
        if variant in own and index >= 0 and isinstance(variant.data, VariantData):
            guard = variant.data.guards[index]
            if guard.kind == "RELATION" and guard.source is not None and settles(guard.params):
                found.add(guard.source)
    return found


def _restless_places(own: list[_C.Variant], last: bool) -> set[Place]:
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


def note_objects_made_anew(
    session: Session,
    seen: Seen,
    own: list[_C.Variant],
    reasons: Reasons,
    values: tuple[Any, ...],
    globals_: dict[str, Any],
) -> None:
    """Objects that variants told by their identity, and in whose place others are now: told by their contents the next
    time. Where that was no help the object is left out of the graph. Dictionaries by numbers that are others now: told
    by where the entries stand."""
    found: collections.Counter[Source] = collections.Counter()
    gone: set[Source] = set()
    for variant, index in reasons:
        if variant in own and index >= 0 and isinstance(variant.data, VariantData):
            renumbered = variant.data.guards.renumbered(index, values, globals_)
            if renumbered is not None:
                seen.renumbered.add(renumbered)
            missed = variant.data.guards.made_anew(index, values, globals_)
            if missed is not None:
                found[missed.source] += 1
                if missed.gone and missed.source in variant.data.made_anew:
                    gone.add(missed.source)
    seen.made_anew.update(found)
    if not session.choices.fullgraph:
        seen.varying.update(source for source, count in found.items() if source in gone or count >= MANY_OBJECTS)


def never_fits_again(
    session: Session, own: list[_C.Variant], reasons: Reasons, values: tuple[Any, ...], globals_: dict[str, Any]
) -> bool:
    """Whether calls bring a class of their own each, made by the function itself: no variant for one was ever run
    again. What else calls differ in has variants besides."""
    if session.choices.fullgraph:
        return False
    names = []
    for variant, index in reasons:
        if variant in own and index >= 0 and isinstance(variant.data, VariantData):
            found = variant.data.guards.class_made_anew(index, values, globals_)
            if found is None:
                continue
            if variant.hits:
                return False
            names.append(short(found))
    if len(names) < MAX_MADE_ANEW:
        return False
    session.classes_made_anew.update(names)
    return True


def given_made_anew(code: types.CodeType, values: tuple[Any, ...], names: set[str]) -> GuardSet:
    """Guards that hold where the parameters are instances of such classes that are so now, or such classes."""
    guards = GuardSet()
    for index, (name, value) in enumerate(zip(code.co_varnames[: _n_parameters(code)], values, strict=False)):
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


def is_eager(variant: _C.Variant) -> bool:
    return isinstance(variant.data, VariantData) and variant.data.eager


def recompile_reason(
    code: types.CodeType,
    own: list[_C.Variant],
    reasons: Reasons,
    values: tuple[Any, ...],
    globals_: dict[str, Any],
) -> str | None:
    """Which guards failed, by variant; None where nothing was compiled so far."""
    texts = []
    if all(map(is_eager, own)):
        return None
    for variant, index in reasons:
        if variant in own and isinstance(variant.data, VariantData) and index >= 0:
            guards = variant.data.guards
            texts.append(f"{variant.data.compile_id} {guards.failure_reason(index, values, globals_)}")
            if guards.holds(index, values, globals_):
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
