"""The Python functions that are an operator's kernels, and the state that they share with the program.

In: what a graph calls that has code of its own: an operator whose kernels are written in Python, a function that
`allow_in_graph` marks. Out: its functions, as far as torch shows them or they were seen running, and their
`SharedState`.
"""

from __future__ import annotations

import contextlib
import gc
import operator
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from dynajit.graph.opaque import OPAQUE
from dynajit.graph.shared_state import SharedState, is_of_library, shared_state
from dynajit.graph.state_snapshot import StateSnapshot
from dynajit.op_facts import facts, overloads_of

#: what ran as the kernels of operators whose functions torch does not show
_seen_running: dict[Any, list[types.FunctionType]] = {}


def state_of_target(target: Any) -> SharedState | None:
    """What the code shares that runs where a graph calls this; None where none runs but torch's and C++ code."""
    if target in OPAQUE:
        return shared_state([target])
    kernels = _all_kernels(target)
    if not kernels:
        return None
    state = shared_state(_known(target, kernels))
    if target in _seen_running:
        state.writes, state.changes = set(), False  # it has, when it ran on fake tensors
    elif None in kernels:
        state.known = False
    return state


def kernels_of(target: Any) -> list[Any]:
    """The Python functions that are known to run where a graph calls this."""
    return [target] if target in OPAQUE else _known(target, _all_kernels(target))


def _all_kernels(target: Any) -> list[Any]:
    """The Python functions that an operator which is none of torch's own runs; None for those torch does not show."""
    if not _has_kernels(target):
        return []
    return [kernel for overload in overloads_of(target) for kernel in _kernels(overload)]


def _known(target: Any, kernels: list[Any]) -> list[Any]:
    return [*(kernel for kernel in kernels if kernel is not None), *traced_kernels(target)]


def has_functions(target: Any) -> bool:
    """Whether a graph that calls this may have an `autograd.Function` of the program's in it."""
    return hasattr(target, "functions") or target in OPAQUE or _has_kernels(target)


def hides_kernels(target: Any) -> bool:
    """Whether Python functions may run where a graph calls this that are not among `kernels_of`."""
    hidden = _has_kernels(target) and any(any(_hidden_kernels(overload)) for overload in overloads_of(target))
    return hidden and target not in _seen_running


def traced_kernels(target: Any) -> list[types.FunctionType]:
    """The Python functions that are an operator, and are traced with the graph that calls it."""
    return _seen_running.get(target, [])


def _has_kernels(target: Any) -> bool:
    """Whether it is an operator that is none of torch's own."""
    return isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) and not facts(target).known


@contextlib.contextmanager
def watching_kernels(target: Any) -> Iterator[list[StateSnapshot]]:
    """Inside, an operator runs on fake tensors. If its kernels are hidden, and are those that run on these as on any
    others (`CompositeImplicitAutograd`), the functions that run are remembered. What they read before is given."""
    if not _has_kernels(target) or target in _seen_running:
        functions = traced_kernels(target)
        yield [StateSnapshot(functions)] if functions else []
        return
    overloads = overloads_of(target)
    hidden = {key for overload in overloads for key in _hidden_kernels(overload)}
    composite = all(key.startswith("CompositeImplicit") for key in hidden)
    if not hidden or not composite or any(map(_has_fake, overloads)):
        yield []
        return
    found: list[types.FunctionType] = []
    before: list[StateSnapshot] = []

    def note(frame: types.FrameType, event: str, arg: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and not is_of_library(module) and module.partition(".")[0] != "dynajit":
            found.append(_function_of(frame))
            if not before:
                before.append(StateSnapshot(found))

    profiling = sys.getprofile()
    sys.setprofile(note)
    try:
        yield before
    finally:
        sys.setprofile(profiling)
    _seen_running[target] = found


def _function_of(frame: types.FrameType) -> types.FunctionType:
    """The function that runs in a frame, or one that reads the same."""
    code = frame.f_code
    variables = [frame.f_locals.get(name) for name in code.co_freevars]
    for each in gc.get_referrers(code) if variables else ():
        if isinstance(each, types.FunctionType) and each.__code__ is code:
            held = [None if cell == types.CellType() else cell.cell_contents for cell in each.__closure__ or ()]
            if all(map(operator.is_, held, variables)):
                return each
    cells = [types.CellType(value) for value in variables]
    return types.FunctionType(code, frame.f_globals, closure=tuple(cells) or None)


def _kernels(overload: torch._ops.OpOverload) -> Iterator[Any]:
    """The Python functions that an operator runs; None for those that torch does not show."""
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(overload._schema.name)
    if definition is not None:
        yield from (definition._init_fn, *definition._backend_fns.values())
        if definition._setup_context_fn is not None:
            yield definition._setup_context_fn
        return
    yield from overload.py_kernels.values()
    yield from (None for _ in _hidden_kernels(overload))


def _has_fake(overload: torch._ops.OpOverload) -> bool:
    """Whether another function than its kernel runs on fake tensors."""
    from torch._library.simple_registry import singleton

    entry = singleton.get(overload._name)
    return entry is not None and entry.fake_impl.kernel is not None


def _hidden_kernels(overload: torch._ops.OpOverload) -> Iterator[str]:
    """The dispatch keys of kernels whose functions torch does not show."""
    for line in torch._C._dispatch_dump(overload._schema.name).splitlines():
        key, _, rest = line.partition(": registered at ")
        if rest and "(none)" in rest and key not in ("debug", "Meta") and "(inactive)" not in key:
            yield key
