"""The Python functions that are an operator's kernels, and the state that they share with the program.

In: what a graph calls that has code of its own: an operator whose kernels are written in Python, a function that
`allow_in_graph` marks. Out: its functions, and their `SharedState`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dynajit.graph.hidden_kernels import python_kernels
from dynajit.graph.opaque import OPAQUE
from dynajit.graph.shared_state import SharedState, shared_state
from dynajit.op_facts import facts, overloads_of


def state_of_target(target: Any) -> SharedState | None:
    """What the code shares that runs where a graph calls this; None where none runs but torch's and C++ code."""
    if target in OPAQUE:
        return shared_state([target])
    kernels = _all_kernels(target)
    if not kernels:
        return None
    state = shared_state(_known(kernels))
    state.known &= None not in kernels
    return state


def kernels_of(target: Any) -> list[Any]:
    """The Python functions that are known to run where a graph calls this."""
    return [target] if target in OPAQUE else _known(_all_kernels(target))


def _all_kernels(target: Any) -> list[Any]:
    """The Python functions that an operator which is none of torch's own runs; None for those not found."""
    if not _has_kernels(target):
        return []
    return [kernel for overload in overloads_of(target) for kernel in _kernels(overload)]


def _known(kernels: list[Any]) -> list[Any]:
    return [kernel for kernel in kernels if kernel is not None]


def has_functions(target: Any) -> bool:
    """Whether a graph that calls this may have an `autograd.Function` of the program's in it."""
    return hasattr(target, "functions") or target in OPAQUE or _has_kernels(target)


def hides_kernels(target: Any) -> bool:
    """Whether Python functions may run where a graph calls this that are not among `kernels_of`."""
    return None in _all_kernels(target)


def traced_kernels(target: Any) -> list[Any]:
    """The Python functions that are an operator, for all devices and for fake tensors: a graph's values are made by
    running them, and some backends trace them with the graph that calls it."""
    if not _has_kernels(target):
        return []
    found = [python_kernels(overload) for overload in overloads_of(target) if not _has_fake(overload)]
    return _known([kernel for each in found for key, kernel in each.items() if key.startswith("Composite")])


def _has_kernels(target: Any) -> bool:
    """Whether it is an operator that is none of torch's own, nor of dynajit's, whose kernels share nothing."""
    is_operator = isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    return is_operator and facts(target).foreign


def _kernels(overload: torch._ops.OpOverload) -> Iterator[Any]:
    """The Python functions that an operator runs; None for those that were not found."""
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(overload._schema.name)
    if definition is not None:
        yield from (definition._init_fn, *definition._backend_fns.values())
        if definition._setup_context_fn is not None:
            yield definition._setup_context_fn
        return
    yield from overload.py_kernels.values()
    yield from python_kernels(overload).values()


def _has_fake(overload: torch._ops.OpOverload) -> bool:
    """Whether another function than its kernel runs on fake tensors."""
    from torch._library.simple_registry import singleton

    entry = singleton._data.get(overload._name)  # `find` would make one
    return entry is not None and entry.fake_impl.kernel is not None
