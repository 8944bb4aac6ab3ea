"""Models of the first call of torch's lazy modules, which makes their parameters.

In: the hook that infers sizes from the call's arguments. Out: the parameters are made for real while tracing, where it
can't be told from making them later, and the frame is traced again, with a module like any other. Else the graph ends
at the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn.modules.lazy import LazyModuleMixin

from dynajit import _C
from dynajit.op_facts import draws, facts
from dynajit.report import breaks
from dynajit.torch_compat import at_hand
from dynajit.values.core.registry import asked_first
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import is_none

_OWN = ("initialize_parameters", "has_uninitialized_params", "reset_parameters")


@asked_first(LazyModuleMixin._infer_parameters)  # type: ignore[type-abstract]
def infer_parameters(tx: Tracer, self: Value, module: Value, args: Value, kwargs: Value | None = None) -> None:
    named = kwargs is not None and not is_none(kwargs) and tx.unpack(kwargs)
    if not named and _is_worth_it(tx) and _comes_next(tx) and _initialise(module, tx.unpack(args)):
        tx.seen.first_calls.append(tx.compile_id)
    stop = GraphBreak(breaks.FIRST_CALL)
    if module.source is not None:  # later there is no break
        stop.relies_on = [(module.source, "PREDICATE", _is_lazy, "has no parameters yet")]
    raise stop


def _is_worth_it(tx: Tracer) -> bool:
    """Whether the graph may be used again: what was called with lazy modules before may be called with new ones each
    time, and is cut at them, else each would have a graph of its own."""
    return all(capture == tx.compile_id for capture in tx.seen.first_calls)


def _is_lazy(module: object) -> bool:
    return hasattr(module, "_initialize_hook")


def _comes_next(tx: Tracer) -> bool:
    """Whether nothing that the program did before in this frame, and that has not been done yet, draws random numbers
    (parameters are drawn, too), raises, or changes objects."""
    changes = tx.journal.dirty or tx.calls or tx.open_levels or tx.overrides.modes or tx.graph.effects
    if changes or tx.runs_elsewhere or tx.graph.may_raise() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return not any(map(_may_draw, tx.graph.graph.nodes))


def _may_draw(node: fx.Node) -> bool:
    known = facts(node.target).known and not draws(node.target, node.args, node.kwargs)
    return node.op.startswith("call") and not known


def _initialise(module: Value, args: Sequence[Value]) -> bool:
    """Make the parameters, if it is torch's code alone that does: it asks arguments for their sizes. Whether it did."""
    lazy: Any = module.real_object
    fakes = [getattr(arg, "fake", None) for arg in args]
    if not all(_is_torchs(lazy, name) for name in _OWN):
        return False
    likes = [None if fake is None else _like(fake) for fake in fakes]
    if any(like is None for like in likes):
        return False
    try:
        _C.call_eager(lazy._infer_parameters, (lazy, tuple(likes)))
    except (RuntimeError, IndexError, ValueError, TypeError):
        return False  # which it raises again where the program calls it
    return True


def _is_torchs(module: Any, name: str) -> bool:
    made = getattr(type(module), name, None)
    return str(getattr(made, "__module__", "")).startswith("torch.nn.modules.") and name not in vars(module)


def _like(fake: torch.Tensor) -> torch.Tensor | None:
    """A tensor without memory that has the sizes which this has now."""
    sizes = [size for each in fake.shape if (size := at_hand(each)) is not None]
    return None if len(sizes) < fake.dim() else torch.empty(sizes, dtype=fake.dtype, device="meta")
