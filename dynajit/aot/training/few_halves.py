"""The halves of a joint graph of many equal layers, made of the halves of one with a few of them.

In:  the joint graph in which each layer is a call (`shared_layers.py`). `with_few_calls` gives the same with `KEPT` of
the layers, each of which reads inputs of its own, what all of them read, and what the one before gives. Once that is
partitioned, `grown` gives the halves of the whole: the nodes of a layer once more for each that was left out. Or
NotRepeated.

That the halves of a few layers are right says that a layer's part of each is, whatever its inputs are: forward and
backward of a layer in the middle are those of the one after it, with the next inputs and saved values. Where a layer
begins in a half is where few values go across, which need not be the same place in both: what is repeated is a period.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from dynajit.aot.few_layers import are_adjacent, are_read_in_turn
from dynajit.aot.layers import Layers, equal_layers, items_of
from dynajit.aot.rewrite import Copy, is_tangent, results_of
from dynajit.aot.training.shared_layers import BACKWARD, FORWARD, fake_like
from dynajit.graph.meta import NotRepeated, value_of
from dynajit.nested import map_leaves, tensors_in

# The first layer differs, as may the last; a half's periods may begin anywhere in a layer; three are found.
KEPT = 5
_MIN_LAYERS = KEPT + 2
Key = tuple[str, Any]  # values alike, one of each layer
Place = tuple[Key, int]  # one of several values alike: which values, and the layer whose it is
# an input of a half of the whole: what has its name and value; in the short graph, unless that has it not, or it is one
# of several alike; which of several
Input = tuple[Node, Node | None, Place | None]
Span = tuple[int, int, Key]  # the first and the last of a few places, and what is there


@dataclasses.dataclass
class FewCalls:
    """A joint graph with few of the calls of another one.

    joint: the short graph. whole: the other. n_results: how many results of the forward pass the whole has. more: how
    many layers were left out. places: of the short graph's inputs, among those of the whole. inputs, results: of the
    inputs (by name) and results (by place) of the whole that are one of several alike, which.
    """

    joint: GraphModule
    whole: GraphModule
    n_results: int
    more: int
    places: list[int]
    inputs: dict[str, Place]
    results: dict[int, Place]

    @property
    def kept_results(self) -> list[int]:
        """The places of the results of the whole that the short graph has."""
        every = range(len(results_of(self.whole)))
        return [at for at in every if at not in self.results or self._is_kept(self.results[at][1])]

    def _is_kept(self, layer: int) -> bool:
        return layer < KEPT - 1 or layer == KEPT - 1 + self.more

    def gap(self, step: int) -> range:
        """Where those are that were left out, among the forward calls (1) or the backward calls (-1), in order."""
        begin = KEPT - 1 if step > 0 else 1
        return range(begin, begin + self.more)

    def short(self, place: Place) -> Place | None:
        """Which one it is in the short graph; None if it was left out."""
        key, layer = place
        return (key, min(layer, KEPT - 1)) if self._is_kept(layer) else None

    def arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The partitioner's options for the short graph."""
        known = {place: at for at, place in enumerate(self.places)}
        fixed = arguments.get("static_lifetime_input_indices") or ()
        return {
            **arguments,
            "num_fwd_outputs": sum(at < self.n_results for at in self.kept_results),
            "static_lifetime_input_indices": [known[at] for at in fixed if at in known],
        }


def with_few_calls(joint: GraphModule, n_results: int) -> FewCalls | None:
    """The joint graph with few of its calls of layers; None where it has few, or they are not alike."""
    rows = _rows(joint)
    if rows is None:
        return None
    few = FewCalls(joint, joint, n_results, len(rows[0]) - KEPT, [], {}, {})
    handed = _handed_on(few, *rows)
    if handed is None:
        return None
    placeholders = joint.graph.find_nodes(op="placeholder")
    left_out = _left_out(few, *rows)
    few.places = [at for at, node in enumerate(placeholders) if node not in left_out]
    given = results_of(joint)
    results = [given[at] for at in few.kept_results]
    inside = {node for node in joint.graph.nodes if node not in left_out and node.op != "output"}
    reads = {part for node in inside for part in node.all_input_nodes if handed.get(part, part) in left_out}
    if reads or any(isinstance(value, Node) and value in left_out for value in results):
        return None
    copy = Copy(joint)
    for node in joint.graph.nodes:
        if node in inside:
            copy.take(node)
        elif node in handed:
            copy.of[node] = copy.of[handed[node]]
    few.joint = copy.finish(results)
    described = joint.graph.output_node().meta.get("desc")
    if described is not None:
        few.joint.graph.output_node().meta["desc"] = type(described)(described[at] for at in few.kept_results)
    return few


def _rows(joint: GraphModule) -> tuple[list[Node], list[Node]] | None:
    """The forward and the backward calls, in order; None where they are few, or do not follow each other."""
    calls, backward = _calls(joint, FORWARD), _calls(joint, BACKWARD)
    count = len(calls)
    if count < _MIN_LAYERS or sorted(calls) != [*range(count)] or sorted(backward) != sorted(calls):
        return None
    order = {node: at for at, node in enumerate(joint.graph.nodes)}
    ahead = [calls[at] for at in range(count)]
    back = [backward[at] for at in reversed(range(count))]
    if any(order[one] > order[other] for row in (ahead, back) for one, other in itertools.pairwise(row)):
        return None
    return ahead, back


def _handed_on(few: FewCalls, ahead: Sequence[Node], back: Sequence[Node]) -> dict[Node, Node] | None:
    """What the first call after those left out reads of the one before it -> the same of the one before those left
    out. None where the calls are not alike. Notes which inputs and results are."""
    given = results_of(few.whole)
    shown = {value: at for at, value in enumerate(given[: few.n_results]) if isinstance(value, Node)}
    primals = [node for node in few.whole.graph.find_nodes(op="placeholder") if not is_tangent(node)]
    if len(given) != few.n_results + len(primals):
        return None
    handed: dict[Node, Node] = {}
    alike = (
        _read_in_turn(few, ahead, 1, handed, shown)
        and _read_in_turn(few, back, -1, handed, shown)
        and _note_gradients(few, primals, back)
    )
    return handed if alike else None


def _left_out(few: FewCalls, ahead: Sequence[Node], back: Sequence[Node]) -> set[Node]:
    """The nodes of the whole that the short graph has not: calls, their items, and the inputs of their own."""
    calls = {row[at] for row, step in ((ahead, 1), (back, -1)) for at in few.gap(step)}
    items = {item for call in calls for item, _ in items_of(call)}
    placeholders = few.whole.graph.find_nodes(op="placeholder")
    own = {node for node in placeholders if node.name in few.inputs and few.short(few.inputs[node.name]) is None}
    return calls | items | own


def _note_gradients(few: FewCalls, primals: Sequence[Node], back: Sequence[Node]) -> bool:
    """Whether the gradients for inputs alike are the same item of what their layers' calls give. Notes them."""
    given = results_of(few.whole)
    item = {one: at for call in back for one, at in items_of(call)}
    gradients: dict[Key, set[Any]] = {}
    for at, node in enumerate(primals, few.n_results):
        if node.name in few.inputs:
            key, layer = few.inputs[node.name]
            few.results[at] = ("gradient", key), layer
            gradients.setdefault(key, set()).add(item.get(given[at], given[at]))
    return all(len(alike) == 1 for alike in gradients.values())


def _calls(joint: GraphModule, target: Any) -> dict[int, Node]:
    return {node.args[1]: node for node in joint.graph.find_nodes(op="call_function", target=target)}  # type: ignore[misc]


def _read_in_turn(
    few: FewCalls, calls: Sequence[Node], step: int, handed: dict[Node, Node], shown: dict[Node, int]
) -> bool:
    """Whether each call reads inputs of its own, what all do, and what the one before gives; and what each gives is
    read by the next, or a result of the graph, or, of the last one, anything. Notes which are alike."""
    layer_of = range(len(calls))[::step]
    items = [dict(items_of(call)) for call in calls]
    name = "forward" if step > 0 else "backward"
    gap = few.gap(step)
    for place, column in enumerate(zip(*(call.args[0] for call in calls), strict=True)):  # type: ignore[arg-type]
        if len(set(column)) == 1:
            continue
        if all(node.op == "placeholder" for node in column):
            if not _are_their_own(column, calls):
                return False
            few.inputs.update((node.name, ((name, place), layer)) for node, layer in zip(column, layer_of, strict=True))
        elif _are_of_the_call_before(column, items):
            handed[column[gap.stop]] = column[gap.start]
        else:
            return False
    if not all(_goes_on(few, calls, at) for at in range(gap.start - 1, gap.stop)):
        return False
    _note_results(few, name, dict(zip(layer_of, items, strict=True)), shown)
    return True


def _are_their_own(column: Sequence[Node], calls: Sequence[Node]) -> bool:
    """Whether each of these inputs is read by its call alone, and is none of the others."""
    return len(set(column)) == len(calls) and all(
        {call}.issuperset(node.users) for node, call in zip(column, calls, strict=True)
    )


def _are_of_the_call_before(column: Sequence[Node], items: Sequence[dict[Node, int]]) -> bool:
    """Whether all calls but the first read, here, the same item of what the one before gives."""
    wanted = {items[at].get(node) for at, node in enumerate(column[1:])}
    return len(wanted) == 1 and None not in wanted


def _goes_on(few: FewCalls, calls: Sequence[Node], at: int) -> bool:
    """Whether the next call alone reads what this one gives, which may be a result of the graph, too."""
    readers = {calls[at + 1], few.whole.graph.output_node()}
    return all(readers.issuperset(item.users) for item, _ in items_of(calls[at]))


def _note_results(few: FewCalls, name: str, items: dict[int, dict[Node, int]], shown: dict[Node, int]) -> None:
    """Note which results are the same item of what the call of each layer gives; `items`: by layer."""
    for layer, own in items.items():
        few.results.update((shown[item], ((name, at), layer)) for item, at in own.items() if item in shown)
    alike = collections.Counter(key for key, _ in few.results.values())
    few.results = {at: place for at, place in few.results.items() if alike[place[0]] == len(items)}


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

    def build(self, inputs: Sequence[Input]) -> None:
        """Make the nodes of the whole half."""
        for like, short, place in inputs:
            made = self.copy.graph.placeholder(like.name)
            made.meta = dict(like.meta)
            if place is not None:
                self.inputs[place] = made
            elif short is not None:
                self.copy.of[short] = made
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


def grown(few: FewCalls, forward: GraphModule, backward: GraphModule) -> tuple[GraphModule, GraphModule]:
    """The halves of the whole. Raises NotRepeated."""
    placeholders = few.whole.graph.find_nodes(op="placeholder")
    tangents = [node for node in placeholders if is_tangent(node)]
    primals = [node for node in placeholders if not is_tangent(node)]
    kept = few.kept_results
    n_results = sum(at < few.n_results for at in kept)

    own = {node.name: node for node in forward.graph.find_nodes(op="placeholder")}
    ahead = _Half(forward, few.more, _alike(few, own.values()))
    ahead.build([_input(few, node, own) for node in primals])
    given = results_of(forward)
    results = _results(few, ahead, dict(zip(kept[:n_results], given, strict=False)), range(few.n_results))
    saved, entries = _saved(ahead, given[n_results:])

    inputs = backward.graph.find_nodes(op="placeholder")
    own = {node.name: node for node in inputs[len(saved) :]}
    alike = {node: place for node, place in zip(inputs, saved, strict=False) if place is not None}
    back = _Half(backward, few.more, {**alike, **_alike(few, own.values())})
    short = dict(zip(given[n_results:], inputs, strict=False))
    back.build(
        [(whole, short[node] if node is not None else None, place) for whole, node, place in entries]
        + [_input(few, node, own) for node in tangents]
    )
    gradients = _results(
        few,
        back,
        dict(zip(kept[n_results:], results_of(backward), strict=True)),
        range(few.n_results, len(results_of(few.whole))),
    )
    if (ahead.step, back.step) != (1, -1):
        raise NotRepeated("a half goes through layers in another order")
    return ahead.finish([*results, *(whole for whole, _, _ in entries)]), back.finish(gradients)


def _alike(few: FewCalls, nodes: Iterable[Node]) -> dict[Node, Place]:
    """Which inputs of a half are one of several alike. Raises NotRepeated for inputs that the short graph hasn't."""
    known = {node.name: node for node in few.whole.graph.find_nodes(op="placeholder")}
    if any(node.name not in known for node in nodes):
        raise NotRepeated("a half has inputs of its own")
    places = {node: few.short(few.inputs[node.name]) for node in nodes if node.name in few.inputs}
    return {node: place for node, place in places.items() if place is not None}


def _input(few: FewCalls, node: Node, own: dict[str, Node]) -> Input:
    """An input of a half of the whole."""
    if node.name in few.inputs:
        return node, None, few.inputs[node.name]
    if node.name not in own:
        raise NotRepeated("a half lacks an input")
    return own[node.name], own[node.name], None


def _results(few: FewCalls, half: _Half, short: dict[int, Any], places: range) -> list[Any]:
    """The results of a half of the whole; `short`: those of the short graph, by their places in the whole."""
    columns: dict[Key, dict[int, Any]] = {}
    for at in filter(few.results.__contains__, short):
        place = few.short(few.results[at])
        assert place is not None
        columns.setdefault(place[0], {})[place[1]] = short[at]
    made = {key: half.results(column) for key, column in columns.items()}
    return [
        made[few.results[at][0]][few.results[at][1]] if at in few.results else half.result(short[at]) for at in places
    ]


def _saved(half: _Half, saved: Sequence[Any]) -> tuple[list[Place | None], list[Input]]:
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
    added: dict[int, list[Input]] = {}
    for run in _overlapping(spans):
        begin, _, first = run[0]
        ascend = columns[first][seams[first]] == begin
        added[run[-1][0]] = _added(half, {key: (seams[key], like[key]) for *_, key in run}, ascend)
    entries: list[Input] = []
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


def _kept(half: _Half, seams: dict[Key, int], node: Node, place: Place | None) -> Input:
    """What the whole saves for a value that the short forward graph does."""
    if place is None:
        return half.result(node), node, None
    key, layer = place
    there = key, layer if layer <= seams[key] else layer + half.more
    return half.inputs[there] if node in half.alike else half.made[0].get(node) or half.copy.of[node], node, there


def _added(half: _Half, alike: dict[Key, tuple[int, Node]], ascend: bool) -> list[Input]:
    """What the layers that were left out save, in order; `alike`: of each of the values alike, which layer is the one
    before them, and its value. In ascending order of layers, or in descending order."""
    added: list[Input] = []
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
