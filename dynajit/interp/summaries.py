"""Equal layers are traced once: the next call of an equal module is built from what the first added to the trace.

In: calls of modules from outside (`Interpreter.call_module`). Out: their results. A call is summarised where all that
it left in the trace is known: guards whose sources start at the module, operations, parts of the module met for the
first time, a result of tensors, what was read and written of objects made while tracing that it was handed
(`handed.py`). Equal means equal by guards, never by name. Everything else (other effects and writes, breaks, symbolic
sizes, parts shared with others and met for the first time) is traced as if there were no summaries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import fx

from dynajit.config import config
from dynajit.graph.fake_memo import spec_of
from dynajit.graph.meta import NodeMeta, notes
from dynajit.graph.opaque import OPAQUE
from dynajit.guards.guard import Guard, kinds
from dynajit.guards.source import ConstSource, Source
from dynajit.interp import fuel
from dynajit.interp.call_state import (
    CallState,
    Unknown,
    call_state,
    fake_key,
    identities,
    is_untouched,
    modes,
    sharing,
    tables,
)
from dynajit.interp.handed import Handed, ReadEntry
from dynajit.interp.summary import NOWHERE, Before, Condition, PieceNode, Reference, Replay, Summary
from dynajit.nested import leaves_in, map_leaves
from dynajit.op_facts import CONSTANT_TYPES, facts
from dynajit.torch_compat import memory_of
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.value import Direct, Value
from dynajit.values.objects.objects import ObjVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.tensor import TensorVal

# summaries for calls of one key, and calls that fitted none of them before no more is tried
MAX_SUMMARIES, MAX_MISSES = 4, 16
_ATTRIBUTES = {"example_value", "stack_trace", "dynajit"}


class Summaries:
    """Those of one trace."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self._known: dict[tuple[Any, ...], list[Summary]] = {}
        self._misses: dict[type, int] = {}
        self._on = config.share_layers and fuel.current() is None  # which counts single instructions
        self._memories: set[int | None] = set()
        self._seen, self._last = 0, None
        #: the parts of modules whose calls were not traced, by id: what is relied on of them their models don't tell
        self.relied_on: dict[int, Any] = {}

    def call(self, module: ObjVal, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct) -> Value:
        """The result of a call of a module from outside."""
        tx = self._tx
        state = None
        if self._on and self._misses.get(module.cls, 0) < MAX_MISSES and is_untouched(tx, module):
            state = call_state(tx, module.cls, args, kwargs)
        if state is None:
            return module.trace_call(tx, args, kwargs, direct)
        known = self._known.setdefault(state.key, [])
        for summary in known:
            replay = Replay(tx, summary, module, state)
            result = replay.run() if replay.holds() else None
            if result is not None:
                tx.calls_repeated = True
                return result
        if known:
            self._misses[module.cls] = self._misses.get(module.cls, 0) + 1
        recording = _Recording(tx, module, state)
        try:
            result = module.trace_call(tx, args, kwargs, direct)
        finally:
            recording.handed.stop()
        if len(known) < MAX_SUMMARIES:
            try:
                known.append(recording.summary(result))
            except Unknown:
                self._misses[module.cls] = self._misses.get(module.cls, 0) + 1
        return result

    def memories(self) -> set[int | None]:
        """In which memory the inputs of the graph lie, so far."""
        inputs = self._tx.graph.inputs
        if self._seen > len(inputs) or (self._seen and inputs[self._seen - 1] is not self._last):
            self._seen, self._memories = 0, set()
        for entry in inputs[self._seen :]:
            if isinstance(entry.real, torch.Tensor):
                self._memories.add(memory_of(entry.real))
        self._seen, self._last = len(inputs), inputs[-1] if inputs else None
        return self._memories

    def forget_after(self, guards: int) -> None:
        """The trace goes back to where it had so many guards: what was relied on since is relied on no more."""
        self._seen, self._memories = 0, set()
        for known in self._known.values():
            known[:] = [summary for summary in known if summary.guards_end <= guards]


class _Recording:
    """The logs of the trace before a call."""

    def __init__(self, tx: Any, module: ObjVal, state: CallState) -> None:
        self.tx, self.module, self.handed = tx, module, Handed(tx, state.leaves)
        self.guards, self.nodes, self.inputs = len(tx.guards), len(tx.graph._nodes), len(tx.graph.inputs)
        self.objects, self.changed = len(tx._objects), len(tx.journal.changed)
        self.tables, self.modes = tables(tx), modes(tx)
        self.memories = frozenset(tx.summaries.memories())
        self.here = tx.stack_text()
        self.caller = tx.frames[-1].location() if tx.frames else None
        self.sources: list[tuple[int, Source]] = [(0, module.source)]  # type: ignore[list-item]
        self.places: dict[Source, int] = {module.source: 0}  # type: ignore[dict-item]
        self.known: list[tuple[Any, tuple[Any, ...]]] = []
        self.references: dict[fx.Node, Reference] = {}
        self.used: set[int | None] = set()  # memory of what operations so far read or gave

    def summary(self, result: Value) -> Summary:
        """What the call came to. Raises Unknown."""
        tx, leaves = self.tx, self.handed.leaves
        given = {id(value) for value in leaves}
        changed = tx.journal.changed[self.changed :]
        _require(tables(tx) == self.tables and modes(tx) == self.modes)
        _require(all(one is None or (one.source is None and id(one) not in given) for one in changed))
        inputs = self._new_inputs()
        for place, value in enumerate(leaves):
            if type(value) is TensorVal:
                self.references.setdefault(value.node, Reference("leaf", place))
        for place, entry in enumerate(inputs):
            self.references[entry.node] = Reference("input", place)
        reads = [self._freed(read) for read in self.handed.reads]
        free = {read.number for read in reads if read.number is not None}
        conditions = [one for guard in tx.guards.since(self.guards) for one in self._conditions(guard, free)]
        _require(free == {one.guard.source for one in conditions if one.free})
        objects = self._new_objects()
        steps = self._steps()
        writes = [(owner, name, self._result(value)) for owner, name, value in self.handed.writes()]
        made = self._result(result)
        fakes = [value.fake for value in leaves if type(value) is TensorVal]
        fakes += [entry.fake for entry in (*inputs, *(entry for entry, _ in self.known))]
        return Summary(
            sources=self.sources,
            conditions=conditions,
            objects=objects,
            inputs=[fake_key(entry.fake) for entry in inputs],
            known=self.known,
            memory=sharing(fakes),
            apart=sharing(entry.fake for entry in inputs),
            steps=steps,
            result=made,
            changed=len(changed) - len(writes),
            caller=self.caller,
            guards_end=len(tx.guards),
            leaves=leaves,
            identities=identities(leaves),
            reads=[(read, None if read.number is None else self.places[read.number]) for read in reads],
            writes=writes,
        )

    # -- guards and objects

    def _new_inputs(self) -> list[Any]:
        """The inputs that the call added."""
        inputs = self.tx.graph.inputs[self.inputs :]
        _require(all(self._is_inside(entry.source) and not (entry.symbol or entry.foreign) for entry in inputs))
        _require(not any(entry.real._is_view() for entry in inputs))
        _require(self.memories.isdisjoint(memory_of(entry.real) for entry in inputs))
        return inputs  # type: ignore[no-any-return]

    def _freed(self, read: ReadEntry) -> ReadEntry:
        """Its index may be another one only if it is the module's own, and chooses items and nothing else."""
        number = read.number
        if number is None or (self._is_inside(number) and number not in self.tx.numbers_read):
            return read
        return read._replace(number=None)

    def _is_inside(self, source: Source) -> bool:
        return self._place(source) is not None

    def _place(self, source: Source) -> int | None:
        """The place of what a source of the module's parts leads to; None of other sources."""
        place = self.places.get(source)
        if place is None and source.base is not None:
            base = self._place(source.base)
            if base is not None:
                place = self.places[source] = len(self.sources)
                self.sources.append((base, source))
        return place

    def _conditions(self, guard: Guard, free: Set[Source]) -> list[Condition]:
        """What a guard asks of the module's parts."""
        model = kinds[guard.kind]
        if guard.source is None:
            return []
        others = model.sources(guard.params)
        place = self._place(guard.source)
        if guard.kind == "SAME_OBJECT":
            other = self._place(others[0])
            if place is not None and other is not None:
                return [Condition(guard, place, other)]
            if place is None and other is not None:
                return [Condition(guard, other, Before(self._object(other), guard.source))]
        elif place is not None and not others:
            if guard.kind.startswith(("DICT_", "SET_")):  # other keys are asked whether they are equal
                keys = guard.params[0] if isinstance(guard.params[0], (tuple, frozenset)) else (guard.params[0],)
                _require(all(type(key) in (str, int, bool, type(None)) for key in keys))
            return [Condition(guard, place, free=guard.kind == "EQUALS" and guard.source in free)]
        _require(all(isinstance(source.root(), ConstSource) for source in (guard.source, *others)))
        return []

    def _object(self, place: int) -> Any:
        """A part of this module."""
        if place == 0:
            return self.module.real_object
        base, source = self.sources[place]
        return source.read(self._object(base), NOWHERE)

    def _new_objects(self) -> list[tuple[int, type]]:
        """The parts that the trace met for the first time, in order."""
        entries = self.tx._objects.values()
        new = [*itertools.islice(reversed(entries), len(entries) - self.objects)][::-1]
        found = []
        for _, value in new:
            _require(value.source is not None)
            place = self._place(value.source)
            _require(value.fake is None or type(value) is TensorVal)
            if place is not None:
                found.append((place, type(value)))
            else:
                _require(isinstance(value.source.root(), ConstSource))
        return found

    # -- the graph

    def _steps(self) -> list[PieceNode]:
        made: list[PieceNode] = []
        for node in self.tx.graph._nodes[self.nodes :]:
            made.append(self._step(node))
            self.references[node] = Reference("step", len(made) - 1)
        return made

    def _step(self, node: fx.Node) -> PieceNode:
        _require(node.op in ("call_function", "call_method") and node.target not in OPAQUE)
        _require({"stack_trace", "example_value"} <= node.meta.keys() <= _ATTRIBUTES)
        noted, where, result = notes(node), node.meta["stack_trace"], node.meta["example_value"]
        _require(where.startswith(self.here))
        _require(noted in (NodeMeta(), NodeMeta(part=True), NodeMeta(changes=True)))
        _require(not str(getattr(node.target, "__module__", "")).startswith("dynajit"))
        _require(not noted.changes or facts(node.target).draws)
        key = None
        if isinstance(result, torch.Tensor):
            key = fake_key(result)
            model = self.tx.tensors.get(id(result))
            _require(type(model) is TensorVal and model.node is node and model.kind is torch.Tensor)
        else:
            _require(type(result) in (tuple, list) or isinstance(result, tuple))
        args, kwargs, part_of = self._template(node.args), self._template(dict(node.kwargs)), None
        if noted.part:
            whole, args = args
            _require(whole.kind == "step")
            part_of = whole.place
        memory = memory_of(result)
        fresh = key is not None and memory not in self.used and not noted.part and not noted.changes
        spec = spec_of(self.tx.graph.mode, result) if fresh else None
        self.used.add(memory)
        return PieceNode(
            node.op, node.target, args, kwargs, part_of, key, spec, bool(noted.changes), where.removeprefix(self.here)
        )

    def _template(self, tree: Any) -> Any:
        """Arguments of a node with references in the nodes' places."""
        for leaf in leaves_in(tree):
            _require(isinstance(leaf, fx.Node) or type(leaf) in CONSTANT_TYPES or leaf is Ellipsis)
        change = lambda leaf: self._reference(leaf) if isinstance(leaf, fx.Node) else leaf  # noqa: E731
        return map_leaves(change, tree, (fx.Node, torch.Size))

    def _reference(self, node: fx.Node) -> Reference:
        found = self.references.get(node)
        self.used.add(memory_of(node.meta["example_value"]))
        if found is None:
            entry = next((one for one in self.tx.graph.inputs if one.node is node), None)
            _require(entry is not None and entry.symbol is None and entry.fake is node.meta["example_value"])
            self.known.append((entry, fake_key(entry.fake)))  # type: ignore[union-attr]
            found = self.references[node] = Reference("known", len(self.known) - 1)
        return found

    # -- the result

    def _result(self, value: Value) -> Callable[[Replay], Value]:
        """What makes the result of another call."""
        place = next((place for place, leaf in enumerate(self.handed.leaves) if leaf is value), None)
        if place is not None:
            return lambda replay: replay.leaves[place]
        if type(value) is TensorVal:
            _require(value.replacement is None and not value.attrs)
            to = self._reference(value.node)
            return lambda replay: replay.value_of(to)
        if type(value) is ConstVal and value.source is None:
            return lambda replay: value
        _require(type(value) is TupleVal and value.source is None and value.kind is tuple)
        assert isinstance(value, TupleVal)
        _require(all(isinstance(item, Value) for item in value.items))
        parts = [self._result(item) for item in value.items]
        return lambda replay: TupleVal([part(replay) for part in parts])


def _require(fine: object) -> None:
    if not fine:
        raise Unknown
