"""torch's own generators: `torch.manual_seed`, and the state of the CPU's.

In: calls that seed the generators or read or set a state. Out: calls that generated code makes for real: before the
graph while nothing in it draws; else behind it, and then the next operation that may draw ends the graph at the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynajit.guards.source import RunTimeSource
from dynajit.op_facts import may_draw
from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.builtins.registry import builtin
from dynajit.values.constant import ConstVal
from dynajit.values.effects.table import call, follow, refuse, tensor
from dynajit.values.symbolic import SymVal
from dynajit.values.tensor import TensorVal

_SEEDING: dict[Any, str] = {
    torch.random.manual_seed: "torch.manual_seed",  # torch.manual_seed itself may be a wrapper of it
    torch.cuda.manual_seed: "torch.cuda.manual_seed",
    torch.cuda.manual_seed_all: "torch.cuda.manual_seed_all",
}
# calls that may come behind the graph's
_CHANGING = (*_SEEDING, torch.set_rng_state, torch.Generator.manual_seed, torch.Generator.set_state)


def _is_late(tx: Tracer) -> bool:
    """Whether the graph has drawn, or a call behind the graph's is to change the state."""
    drawn = any(node.op.startswith("call") and may_draw(node.target) for node in tx.graph.graph.nodes)
    return drawn or any(made.late and made.function in _CHANGING for made in tx.calls)


def _change(tx: Tracer, name: str, function: Any, *args: Value) -> None:
    late = _is_late(tx)
    if late:
        follow(tx, f"{name} between operations that draw", may_draw)
    call(tx, name, function, args, late=late)


def _check_seed(name: str, seed: Value) -> None:
    if isinstance(seed, SymVal) and seed.py_type() is int:
        return
    known = seed.const() if seed.is_const() else None
    if type(known) is not int or not -(1 << 63) <= known < 1 << 63:
        refuse(f"{name} of what is no known int")


def _seeding(function: Any, name: str) -> None:
    @builtin(function)
    def seed_all(tx: Tracer, seed: Value) -> Value:
        _check_seed(name, seed)
        _change(tx, name, function, seed)
        return tx.from_real(torch.default_generator) if function is torch.random.manual_seed else ConstVal(None)


for _function, _name in _SEEDING.items():
    _seeding(_function, _name)


@builtin(torch.seed, torch.initial_seed)
def seed_by_chance(tx: Tracer) -> Value:
    """Their numbers have up to 64 bits, more than a graph's."""
    refuse("torch.seed or torch.initial_seed")


@builtin(torch.get_rng_state)
def get_rng_state(tx: Tracer) -> Value:
    if _is_late(tx):
        raise GraphBreak(breaks.SKIPPED_CALL, "torch.get_rng_state behind operations that draw")
    source = call(tx, "torch.get_rng_state", torch.get_rng_state, [])
    with tx.graph.running_fake():
        made = torch.empty(torch.Generator().get_state().shape, dtype=torch.uint8)
    return tensor(tx, source, made)


@builtin(torch.set_rng_state)
def set_rng_state(tx: Tracer, new_state: Value) -> Value:
    _check_state(tx, new_state)
    _change(tx, "torch.set_rng_state", torch.set_rng_state, new_state)
    return ConstVal(None)


def _check_state(tx: Tracer, state: Value) -> None:
    """A state that the function got itself is one; of another torch may make an error, which comes first then."""
    if isinstance(state, TensorVal) and state.source is not None:
        if isinstance(state.source, RunTimeSource) and "state#" in state.source.name():
            return
        if not tx.graph.op_count and not tx.journal.dirty and not tx.calls:
            return
    refuse("setting a generator's state to one that the function did not get itself")


def of_default(tx: Tracer, generator: Value, method: str, args: Sequence[Value]) -> Value:
    """A method of the CPU's default generator."""
    if method == "get_state":
        return get_rng_state(tx)
    if method == "manual_seed":
        _check_seed("Generator.manual_seed", args[0])
    else:
        _check_state(tx, args[0])
    _change(tx, f"Generator.{method}", getattr(torch.Generator, method), generator, *args)
    return generator
