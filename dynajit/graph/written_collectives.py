"""Collectives that Python code makes of what stands for tensors, as functional operators and copies.

In: calls of torch.distributed that write their result, made while a graph of the program's `autograd.Function` is
traced. Out: operators of `_c10d_functional` instead of torch's own, which take the group as an object and whose schemas
hide what they write. Without a functional form such a graph is refused: it would lose what is written.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import TorchDispatchMode

from dynajit.graph.collective import MODULE
from dynajit.graph.list_collectives import EXCHANGE

_Tensor = torch.Tensor


class FunctionalCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, collectives that write are made functional. Raises RuntimeError where one can't be."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, torch._ops.OpOverload) or func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        form = _FORMS.get(func._schema.name)
        names = (argument.name for argument in func._schema.arguments)
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        result = None if form is None else form(given)
        if result is None:
            raise RuntimeError(f"a collective has no functional form for these tensors: {func}")
        return result


def is_functional(value: Any) -> bool:
    """Whether it stands for a tensor while a functional graph is made."""
    return isinstance(value, _Tensor) and (isinstance(value, FunctionalTensor) or torch._is_functional_tensor(value))


def functionally(cls: Any) -> Any:
    """A class for tracing an `autograd.Function` whose backward makes collectives, too: they are functional ones."""
    backward = cls.backward
    if backward is torch.autograd.Function.backward:  # it has none, or `vjp`
        return cls

    @functools.wraps(backward)
    def traced(*args: Any) -> Any:
        with FunctionalCollectives():  # type: ignore[no-untyped-call]
            return backward(*args)

    return type(cls)(cls.__name__, (cls,), {"backward": staticmethod(traced)})


def _work() -> Any:
    """The handle of a collective that is waited for."""
    return torch._C._distributed_c10d.FakeWork().boxed()  # type: ignore[attr-defined]


def _group(given: dict[str, Any]) -> tuple[str, int]:
    """The name and the size of the group."""
    group = sys.modules["torch.distributed"].ProcessGroup.unbox(given["process_group"])
    return group.group_name, group.size()


def _operation(given: dict[str, Any]) -> str | None:
    names = importlib.import_module(MODULE).REDUCE_OP_TO_STR
    number = given["reduce_op"]._get_method("op")()
    return {int(each): name for each, name in names.items()}.get(number)


def _written_in_order(*tensors: _Tensor) -> bool:
    """Whether just the elements of these, in their order, are read and written: a collective knows no strides."""
    return all(each.is_contiguous() for each in tensors)


def _unfolded(sent: _Tensor) -> _Tensor:
    """torch's tracing runs what has known values alone, of one element each: a copy, of which none is known."""
    if all(type(size) is int and size == 1 for size in sent.shape):
        return torch.empty(sent.shape, dtype=sent.dtype, device=sent.device).copy_(sent)
    return sent


def _made(name: str, sent: _Tensor, *args: Any) -> _Tensor:
    ops = torch.ops._c10d_functional
    result: _Tensor = ops.wait_tensor.default(getattr(ops, name).default(_unfolded(sent), *args))
    return result


def _exchanged(name: str, sent: list[_Tensor], out: list[_Tensor], given: dict[str, Any]) -> bool:
    """Make a collective of lists, if it has a functional form."""
    operation = _operation(given) if "reduce_op" in given else ""
    if operation is None or not _written_in_order(*sent, *out):
        return False
    root = given.get("root_rank", -1)
    found = EXCHANGE(name, [_unfolded(each) for each in sent], out, operation, root, _group(given)[0])
    arrived = [torch.ops._c10d_functional.wait_tensor.default(each) for each in found]
    for each, part in zip(out, arrived, strict=False):  # a token goes nowhere
        each.copy_(part)
    return True


def _all_reduce(given: dict[str, Any]) -> Any:
    operation, (name, _) = _operation(given), _group(given)
    if operation is None or given.get("sparse_indices") is not None or len(given["tensors"]) != 1:
        return None
    given["tensors"][0].copy_(_made("all_reduce", given["tensors"][0], operation, name))
    return given["tensors"], _work()


def _broadcast(given: dict[str, Any]) -> Any:
    if len(given["tensors"]) != 1:
        return None
    given["tensors"][0].copy_(_made("broadcast", given["tensors"][0], given["root_rank"], _group(given)[0]))
    return given["tensors"], _work()


def _gathered(tensor: _Tensor, given: dict[str, Any]) -> _Tensor:
    name, size = _group(given)
    return _made("all_gather_into_tensor", tensor if tensor.dim() else tensor.view(1), size, name)


def _all_gather_base(given: dict[str, Any]) -> Any:
    out, sent = given["output_tensor"], given["input_tensor"]
    if not _written_in_order(out, sent):
        return None
    out.copy_(_gathered(sent, given).view(out.shape))
    return out, _work()


def _all_gather(given: dict[str, Any]) -> Any:
    outs, sent = given["output_tensors"], given["input_tensors"]
    if len(sent) != 1 or any(out.shape != sent[0].shape for out in outs[0]) or not _written_in_order(*sent, *outs[0]):
        return None
    parts = _gathered(sent[0], given).view(len(outs[0]), *sent[0].shape)
    for out, part in zip(outs[0], parts, strict=True):
        out.copy_(part)
    return outs, _work()


def _reduce_scatter_base(given: dict[str, Any]) -> Any:
    out, sent, operation, (name, size) = given["output_tensor"], given["input_tensor"], _operation(given), _group(given)
    if operation is None or not sent.dim() or sent.shape[0] % size or not _written_in_order(out, sent):
        return None
    out.copy_(_made("reduce_scatter_tensor", sent, operation, size, name).view(out.shape))
    return out, _work()


def _all_to_all_base(given: dict[str, Any]) -> Any:
    out, sent, (name, size) = given["output"], given["input"], _group(given)
    if not _written_in_order(out, sent):
        return None
    received = list(given["output_split_sizes"]) or [out.shape[0] // size] * size
    parts = list(given["input_split_sizes"]) or [sent.shape[0] // size] * size
    out.copy_(_made("all_to_all_single", sent, received, parts, name))
    return _work()


def _reduce(given: dict[str, Any]) -> Any:
    tensors = given["tensors"]
    return _work() if len(tensors) == 1 and _exchanged("reduce", tensors, tensors, given) else None


def _scatter(given: dict[str, Any]) -> Any:
    out, sent = given["output_tensors"], given["input_tensors"]
    return (out, _work()) if _exchanged("scatter", [*itertools.chain(*sent)], out, given) else None


def _gather(given: dict[str, Any]) -> Any:
    out, sent = given["output_tensors"], given["input_tensors"]
    return _work() if _exchanged("gather", sent, [*itertools.chain(*out)], given) else None


def _reduce_scatter(given: dict[str, Any]) -> Any:
    out, sent = given["output_tensors"], given["input_tensors"]
    return (out, _work()) if len(out) == 1 and _exchanged("reduce_scatter", sent[0], out, given) else None


def _all_to_all(given: dict[str, Any]) -> Any:
    out, sent = given["output_tensors"], given["input_tensors"]
    return (out, _work()) if _exchanged("all_to_all", sent, out, given) else None


_FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "c10d::allreduce_": _all_reduce,
    "c10d::broadcast_": _broadcast,
    "c10d::_allgather_base_": _all_gather_base,
    "c10d::allgather_": _all_gather,
    "c10d::_reduce_scatter_base_": _reduce_scatter_base,
    "c10d::alltoall_base_": _all_to_all_base,
    "c10d::reduce_": _reduce,
    "c10d::scatter_": _scatter,
    "c10d::gather_": _gather,
    "c10d::reduce_scatter_": _reduce_scatter,
    "c10d::alltoall_": _all_to_all,
}
