"""The common training graph, without torch's runtime wrapper.

In:  what AOTAutograd found out of a graph, and both its parts compiled. Out: a `_C.TrainingCall`, or None where the
graph returns aliases, gives inputs another layout, or does anything else that torch's own wrapper has to see to at each
call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from dynajit import _C, torch_compat
from dynajit.aot.rewrite import results_of
from dynajit.aot.runtime_wrappers import without_autocast
from dynajit.aot.training.double_backward import DoubleBackward
from dynajit.aot.training.partial_backward import PartialBackwardCache
from dynajit.aot.training.reachability import AutogradGraph, SavingNodes, arrival_of, saving_nodes
from dynajit.aot.training.version_checks import KeptInput, VersionCheck
from dynajit.graph.meta import memory, value_of


class CompiledHalf(NamedTuple):
    """The forward or the backward graph, and what became of it."""

    graph: torch.fx.GraphModule
    compiled: Callable[..., Any]


def without_wrapper(
    metadata: Any,
    parts: Mapping[str, CompiledHalf],
    n_inputs: int,
    again: DoubleBackward | None,
    partial: PartialBackwardCache | None,
    history: AutogradGraph | None,
    checks: Sequence[VersionCheck],
    kept: Sequence[KeptInput],
    draws: bool,
    written: Sequence[int],
    copied: Sequence[int],
    holds: Callable[[], bool] | None,
) -> Callable[..., Any] | None:
    """The graph as a callable with its inputs and outputs, if it is of the common kind.

    Args:
        metadata: what AOTAutograd found out of the graph.
        parts: both halves, by phase.
        n_inputs: how many inputs the graph has.
        history: autograd's graph of the fake tensors, if all of it is known.
        kept: how eager keeps the memory of each input.
        again, partial, checks, draws, written, copied, holds: see `_C.TrainingCall`.
    """
    found = _plain_halves(metadata, parts, n_inputs, history)
    if found is None:
        return None
    differentiable, n_saved, n_checked, layouts, wanted, updated = found
    places = _places(differentiable, len(updated))
    reach = None if partial is None else partial.reach
    if reach is not None and reach.results != places:
        return None
    if history is None or tuple(place for place, _ in history.results) != places:
        checks, history = (), None
    n_others = len(layouts) + reach.views if reach is not None and again is not None and any(reach.through) else 0
    if again is not None:
        again.updated = updated
    return _C.TrainingCall(
        without_autocast(parts["forward"].compiled),
        without_autocast(parts["backward"].compiled),
        n_saved,
        n_checked,
        differentiable,
        wanted,
        layouts,
        again,
        partial,
        [] if reach is None else [[place in inputs for place in wanted] for inputs in reach.inputs],
        list(_saving(history, len(layouts), wanted, n_saved)),
        [each._replace(place=each.place + len(updated) * each.is_result) for each in checks],
        draws,
        [place for place in written if place not in updated],
        updated,
        holds,
        _flags(reach.through, n_others) if reach is not None and n_others else [],
        [] if history is None else arrival_of(history),
        copied,
        _kept_as(parts["forward"].graph, kept, len(differentiable), n_saved),
    )


def _kept_as(forward: torch.fx.GraphModule, kept: Sequence[KeptInput], n_returns: int, n_saved: int) -> list[int]:
    """How each saved tensor is kept."""
    inputs = forward.graph.find_nodes(op="placeholder")
    by_memory = dict(zip(map(memory, inputs), kept, strict=kept != []))
    by_memory.pop(None, None)
    saved = results_of(forward)[n_returns : n_returns + n_saved]
    known = [(node in inputs, by_memory.get(memory(node))) for node in saved]
    return [0 if how is None else how.kind(is_input) for is_input, how in known]


class _PlainHalves(NamedTuple):
    """What a `_C.TrainingCall` takes of its halves by the same names."""

    differentiable: list[bool]
    n_saved: int
    n_checked: int
    layouts: list[Any]
    wanted: list[int]
    updated: list[int]


def _plain_halves(
    metadata: Any, parts: Mapping[str, CompiledHalf], n_inputs: int, history: AutogradGraph | None
) -> _PlainHalves | None:
    """None where the halves give or take anything that only torch's own wrapper knows of."""
    whole = metadata is not None and set(parts) == {"forward", "backward"}
    found = torch_compat.plain_training(metadata) if whole else None
    if found is None:
        return None
    differentiable, n_unchecked, n_numbers, updated = found
    forward, backward = parts["forward"].graph, parts["backward"].graph
    inputs, taken = (half.graph.find_nodes(op="placeholder") for half in (forward, backward))
    results, gradients = results_of(forward), results_of(backward)
    n_saved = len(results) - len(differentiable) - n_numbers
    n_tangents = sum(differentiable)
    layouts = [_layout(value_of(node)) for node in taken[len(taken) - n_tangents :]]
    fits = (
        len(inputs) == n_inputs == len(gradients)
        and n_saved >= n_unchecked
        and n_tangents > 0
        and len(taken) == n_numbers + n_saved + n_tangents
        and "unknown" not in layouts
        and _can_be_copied(updated, history, results[: len(differentiable)], inputs)
    )
    wanted = _wanted(metadata, inputs, gradients, history) if fits else []
    return _PlainHalves(differentiable, n_saved, n_saved - n_unchecked, layouts, wanted, updated) if fits else None


def _saving(
    history: AutogradGraph | None, count: int, wanted: Sequence[int], n_saved: int
) -> Iterator[tuple[list[bool], ...]]:
    """What of eager's operations runs once, as a `TrainingCall` takes it; all, if no more is known."""
    everything = frozenset(range(count))
    unknown = [SavingNodes(everything, everything, frozenset(wanted), everything)] if n_saved else []
    for nodes in unknown if history is None else saving_nodes(history):
        results, through, own = _flags((nodes.results, nodes.through, nodes.own), count)
        yield results, through, [place in nodes.inputs for place in wanted], own


def _flags(rows: Iterable[Collection[int]], count: int) -> list[list[bool]]:
    return [[number in row for number in range(count)] for row in rows]


def _places(differentiable: Sequence[bool], n_updated: int) -> tuple[int | None, ...]:
    """Where the returns that have a gradient are among the results; None: it is the new value of an input."""
    returns = (place for place, has_one in enumerate(differentiable) if has_one)
    return tuple(place - n_updated if place >= n_updated else None for place in returns)


def _can_be_copied(updated: Sequence[int], history: AutogradGraph | None, returns: Sequence[Any], inputs: Any) -> bool:
    """Whether the first returns, the new values of `updated`, have memory of their own, and nothing else is written
    that autograd hears of."""
    memories = {memory(node) for node in returns[: len(updated)]}
    others = map(memory, (*inputs, *returns[len(updated) :]))
    apart = None not in memories and len(memories) == len(updated) and memories.isdisjoint(others)
    return apart and (not updated or (history is not None and history.written == updated))


def _wanted(
    metadata: Any, inputs: Sequence[torch.fx.Node], gradients: Sequence[Any], history: AutogradGraph | None
) -> list[int]:
    """The places of the inputs that autograd's node of the graph leads to. Of those without a gradient the ones that
    eager's graph leads to, as where a Function gives None: it would not know what shape another such input had here."""
    tensors = [place for place, node in enumerate(inputs) if isinstance(value_of(node), torch.Tensor)]
    ends = set() if history is None else history.ends
    reached = [place for place in tensors if gradients[place] is not None or place in ends]
    is_known = history is not None or any(metadata.input_info[place].requires_grad for place in reached)
    return reached if is_known else tensors


def _layout(tangent: Any) -> list[int] | str | None:
    """Strides of a gradient that the backward graph takes; None: contiguous, whatever its size."""
    if type(tangent) is not torch._subclasses.fake_tensor.FakeTensor or tangent.layout is not torch.strided:
        return "unknown"
    strides = list(tangent.stride())
    if all(type(number) is int for number in (*tangent.shape, *strides)):
        return strides
    step: Any = 1
    for size, stride in zip(reversed(tangent.shape), reversed(strides), strict=True):
        if str(stride) != str(step):  # to compare symbols would be to decide something of them
            return "unknown"
        step = step * size
    return None
