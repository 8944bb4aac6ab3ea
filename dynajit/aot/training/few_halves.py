"""The halves of the joint graph of many equal layers, made of the halves of one with a few of them.

In:  a torch-level graph in which each layer is a call (`shared_layers.py`). `with_few_calls` gives the same with `KEPT`
of the layers, each of which reads inputs of its own, what all of them read, and what the one before gives. AOTAutograd
sees that one alone; of the halves that it makes of it, `grown` makes those of the whole: the nodes of a layer once more
for each that was left out. Or NotRepeated.

That the halves of a few layers are right says that a layer's part of each is, whatever its inputs are: forward and
backward of a layer in the middle are those of the one after it, with the next inputs and saved values. Where a layer
begins in a half is where few values go across, which need not be the same place in both: what is repeated is a period.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from dynajit.aot.few_layers import are_adjacent, are_read_in_turn
from dynajit.aot.layers import Layers, equal_layers, items_of
from dynajit.aot.rewrite import Copy, results_of
from dynajit.aot.training.shared_layers import call_layer, fake_like
from dynajit.graph.meta import NotRepeated, value_of
from dynajit.nested import map_leaves, tensors_in
from dynajit.new_fake import new_fake

# The first layer differs, as may the last; a half's periods may begin anywhere in a layer; three are found.
KEPT = 5
_MIN_LAYERS = KEPT + 2
Key = tuple[str, Any]  # values alike, one of each layer
Place = tuple[Key, int]  # one of several values alike: which values, and the layer whose it is
# what a half of the whole saves: its node, that of the short half, and which of several alike it is
Saved = tuple[Node, Node | None, Place | None]
Span = tuple[int, int, Key]  # the first and the last of a few places, and what is there


@dataclasses.dataclass
class FewCalls:
    """A graph with few of the calls of layers of another one.

    module: the short graph. more: how many layers were left out. inputs, results: those of the whole.
    """

    module: GraphModule
    more: int
    inputs: Values
    results: Values

    def of_layers(self, known: Mapping[int, Any]) -> dict[int, Any]:
        """What holds of layers of the whole, if those that were left out are as the one before them; `known`: of those
        of the short graph."""
        left_out = range(KEPT - 1, KEPT - 1 + self.more)
        return {**known, **(dict.fromkeys(left_out, known[KEPT - 2]) if KEPT - 2 in known else {})}


@dataclasses.dataclass
class Values:
    """The inputs or the results of the whole.

    count: how many there are. alike: by place, those that are one of several alike, and which. more: how many layers
    the short graph has not. kept: the places of those that it has.
    """

    count: int
    alike: dict[int, Place]
    more: int

    def __post_init__(self) -> None:
        places = ((at, self.alike.get(at)) for at in range(self.count))
        self.kept = [at for at, place in places if place is None or self._short(place) is not None]

    def in_short(self, nodes: Sequence[Any]) -> list[tuple[Any, Place]]:
        """Those of the short graph's values that are one of several alike, and which; `nodes`: all of them."""
        places = ((node, self.alike.get(at)) for at, node in zip(self.kept, nodes, strict=True))
        return [(node, short) for node, place in places if place and (short := self._short(place))]

    def for_all(self, known: Sequence[Any]) -> list[Any]:
        """What holds of each of the whole's values; `known`: of each of the short graph's."""
        own = dict(zip(self.kept, known, strict=True))
        alike = {self.alike[at][0]: one for at, one in own.items() if at in self.alike}
        return [own[at] if at in own else alike[self.alike[at][0]] for at in range(self.count)]

    def only(self, places: Collection[int]) -> Values:
        """Some of these values, in order."""
        order = {at: number for number, at in enumerate(sorted(places))}
        return Values(len(order), {order[at]: place for at, place in self.alike.items() if at in order}, self.more)

    def _short(self, place: Place) -> Place | None:
        key, layer = place
        last = KEPT - 1 + self.more
        return (key, min(layer, KEPT - 1)) if layer < KEPT - 1 or layer == last else None


def with_few_calls(gm: GraphModule) -> FewCalls | None:
    """The graph with few of its calls of layers; None where it has few, or they do not follow each other."""
    calls = gm.graph.find_nodes(op="call_function", target=call_layer)
    more = len(calls) - KEPT
    if len(calls) < _MIN_LAYERS or any(call.args[0] != layer for layer, call in enumerate(calls)):
        return None
    placeholders = gm.graph.find_nodes(op="placeholder")
    place_of = {node: at for at, node in enumerate(placeholders)}
    items = [dict(items_of(call)) for call in calls]
    read = _read(calls, items, place_of)
    if read is None:
        return None
    inputs, handed = read
    end = gm.graph.output_node()
    if not all({then, end}.issuperset(item.users) for own, then in _in_turn(items, calls) for item in own):
        return None
    given = results_of(gm)
    few = FewCalls(gm, more, Values(len(placeholders), inputs, more), Values(len(given), _alike(given, items), more))
    left_out = {*calls[KEPT - 1 : -1], *(item for own in items[KEPT - 1 : -1] for item in own)}
    left_out.update(set(placeholders).difference(placeholders[at] for at in few.inputs.kept))
    results = [given[at] for at in few.results.kept]
    copy = Copy(gm)
    inside = [node for node in gm.graph.nodes if node not in left_out and node is not end]
    reads = {part for node in inside for part in node.all_input_nodes}
    if not left_out.isdisjoint(reads - handed.keys()) or not left_out.isdisjoint(results):
        return None
    for node in inside:
        if node is calls[-1]:
            copy.of.update((late, copy.of[early]) for late, early in handed.items())
        copy.take(node)
    few.module = copy.finish(results)
    return few


def _read(
    calls: Sequence[Node], items: Sequence[dict[Node, int]], place_of: Mapping[Node, int]
) -> tuple[dict[int, Place], dict[Node, Node]] | None:
    """Which inputs are one of several alike; what the first call after those left out reads -> what it reads in the
    short graph. None where calls read anything but inputs of their own, what all do, and what the one before gives."""
    inputs: dict[int, Place] = {}
    handed: dict[Node, Node] = {}
    for place, column in enumerate(zip(*(call.args[1:] for call in calls), strict=True)):
        if len(set(column)) == 1:
            continue
        if _are_their_own(column, calls):
            inputs.update((place_of[node], (("input", place), layer)) for layer, node in enumerate(column))
        elif _are_of_the_call_before(column, items):
            handed[column[-1]] = column[KEPT - 1]
        else:
            return None
    return inputs, handed


def _in_turn(items: Sequence[dict[Node, int]], calls: Sequence[Node]) -> Iterator[tuple[dict[Node, int], Node]]:
    """The items of the last call before those that are left out, and of these, each with the call that comes next."""
    return zip(items[KEPT - 2 : -1], calls[KEPT - 1 :], strict=True)


def _alike(given: Sequence[Any], items: Sequence[dict[Node, int]]) -> dict[int, Place]:
    """Which results of the graph are one of several alike: the same item of what all calls give."""
    whose = {item: (("result", at), layer) for layer, own in enumerate(items) for item, at in own.items()}
    found = {at: whose[node] for at, node in enumerate(given) if node in whose}
    count = collections.Counter(key for key, _ in found.values())
    return {at: place for at, place in found.items() if count[place[0]] == len(items)}


def _are_their_own(column: Sequence[Node], calls: Sequence[Node]) -> bool:
    """Whether each of these is an input that is read by its call alone, and is none of the others."""
    return len(set(column)) == len(calls) and all(
        node.op == "placeholder" and {call}.issuperset(node.users) for node, call in zip(column, calls, strict=True)
    )


def _are_of_the_call_before(column: Sequence[Node], items: Sequence[dict[Node, int]]) -> bool:
    """Whether all calls but the first read, here, the same item of what the one before gives."""
    wanted = {items[at].get(node) for at, node in enumerate(column[1:])}
    return len(wanted) == 1 and None not in wanted


class _Half:
    """One half of the whole, made of that of the short graph.

    Args:
        gm: the short graph's half. more: how many layers to add. alike: which inputs are one of several alike.
    """

    def __init__(self, gm: GraphModule, more: int, alike: dict[Node, Place]) -> None:
        self.gm, self.more, self.alike, self.copy = gm, more, alike, Copy(gm)
        found = equal_layers(gm, lambda found: are_adjacent(gm, found) and are_read_in_turn(gm, found), new=False)
        if found is None:
            raise NotRepeated("a half has no equal layers")
        self.layers = found.layers
        self.place = {node: (at, turn) for turn, layer in enumerate(self.layers) for at, node in enumerate(layer.nodes)}
        self.turn, self.at, self.step = self._period(found)
        self.inputs: dict[Place, Node] = {}  # of the whole, by the layer there
        self.made: list[dict[Node, Node]] = []  # what the period is in the whole, and those that are added after it

    def _period(self, found: Layers) -> tuple[int, dict[Key, int], int]:
        """After which period the others come, the layer whose inputs it reads, and whether the next one reads those of
        the layer after (1) or before (-1)."""
        count = len(found.layers)
        # the outer ones may save less
        for turn in sorted(range(count - 1), key=lambda turn: abs(2 * turn + 2 - count)):
            one, other = found.layers[turn : turn + 2]
            at: dict[Key, int] = {}
            steps = set()
            for node, then in zip(one.inputs, other.inputs, strict=True):
                if node is then:
                    continue
                if node in self.alike and then in self.alike:
                    (key, layer), (next_key, next_layer) = self.alike[node], self.alike[then]
                    if key != next_key or key in at or not (self._is_of(node, turn) and self._is_of(then, turn + 1)):
                        break
                    at[key] = layer
                    steps.add(next_layer - layer)
                elif not self._is_handed_on(found, node, then, turn):
                    break
            else:
                if len(steps) == 1 and (step := steps.pop()) in (1, -1):
                    return turn, at, step
        raise NotRepeated("a half's periods are no layers")

    def _is_of(self, node: Node, turn: int) -> bool:
        """Whether one period alone reads an input, which may be a result, too."""
        return all(self.place.get(user, (-1, -1))[1] == turn for user in node.users if user.op != "output")

    def _is_handed_on(self, found: Layers, node: Node, then: Node, turn: int) -> bool:
        """Whether a period reads what the one before gives, in the place of what the first of all reads."""
        place, made = self.place.get(then, (-1, -1))
        if made != turn or place not in found.results:
            return False
        return turn == 0 or self.place.get(node) == (place, turn - 1)

    def layer(self, place: Place) -> int:
        """The layer, in the whole, of an input of the short graph."""
        key, layer = place
        if key not in self.at:
            raise NotRepeated("what layers have of their own is read by some alone")
        after = layer > self.at[key] if self.step > 0 else layer >= self.at[key]
        return layer + self.more if after else layer

    def added(self, key: Key) -> Iterator[int]:
        """The layers of those that are added, in the whole, by what they read there."""
        at, more = self.at[key], self.more
        return iter(range(at + 1, at + more + 1) if self.step > 0 else range(at + more - 1, at - 1, -1))

    def add_input(self, name: str, meta: Mapping[str, Any], short: Node | None, place: Place | None) -> None:
        """An input of the whole half; `short`: that of the short one, unless it has it not, or it is one of several
        alike; `place`: which of several."""
        made = self.copy.graph.placeholder(name)
        made.meta = dict(meta)
        if place is not None:
            self.inputs[place] = made
        elif short is not None:
            self.copy.of[short] = made

    def build(self) -> None:
        """Make the nodes of the whole half, which has its inputs."""
        moved = _Memories()
        for node, place in self.alike.items():
            if node.users:
                self.copy.of[node] = self._input((place[0], self.layer(place)))
                moved.add(node, self.copy.of[node])
        last = self.layers[self.turn].nodes[-1]
        for node in self.gm.graph.nodes:
            if node.op not in ("placeholder", "output"):
                moved.have(self.copy.take(node))
            if node is last:
                self._repeat()
                for own in self.layers[self.turn].nodes:
                    moved.add(own, self.copy.of[own])

    def _input(self, place: Place) -> Node:
        found = self.inputs.get(place)
        if found is None:
            raise NotRepeated("a layer reads what not all have")
        return found

    def _repeat(self) -> None:
        """The periods that are added. What comes after them reads the last of them."""
        layer, then = self.layers[self.turn], self.layers[self.turn + 1]
        before = {node: self.copy.of[node] for node in layer.nodes}
        self.made = [before]
        layers = {key: list(self.added(key)) for key in self.at}
        for number in range(self.more):
            of: dict[Node, Node] = {}
            memories = _Memories()
            for node, after in zip(layer.inputs, then.inputs, strict=True):
                if node is after:
                    of[node] = self.copy.of[node]
                elif node in self.alike:
                    key, _ = self.alike[node]
                    of[node] = self._input((key, layers[key][number]))
                else:
                    of[node] = before[after]
                memories.add(node, of[node])
            before = {}
            for node in layer.nodes:
                of[node] = before[node] = made = self.copy.graph.node_copy(node, of.__getitem__)
                memories.renew(made)
            self.made.append(before)
        self.copy.of.update(before)

    def result(self, node: Any) -> Any:
        """A result of the short graph that is none of several alike."""
        if not isinstance(node, Node):
            return node
        if self.place.get(node, (0, -1))[1] == self.turn or node in self.alike:
            raise NotRepeated("some layers alone give a result")
        return self.copy.of[node]

    def results(self, column: dict[int, Any]) -> dict[int, Any]:
        """What all layers of the whole give, by layer; `column`: what those of the short graph do."""
        if all(value is None for value in column.values()):
            return dict.fromkeys(range(len(column) + self.more))
        places = {layer: self.place.get(node, (-1, -1)) for layer, node in column.items()}
        at = next((layer for layer, (_, turn) in places.items() if turn == self.turn), None)
        here = [turn for _, turn in places.values()].count(self.turn)
        if at is None or here > 1 or places.get(at + self.step) != (places[at][0], self.turn + 1):
            raise NotRepeated("layers give results in other places")
        found: dict[int, Any] = {}
        for layer, node in column.items():
            after = layer > at if self.step > 0 else layer >= at
            found[layer + self.more if after else layer] = self.made[0][node] if layer == at else self.result(node)
        for number, made in enumerate(self.made[1:], 1):
            found[at + number if self.step > 0 else at + self.more - number] = made[column[at]]
        return found

    def finish(self, results: Sequence[Any]) -> GraphModule:
        """The module that gives these results."""
        kind: Any = type(self.gm.graph.output_node().args[0])
        self.copy.graph.output(kind(results))
        return self.copy.module()


def grown(
    few: FewCalls, inputs: Sequence[Any], differentiable: Sequence[bool], forward: GraphModule, backward: GraphModule
) -> tuple[GraphModule, GraphModule]:
    """The halves of the whole. Raises NotRepeated.

    Args:
        inputs: the whole's. differentiable: which of its results have gradients.
        forward, backward: the halves of the short graph.
    """
    own = forward.graph.find_nodes(op="placeholder")
    ahead = _Half(forward, few.more, dict(few.inputs.in_short(own)))
    _add_inputs(ahead, "primals", few.inputs, own, inputs)
    ahead.build()
    given = results_of(forward)
    n_results = len(few.results.kept)
    results = _results(ahead, few.results, given[:n_results])
    saved, entries = _saved(ahead, given[n_results:])

    taken = backward.graph.find_nodes(op="placeholder")
    tangents = few.results.only([at for at, wanted in enumerate(differentiable) if wanted])
    own = taken[len(saved) :]
    alike = {node: place for node, place in zip(taken, saved, strict=False) if place is not None}
    back = _Half(backward, few.more, {**alike, **dict(tangents.in_short(own))})
    short = dict(zip(given[n_results:], taken, strict=False))
    for whole, node, place in entries:
        back.add_input(whole.name, whole.meta, None if node is None else short[node], place)
    _add_inputs(back, "tangents", tangents, own)
    back.build()
    gradients = _results(back, few.inputs, results_of(backward))
    if (ahead.step, back.step) != (1, -1):
        raise NotRepeated("a half goes through layers in another order")
    return ahead.finish([*results, *(whole for whole, _, _ in entries)]), back.finish(gradients)


def _add_inputs(
    half: _Half, name: str, values: Values, own: Sequence[Node], memories: Sequence[torch.Tensor] | None = None
) -> None:
    """The inputs that the halves have from outside; `own`: those of the short half. `memories`: tensors in whose memory
    each is, by default one of its own."""
    short = dict(zip(values.kept, own, strict=True))
    for at, like in enumerate(values.for_all(own)):
        meta = dict(like.meta)
        if at not in short:
            value = like.meta["val"]
            storage = None if memories is None else memories[at].untyped_storage()
            offset = 0 if memories is None else memories[at].storage_offset()
            made = new_fake(value.fake_mode, value.device, value.dtype, value.shape, value.stride(), offset, storage)
            meta["val"] = made.requires_grad_(value.requires_grad)
        half.add_input(f"{name}_{at + 1}", meta, short.get(at), values.alike.get(at))


def _results(half: _Half, values: Values, given: Sequence[Any]) -> list[Any]:
    """The results of a half of the whole; `given`: those of the short half."""
    columns: dict[Key, dict[int, Any]] = {}
    for node, (key, layer) in values.in_short(given):
        columns.setdefault(key, {})[layer] = node
    made = {key: half.results(column) for key, column in columns.items()}
    own = dict(zip(values.kept, given, strict=True))
    places = ((at, values.alike.get(at)) for at in range(values.count))
    return [half.result(own[at]) if place is None else made[place[0]][place[1]] for at, place in places]


def _saved(half: _Half, saved: Sequence[Any]) -> tuple[list[Place | None], list[Saved]]:
    """Which of several alike each is that the short forward graph saves, and what that of the whole does, in order."""
    _refuse_odd_saves(saved)
    places = [half.alike.get(node) or _of_period(half, node) for node in saved]
    columns: dict[Key, dict[int, int]] = {}
    for at, place in enumerate(places):
        if place is not None:
            columns.setdefault(place[0], {})[place[1]] = at
    if any(key[0] != "saved" and key not in half.at for key in columns):
        raise NotRepeated("what layers have of their own is read by some alone")
    seams = {key: half.at.get(key, half.turn) for key in columns}
    spans = _spans(columns, seams)
    by_all = {key for _, _, key in spans}
    places = [
        None if place is not None and place[0] not in by_all and node in half.place else place
        for node, place in zip(saved, places, strict=True)
    ]
    like = {key: saved[columns[key][seams[key]]] for key in by_all}
    added: dict[int, list[Saved]] = {}
    for run in _overlapping(spans):
        begin, _, first = run[0]
        ascend = columns[first][seams[first]] == begin
        added[run[-1][0]] = _added(half, {key: (seams[key], like[key]) for *_, key in run}, ascend)
    entries: list[Saved] = []
    for at, (node, place) in enumerate(zip(saved, places, strict=True)):
        entries.append(_kept(half, seams, node, place))
        entries += added.get(at, ())
    return places, entries


def _refuse_odd_saves(saved: Sequence[Any]) -> None:
    """Raise NotRepeated unless tensors alone are saved, and autograd checks them all."""
    if not all(isinstance(node, Node) and isinstance(value_of(node), torch.Tensor) for node in saved):
        raise NotRepeated("numbers are saved")
    if any(node.meta.get("saved_tensor_with_no_vc_check") for node in saved):
        raise NotRepeated("which saved values autograd checks is told by their order")


def _spans(columns: dict[Key, dict[int, int]], seams: dict[Key, int]) -> list[Span]:
    """Of saved values alike, where the two layers at the seam have theirs; none where neither of the two saves it."""
    spans: list[Span] = []
    for key, column in columns.items():
        one, other = column.get(seams[key]), column.get(seams[key] + 1)
        if one is not None and other is not None:
            spans.append((min(one, other), max(one, other), key))
        elif one is not None or other is not None:
            raise NotRepeated("some layers alone save a value")
    return spans


def _kept(half: _Half, seams: dict[Key, int], node: Node, place: Place | None) -> Saved:
    """What the whole saves for a value that the short forward graph does."""
    if place is None:
        return half.result(node), node, None
    key, layer = place
    there = key, layer if layer <= seams[key] else layer + half.more
    return half.inputs[there] if node in half.alike else half.made[0].get(node) or half.copy.of[node], node, there


def _added(half: _Half, alike: dict[Key, tuple[int, Node]], ascend: bool) -> list[Saved]:
    """What the layers that were left out save, in order; `alike`: of each of the values alike, which layer is the one
    before them, and its value. In ascending order of layers, or in descending order."""
    added: list[Saved] = []
    for number in range(1, half.more + 1) if ascend else range(half.more, 0, -1):
        for key, (layer, like) in alike.items():
            place = key, layer + number
            added.append((half.inputs[place] if like in half.alike else half.made[number][like], None, place))
    return added


def _overlapping(spans: list[Span]) -> list[list[Span]]:
    """Spans that overlap together, each in order."""
    runs: list[list[Span]] = []
    for span in sorted(spans):
        if runs and span[0] < max(end for _, end, _ in runs[-1]):
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs


def _of_period(half: _Half, node: Node) -> Place | None:
    if node not in half.place:
        return None
    at, turn = half.place[node]
    return ("saved", at), turn


class _Memories(dict[int, Any]):
    """Storages, by the identity of those that they stand for."""

    def add(self, node: Node, made: Node) -> None:
        """Have the memory of what one node gives stand for that of another."""
        values = zip(tensors_in(node.meta.get("val")), tensors_in(made.meta.get("val")), strict=True)
        self.update((value.untyped_storage()._cdata, other.untyped_storage()) for value, other in values)

    def have(self, made: Node) -> None:
        """Have what a copy of a node gives in the memory that it is now of, if that is another one."""
        if any(value.untyped_storage()._cdata in self for value in tensors_in(made.meta.get("val"))):
            self.renew(made)

    def renew(self, made: Node) -> None:
        """Have a copy of a node give something in other memory."""
        if "val" in made.meta:  # what checks a value gives nothing
            made.meta["val"] = map_leaves(
                lambda value: fake_like(value.fake_mode, value, self), made.meta["val"], FakeTensor
            )
