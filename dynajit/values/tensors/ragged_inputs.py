"""Jagged tensors from outside whose rows vary from call to call.

In: a real one, and its source. Out: an operation of the graph that makes one of the same values and offsets, which are
inputs whose sizes may be symbolic. A jagged tensor that is an input itself has no symbols in its sizes.
"""

from __future__ import annotations

from typing import Any

import torch

from dynajit.guards.source import AttrSource, ConstSource, Source
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors import overrides
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.wrapper_subclass import ragged_varies, shares_ragged
from dynajit.wrappers import Expected, Flattened

_NONE: Value = ConstVal(None)


def is_assembled(tx: Tracer, obj: Any, source: Source) -> bool:
    """Whether a jagged tensor comes by its parts: another one did, of which it may have the ragged size, or it holds
    other sizes from call to call, and there are no symbols for those of an input."""
    if obj is _library()._dummy_instance:
        return False
    return bool(tx.graph.assembled) or ragged_varies(tx, obj, source)


def _library() -> Any:
    return torch.nested._internal.nested_tensor


def assembled(tx: Tracer, obj: Any, source: Source) -> TensorVal | None:
    """The model of a jagged tensor by what it consists of; None where that is not the same: parts have no history.

    It stands for the object itself, so the graph may not write it (`GraphBuilder.assembled`): autograd counts the
    writes of each object.
    """
    if tx.runs_elsewhere or tx.open_levels or tx.overrides.modes or torch.is_inference_mode_enabled():
        return None
    if shares_ragged(tx, obj):
        return None  # with an input that is jagged, whose fake consists of others than the parts' fakes
    names = Flattened(obj).names
    parts = {name: getattr(obj, name) for name in names}
    if obj.requires_grad or obj.is_inference() or any(part.requires_grad for part in parts.values()):
        return None
    tx.guard(source, "TYPE", type(obj))
    tx.guard(source, "PREDICATE", Expected(obj), f"consists of {', '.join(names)}, with the same context")
    models = {name: tx.wrap(part, AttrSource(source, name)) for name, part in parts.items()}
    if not all(type(model) is TensorVal for model in models.values()):
        return None
    library = _library()
    like = library._nt_view_dummy()  # by it the operation is that of jagged tensors
    pattern = tx.wrap(like, AttrSource(ConstSource(library, library.__name__), "_dummy_instance"))
    optional = [models.get(name, _NONE) for name in ("_lengths", "_min_seqlen_tensor", "_max_seqlen_tensor")]
    args = [models["_values"], models["_offsets"], pattern, optional[0], ConstVal(obj._ragged_idx), *optional[1:]]
    with overrides.functions_off(tx, overrides.ALL_OFF):
        made: Any = tx.torch_op("call_function", torch._nested_view_from_jagged, args, {})  # type: ignore[attr-defined]
    tx.graph.assembled.append(models["_values"].fake)
    return TensorVal(made.payload.node, made.payload.fake, type(obj), source, obj)
