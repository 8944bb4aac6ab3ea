"""How long objects live after a break: as long as the program's own variables keep them, no longer and no shorter.

In: the frames' continuations as they are needed for running on. Out: those continuations with the variables that the
rest of the function does not read but that still hold an object somebody may look at (through a weak reference, a
finaliser, a count of references); and the names of the generated code's variables that can be let go of before the
breaking instruction runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dynajit.bytecode import Outline
from dynajit.guards.source import ConstSource, LocalSource
from dynajit.interp.frame import SymFrame
from dynajit.interp.machine import LocalBox
from dynajit.resume.plan import Resume
from dynajit.resume.rebuild import Rebuilder
from dynajit.values.core.value import NULL, Value
from dynajit.values.scalars.constant import ConstVal, is_literal


def with_bound_variables(resume: Resume, existing: set[int], cut: Outline | None) -> Resume:
    """The continuation takes over bound variables too, but those that a loop (`cut`) changes. `existing`: ids of values
    that exist at run time anyway; what only the trace knows is not made for a variable that nobody reads."""
    frame = resume.frame
    changed = (*cut.shared, *cut.kept) if cut is not None else ()
    boxes = getattr(frame.locals, "boxes", {})
    more = [
        name
        for name in frame.code.varnames
        if name not in resume.locals
        and name not in changed
        and name not in frame.cells
        and name in frame.locals
        and _is_seen(boxes[name] if name in boxes else frame.locals[name], existing)
    ]
    cells = [name for name, cell in frame.cells.items() if name not in resume.cells and cell.source is not None]
    return resume._replace(locals=[*resume.locals, *more], cells=[*resume.cells, *cells])


def kept_at_entry(frame: SymFrame, cut: Outline, existing: set[int]) -> list[str]:
    """Variables that nobody reads before a loop binds them anew, and that keep something alive until then."""
    boxes = getattr(frame.locals, "boxes", {})
    return [
        name
        for name in cut.kept
        if name in frame.locals and _is_seen(boxes[name] if name in boxes else frame.locals[name], existing)
    ]


def with_kept(resume: Resume, cut: Outline) -> Resume:
    """What goes on after a loop has the variables that it bound."""
    bound = cut.bound.get(resume.at, frozenset())
    more = (*cut.kept, *(name for name in cut.shared if name in bound))
    return resume._replace(locals=[*resume.locals, *(name for name in more if name not in resume.locals)])


def _is_seen(value: Any, existing: set[int]) -> bool:
    if isinstance(value, LocalBox):
        return not is_literal(value.real)
    if value is NULL or isinstance(value, ConstVal):
        return False
    if value.source is not None:
        return not isinstance(value.source, ConstSource)
    return id(value) in existing


def unneeded(out: Rebuilder, params: Iterable[str], later: Iterable[Any]) -> Iterator[str]:
    """Variables of the generated code, parameters included, that no value of `later` is pushed from."""
    kept = {name for value in later for name in _names(out, value)}
    yield from (name for name in [*params, *out.stored] if name not in kept)


def _names(out: Rebuilder, value: Any) -> Iterator[str]:
    if isinstance(value, LocalBox):
        yield value.source.local_name
    elif isinstance(value, Value) and value is not NULL:
        name = out.variable_of(value)
        if name is not None:
            yield name
        if isinstance(value.source, LocalSource):
            yield value.source.local_name
