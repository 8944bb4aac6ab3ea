"""Which numbers and texts that are handed over at a break vary, so that what goes on knows at once.

In: the values that a continuation or a loop's body is given. Out: sources of its parameters. A number that was symbolic
before a break is symbolic after it; a number that a loop changes, or counts through, is another one in each iteration.
What is taken for varying without need costs a guard; what is missed is found when it has changed, by a second capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from dynajit.bytecode import ITEM, Outline
from dynajit.graph.seen import Sized
from dynajit.guards.source import CellContentsSource, CellSource, ItemSource, LocalSource, Source
from dynajit.interp.frame import SymFrame
from dynajit.interp.machine import LocalBox
from dynajit.values.containers.iterators import ConstIterator, EnumerateIterator, SequenceIterator, ZipIterator
from dynajit.values.containers.mapping import DictIterator, DictVal, DictViewVal
from dynajit.values.containers.ranges import UnreadRange, UnreadRangeIterator
from dynajit.values.containers.sequence import Lazy, LiveIterator, SequenceVal, TupleVal
from dynajit.values.core.value import Value
from dynajit.values.objects.functions import CellVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal, UnreadFlag
from dynajit.values.scalars.unread import UnreadCall
from dynajit.values.tensors.tensor import TensorVal

#: stands for what the broken instruction gives, which nobody knows before it runs
RESULT = object()
#: iterators that tell what they go through, and where they are
_ITERATORS: frozenset[type] = frozenset({type(iter([])), type(iter(())), type(iter(range(0)))})


def varying_of(function: Any, values: Sequence[Any]) -> list[Source]:
    """The parameters of a continuation that are given symbolic numbers, or texts and flags made of such."""
    names = function.__code__.co_varnames
    found: list[Source] = []
    for place, value in enumerate(values):
        if isinstance(value, SymVal) or type(value) in (UnreadCall, UnreadFlag):
            found.append(LocalSource(place, names[place]))
        elif isinstance(value, CellVal) and isinstance(value.contents, SymVal):
            found.append(CellContentsSource(CellSource(place, names[place])))
    return found


def sizes_of(function: Any, values: Sequence[Any]) -> list[Sized]:
    """The parameters of a continuation that are given tensors whose sizes are symbolic."""
    names = function.__code__.co_varnames
    return _sizes((LocalSource(place, names[place]), value) for place, value in enumerate(map(_model, values)))


def sizes_in_loop(frame: SymFrame, cut: Outline) -> list[Sized]:
    """The same for the body of a loop."""
    first = int(cut.loop.kind == "for")
    return _sizes(
        (LocalSource(place, name), _model(frame.locals.get(name))) for place, name in enumerate(cut.named, first)
    )


def _sizes(given: Iterable[tuple[Source, Any]]) -> list[Sized]:
    found = []
    for source, value in given:
        fake = value.fake_for_keys if isinstance(value, TensorVal) else None
        if fake is not None and fake.layout is torch.strided and not fake.is_nested:
            found.append(Sized(source, [*map(_known, fake.shape)], [*map(_known, fake.stride())]))
    return [tensor for tensor in found if tensor.varies()]


def _known(number: int | torch.SymInt) -> int | None:
    if not isinstance(number, torch.SymInt):
        return number
    expr = number.node.expr
    return int(expr) if expr.is_number else None


def results_among(function: Any, values: Sequence[Any]) -> list[Source]:
    """The parameters of a continuation that are what the broken instruction gave."""
    names = function.__code__.co_varnames
    return [LocalSource(place, names[place]) for place, value in enumerate(values) if value is RESULT]


def handed_over(function: Any, values: Sequence[Any]) -> list[tuple[Source, Source]]:
    """Numbers, texts, tensors and other objects from outside that a continuation is given as they are: where each comes
    from, and where it is then."""
    names = function.__code__.co_varnames
    return _from_outside(
        ((CellSource if isinstance(value, CellVal) else LocalSource)(place, names[place]), value)
        for place, value in enumerate(map(_model, values))
    )


def _model(value: Any) -> Any:
    """Of a parameter that nobody read, the object's model if it was reached by another way."""
    known = value.tx.outside_objects().get(id(value.real)) if isinstance(value, LocalBox) else None
    return value if known is None else known[1]


def handed_to_loop(frame: SymFrame, cut: Outline) -> list[tuple[Source, Source]]:
    """The same for the body of a loop, when it is entered."""
    first = int(cut.loop.kind == "for")
    given: list[tuple[Source, Any]] = [
        (LocalSource(place, name), _model(frame.locals.get(name))) for place, name in enumerate(cut.named, first)
    ]
    for place, name in enumerate(cut.shared, first + len(cut.named)):
        given.append((CellContentsSource(CellSource(place, name)), _model(frame.locals.get(name))))
    for place, name in enumerate(cut.cells, first + len(cut.named) + len(cut.shared)):
        given.append((CellSource(place, name), frame.cells[name]))
    return _from_outside(given)


def _from_outside(given: Iterable[tuple[Source, Any]]) -> list[tuple[Source, Source]]:
    """Where what a part is given comes from, with its place there; of what comes from outside."""
    return [
        (value.source, place)
        for place, value in given
        if isinstance(value, (Value, LocalBox)) and value.source is not None
    ]


def varying_in_loop(frame: SymFrame, cut: Outline, operands: Sequence[Value]) -> list[Source]:
    """The parameters of a loop's body that are numbers which the loop changes, and what differs from item to item."""
    found: list[Source] = []
    first = int(cut.loop.kind == "for")
    if first and operands:
        found.extend(_in_items(operands[-1], LocalSource(0, ITEM)))
    for place, name in enumerate(cut.shared, first + len(cut.named)):
        if name in frame.locals and _is_number(frame.locals[name]):
            found.append(CellContentsSource(CellSource(place, name)))
    return found


def _is_number(value: Any) -> bool:
    if isinstance(value, LocalBox):
        return type(value.real) in (int, float)
    return isinstance(value, SymVal) or (isinstance(value, ConstVal) and value.py_type() in (int, float))


def _in_items(iterated: Value, source: Source) -> Iterator[Source]:
    """Where in a loop's item numbers and texts are that differ from one to the next, as far as is known beforehand."""
    if isinstance(iterated, EnumerateIterator):
        yield ItemSource(source, 0)
        yield from _in_items(iterated.inner, ItemSource(source, 1))
    elif isinstance(iterated, ZipIterator):
        for position, part in enumerate(iterated.inner):
            yield from _in_items(part, ItemSource(source, position))
    elif isinstance(iterated, (DictVal, DictViewVal, DictIterator)):
        what = "keys" if isinstance(iterated, DictVal) else iterated.what
        if what != "values":  # no two keys are equal
            yield source if what == "keys" else ItemSource(source, 0)
    elif isinstance(iterated, (UnreadRange, UnreadRangeIterator)):
        yield source
    elif isinstance(iterated, ConstIterator) or (isinstance(iterated, ConstVal) and iterated.py_type() is range):
        if isinstance(iterated.value, range) and len(iterated.value) > 1:
            yield source
    else:
        first = _first_items(iterated)
        if len(first) == 2:
            yield from _differing(source, *map(_real, first))


def _first_items(iterated: Value) -> Sequence[Any]:
    """The first two items of a sequence or of what is left of an iterator; none if they are not known beforehand."""
    if isinstance(iterated, SequenceVal):
        return iterated.first_items
    if isinstance(iterated, LiveIterator):
        return iterated.container.items[iterated.index :][:2] if iterated.index else iterated.container.first_items
    if isinstance(iterated, SequenceIterator):
        return iterated.items[:2]
    real = iterated.real_object
    if type(real) in _ITERATORS:
        made: Any = real.__reduce__()  # `iter`, what it is called with, and where the iterator is
        start = made[2] or 0 if len(made) > 2 else 0
        return [Lazy(item, None) for item in made[1][0][start : start + 2]]
    return ()


def _real(item: Any) -> Any:
    """A number or text, or a tuple of them; None for all else."""
    if isinstance(item, Lazy):
        return item.obj
    if isinstance(item, ConstVal):
        return item.hint
    return tuple(map(_real, item.items)) if type(item) is TupleVal else None


def _differing(source: Source, first: Any, second: Any) -> Iterator[Source]:
    if type(first) is not type(second):
        return
    if type(first) in (int, float, str):
        if first != second:
            yield source
    elif type(first) is tuple and len(first) == len(second):
        for position, pair in enumerate(zip(first, second, strict=True)):
            yield from _differing(ItemSource(source, position), *pair)
