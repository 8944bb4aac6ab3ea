"""Models of torch.distributed's functional collectives, and of the group of all processes.

In: a function of `torch.distributed._functional_collectives`. Out: a node of the graph that communicates; the group is
a name in it, guarded by the group's identity. One more function: its name in `_FUNCTIONS`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from dynajit.graph.collective import MODULE, collective
from dynajit.guards.source import CallSource, ConstSource
from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.constant import ConstVal
from dynajit.values.objects import ObjVal
from dynajit.values.sequence import TupleVal

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


def _name_of(tx: Tracer, group: Value) -> str:
    """The name of the group of processes, which the group keeps for as long as it lives."""
    if group.is_const() and type(group.const()) is str:
        return str(group.const())
    parts = group.values(tx) if isinstance(group, TupleVal) else [group]
    real = [_real(tx, part) for part in parts]
    name = sys.modules[MODULE]._resolve_group_name(tuple(real) if isinstance(group, TupleVal) else real[0])
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


__all__ = ["model_of"]
