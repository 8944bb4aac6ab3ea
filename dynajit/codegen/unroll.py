"""The plan of a graph with many equal layers, made of the plan of the same graph with the first few of them.

In:  the short graph's plan before its memory is planned, and `Repeated`. Out: `unroll(plan, repeated)`, the plan that
the whole graph would have had: the steps between two layers (a block) once more for each layer that was left out, with
other buffers. Or `NotRepeated`.

A block is `period` steps that the next `period` steps do again with the next layer's inputs. That is said of data flow:
what a step reads was written by the step in the same place of the same block, or of the one before, or before all
blocks by one that both blocks read from. So a block computes of what the one before leaves and of a layer's inputs what
it leaves to the next, and as the short plan is right for any inputs, so is the one with more blocks. No step after the
second block may read what the first one made, but for a block's tail: steps of each layer that were put off until all
layers are through (`dynajit/schedule/sink.py`: gradients of weights), those of the first layer last.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dynajit.codegen.memory import memories, names_in, refs_in, renamed
from dynajit.codegen.plan import (
    AllocStep,
    Buffer,
    BufferRef,
    DrawStep,
    ExternStep,
    KernelStep,
    NumberStep,
    Plan,
    Step,
    TouchStep,
    ViewStep,
)
from dynajit.graph.meta import NotRepeated, Repeated
from dynajit.nested import leaves_in, map_leaves, tensors_in
from dynajit.op_facts import facts

_INPUT = -1  # the place of the step that made an input
Rename = Callable[[str], str]


def unroll(plan: Plan, repeated: Repeated) -> Plan:
    """The plan of the whole graph. Raises NotRepeated."""
    return Unrolled(plan, repeated).plan()


@dataclasses.dataclass(slots=True)
class _Facts:
    """What there is to know of a step: the buffers it names, in order, and for each the step that wrote to its memory
    last; those whose names begin with it; what two steps have in common that do the same with other buffers."""

    names: tuple[str, ...]
    sources: tuple[int, ...]
    defined: frozenset[str]
    look: Any


class Unrolled:
    """The whole plan while it is being made. `plan()` gives it."""

    def __init__(self, plan: Plan, repeated: Repeated) -> None:
        self.short = plan
        self.repeated = repeated
        self.more = repeated.layers - repeated.kept
        self.memories = memories(plan)
        body, self.views = _without_last_views(plan)
        self.body: Sequence[Step] = body
        self.defined: dict[str, int] = dict.fromkeys(plan.inputs, _INPUT)
        self.written: dict[str, int] = {}
        self.stored: dict[str, int] = {}  # as `written`, of which views are a part
        self.facts = [self._facts(place, step) for place, step in enumerate(body)]
        self.period = self._period()
        self.begin, self.next = self._block()
        self.fresh: list[dict[str, str]] = [{}]  # for each repetition the names of what is made in it
        self.buffers = dict(plan.buffers)
        self.tail = self._tail()

    def _facts(self, place: int, step: Step) -> _Facts:
        names = tuple(names_in(step))
        sources = tuple(self.written.get(self.memories.get(name, name), _INPUT) for name in names)
        defined = _defined(step)
        self.defined.update(dict.fromkeys(defined, place))
        for name in (*defined, *_written(step)):
            self.written[self.memories.get(name, name)] = place
            if not isinstance(step, ViewStep):
                self.stored[self.memories.get(name, name)] = place
        return _Facts(names, sources, defined, _look(step, self.short.buffers))

    # -- the block

    def _period(self) -> int:
        """How many steps there are for each layer: so many are between those that read the same input of two."""
        period = self._gap(range(len(self.facts)), 1)
        if not period:
            raise NotRepeated("layers have no inputs of their own")
        return period

    def _gap(self, places: range, sign: int) -> int:
        """How many steps later (1), or earlier (-1), most of a layer's own inputs are first read among these than those
        of the layer before; 0 where none is."""
        first: dict[str, int] = {}
        for place in places:
            for name in self.facts[place].names:
                first.setdefault(name, place)
        gaps = collections.Counter(
            sign * (first[names[layer + 1]] - first[name])
            for name, (layer, names) in self.repeated.series.items()
            if name in first and layer + 1 < self.repeated.kept and names[layer + 1] in first
        )
        return max((gap for gap in gaps if gap > 0), key=gaps.__getitem__, default=0)

    def _block(self) -> tuple[int, dict[str, str]]:
        """Where the first block begins, and for the names in it those in the next."""
        alike = [self._is_alike(place) for place in range(len(self.body) - self.period)]
        once = self._made_once()
        length = 0
        for place, fine in enumerate(alike):
            length = length + 1 if fine else 0
            if length >= self.period:
                begin = place + 1 - self.period
                if not once.isdisjoint(range(begin, place + 1)):
                    continue  # of a layer that only begins like those that are repeated
                found = self._following(range(begin, place + 1), self.period, range(begin, place + 1), {})
                if found is not None:
                    return begin, found
        raise NotRepeated("no two layers have the same steps")

    def _made_once(self) -> set[int]:
        """The places of steps that make results of the graph which layers don't each have."""
        given = (self.short.outputs[result] for result in self.repeated.results if isinstance(result, int))
        names = {self._base(value.name) for value in given if isinstance(value, BufferRef)}
        return {self.defined[name] for name in names if name in self.defined}

    def _is_alike(self, place: int) -> bool:
        one, other = self.facts[place], self.facts[place + self.period]
        return one.look == other.look and len(one.names) == len(other.names)

    def _following(self, steps: range, shift: int, block: range, known: dict[str, str]) -> dict[str, str] | None:
        """What steps name in place of the names in others, if they do the same for the next layer.

        Args:
            steps: the others' places, in a block or its tail. shift: how far from them the steps are.
            block: the places of the block. known: what the next block names in place of the names in it.
        """
        found = dict(known)
        for place in steps:
            one, other = self.facts[place], self.facts[place + shift]
            for name, then in zip(one.names, other.names, strict=True):
                if found.setdefault(name, then) != then or not self._is_next(name, then, steps, shift, block):
                    return None
            for source, later in zip(one.sources, other.sources, strict=True):
                if source in steps:
                    fine = later == source + shift
                elif source in block:
                    fine = later == source + self.period
                else:
                    fine = source < block.start and (later == source or later in block)
                if not fine:
                    return None
        return found if len(set(found.values())) == len(found) else None

    def _is_next(self, name: str, then: str, steps: range, shift: int, block: range) -> bool:
        """Whether a name stands in the next block or tail for what this one does here."""
        made, later = self.defined.get(name, _INPUT), self.defined.get(then, _INPUT)
        if name in self.repeated.series:
            layer, names = self.repeated.series[name]
            return layer + 1 < len(names) and names[layer + 1] == then
        if made in steps:
            return later == made + shift
        if made in block:
            return later == made + self.period
        return name == then or later in block

    def _tail(self) -> range:
        """The places of the block's tail. Raises NotRepeated where other steps read what the first block made."""
        block = range(self.begin, self.begin + self.period)
        rest = range(block.stop + self.period, len(self.body))
        reading = [place for place in rest if not set(block).isdisjoint(self.facts[place].sources)]
        if not reading:
            return range(0)
        length = self._gap(rest, -1)
        for begin in range(max(reading) + 1 - length, max(reading) + 1):
            tail = range(begin, begin + length)
            if begin - length >= rest.start and tail.stop <= rest.stop and self._is_tail(tail, rest, block):
                return tail
        raise NotRepeated("what a layer gives is read two layers later")

    def _is_tail(self, tail: range, rest: range, block: range) -> bool:
        """Whether the steps right before these, which may read what the first block hands on, do the same for the next
        block, and no other of the `rest` reads what the first block or its tail makes."""
        before = range(tail.start - len(tail), tail.start)
        if not all(self.facts[place].look == self.facts[place - len(tail)].look for place in tail):
            return False
        found = self._following(tail, -len(tail), block, self.next)
        if found is None:
            return False
        made = {*block, *tail}
        others = (place for place in rest if place not in tail and place not in before)
        if any(not made.isdisjoint(self.facts[place].sources) for place in others):
            return False
        if any(not set(tail).isdisjoint(self.facts[place].sources) for place in before):
            return False
        self.next = found
        return True

    # -- names

    def _in_block(self, number: int) -> Rename:
        """The names in a repetition of the block; 0 is the block itself."""

        def rename(name: str) -> str:
            if number == 0 or self.next.get(name, name) == name:
                return name
            if name in self.repeated.series:
                layer, names = self.repeated.series[name]
                return names[layer + number]
            if self.defined.get(name, _INPUT) >= self.begin:
                return self._made(name, number)
            return self._in_block(number - 1)(self.next[name])

        return rename

    def _made(self, name: str, number: int) -> str:
        """The name of what repetitions of the block make where the block makes `name`."""
        while len(self.fresh) <= number:
            self.fresh.append({})
        found = self.fresh[number].get(name)
        if found is None:
            found = f"{name}_of{number}"
            while found in self.buffers or found in self.defined:
                found += "_"
            self.fresh[number][name] = found
            self._add(found, name)
        return found

    def _name_after(self, name: str) -> str:
        """A name in what comes after the repetitions."""
        if name in self.repeated.series:
            layer, names = self.repeated.series[name]
            return names[layer + self.more]
        if self._is_of_block(self.defined.get(name, _INPUT)):
            return self._in_block(self.more)(name)
        return name

    def _is_of_block(self, place: int) -> bool:
        return self.begin <= place < self.begin + self.period or place in self.tail

    def _add(self, name: str, like: str) -> None:
        one = self.short.buffers.get(like)
        if one is not None:
            self.buffers[name] = Buffer(name, one.shape, one.stride, one.dtype, one.device)

    # -- the whole

    def plan(self) -> Plan:
        """The whole plan, before its memory is planned."""
        for name, (layer, names) in self.repeated.series.items():
            if layer == 0:
                for each in names:
                    self._add(each, name)
        end = self.begin + self.period
        steps = list(self.body[:end])
        for number in range(1, self.more + 1):
            rename = self._in_block(number)
            steps += [renamed(step, rename) for step in self.body[self.begin : end]]
        first = self.tail.start if self.tail else len(self.body)
        steps += [renamed(step, self._name_after) for step in self.body[end:first]]
        for number in range(self.more, -1, -1):
            rename = self._in_block(number)
            steps += [renamed(self.body[place], rename) for place in self.tail]
        steps += [renamed(step, self._name_after) for step in self.body[first + len(self.tail) :]]
        outputs, views = self._outputs()
        steps += views
        self._check_inputs(steps)
        return dataclasses.replace(
            self.short, inputs=self.repeated.inputs, buffers=self.buffers, steps=tuple(steps), outputs=outputs
        )

    def _check_inputs(self, steps: Sequence[Step]) -> None:
        """Whether each layer's inputs are read as often as the next one's, but for those of the first and the last."""
        reads = collections.Counter(name for step in steps for name in names_in(step))
        for layer, names in self.repeated.series.values():
            counts = [reads[name] for name in names]
            if layer == 0 and (len({*counts[1:-1]}) != 1 or bool(counts[1]) != bool(counts[0] and counts[-1])):
                raise NotRepeated("inputs of layers are read elsewhere than where the layer is")

    def _outputs(self) -> tuple[tuple[Any, ...], list[Step]]:
        """What the whole plan returns, and the views that are taken at its end."""
        given = [self._output(value) for value in self.short.outputs]
        outputs: list[Any] = []
        views: list[Step] = []
        known: dict[tuple[int, ...], dict[int, tuple[int, Rename]]] = {}
        for result in self.repeated.results:
            if isinstance(result, str):
                outputs.append(BufferRef(result))
                continue
            if isinstance(result, int):
                place, rename = result, self._of_one(given[result])
            else:
                places, layer = result
                if places not in known:
                    known[places] = self._of_layers(places, [given[at] for at in places])
                place, rename = known[places][layer]
            value = self.short.outputs[place]
            name = rename(value.name) if isinstance(value, BufferRef) else None
            view = self.views.get(value.name) if isinstance(value, BufferRef) else None
            if view is not None:
                base = rename(view.base)
                name = value.name if base == view.base else f"{base}_out{len(views)}"
                self._add(name, value.name)
                views.append(dataclasses.replace(view, output=name, base=base))
            outputs.append(value if name is None else BufferRef(name))
        return tuple(outputs), views

    def _output(self, value: Any) -> int:
        """Where an output is made: 0 before the blocks, 1 in the first, 2 after it; 3: it is of a layer's input."""
        if not isinstance(value, BufferRef):
            return 0
        name = self._base(value.name)
        if name in self.repeated.series:
            return 3
        made, written = self.defined.get(name, _INPUT), self.stored.get(self.memories.get(name, name), _INPUT)
        parts = {0 if place < self.begin else 1 if self._is_of_block(place) else 2 for place in (made, written)}
        if len(parts) > 1:
            raise NotRepeated("the memory of a result is written again by another layer")
        return parts.pop()

    def _base(self, name: str) -> str:
        """What an output is a view of, else itself."""
        return self.views[name].base if name in self.views else name

    def _of_one(self, part: int) -> Rename:
        """The names of an output that is not a layer's."""
        if part in (1, 3):
            raise NotRepeated("the graph returns what each layer makes, or a layer's input, once")
        return (lambda name: name) if part == 0 else self._name_after

    def _of_layers(self, places: Sequence[int], parts: Sequence[int]) -> dict[int, tuple[int, Rename]]:
        """For each layer which of these outputs, the layers' in order, is made where its own is, with which names."""
        if set(parts) == {3}:
            return self._of_inputs(places)
        found: dict[int, tuple[int, Rename]] = {}
        for layer, (place, part) in enumerate(zip(places, parts, strict=True)):
            if part == 1:
                more = {layer + number: (place, self._in_block(number)) for number in range(self.more + 1)}
            else:
                more = {layer + (self.more if part == 2 else 0): (place, self._of_one(part))}
            if found.keys() & more.keys():
                raise NotRepeated("several layers' results are made in one block")
            found |= more
        if len(found) != self.repeated.layers:
            raise NotRepeated("results are not made where the layers are")
        return found

    def _of_inputs(self, places: Sequence[int]) -> dict[int, tuple[int, Rename]]:
        """`_of_layers` for outputs that are the same view of each layer's own input."""
        outputs = [self.short.outputs[place].name for place in places]
        _, names = self.repeated.series[self._base(outputs[0])]
        if tuple(map(self._base, outputs)) != names[: len(outputs)] or len({*map(self._view, outputs)}) != 1:
            raise NotRepeated("layers return views of other inputs than the same one of each")
        return {layer: (places[0], lambda _, name=name: name) for layer, name in enumerate(names)}  # type: ignore[misc]

    def _view(self, name: str) -> Any:
        """What an output shows of what it is a view of."""
        view, buffer = self.views.get(name), self.short.buffers[name]
        return view and (view.offset, view.detached, view.own), buffer.shape, buffer.stride, buffer.dtype


def _without_last_views(plan: Plan) -> tuple[Sequence[Step], dict[str, ViewStep]]:
    """The steps but for the views at the end that are outputs, and these."""
    outputs = {ref.name for ref in refs_in(plan.outputs)}
    steps = list(plan.steps)
    views: dict[str, ViewStep] = {}
    while steps and isinstance(steps[-1], ViewStep) and steps[-1].output in outputs:
        view = steps.pop()
        assert isinstance(view, ViewStep)
        views[view.output] = view
    if any(view.base in views for view in views.values()):
        raise NotRepeated("a result is a view of another one's view")
    return steps, views


def _defined(step: Step) -> frozenset[str]:
    """The names that begin with a step."""
    match step:
        case AllocStep(made) | ViewStep(made) | DrawStep(made) | NumberStep(made) | ExternStep(outputs=made):
            return frozenset(name for name in leaves_in(made) if name is not None)
    return frozenset()


def _written(step: Step) -> Iterator[str]:
    """The names of what was there before a step and is written by it."""
    match step:
        case KernelStep():
            yield from step.outputs
        case TouchStep(buffer):
            yield buffer
        case ExternStep(target, args, kwargs):
            if not isinstance(target, torch._ops.OpOverload) or facts(target).writes:
                yield from (ref.name for ref in refs_in((args, kwargs)))


def _look(step: Step, buffers: dict[str, Buffer]) -> Any:
    """A step without its names, but with what is known of them."""
    named = tuple(
        None if (one := buffers.get(name)) is None else (one.shape, one.stride, one.dtype, one.device)
        for name in names_in(step)
    )
    match step:
        case KernelStep(kernel, args, outputs, programs):
            return KernelStep, named, kernel, tuple(args.index(name) for name in outputs), programs
        case ExternStep():
            blank = lambda ref: _HERE  # noqa: E731
            args, kwargs = map_leaves(blank, (step.args, dict(step.kwargs)), BufferRef)
            if tensors_in((args, kwargs)):
                return object()  # to compare it would be to compute
            places = tuple(name is None for name in step.outputs)
            return ExternStep, named, step.target, _Typed(args), _Typed(kwargs), places, step.single, step.aliases
        case ViewStep():
            return ViewStep, named, step.offset, step.detached, step.own
        case DrawStep(outputs, increment):
            return DrawStep, len(outputs), increment
        case NumberStep(_, source):
            return NumberStep, named, None if isinstance(source, str) else source
        case AllocStep() | TouchStep():
            return type(step), named
    return object()  # sizes, which are made once


_HERE = object()


class _Typed:
    """Arguments that are equal only if they are of the same types: 1, 1.0 and True are not, nor 0.0 and -0.0."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.types = [(type(leaf), repr(leaf)) for leaf in leaves_in(tree) if leaf is not _HERE]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Typed) and self.types == other.types and self.tree == other.tree

    __hash__ = None  # type: ignore[assignment]
