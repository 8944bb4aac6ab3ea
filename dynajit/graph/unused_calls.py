"""Calls that nothing needs, and that eager would have raised at: kernels refuse what the fake ones pass.

In: a graph and the nodes that it is to give. Out: `refused_calls`; the line of such a call then runs for real. What a
kernel refuses single elements of is found before, for every call (`refusals.py`); here torch is asked on tensors of
ones that are laid out as the call's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate

from dynajit import _C
from dynajit.graph.builder import run_target
from dynajit.graph.meta import notes, value_of
from dynajit.nested import reached
from dynajit.op_facts import facts
from dynajit.symbols import has_symbols, last_position
from dynajit.torch_warnings import unwarned

# Torch is asked about tensors of so many elements at most: it computes with them.
_FEW = 1 << 20
# How the names begin of kernels that trust what they are told: what has not been looked at may end the process.
_TRUSTING = ("_", "mkldnn_")


def call_of(target: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> tuple[Any, str]:
    """What a call asks of a kernel: its fake tensors are named by their layouts."""
    return target, repr(_with_fakes(_layout, (tuple(args), dict(kwargs))))


def _with_fakes(put: Callable[[torch.Tensor], Any], arguments: Any) -> Any:
    return map_aggregate(arguments, lambda value: put(value) if type(value) is FakeTensor else value)


def _layout(fake: torch.Tensor) -> tuple[Any, ...]:
    return fake.dtype, fake.shape, fake.stride(), fake.storage_offset(), fake.is_conj(), fake.is_neg()


def refused_calls(graph: fx.Graph, results: Iterable[fx.Node]) -> set[tuple[Any, str]]:
    """The calls that nothing needs and whose kernels refuse their arguments, as `call_of` names them."""
    acting = (node for node in graph.nodes if notes(node).may_raise or (notes(node).changes and not _only_draws(node)))
    used = {*reached([*results, *acting], lambda node: node.all_input_nodes)}
    unused = [node for node in graph.nodes if node not in used and node.op.startswith("call")]
    if not unused or any("autocast" in str(node.target) for node in graph.nodes):
        return set()  # another mode than this one's may be on at the call
    return {found for node in unused if (found := _refused(node)) is not None}


def _only_draws(node: fx.Node) -> bool:
    return facts(node.target).draws and not notes(node).writes


def _refused(node: fx.Node) -> tuple[Any, str] | None:
    told, values = facts(node.target), [value_of(each) for each in (node, *node.all_input_nodes)]
    if not told.known or told.is_view or told.communicates or not all(map(_is_askable, values)):
        return None
    name = str(getattr(node.target, "__name__", node.target))
    if name.startswith(_TRUSTING) or any(_tells_places(value_of(each)) for each in node.all_input_nodes):
        return None
    arguments = map_aggregate(
        (node.args, node.kwargs), lambda part: value_of(part) if isinstance(part, fx.Node) else part
    )
    args, kwargs = _with_fakes(_ones_like, arguments)
    kept = torch.random.fork_rng(devices=[], enabled=told.draws)
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False), torch.no_grad(), unwarned(), kept:
        try:
            _C.call_eager(run_target, (node.op, node.target, args, kwargs))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None  # what it refuses are the ones
        except (RuntimeError, TypeError, ValueError, IndexError):
            return call_of(node.target, *arguments)
    return None


def _is_askable(value: Any) -> bool:
    """Whether it is a tensor for which one of ones can stand, or several."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_askable, value))
    return (
        type(value) is FakeTensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_quantized
        and not has_symbols(value)
        and type(value.storage_offset()) is int
        and _extent(value) <= _FEW
    )


def _tells_places(value: Any) -> bool:
    """Whether it may hold places, which some kernels read at without a look at them."""
    tensors = value if isinstance(value, (tuple, list)) else (value,)
    return any(
        not (each.dtype.is_floating_point or each.dtype.is_complex or each.dtype is torch.bool) for each in tensors
    )


def _extent(tensor: torch.Tensor) -> int:
    """How many elements its memory has at least."""
    sizes = [max(size, 1) for size in tensor.shape]
    return int(tensor.storage_offset()) + 1 + int(last_position(sizes, tensor.stride()))


def _ones_like(tensor: torch.Tensor) -> torch.Tensor:
    memory = torch.ones(_extent(tensor), dtype=tensor.dtype)
    made = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    made = made.conj() if tensor.is_conj() else made
    return torch._neg_view(made) if tensor.is_neg() else made
