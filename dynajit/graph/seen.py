"""Which sizes and numbers vary: what earlier captures of a code object saw, and what the user marked.

In: at each capture the real tensors and numbers, by source. Out: which dimensions of a tensor are symbolic in this
capture, and whether a number is. First compile static; what is found changed at the next compile is symbolic from then
on. Marks are kept in the tensor's own `__dict__`.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any, NamedTuple

import torch

from dynajit.guards.source import ItemSource, LocalSource, SizeSource, Source

MARKS = "_dynajit_dimensions"
# torch's own names for the same marks, so that a program that marks for torch.compile needs no change
_TORCH_MARKS = (
    ("_dynamo_static_indices", "static"),
    ("_dynamo_weak_dynamic_indices", "maybe"),
    ("_dynamo_unbacked_indices", "dynamic"),
    ("_dynamo_dynamic_indices", "dynamic"),
)
_TORCH_RANGES = "_dynamo_dynamic_range"
CHANGED: Any = object()
#: integers from here on are no sizes but seeds, hashes and the like: they have no symbols
NO_SIZE = 1 << 31


def has_symbol(number: complex, computed: bool = False) -> bool:
    """Whether there can be a symbol for a number. A float that turns out to be zero has lost its sign; what is computed
    may be 0.0 at first, as `(step - start) / steps` is."""
    if type(number) is int:
        return abs(number) < NO_SIZE
    if type(number) is not float or not math.isfinite(number):
        return False
    return number != 0 or (computed and math.copysign(1.0, number) > 0)


class Mark(NamedTuple):
    """What the user said of one dimension: "dynamic" (specialising is an error), "maybe" or "static"; a range."""

    kind: str
    low: int | None = None
    high: int | None = None


class Dimensions(NamedTuple):
    """What is symbolic of one tensor: dimension -> mark, and the dimensions whose stride varies by itself."""

    sizes: dict[int, Mark]
    strides: frozenset[int]


class Sized(NamedTuple):
    """Where a tensor is, and its sizes and strides: None for those that vary."""

    source: Source
    sizes: list[int | None]
    strides: list[int | None]

    def varies(self) -> bool:
        """Whether any does."""
        return None in self.sizes or None in self.strides

    def merged(self, other: Sized) -> Sized:
        """What varies of either varies."""
        pairs = (self.sizes, other.sizes), (self.strides, other.strides)
        return Sized(self.source, *([a if a == b else None for a, b in zip(*pair, strict=True)] for pair in pairs))


AUTOMATIC = Mark("maybe")
NOTHING_VARIES = Dimensions({}, frozenset())


class Seen:
    """The memory of one code object under one session."""

    def __init__(self, dynamic: bool | None) -> None:
        self.dynamic = dynamic
        #: sizes and strides of the tensors at a source, by how many dimensions they have: each number of dimensions
        #: that comes there varies by itself
        self._tensors: dict[tuple[Source, int], tuple[list[Any], list[Any]]] = {}
        #: of each tensor the shapes that it had, by traces
        self._shapes: dict[Source, dict[int, tuple[int, ...]]] = {}
        #: how many traces there were
        self.traces = 0
        self._numbers: dict[Source, Any] = {}
        self._texts: dict[Source, Any] = {}
        self._members: dict[Source, Any] = {}
        #: places, as `alike` has them, of numbers and texts that vary, and of tensors whose sizes or strides do: one
        #: that is met beside them for the first time varies, too, such as those of a longer list
        self._beside: set[Source] = set()
        self._sizes_beside: dict[tuple[Source, int], tuple[set[int], set[int]]] = {}
        #: numbers, texts and objects that were another one in each variant so far: whatever needs one ends the graph
        self.varying: set[Source] = set()
        #: numbers and sizes that vary, though a variant took one alone: an operation that needs one ends the graph
        self.settled: set[Source] = set()
        #: tensors that were said to have other sizes: modules' parameters, too, have symbolic ones then
        self.resized: set[Source] = set()
        #: where another object of the same look was found, once: what is there is told by its contents from then on
        self.made_anew: set[Source] = set()
        #: dictionaries whose keys were other numbers, once: told by where their entries stand, if that is enough
        self.renumbered: set[Source] = set()
        #: parameters of a part that are results of what a varying value ended the graph for: what is there varies, too
        self.results: set[Source] = set()
        #: where values that vary compared in too many ways: the graph ends there
        self.varying_places: set[Any] = set()
        #: the items of a loop that is run part by part, where they are known to be different numbers
        self.counters: set[Source] = set()
        #: whether lines that set a tensor's data were found to change what backward reads in the graph around them
        self.data_ends_graphs = False
        #: whether a handle of what is sent or received was found to be waited for after the graph
        self.handles_outlive_graphs = False
        #: whether a DTensor was found to be summed up, by the mask that its placement keeps, after the graph
        self.masks_outlive_graphs = False
        #: whether an item that a tensor chooses was found to be needed as the view that it is, so no kernel loads it
        self.choices_are_views = False
        #: for each lazy module that was given its parameters while tracing, the capture that it was in
        self.first_calls: list[str] = []
        #: what has Python code that shares what is written with the program around it, so a call ends the graph
        self.out_of_order: set[Any] = set()
        #: calls, as `unused_calls.call_of` names them, that nothing needs and that were found to raise
        self.refused: set[tuple[Any, str]] = set()

    def expect(self, source: Source) -> None:
        """The number or text there is going to vary: a loop's counter, or what was symbolic before a break."""
        if self.dynamic is not False:
            self._numbers[source] = self._texts[source] = CHANGED
            self._beside.add(source.alike())

    def differ(self, sources: Set[Source]) -> None:
        """Other numbers and texts are there than when they were met before, if they were."""
        for known in (self._numbers, self._texts) if self.dynamic is not False else ():
            found = known.keys() & sources
            known.update(dict.fromkeys(found, CHANGED))
            self._beside.update(source.alike() for source in found)

    def numbers(self) -> set[Source]:
        """The numbers that are known to vary."""
        return {source for source, found in self._numbers.items() if found is CHANGED}

    def expected(self) -> list[Source]:
        """The numbers and texts that are known to vary."""
        known = (*self._numbers.items(), *self._texts.items())
        return [*dict.fromkeys(source for source, found in known if found is CHANGED)]

    def is_result(self, source: Source) -> bool:
        """Whether it is in the result of what a varying value ended a graph for."""
        return bool(self.results) and source.root() in self.results

    def tensor(self, source: Source, real: torch.Tensor) -> Dimensions | None:
        """What is symbolic of this tensor; None: nothing."""
        self._shapes.setdefault(source, {})[self.traces] = tuple(real.shape)
        marks = marks_of(real)
        if self.dynamic is False:
            marks = {dimension: mark for dimension, mark in marks.items() if mark.kind == "dynamic"}
        found = dict(marks)
        strides: frozenset[int] = frozenset()
        is_parameter = isinstance(real, torch.nn.Parameter)
        if self.dynamic is not False and (not is_parameter or source in self.resized):
            if self.dynamic and not (is_parameter or _is_buffer(source)):
                found = dict.fromkeys(range(real.dim()), AUTOMATIC) | found
            sizes, steps = self._remember(source, real)
            found = {at: AUTOMATIC for at, size in enumerate(sizes) if size is CHANGED} | found
            strides = frozenset(at for at, step in enumerate(steps) if step is CHANGED)
        sizes_found = {at: mark for at, mark in sorted(found.items()) if mark.kind != "static"}
        return Dimensions(sizes_found, strides) if sizes_found or strides else None

    def expect_sizes(self, tensor: Sized) -> None:
        """The tensor there is going to have other sizes and strides where these are None."""
        told = tensor.sizes, tensor.strides
        if self.dynamic is False or not tensor.varies():
            return
        self.resized.add(tensor.source)
        place = tensor.source, len(tensor.sizes)
        known = self._tensors.setdefault(place, ([*tensor.sizes], [*tensor.strides]))
        for kept, new in zip(known, told, strict=True):
            kept[:] = [CHANGED if size is None else old for old, size in zip(kept, new, strict=True)]
        self._note_sizes_beside(place, known)

    def sizes_expected(self) -> list[Sized]:
        """The tensors of which sizes or strides are known to vary."""
        found = []
        for (source, _), known in self._tensors.items():
            sizes, strides = ([None if number is CHANGED else number for number in each] for each in known)
            found.append(Sized(source, sizes, strides))
        return [tensor for tensor in found if tensor.varies()]

    def differed(self, size: Source, other: Source) -> bool:
        """Whether two sizes of tensors were different in a trace that met both."""
        if not (isinstance(size, SizeSource) and isinstance(other, SizeSource)):
            return False
        assert size.base is not None and other.base is not None
        found, others = self._shapes.get(size.base, {}), self._shapes.get(other.base, {})
        for trace in found.keys() & others.keys():
            shape, beside = found[trace], others[trace]
            known = len(shape) > size.argument and len(beside) > other.argument
            if known and shape[size.argument] != beside[other.argument]:
                return True
        return False

    def varies(self, source: Source, real: torch.Tensor) -> bool:
        """Whether sizes or strides of this tensor changed, or all are to be symbolic, whatever marks it has."""
        if self.dynamic is False:
            return False
        return bool(self.dynamic) or any(CHANGED in known for known in self._remember(source, real))

    def _remember(self, source: Source, real: torch.Tensor) -> tuple[list[Any], list[Any]]:
        sizes, strides = list(real.shape), list(real.stride())
        place = source, len(sizes)
        known = self._tensors.get(place)
        if known is None:
            known = self._tensors[place] = (sizes, strides)
            if len(sizes) == 1 and self.is_result(source):
                sizes[0] = CHANGED  # such as the tensor made of a list of any length
            beside = self._sizes_beside.get((source.alike(), len(sizes))) if self._sizes_beside else None
            for numbers, changed in zip(known, beside or (), strict=False):
                numbers[:] = [CHANGED if at in changed else number for at, number in enumerate(numbers)]
            return known
        if known != (sizes, strides):
            for old, new in zip(known, (sizes, strides), strict=True):
                old[:] = [was if was == number else CHANGED for was, number in zip(old, new, strict=True)]
            self._note_sizes_beside(place, known)
        return known

    def _note_sizes_beside(self, place: tuple[Source, int], known: tuple[list[Any], list[Any]]) -> None:
        """Tensors that are met beside this one for the first time vary as it does."""
        noted = self._sizes_beside.setdefault((place[0].alike(), place[1]), (set(), set()))
        for changed, numbers in zip(noted, known, strict=True):
            changed.update(at for at, number in enumerate(numbers) if number is CHANGED)

    def stood(self, source: Source, real: Any) -> None:
        """A number or text, or None, was found in the place of what may stand there later: another one is one that
        varies. Arguments that are left out at times are none."""
        if is_argument(source):
            return
        if real is None or type(real) in (int, float):
            self._numbers.setdefault(source, real)
        if real is None or type(real) in (str, bytes):
            self._texts.setdefault(source, real)

    def text(self, source: Source, real: object) -> bool:
        """Whether this text, time or flag is another one than before."""
        return self._has_changed(self._texts, source, real) and self.dynamic is not False

    def member(self, source: Source, real: object) -> bool:
        """Whether this member of an enumeration is another one than before. It is not `expected`: its class has few, so
        that each may have a variant."""
        known = self._members.setdefault(source, real)
        if known is not real:
            known = self._members[source] = CHANGED
        return known is CHANGED and self.dynamic is not False

    def number(self, source: Source, real: complex) -> bool:
        """Whether this number is another one than before: symbolic, if it has a symbol."""
        if self.dynamic is False:
            return False
        return self._has_changed(self._numbers, source, real) or (bool(self.dynamic) and is_argument(source))

    def _has_changed(self, known: dict[Source, Any], source: Source, real: object) -> bool:
        """Whether a number or text is another one than before, or is one of several that are."""
        if self.is_result(source):
            self.expect(source)
        if source not in known:
            known[source] = CHANGED if self._beside and source.alike() in self._beside else real
        found = known[source]
        if found is not CHANGED and (type(found) is not type(real) or found != real):
            found = known[source] = CHANGED
            self._beside.add(source.alike())
        return found is CHANGED


def marks_of(tensor: torch.Tensor) -> dict[int, Mark]:
    """The user's marks on a tensor's dimensions."""
    attributes = tensor.__dict__
    marks: dict[int, Mark] = {}
    if attributes:
        for name, kind in _TORCH_MARKS:
            marks.update(dict.fromkeys(attributes.get(name, ()), Mark(kind)))
        for each in attributes.get(_TORCH_RANGES, ()):
            if each.dim in marks:
                marks[each.dim] = Mark(marks[each.dim].kind, each.min, each.max)
        marks.update(attributes.get(MARKS, {}))
    return marks


def _is_buffer(source: Source) -> bool:
    """A module's own tensors keep their sizes; only if they are seen to change is anything symbolic of them."""
    base = source.base
    return isinstance(source, ItemSource) and base is not None and base.name().endswith(("._buffers", "._parameters"))


def is_argument(source: Source) -> bool:
    """Whether it is a parameter, or an item of one."""
    while isinstance(source, ItemSource):
        assert source.base is not None
        source = source.base
    return isinstance(source, LocalSource)


def mark(tensor: torch.Tensor, dimensions: Any, kind: str, low: int | None = None, high: int | None = None) -> None:
    """Note the user's mark on one dimension or several."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is marked, not {type(tensor).__name__}")
    marks = dict(tensor.__dict__.get(MARKS, {}))
    for dimension in dimensions if isinstance(dimensions, (list, tuple, set, frozenset, range)) else (dimensions,):
        if not isinstance(dimension, int):
            raise TypeError(f"a dimension is an int, not {type(dimension).__name__}")
        if not -tensor.dim() <= dimension < tensor.dim():
            raise IndexError(f"dimension {dimension} of a tensor with {tensor.dim()} dimensions")
        marks[dimension % tensor.dim()] = Mark(kind, low, high)
    tensor.__dict__[MARKS] = marks
