"""Models of torch.distributed's collectives, and of the group of all processes.

In: a function of `torch.distributed._functional_collectives`, or one of `torch.distributed` that writes its result into
a tensor. Out: a node of the graph that communicates; the group is a name in it, guarded by the group's identity. What
writes is the functional one and a copy. One more function: its name in `_FUNCTIONS`, or in `_WRITING`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from dynajit.graph.collective import MODULE, collective
from dynajit.guards.source import CallSource, ConstSource
from dynajit.report import breaks
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.objects import ObjVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.tensor import TensorVal

_FUNCTIONS = frozenset(
    {
        "all_gather_single",
        "all_gather_tensor",
        "all_gather_tensor_autograd",
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all_single",
        "all_to_all_single_autograd",
        "broadcast",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_autograd",
    }
)
_C10D = "torch.distributed.distributed_c10d"


def model_of(function: types.FunctionType) -> Callable[..., Value] | None:
    """The model of a function of torch.distributed, if it has one."""
    if function.__module__ == _C10D and function.__name__ in _ASKED:
        return functools.partial(_ask, function)
    if function.__module__ == _C10D and function.__name__ in _WRITING:
        return functools.partial(_write, function)
    if function.__module__ == MODULE and function.__name__ in _FUNCTIONS:
        return functools.partial(_collective, function)
    if function.__module__ == _C10D and function.__qualname__ == "_WorldMeta.WORLD":
        return _world
    return None


def _collective(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    bound = inspect.signature(function).bind(*args, **kwargs)
    group = bound.arguments.get("group")
    if group is None or "tag" in bound.arguments:
        raise GraphBreak(breaks.UNKNOWN_CALL, f"{function.__name__} without a group, or with a tag")
    bound.arguments["group"] = ConstVal(_name_of(tx, group))
    return tx.torch_op("call_function", collective, [ConstVal(function.__name__), *bound.args], bound.kwargs)


# ------------------------------------------------------------------------------------------- as programs call them

# what they say of a group, or of all processes, is as it was until the group is left
_ASKED = frozenset({"get_rank", "get_world_size", "get_backend"})


def _ask(function: types.FunctionType, tx: Tracer, group: Value | None = None) -> Value:
    real = _real(tx, group) if group is not None else None
    try:
        found = function(real)
    except (ValueError, RuntimeError) as error:
        raise GraphBreak(breaks.RAISES, f"{type(error).__name__}: {error}", error) from None
    known = functools.partial(_says, function, real, found)
    tx.guard(ConstSource(function, function.__name__), "PREDICATE", known, f"says {found}")
    return ConstVal(found)


def _says(function: Callable[..., Any], group: Any, expected: object, found: Any) -> bool:
    distributed = sys.modules["torch.distributed"]
    return bool(distributed.is_initialized() and function(group) == expected)


# those whose functional form does the same to the last warning: torch 2.13 calls most others deprecated
_WRITING = frozenset({"all_reduce", "broadcast"})


def _write(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    """A collective that writes its argument: the functional one, and a copy."""
    functional, distributed = importlib.import_module(MODULE), sys.modules["torch.distributed"]
    given: dict[str, Value] = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    what = f"torch.distributed.{function.__name__}()"
    waits = "async_op" not in given or (given["async_op"].is_const() and given["async_op"].const() is False)
    op = _operation(given.get("op"), functional.REDUCE_OP_TO_STR, distributed.ReduceOp.SUM)
    if not waits or op is None or "group_src" in given:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{what} that does not wait, or with arguments that are not traced")
    tensor = next(iter(given.values()))
    if not isinstance(tensor, TensorVal) or not _is_plain(tensor):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{what} of a tensor that requires grad, or is not contiguous")
    group = given.get("group", ConstVal(None))
    if group.is_const() and group.const() is None:
        group = _world(tx, tx.from_real(distributed.group))
    how = given.get("src") if function.__name__ == "broadcast" else op
    if how is None or not isinstance(getattr(group, "real_object", None), distributed.ProcessGroup):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{what} in what is no group of processes, or without a source")
    result = _collective(getattr(functional, function.__name__), tx, tensor, how, group=group)
    with torch.no_grad():
        tx.torch_op("call_method", "copy_", [tensor, result], {})
    return ConstVal(None)


def _operation(op: Value | None, names: dict[Any, str], default: Any) -> Value | None:
    """The functional collectives' name of what reduces; None: they have none."""
    real = default if op is None else op.const() if op.is_const() else getattr(op, "real_object", None)
    return ConstVal(names[real]) if isinstance(real, type(default)) and real in names else None


def _is_plain(tensor: TensorVal) -> bool:
    """Whether the collective reads and writes just the tensor's elements, in their order, behind autograd's back."""
    return not tensor.fake.requires_grad and tensor.fake.is_contiguous() and not tensor.fake.is_complex()


def _name_of(tx: Tracer, group: Value) -> str:
    """The name of the group of processes, which the group keeps for as long as it lives."""
    if group.is_const() and type(group.const()) is str:
        return str(group.const())
    parts = group.values(tx) if isinstance(group, TupleVal) else [group]
    real = [_real(tx, part) for part in parts]
    name = importlib.import_module(MODULE)._resolve_group_name(tuple(real) if isinstance(group, TupleVal) else real[0])
    return str(name)


def _real(tx: Tracer, value: Value) -> Any:
    if value.is_const():
        return value.const()
    if not isinstance(value, ObjVal) or value.real_object is None or value.source is None:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{value.describe()} as a group of processes")
    tx.guard(value.source, "ID", value.real_object)
    return value.real_object


def _world(tx: Tracer, cls: Value) -> Value:
    """`torch.distributed.group.WORLD`."""
    real = cls.real()
    return tx.wrap(_world_of(real), CallSource(ConstSource(real, "torch.distributed.group"), _world_of, "{}.WORLD"))


def _world_of(cls: Any) -> Any:
    return cls.WORLD
