"""Models of torch.distributed's collectives, and of the group of all processes.

In: a function of `torch.distributed._functional_collectives`, or one of `torch.distributed` that writes its result into
a tensor. Out: a node of the graph that communicates; the group is a name in it, guarded by the group's identity. What
writes is the functional operator, waited for, and a copy. One more function: its name before `_collective`, or in
`_WRITING`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from typing_extensions import deprecated

from dynajit.graph.collective import MODULE, collective
from dynajit.guards.source import AttrSource, CallSource, ConstSource
from dynajit.report import breaks
from dynajit.symbols import is_symbolic
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.bound_methods import BoundMethod
from dynajit.values.core.registry import models_of_named
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.warning_filters import warns_through
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import decide
from dynajit.values.tensors.tensor import TensorVal

C10D = "torch.distributed.distributed_c10d"


@models_of_named(
    MODULE,
    *("all_reduce", "all_reduce_coalesced", "all_to_all_single", "all_to_all_single_autograd", "broadcast"),
    *("all_gather_into_tensor_coalesced", "all_gather_tensor", "all_gather_tensor_autograd"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_autograd", "reduce_scatter_tensor_coalesced"),
    *(f"{name}_single{form}" for name in ("all_gather", "reduce_scatter") for form in ("", "_autograd", "_coalesced")),
)
def _collective(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    if _RESOLVING.isdisjoint(function.__code__.co_names):
        return tx.inline_body(function, args, kwargs)  # an older name, which warns and calls the newer one
    bound = inspect.signature(function).bind(*args, **kwargs)
    group = bound.arguments.get("group")
    if group is None:
        raise GraphBreak(breaks.UNKNOWN_CALL, f"{function.__name__} without a group")
    tag = bound.arguments.pop("tag", ConstVal(""))
    name = _name_by_ranks(tx, function, group, tag) if isinstance(group, ListVal) else _name_of(tx, group)
    bound.arguments["group"] = ConstVal(name)
    first = next(iter(bound.arguments))
    bound.arguments[first] = unfolded(tx, bound.arguments[first])
    return tx.torch_op("call_function", collective, [ConstVal(function.__name__), *bound.args], bound.kwargs)


_RESOLVING = frozenset({"_resolve_group", "_resolve_group_name"})  # functions that look for the group, and warn
_RANKS = (
    "The combination of ranks + tag as process group identifier has been deprecated. Please switch to using "
    "ProcessGroup, DeviceMesh, or group name instead."
)


def _name_by_ranks(tx: Tracer, function: types.FunctionType, group: ListVal, tag: Value) -> str:
    """The name of the group that ranks and a tag find, which torch warns of."""
    find = sys.modules[C10D]._find_pg_by_ranks_and_tag
    ranks, known = [real_of(tx, rank) for rank in group.values(tx)], real_of(tx, tag)
    found = find(known, ranks)
    if found is None:
        raise GraphBreak(breaks.UNKNOWN_CALL, f"{function.__name__} with ranks that have no group")
    name = str(found.group_name)
    tx.guard(ConstSource(find, find.__name__), "PREDICATE", functools.partial(_finds, known, ranks, name), f"is {name}")
    warns_through(tx, _warn_of_ranks, _RANKS, FutureWarning)
    return name


def _finds(tag: str, ranks: list[int], name: str, find: Callable[..., Any]) -> bool:
    found = find(tag, ranks)
    return found is not None and found.group_name == name


def _warn_of_ranks() -> None:
    warnings.warn(_RANKS, FutureWarning, stacklevel=2)


# ------------------------------------------------------------------------------------------------ what writes results


class _Written(NamedTuple):
    """A collective as a program calls it: the operator of `torch.ops._c10d_functional`, and which of its arguments
    hold what is sent, and what is received."""

    op: str
    reads: str = "tensor"
    writes: str = "tensor"


_GATHER = _Written("all_gather_into_tensor", "input_tensor", "output_tensor")
_SCATTER = _Written("reduce_scatter_tensor", "input", "output")
_WRITING = {
    "all_reduce": _Written("all_reduce"),
    "broadcast": _Written("broadcast"),
    "all_gather": _Written("all_gather_into_tensor", "tensor", "tensor_list"),
    **dict.fromkeys(("all_gather_into_tensor", "all_gather_single", "_all_gather_base"), _GATHER),
    **dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"), _SCATTER),
    "all_to_all_single": _Written("all_to_all_single", "input", "output"),
}


@models_of_named(C10D, *_WRITING)
def _write(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    """A collective that writes its result: the functional operator, waited for, and copies.

    The copies are made where the call is, also with `async_op`: a program can't know the tensor before it waits. Where
    the graph waits depends on what needs the result.
    """
    importlib.import_module(MODULE)  # the operators' fakes
    given: dict[str, Value] = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    if _is_left_out(function, given):
        return _warn_left_out(function, tx)
    group = group_of(tx, function, given)
    not_coalesced(tx, function)
    made = None
    if tx.coalescing is None or not tx.coalescing.puts_off(tx, function, given, group):
        made = exchange_of(tx, function, given, group)
        _communicate(tx, function, made, group)
    warn = getattr(function, "__deprecated__", None)
    if warn is not None:
        warns_through(tx, _warns(function.__name__, warn), warn, FutureWarning)
    return WorkVal(made.own) if made is not None and wants_handle(tx, given) else ConstVal(None)


class Exchange(NamedTuple):
    """A call's tensors: what is sent, and what is received into, in the order of the memory; the program's own of the
    latter; and the operator's arguments between what is sent and the group."""

    sent: Value
    out: Sequence[Value]
    own: Sequence[Value]
    more: list[Value]


def exchange_of(tx: Tracer, function: types.FunctionType, given: dict[str, Value], group: Any) -> Exchange:
    """What the call exchanges. Ends the graph where eager mode would refuse it, or warn."""
    call = _WRITING[function.__name__]
    own = parts = given[call.writes]
    if call.writes == call.reads:
        parts = _in_memory_order(tx, own)
        given = {**given, call.reads: parts}
    out = tx.unpack(parts) if function.__name__ == "all_gather" else [parts]
    if not out:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} into no tensors")
    sent = sent_by(tx, function, given[call.reads], out)
    return Exchange(sent, out, out if parts is own else [own], _more(tx, function, given, group))


def _communicate(tx: Tracer, function: types.FunctionType, made: Exchange, group: Any) -> None:
    ops, name, whole = torch.ops._c10d_functional, _WRITING[function.__name__].op, made.sent
    with torch.no_grad():
        if name == "all_gather_into_tensor" and not whole.fake.dim():  # gloo wants a dimension there
            whole = tx.torch_op("call_method", "view", [whole, tx.from_real(1)], {})
        arguments = [whole, *made.more, ConstVal(group.group_name)]
        found = tx.torch_op("call_function", getattr(ops, name).default, arguments, {})
        found = tx.torch_op("call_function", ops.wait_tensor.default, [found], {})
        receive(tx, function, found, made)


def group_of(tx: Tracer, function: types.FunctionType, given: dict[str, Value]) -> Any:
    """The group of processes, of which this one has to be."""
    distributed = sys.modules["torch.distributed"]
    group = given.get("group", ConstVal(None))
    if group.is_const() and group.const() is None:
        group = _world(None, tx, tx.from_real(distributed.group))
    real = group.real_object
    with ending_graph(breaks.RAISES, name_of_call(function), ValueError):  # a group that was left
        place = distributed.get_rank(real) if isinstance(real, distributed.ProcessGroup) else -1
    if place < 0:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} in what is no group of this process's")
    return real_of(tx, group)


def _is_left_out(function: types.FunctionType, given: dict[str, Value]) -> bool:
    """Whether the group is what `new_group` gives a process that is not in it: eager's function warns of that alone."""
    group = given.get("group", ConstVal(None))
    nobody = sys.modules[C10D].GroupMember.NON_GROUP_MEMBER
    # `broadcast` asks the group for its source before; a deprecated name warns of that, too
    return group.is_const() and group.const() == nobody and not ("src" in given or hasattr(function, "__deprecated__"))


def _warn_left_out(function: types.FunctionType, tx: Tracer) -> Value:
    distributed, call = sys.modules[C10D], _WRITING[function.__name__]
    nothing = torch.empty(0, device="cpu")
    named = {call.reads: nothing, call.writes: [nothing] if function.__name__ == "all_gather" else nothing}
    warns = functools.partial(function, **named, group=distributed.GroupMember.NON_GROUP_MEMBER)
    rank = tx.call(tx.from_real(distributed.get_rank), [], {}).const()
    text = f"Running {function.__name__} on global rank {rank} which does not belong to the given group."
    warns_through(tx, warns, text, UserWarning)
    return ConstVal(None)


def _in_memory_order(tx: Tracer, tensor: Value) -> Value:
    """A view of what a collective sends and writes, of which eager's takes the elements in the order of the memory. One
    without gaps is contiguous then."""
    if not isinstance(tensor, TensorVal) or tensor.fake.is_contiguous():
        return tensor
    strides = tensor.fake.stride()
    if any(map(is_symbolic, strides)):
        return tensor
    order = sorted(range(len(strides)), key=strides.__getitem__, reverse=True)
    return tx.torch_op("call_method", "permute", [tensor, *map(tx.from_real, order)], {})


def not_coalesced(tx: Tracer, function: types.FunctionType) -> None:
    """In a block whose collectives are made together at its end, they are nothing of the graph's."""
    module = sys.modules[C10D]
    blocks = AttrSource(AttrSource(ConstSource(module, C10D), "_world"), "_pg_coalesce_state")
    count = len(module._world._pg_coalesce_state)
    tx.guard(blocks, "LEN", count)
    if count:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} in a block that makes collectives together")


def name_of_call(function: types.FunctionType) -> str:
    return f"torch.distributed.{function.__name__}()"


def sent_by(tx: Tracer, function: types.FunctionType, sent: Value, out: Sequence[Value]) -> Value:
    """What is sent, if all tensors are such that just their elements, in their order, are read and written."""
    for each in (sent, *out):
        if not isinstance(each, TensorVal) or not each.fake.is_contiguous() or each.fake.is_complex():
            raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} of what is not contiguous, or complex")
        if (each.fake.dtype, each.fake.device) != (sent.fake.dtype, sent.fake.device):
            raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} between dtypes or devices")
        if each.fake.requires_grad and torch.is_grad_enabled() and out:  # autograd warns in backward, or raises
            raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} of a tensor that requires grad")
    return tx.torch_op("call_method", "detach", [sent], {}) if sent.fake.requires_grad else unfolded(tx, sent)


def unfolded(tx: Tracer, sent: Value) -> Value:
    """A tensor made of known numbers, copied where nothing is known: torch's tracing runs what it knows all arguments
    of, and a process that traces would communicate while another one doesn't."""
    if not isinstance(sent, TensorVal) or getattr(sent.fake, "constant", None) is None:
        return sent
    size = tx.new_tuple([*map(tx.from_real, sent.fake.shape)], torch.Size)
    known = {"dtype": tx.from_real(sent.fake.dtype), "device": tx.from_real(sent.fake.device)}
    copied = tx.torch_op("call_function", torch.empty, [size], known)
    return tx.torch_op("call_method", "copy_", [copied, sent], {})


def _more(tx: Tracer, function: types.FunctionType, given: dict[str, Value], group: Any) -> list[Value]:
    """The operator's arguments between the tensor and the group."""
    name, size = _WRITING[function.__name__].op, sys.modules["torch.distributed"].get_world_size(group)
    if name == "broadcast":
        place = given.get("group_src") or given.get("src")
        if place is None or ("group_src" in given and "src" in given):
            raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} without a source, or with two")
        source = real_of(tx, place)
        distributed = sys.modules["torch.distributed"]
        return [ConstVal(source if "group_src" in given else distributed.get_group_rank(group, source))]
    if name == "all_to_all_single":
        return [_split_sizes(tx, function, given, which, size) for which in ("output_split_sizes", "input_split_sizes")]
    if name == "all_gather_into_tensor":
        return [ConstVal(size)]
    op = operation_of(tx, function, given)
    if name == "all_reduce":
        return [op]
    if not given["input"].fake.dim() or given["input"].fake.shape[0] % size:
        raise GraphBreak(breaks.OP_RAISES, f"{name_of_call(function)} of what is not divided equally")
    return [op, ConstVal(size)]


def _split_sizes(tx: Tracer, function: types.FunctionType, given: dict[str, Value], which: str, size: int) -> Value:
    """How many rows go to each of `size` processes, or come from it."""
    sizes, rows = given.get(which), given["input"].fake.shape[0]
    if sizes is not None and not (sizes.is_const() and not sizes.const()):
        return sizes
    if not decide(tx.graph, bool, rows % size == 0):
        raise GraphBreak(breaks.OP_RAISES, f"{name_of_call(function)} of rows that are not divided equally")
    return tx.new_list([tx.from_real(rows // size)] * size)


def receive(tx: Tracer, function: types.FunctionType, found: Value, made: Exchange) -> None:
    """Copy what came into the program's tensors, which have to be of its shape: a copy would repeat a smaller one."""
    parts, shape, out = [found], found.fake.shape, made.out
    if function.__name__ == "all_gather":
        shape = made.sent.fake.shape
        size = tx.new_tuple([tx.from_real(len(out)), *map(tx.from_real, shape)], torch.Size)
        parts = tx.unpack(tx.torch_op("call_method", "view", [found, size], {}))
    if len(parts) != len(out) or any(each.fake.shape != shape for each in out):
        raise GraphBreak(breaks.OP_RAISES, f"{name_of_call(function)} into what has another shape")
    for each, part in zip(out, parts, strict=True):
        tx.torch_op("call_method", "copy_", [each, part], {})


@functools.cache
def _warns(name: str, text: str) -> Callable[[], None]:
    """What warns as torch's deprecated function does, from the same line of torch's."""
    logger = importlib.import_module("torch.distributed.c10d_logger")

    def nothing() -> None: ...

    nothing.__name__ = name
    warns: Callable[[], None] = logger._exception_logger(deprecated(text, category=FutureWarning)(nothing))
    return warns


class WorkVal(Value):
    """What `async_op=True` gives: in the graph the result is there."""

    answers: tuple[str, ...] = ("wait", "is_completed", "is_success")

    def __init__(self, tensors: Sequence[Value]) -> None:
        self.tensors = tensors

    def py_type(self) -> type:
        return sys.modules["torch.distributed"].Work  # type: ignore[no-any-return]

    def getattr(self, tx: Tracer, name: str) -> Value:
        return BoundMethod(self, name) if name in self.answers else super().getattr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if name not in self.answers:
            return super().call_method(tx, name, args, kwargs)
        self.wait(tx)
        return ConstVal(True)

    def wait(self, tx: Tracer) -> None:
        """The result is there."""

    def children(self) -> Sequence[Value]:
        return self.tensors

    def rebuild(self, out: Any) -> None:
        out.done.add(id(self))
        out.call_const(finished_work, lambda: [out.push(tensor) for tensor in self.tensors], len(self.tensors))


def finished_work(*tensors: torch.Tensor) -> Any:
    """In generated code: the handle of a collective whose result is there."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(list(tensors))
    make: Any = torch._C._distributed_c10d
    return make._create_work_from_future(future)


def operation_of(tx: Tracer, function: types.FunctionType, given: dict[str, Value]) -> Value:
    """The functional collectives' name of what reduces."""
    names, default = sys.modules[MODULE].REDUCE_OP_TO_STR, sys.modules["torch.distributed"].ReduceOp.SUM
    real = real_of(tx, given["op"]) if "op" in given else default
    if not isinstance(real, type(default)) or real not in names:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} with an operation that has no functional form")
    return ConstVal(names[real])


def peer_of(tx: Tracer, function: types.FunctionType, given: dict[str, Value], group: Any, name: str) -> int:
    """Another process's rank in the group: `name` is the argument with its rank among all processes."""
    named = [(each, given[each]) for each in (name, f"group_{name}") if each in given]
    known = [(each, real_of(tx, value)) for each, value in named]
    found = [(each, rank) for each, rank in known if rank is not None]
    if len(found) != 1:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} with no other process, or with two")
    ((each, rank),) = found
    if each != name:
        return int(rank)
    return int(sys.modules["torch.distributed"].get_group_rank(group, rank))


def wants_handle(tx: Tracer, given: dict[str, Value], name: str = "async_op") -> bool:
    """Whether the program asks for what it may wait with."""
    return name in given and bool(real_of(tx, given[name]))


def _name_of(tx: Tracer, group: Value) -> str:
    """The name of the group of processes, which the group keeps for as long as it lives."""
    if group.is_const() and type(group.const()) is str:
        return str(group.const())
    parts = group.values(tx) if isinstance(group, TupleVal) else [group]
    real = [real_of(tx, part) for part in parts]
    name = importlib.import_module(MODULE)._resolve_group_name(tuple(real) if isinstance(group, TupleVal) else real[0])
    return str(name)


def real_of(tx: Tracer, value: Value) -> Any:
    """The object that an argument is, guarded.

    Raises:
        GraphBreak: it was made while tracing, and is no constant.
    """
    if value.is_const():
        return value.const()
    if value.real_object is None or value.source is None:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{value.describe()} as a group of processes")
    real = value.real_object
    if type(real) is getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None):
        # a part of a mesh (`mesh["tp"]`) is another object each time
        tx.guard(value.source, "PREDICATE", functools.partial(_same_mesh, real), f"is {real}")
    else:
        tx.guard(value.source, "ID", real)
    return real


def _same_mesh(expected: Any, found: Any) -> bool:
    """Whether meshes lie over the same processes, with the same groups: equal ones may have groups of their own."""
    if found is expected:
        return True
    same = type(found) is type(expected) and found == expected
    return same and getattr(found, "_dim_group_names", None) == getattr(expected, "_dim_group_names", None)


@models_of_named(C10D, "_WorldMeta.WORLD")
def _world(function: object, tx: Tracer, cls: Value) -> Value:
    """`torch.distributed.group.WORLD`."""
    real = cls.real()
    return tx.wrap(_world_of(real), CallSource(ConstSource(real, "torch.distributed.group"), _world_of, "{}.WORLD"))


def _world_of(cls: Any) -> Any:
    return cls.WORLD
