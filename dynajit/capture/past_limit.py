"""Functions that only lead to parts past their limit of variants run as they were written, as code past the limit does.

In: a part, such as a loop's body, that is compiled no more. Out: other variants of the functions that lead to it by
variants that call no graph. Each is left for calls that something compiled may be met in; for all others the function
runs eagerly, since what goes on around the part takes time and has nothing to gain. What is asked is what the parts'
variants ask of what they are given, where the function is entered: if that changes before the part is reached, a call
may run eagerly though a later iteration of a loop had a variant.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from dynajit import _C
from dynajit.capture.session import Session, put_variants
from dynajit.capture.variants import AFTER_ALL, VariantData, eager_variant, is_eager, n_given
from dynajit.config import config
from dynajit.guards.guard import Guard, kinds
from dynajit.guards.source import CellSource, Source

# Guards of which all have to hold.
Condition = frozenset[Guard]
_ALWAYS: Condition = frozenset()


def run_as_written(session: Session, code: types.CodeType) -> None:
    """The part `code` runs eagerly for what none of its variants fits: so do, from now on, functions that only lead to
    it and to others of the kind."""
    for function, variant in _leading_to(session, code):
        conditions = {condition - {*variant.data.guards} for condition in _useful(session, variant, set())}
        if _ALWAYS not in conditions and len(conditions) <= config.recompile_limit and _cells_bound(variant, function):
            _split(session, function, variant, conditions)


def look_again(session: Session, variant: _C.Variant) -> None:
    """A variant was made: the same, if it leads to parts that are past their limit already."""
    for part in variant.data.parts or ():
        if _C.code_flags(part.code) & _C.RUN_ONLY:
            run_as_written(session, part.code)


def _own(session: Session, code: types.CodeType) -> Iterator[_C.Variant]:
    for variant in _C.variants(code):
        if variant.key is session and isinstance(variant.data, VariantData) and not is_eager(variant):
            yield variant


def _leading_to(session: Session, code: types.CodeType) -> list[tuple[types.CodeType, _C.Variant]]:
    """The variants without a graph of whole functions that lead to the part."""
    callers: dict[int, list[tuple[types.CodeType, _C.Variant]]] = collections.defaultdict(list)
    for caller in session.codes:
        for variant in _own(session, caller):
            for part in variant.data.parts or ():
                callers[id(part.code)].append((caller, variant))
    found, parts, met = [], [code], {id(code)}
    for part in parts:
        for caller, variant in callers[id(part)]:
            if id(caller) not in callers:
                found.append((caller, variant))
            elif id(caller) not in met:
                met.add(id(caller))
                parts.append(caller)
    return found


def _useful(session: Session, variant: _C.Variant, met: set[int]) -> set[Condition]:
    """Under which of these something compiled may be met, in terms of what the variant is given."""
    if variant.data.parts is None:
        return {_ALWAYS}
    found: set[Condition] = set()
    for part in variant.data.parts:
        met.add(id(part.code))
        variants = [*_own(session, part.code)]
        if not _C.code_flags(part.code) & _C.RUN_ONLY and any(each.data.parts is None for each in variants):
            return {_ALWAYS}  # there may be more of them
        for each in variants:
            below = {_ALWAYS} if _meets(each, met) else _useful(session, each, met)
            asked = (*each.data.guards,) if below else ()
            moved = [_at_entry([*asked, *condition], part.given) for condition in below]
            found.update(condition for condition in moved if not _contradicts(condition))
    return found


def _contradicts(condition: Condition) -> bool:
    """Whether no tensor and no number or text can have what two of the guards ask of it."""
    tensors: dict[Source, list[_C.TensorSpec]] = collections.defaultdict(list)
    constants = collections.Counter(guard.source for guard in condition if guard.kind == "EQUALS")
    for guard in condition:
        if guard.kind == "TENSOR" and guard.source is not None:
            tensors[guard.source].append(guard.params[0])
    pairs = (pair for specs in tensors.values() for pair in itertools.combinations(specs, 2))
    return any(count > 1 for count in constants.values()) or any(_differ(*pair) for pair in pairs)


def _differ(one: _C.TensorSpec, other: _C.TensorSpec) -> bool:
    """Whether sizes that are known of both differ."""
    sizes = zip(one.sizes, other.sizes, strict=False)
    return len(one.sizes) != len(other.sizes) or any(None not in pair and pair[0] != pair[1] for pair in sizes)


def _meets(variant: _C.Variant, met: set[int]) -> bool:
    """Whether it leads back to a part that is looked at already."""
    return any(id(part.code) in met for part in variant.data.parts or ())


def _at_entry(guards: list[Guard], given: Mapping[Source, Source]) -> Condition:
    """Those of the guards that are about what is given to a part, of where that comes from."""
    found = []
    for guard in guards:
        place = guard.source.found_by(given) if guard.source is not None and len(guard.sources()) == 1 else None
        if place is not None and not kinds[guard.kind].runs_code:
            found.append(guard.moved(place, guard.user_loc))
    return frozenset(found)


def _cells_bound(variant: _C.Variant, code: types.CodeType) -> bool:
    """Whether the guards see to it that no free variable is unbound: what its error says is not for a copy to tell."""
    roots = {guard.source.root() for guard in variant.data.guards if guard.source is not None}
    return {root.local_name for root in roots if isinstance(root, CellSource)} >= set(code.co_freevars)


def _split(session: Session, code: types.CodeType, variant: _C.Variant, conditions: set[Condition]) -> None:
    """The variant is for calls that meet one of the conditions, too; the code runs as it is for others that it fits."""
    data, globals_ = variant.data, variant.globals
    function: Any = variant.function
    made = []
    for condition in conditions:
        guards = data.guards.copy()
        for guard in condition:
            guards.add(guard)
        program, under = guards.build(n_given(code), globals_), dataclasses.replace(data, guards=guards, parts=None)
        made.append(_C.Variant(program, function, variant.needs_hook, globals_, under, session, variant.turn))
    made.append(eager_variant(session, code, session.part(code), data.guards, globals_, data.compile_id, AFTER_ALL))
    flags, variants = _C.code_flags(code), _C.variants(code)
    at = variants.index(variant)
    put_variants(code, [*variants[:at], *made, *variants[at + 1 :]])
    if flags & _C.RUN_ONLY:
        _C.mark_run_only(code)
