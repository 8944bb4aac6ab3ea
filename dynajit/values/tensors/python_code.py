"""Python code that runs when the graph runs, and the state that it shares with the program around the graph.

In: what the graph calls that has such code, and methods of each `autograd.Function` there. Out: `out_of_order`, those
that can't be in this graph. All that a program writes is written after the graph has run, and what it reads was read
before, so that code in the graph may read nothing that the program writes, and write nothing that it reads.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch

from dynajit.graph.opaque import OPAQUE
from dynajit.graph.operator_kernels import hides_kernels, state_of_target, traced_kernels
from dynajit.graph.shared_state import SharedState, shared_state
from dynajit.graph.state_snapshot import StateSnapshot
from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Tracer


def check_order(tx: Tracer, target: Any, name: str) -> None:
    """Break at a call of what was found to be out of order in a graph."""
    if target in tx.seen.out_of_order:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{name}, which shares with the function what is written")


def note_code(tx: Tracer, target: Any) -> SharedState | None:
    """What the Python code shares that runs where the graph calls this, if there is any beside torch's."""
    if target not in tx.python_code:
        found = state_of_target(target)
        if found is None:
            return None
        tx.python_code[target] = found
    return tx.python_code[target]


@contextlib.contextmanager
def guarding_kernels(tx: Tracer, target: Any, name: str) -> Iterator[None]:
    """Inside, an operator runs on fake tensors. What Python functions read that a backend traces there is guarded.

    Raises:
        GraphBreak: they change what they read.
    """
    if note_code(tx, target) is None or target in OPAQUE:
        yield
        return
    if hides_kernels(target):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{name}, which has a kernel in Python whose code is not known")
    traced = traced_kernels(target)
    before = StateSnapshot(traced)
    state = shared_state(traced)
    if state.has_effects():  # running it on fake tensors has them, too
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{name}, whose kernel changes what it reads")
    if state.tensors:  # which are no fake ones, and what it does to them happens at once
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{name}, whose kernel takes tensors from outside")
    yield
    if before.known and not before.holds():
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{name}, whose kernel changes what it reads")
    if before and before.known:
        source = ConstSource(before, f"what the kernels of {name} read")
        tx.guard(source, "PREDICATE", StateSnapshot.holds, "has not changed")


def out_of_order(tx: Tracer) -> set[Any]:
    """What the graph calls whose code reads what this trace leaves written, or writes what it has read."""
    for node in tx.graph.graph.nodes:
        if node.op == "call_function":
            note_code(tx, node.target)
    if not tx.python_code:
        return set()
    names, objects = _written(tx)
    found = {target for target, state in tx.python_code.items() if _reads(state, names, objects)}
    if any(state.has_effects() for state in tx.python_code.values()):
        read, words = tx.outside_objects(), _words_read(tx) | names.keys()
        for target, state in tx.python_code.items():
            if not state.writes.isdisjoint(words) or (state.changes and not state.objects.isdisjoint(read)):
                found.add(target)
    return found


def _words_read(tx: Tracer) -> set[str]:
    """The names on the ways to what the trace relies on."""
    sources = (guard.source for guard in tx.guards if guard.source is not None)
    return {word for source in sources for word in re.findall(r"\w+", source.name())}


# what code reads of its tensors: of another object only if it reaches that
_OF_TENSORS = frozenset(dir(torch.Tensor))


def _reads(state: SharedState, names: dict[str, set[int | None]], objects: set[int]) -> bool:
    if not state.known:
        return bool(names or objects)
    if not state.objects.isdisjoint(objects):
        return True
    if state.reached is None:
        return not state.reads.isdisjoint(names)
    for name in state.reads & names.keys():
        owners = names[name]
        if name not in _OF_TENSORS or None in owners or not state.reached.isdisjoint(owners):
            return True
    return False


def _written(tx: Tracer) -> tuple[dict[str, set[int | None]], set[int]]:
    """The names, with the ids of the objects whose attributes they are (None: of a variable, or of an object that is
    not known), and the objects by id, that this trace leaves written when the graph has run."""
    written: dict[str, set[int | None]] = {name: {None} for _, name in (*tx.globals_written, *tx.class_writes)}
    changed = tx.journal.dirty.keys() - set(map(id, tx.tensors.values()))  # tensors are written in the graph
    objects = {at for at, (_, value) in tx.outside_objects().items() if id(value) in changed}
    objects.update(tx.context_values)
    for value in tx.journal.dirty.values():
        names = getattr(value, "changed_names", None) or getattr(value, "slots", None)
        owned = getattr(getattr(value, "owner", value), "real_object", None)
        owner = None if owned is None else id(owned)
        if names is None and value.source is not None and not issubclass(value.py_type(), torch.Tensor):
            names, owner = re.findall(r"\w+", value.source.name()), None  # of a container, or a variable
        for name in names or ():
            written.setdefault(name, set()).add(owner)
    return written, objects
