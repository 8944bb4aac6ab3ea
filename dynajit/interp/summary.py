"""What the trace of one call of a module came to, so that an equal call of another module needs no trace.

In: what the call added to the trace's logs. Out: `Summary`: the conditions on the module (guards whose sources start at
it), the piece of graph, and the form of the result. `replay` puts it after the trace as it stands, for another module
that meets the conditions. Guards say when a graph holds for other objects; here they say it of another layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

from dynajit.graph.builder import run_target
from dynajit.graph.fake_memo import FakeSpec, make
from dynajit.graph.meta import note
from dynajit.graph.seen import NO_SIZE
from dynajit.guards.guard import Guard, kinds
from dynajit.guards.source import Environment, Source, Unreachable
from dynajit.interp.call_state import CallState, Unknown, fake_key, sharing
from dynajit.interp.handed import ReadEntry, find, tell, write
from dynajit.nested import map_leaves
from dynajit.op_facts import starts_collective
from dynajit.report.records import FrameLoc
from dynajit.torch_compat import memory_of
from dynajit.torch_warnings import unwarned
from dynajit.values.core.value import GraphBreak, Value
from dynajit.values.objects.objects import ObjVal
from dynajit.values.tensors.ops import on_fakes
from dynajit.values.tensors.tensor import TensorVal

NOWHERE = Environment((), {})


class PieceNode(NamedTuple):
    """One operation. Nodes in its arguments are `Reference`s.

    Attributes:
        part_of: the step of which it takes an item, None of operations of the program's.
        key: what the result's metadata have to be; None where it is a tuple of tensors.
        spec: what the result is, where it is known without a run: new memory, no history.
        draws: whether a generator moves on.
        where: the program's stack within the call.
    """

    op: str
    target: Any
    args: Any
    kwargs: Any
    part_of: int | None
    key: tuple[Any, ...] | None
    spec: FakeSpec | None
    draws: bool
    where: str


class Reference(NamedTuple):
    """A tensor: what the step of this number gives ("step"), an argument ("leaf"), an input that the call added
    ("input") or one that was there before ("known")."""

    kind: str
    place: int


class Before(NamedTuple):
    """An object that the trace had met before the call, and how it is reached."""

    obj: Any
    source: Source


class Condition(NamedTuple):
    """A guard, and where the object that it reads stands among the module's parts. `other`: of SAME_OBJECT, the second
    one: its place, or an object met before. `free`: of EQUALS, the number may be any."""

    guard: Guard
    place: int
    other: int | Before = 0
    free: bool = False


class Summary(NamedTuple):
    """One call.

    Attributes:
        sources: how the module's parts are reached, each with the place of what it is read from; the first is the
            module itself.
        conditions: the guards.
        objects: parts that the trace met for the first time: place and class of the model.
        inputs: metadata of the inputs that the call added.
        known: earlier inputs that it uses, with their metadata.
        memory: which of arguments and inputs share memory.
        apart: which of the inputs that the call added do so.
        steps: the operations.
        result: makes the result.
        changed: how many changes the program made to objects of its own.
        caller: where the caller stood.
        guards_end: how many guards the trace had at the end.
        leaves: the arguments, and what was read of them: objects whose ids are in the keys.
        identities: which of them are the same.
        reads: what the call found in objects made while tracing, and the places of the numbers that choose it.
        writes: what it left there: place of the object among the leaves, name, what makes the value.
    """

    sources: list[tuple[int, Source]]
    conditions: list[Condition]
    objects: list[tuple[int, type]]
    inputs: list[tuple[Any, ...]]
    known: list[tuple[Any, tuple[Any, ...]]]
    memory: tuple[int, ...]
    apart: tuple[int, ...]
    steps: list[PieceNode]
    result: Callable[[Replay], Value]
    changed: int
    caller: FrameLoc | None
    guards_end: int
    leaves: list[Value]
    identities: tuple[int, ...]
    reads: list[tuple[ReadEntry, int | None]]
    writes: list[tuple[int, str, Callable[[Replay], Value]]]


class Replay:
    """One use of a summary for another module."""

    def __init__(self, tx: Any, summary: Summary, module: ObjVal, state: CallState) -> None:
        self.tx, self.summary, self.leaves = tx, summary, [*state.leaves]
        self.module = module
        self.parts: list[Any] = [module.real_object]
        self.inputs: list[Any] = []
        self.values: list[TensorVal | None] = []
        self.results: list[Any] = []
        self.nodes: list[fx.Node] = []

    def holds(self) -> bool:
        """Whether the module meets the conditions; adds nothing to the trace."""
        try:
            for place, source in self.summary.sources[1:]:
                self.parts.append(source.read(self.parts[place], NOWHERE))
            return all(map(self._meets, self.summary.conditions)) and self._has_new_parts() and self._finds_the_same()
        except (Unreachable, Unknown):
            return False

    def _meets(self, condition: Condition) -> bool:
        guard, place, other, free = condition
        part = self.parts[place]
        if guard.kind == "SAME_OBJECT":
            return part is (other.obj if isinstance(other, Before) else self.parts[other])
        return type(part) is int if free else kinds[guard.kind].check(part, guard.params)

    def _has_new_parts(self) -> bool:
        """Whether the trace meets for the first time what it met then, and nothing shares memory with what it knows."""
        summary = self.summary
        new = [id(self.parts[place]) for place, _ in summary.objects]
        if len(set(new)) < len(new) or any(one in self.tx._objects for one in new):
            return False
        tensors = [self.parts[place] for place, kind in summary.objects if kind is TensorVal]
        memories = [memory_of(tensor) for tensor in tensors]
        if any(tensor._is_view() for tensor in tensors):
            return False
        if not self.tx.summaries.memories().isdisjoint(memories):
            return False
        return tuple(map(memories.index, memories)) == summary.apart

    def _finds_the_same(self) -> bool:
        """Whether the objects that the call is handed, and earlier inputs, are as they were. Raises Unknown."""
        reads = [(read, None if number is None else self.parts[number]) for read, number in self.summary.reads]
        return find(reads, self.leaves, self.summary.identities) and all(
            fake_key(entry.fake) == key and any(entry is one for one in self.tx.graph.inputs)
            for entry, key in self.summary.known
        )

    def run(self) -> Value | None:
        """Add what the call adds, and give its result; None where it is another after all, with nothing added."""
        tx = self.tx
        mark = tx.journal.mark(), tx.graph.mark(), len(tx.guards)
        try:
            fits = self._add_guards() and self._add_objects() and self._add_steps()
            if fits:
                self._write()
        except (GraphBreak, Unknown):
            fits = False
        if not fits:
            tx.rollback_to(*mark)
            return None
        tx.journal.changed += [None] * self.summary.changed
        return self.summary.result(self)

    def _add_guards(self) -> bool:
        tx, seen = self.tx, self.tx.seen
        sources: list[Source] = [self.module.source]  # type: ignore[list-item]
        for place, source in self.summary.sources[1:]:
            sources.append(source.moved(sources[place]))
        self.sources = sources
        if (seen.varying or seen.made_anew) and any(one in seen.varying or one in seen.made_anew for one in sources):
            return False
        here = tx.frames[-1].location() if tx.frames else None
        for guard, place, other, free in self.summary.conditions:
            location = here if guard.user_loc == self.summary.caller else guard.user_loc
            if free:
                tx.guards.add(Guard(sources[place], "EQUALS", self.parts[place], user_loc=location))
            elif guard.kind != "SAME_OBJECT":
                if guard.kind == "EQUALS":
                    tx.numbers_read.add(sources[place])
                tx.guards.add(guard.moved(sources[place], location))
            elif isinstance(other, Before):
                tx.guards.add(Guard(other.source, "SAME_OBJECT", sources[place], user_loc=location))
            else:
                tx.guards.add(Guard(sources[place], "SAME_OBJECT", sources[other], user_loc=location))
            if guard.kind == "TYPE" and _is_symbolic(tx, sources[place], self.parts[place]):
                return False
        return True

    def _add_objects(self) -> bool:
        """Model the parts; whatever is asked of them was guarded."""
        tx, summary = self.tx, self.summary
        guards, inputs = len(tx.guards), len(tx.graph.inputs)
        for place in (0, *(place for place, _ in summary.objects)):
            tx.journal.set_item(tx.summaries.relied_on, id(self.parts[place]), self.parts[place])
        for place, kind in summary.objects:
            if type(tx.wrap(self.parts[place], self.sources[place])) is not kind:
                return False
        self.inputs = tx.graph.inputs[inputs:]
        if len(tx.guards) != guards or tx.graph.shapes.active:
            return False
        if [fake_key(entry.fake) for entry in self.inputs] != summary.inputs:
            return False
        leaves = [value.fake for value in self.leaves if type(value) is TensorVal]
        entries = [*self.inputs, *(entry for entry, _ in summary.known)]
        return sharing([*leaves, *(entry.fake for entry in entries)]) == summary.memory

    def _write(self) -> None:
        """Leave in the objects that the call was handed what it leaves there."""
        reads = [
            (read, None, None) if place is None else (read, self.parts[place], self.sources[place])
            for read, place in self.summary.reads
        ]
        tell(self.tx, reads, self.leaves)
        for owner, name, made in self.summary.writes:
            write(self.tx, self.leaves[owner], name, made(self))

    def _add_steps(self) -> bool:
        graph = self.tx.graph
        graph.mode.looked_at_values = False
        with unwarned() as warned:
            same = on_fakes(graph, self._add_all, lambda: "a summary's operation")
        return same and not warned.texts and not graph.mode.looked_at_values

    def _add_all(self) -> bool:
        """Add each operation; False at the first whose result is another than the summary's."""
        here = self.tx.stack_text()
        for step in self.summary.steps:
            if step.spec is not None:
                result = make(self.tx.graph.mode, step.spec, None)
            elif step.part_of is None:
                fakes = self.put(step.args, self.fake_of), self.put(step.kwargs, self.fake_of)
                result = run_target(step.op, step.target, *fakes)
            else:
                result = self.results[step.part_of][step.args]
            known = step.spec is not None or step.key is None
            if not known and (fake_key(result) != step.key or id(result) in self.tx.tensors):
                return False
            self._add_node(step, result, {"example_value": result, "stack_trace": here + step.where})
        return True

    def _add_node(self, step: PieceNode, result: Any, meta: dict[str, Any]) -> None:
        graph = self.tx.graph
        if step.part_of is None:
            nodes = self.put(step.args, self.node_of), self.put(step.kwargs, self.node_of)
            node = graph.create(step.op, step.target, *nodes, meta)
        else:
            node = graph.create_part(self.nodes[step.part_of], step.args, meta)
        if step.draws:
            graph.impure = True
            note(node, changes=True)
        graph.impure |= starts_collective(step.target)
        value = TensorVal(node, result) if step.key is not None else None
        if value is not None:
            self.tx.remember_tensor(value)
        self.nodes.append(node)
        self.results.append(result)
        self.values.append(value)

    def put(self, tree: Any, give: Callable[[Reference], Any]) -> Any:
        """Arguments with what the references stand for."""
        return map_leaves(lambda leaf: give(leaf) if type(leaf) is Reference else leaf, tree, (Reference, torch.Size))

    def fake_of(self, to: Reference) -> Any:
        """The fake tensor."""
        return self.results[to.place] if to.kind == "step" else self._at(to).fake

    def node_of(self, to: Reference) -> Any:
        """The node."""
        return self.nodes[to.place] if to.kind == "step" else self._at(to).node

    def value_of(self, to: Reference) -> Value:
        """The model."""
        found: Any = self.values[to.place] if to.kind == "step" else self._at(to)
        return found if isinstance(found, Value) else self.tx.tensors[id(found.fake)]  # type: ignore[no-any-return]

    def _at(self, to: Reference) -> Any:
        if to.kind == "leaf":
            return self.leaves[to.place]
        return self.inputs[to.place] if to.kind == "input" else self.summary.known[to.place][0]


def _is_symbolic(tx: Any, source: Source, obj: Any) -> bool:
    """Whether a number is symbolic in this capture, which also remembers it for the next one."""
    if type(obj) is int:
        return abs(obj) < NO_SIZE and bool(tx.seen.number(source, obj))
    return type(obj) is float and obj - obj == 0 and obj != 0 and bool(tx.seen.number(source, obj))
