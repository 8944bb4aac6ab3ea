"""Models of what torch.distributed says of groups of processes, of meshes, and of how this process was started.

In: a function of `torch.distributed` that asks, or a method or property of a ProcessGroup or DeviceMesh. Out: the
answer, which a mesh never changes: it is known once it is the same one; all else is asked again at each call. One more
question: its name in a table.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.guards.source import CallSource, ConstSource
from dynajit.op_facts import starts_collective
from dynajit.report import breaks
from dynajit.values.core.registry import models_of, models_of_named
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal, is_literal
from dynajit.values.tensors.collectives import C10D, real_of

_C10D_IN_C: Any = getattr(torch._C, "_distributed_c10d", None)
_OF_GROUPS = ("rank", "size", "name", "group_name", "group_desc", "bound_device_id")
_OF_MESHES = (
    *("__eq__", "__getitem__", "__hash__", "__repr__", "_get_mesh_dim_by_name", "_get_root_mesh"),
    *("_get_root_mesh_dim", "_is_current_rank_part_of_mesh", "device_type", "get_all_groups", "get_coordinate"),
    *("get_group", "get_local_rank", "get_rank", "mesh", "mesh_dim_names", "ndim", "shape", "size"),
)


def _functions(cls: Any, names: Sequence[str]) -> list[Any]:
    """What is called where methods and properties of a class written in C are."""
    found = [vars(cls).get(name) for name in names] if cls is not None else []
    called = (getattr(one, "fget", None) or getattr(one, "__func__", None) for one in found)
    return [function for function in called if function is not None]


@models_of(*_functions(getattr(_C10D_IN_C, "ProcessGroup", None), _OF_GROUPS))
@models_of(*filter(None, [getattr(_C10D_IN_C, "get_debug_level", None)]))
@models_of_named(
    C10D,
    *("get_backend", "get_backend_config", "get_default_backend_for_device", "get_global_rank", "get_group_rank"),
    *("get_node_local_rank", "get_pg_count", "get_process_group_ranks", "get_rank", "get_world_size"),
    *("is_backend_available", "is_gloo_available", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched"),
    *("is_ucc_available", "is_xccl_available", "supports_complex", "_get_group_tag"),
)
def _ask(function: Any, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    """What they say of a group, of all processes or of the environment holds for as long as they say the same."""
    call = _call(function, tx, args, kwargs)
    with ending_graph(breaks.RAISES, function.__name__, ValueError, RuntimeError):
        found = call()
    began = sys.modules["torch.distributed"].is_initialized()
    known = functools.partial(_says, call, found, began)
    tx.guard(ConstSource(function, function.__name__), "PREDICATE", known, f"says {found}")
    return tx.from_real(found)


def _call(function: Any, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value]) -> Callable[[], Any]:
    """The call, with objects that have to be the same ones."""
    named = {name: real_of(tx, value) for name, value in kwargs.items()}
    return functools.partial(function, *(real_of(tx, arg) for arg in args), **named)


def _says(call: Callable[[], Any], expected: object, began: bool, found: Any) -> bool:
    return bool(sys.modules["torch.distributed"].is_initialized() is began and call() == expected)


@models_of_named("torch.distributed.device_mesh", *(f"DeviceMesh.{name}" for name in _OF_MESHES))
def _of_mesh(function: Any, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    """What a mesh says of itself, which never changes."""
    ask = _call(function, tx, args, kwargs)
    with ending_graph(breaks.RAISES, function.__qualname__, KeyError, RuntimeError, TypeError, ValueError, IndexError):
        found = ask()
    return _answer(tx, found, CallSource(ConstSource(ask, function.__name__), _called, "{}()"))


@models_of_named("torch.distributed.device_mesh", "DeviceMesh._flatten")
def _flatten(function: Any, tx: Tracer, mesh: Value, *args: Value, **kwargs: Value) -> Value:
    """A mesh is flattened once, and knows it ever after. The first time makes a group, for which all processes meet:
    not before they have met in what the graph has them do until there."""
    real = real_of(tx, mesh)
    name = args[0] if args else kwargs.get("mesh_dim_name", ConstVal(None))
    known = (real_of(tx, name) or "_".join(real.mesh_dim_names or ())) in real._get_root_mesh()._flatten_mapping
    if not known and any(starts_collective(node.target) for node in tx.graph.graph.nodes):
        raise GraphBreak(breaks.SKIPPED_CALL, "DeviceMesh._flatten(), which makes a group")
    return _of_mesh(function, tx, mesh, *args, **kwargs)


def _answer(tx: Tracer, found: Any, source: CallSource) -> Value:
    """Groups, which may have been left, and tensors are asked for anew; of a mesh, which each time is another object,
    the one that was found will do."""
    if is_literal(found) or found is NotImplemented:
        return tx.from_real(found)
    if type(found) in (list, tuple):
        parts = [
            _answer(tx, part, CallSource(source, functools.partial(_part, n), f"{{}}[{n}]"))
            for n, part in enumerate(found)
        ]
        return tx.new_list(parts) if type(found) is list else tx.new_tuple(parts)
    is_mesh = type(found) is sys.modules["torch.distributed.device_mesh"].DeviceMesh
    return tx.wrap(found, ConstSource(found, "a part of a mesh") if is_mesh else source)


def _called(ask: Callable[[], Any]) -> Any:
    return ask()


def _part(place: int, whole: Any) -> Any:
    return whole[place]
