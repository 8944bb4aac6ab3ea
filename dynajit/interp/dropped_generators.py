"""Suspended generators that the program lets go of: CPython closes them there, which runs their `finally` and `with`.

In: the machine after an instruction that may let go of one. Out: the generator closed in the trace, if the trace can
tell that nobody has it. Else it stays open, and the whole function runs eagerly (`Emission.obstacle`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dynajit.interp.frame import SymFrame
from dynajit.nested import reached
from dynajit.values.core.value import NULL, GraphBreak, Raised, Value
from dynajit.values.objects.generators import GeneratorVal
from dynajit.values.scalars.constant import is_none

#: what may let go of an object; a call lets go of its arguments and of its function's variables
LETTING_GO = frozenset({"POP_TOP", "STORE_FAST", "DELETE_FAST", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "END_FOR"})


def close_dropped(tx: Any, frames: Sequence[SymFrame], result: Value | None = None) -> None:
    """Close the generator that neither `frames` nor `result` nor what the program changed leads to, then what it held.
    Of two others that are let go of at once the order would have to be known."""
    open_ones = [made for made in tx.open_generators if made.needs_closing()]
    held = {id(value) for frame in frames for value in (*frame.stack, *dict.values(frame.locals))}
    open_ones = [made for made in open_ones if id(made) not in held and made is not result]
    if not open_ones or not _is_all_in_frames(tx):
        return
    alive = [*reached(_roots(tx, frames, result), _parts, id)]
    # an exception's traceback has variables, too
    if not all(value.rebuildable() and not issubclass(value.py_type(), BaseException) for value in alive):
        return
    dropped = [made for made in open_ones if not any(value is made for value in alive)]
    outermost = [made for made in dropped if not any(_leads_to(other, made) for other in dropped)]
    if len(outermost) == 1 and _close(tx, outermost[0]):
        close_dropped(tx, frames, result)  # what it held


def _is_all_in_frames(tx: Any) -> bool:
    """Whether no model is at work that has called one of the frames, and has objects of its own."""
    handled = tx.exceptions.current
    return all(frame.direct is not None for frame in tx.frames[1:]) and (handled is None or is_none(handled))


def _roots(tx: Any, frames: Sequence[SymFrame], result: Value | None) -> Iterator[Value]:
    if result is not None:
        yield result
    for frame in frames:
        yield from _held_by(frame)
    for call in tx.calls:
        yield from (*call.args, *call.kwargs.values())
    yield from tx.needed
    for value in tx.journal.dirty.values():
        yield from value.effect_children()
    for _, value in tx.globals_written.values():
        if isinstance(value, Value):
            yield value


def _held_by(frame: SymFrame) -> Iterator[Value]:
    yield from (value for value in frame.stack if value is not NULL)
    yield from dict.values(frame.locals)
    yield from frame.cells.values()
    yield from (value for value in (frame.gave_names, frame.namespace) if isinstance(value, Value))


def _parts(value: Value) -> list[Value]:
    if value.source is not None:
        return []
    inside = _held_by(value.frame) if isinstance(value, GeneratorVal) else ()
    return [*value.children(), *value.fill_children(), *inside]


def _leads_to(holder: Value, made: GeneratorVal) -> bool:
    return holder is not made and any(value is made for value in reached([holder], _parts, id))


def _close(tx: Any, generator: GeneratorVal) -> bool:
    """Whether it was closed: if its code ends the graph, or raises, which CPython only reports, it stays open."""
    before = tx.journal.mark(), tx.graph.mark(), len(tx.guards)
    try:
        generator.close(tx)
    except (GraphBreak, Raised):
        tx.rollback_to(*before)
        tx.broken_frames = None
        return False
    return True
