"""Steps of optimizers that are one operator of torch's over lists of tensors (`fused=True`), as functions.

In:  `aten._fused_adamw_` and its like, which write the tensors in their lists; torch's functionalisation refuses lists
without members. Out: `functional`, the operator of dynajit's own that gives what one of them leaves in the tensors that
it writes; `in_place`, the other way round; `written`, which tensors these are, in the order of that operator's results;
`STEPS`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynajit.op_facts import FUSED_STEPS, written_arguments

_library = torch.library.Library("dynajit", "FRAGMENT")  # type: ignore[no-untyped-call]
_PREFIX = "updated_by"


def functional(target: Any, kwargs: Mapping[str, Any]) -> torch._ops.OpOverload | None:
    """The operator of dynajit's own for a step that writes, called like this; None for any other target."""
    step = _overload(target, kwargs)
    return None if step is None else _FUNCTIONAL[step]


def in_place(target: Any) -> torch._ops.OpOverload | None:
    """The step that an operator of dynajit's own stands for; None for any other target."""
    return _IN_PLACE.get(target) if isinstance(target, torch._ops.OpOverload) else None


def written(step: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors that the step writes, called like this."""
    return [tensor for tensors in written_arguments(step, args, kwargs) for tensor in tensors]


def _overload(target: Any, kwargs: Mapping[str, Any]) -> torch._ops.OpOverload | None:
    if isinstance(target, torch._ops.OpOverload):
        return target if target in _FUNCTIONAL else None
    name = getattr(target, "__name__", "")
    if name not in FUSED_STEPS or target not in (getattr(torch, name, None), getattr(torch.ops.aten, name)):
        return None
    packet = getattr(torch.ops.aten, name)
    kind = "tensor_lr" if isinstance(kwargs.get("lr"), torch.Tensor) else "default"
    return getattr(packet, kind) if kind in packet.overloads() else None  # a release may lack one


def _define(step: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """A function for a step: it has the step done to copies."""
    _, _, signature = re.sub(r"\([a-z]!\)", "", str(step._schema)).partition("(")
    packet = f"{_PREFIX}{step.overloadpacket.__name__}".rstrip("_")
    name = packet if step._overloadname == "default" else f"{packet}.{step._overloadname}"
    _library.define(f"{name}({signature.rpartition(' -> ')[0]} -> Tensor[]")  # type: ignore[no-untyped-call]
    _library.impl(name, functools.partial(_on_copies, step), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"dynajit::{name}", functools.partial(_copies, step), lib=_library)
    made: torch._ops.OpOverload = getattr(getattr(torch.ops.dynajit, packet), step._overloadname)
    return made


def _on_copies(step: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    # one tensor may be in several lists here: two of zeros are one
    lists = {id(tensors): [tensor.clone() for tensor in tensors] for tensors in written_arguments(step, args, kwargs)}
    copied = [lists.get(id(arg), arg) for arg in args]
    step(*copied, **kwargs)
    return written(step, copied, kwargs)


def _copies(step: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in written(step, args, kwargs)]


def _steps() -> list[torch._ops.OpOverload]:
    packets = [getattr(torch.ops.aten, name) for name in FUSED_STEPS if hasattr(torch.ops.aten, name)]
    return [getattr(packet, name) for packet in packets for name in packet.overloads()]


_FUNCTIONAL = {step: _define(step) for step in _steps()}
#: The steps that write. Some have no kernel for fake tensors, on which there is nothing to do.
STEPS = frozenset(_FUNCTIONAL)
_IN_PLACE = {made: step for step, made in _FUNCTIONAL.items()}
