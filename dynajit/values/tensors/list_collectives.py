"""Models of the collectives of lists of tensors, and of those to or from one process: `reduce`, `scatter`, `gather`,
`reduce_scatter`, `all_to_all`.

In: the functions' arguments. Out: a node that starts the collective, one for each tensor that is received, which waits,
and copies into the program's tensors. One more function: a row of `_FUNCTIONS`, and its options' name and its call in
`graph/list_collectives.py`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import Any, NamedTuple

import torch

from dynajit.graph.collective import MODULE
from dynajit.graph.list_collectives import EXCHANGE
from dynajit.report import breaks
from dynajit.values.core.registry import models_of_named
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.collectives import (
    C10D,
    WorkVal,
    group_of,
    name_of_call,
    not_coalesced,
    operation_of,
    peer_of,
    sent_by,
    wants_handle,
)


class _ListCall(NamedTuple):
    """A collective's arguments: what is sent, what is received, and the process to or from which it goes."""

    reads: str
    writes: str
    root: str = ""


_FUNCTIONS = {
    "reduce": _ListCall("tensor", "tensor", "dst"),
    "scatter": _ListCall("scatter_list", "tensor", "src"),
    "gather": _ListCall("tensor", "gather_list", "dst"),
    "reduce_scatter": _ListCall("input_list", "output"),
    "all_to_all": _ListCall("input_tensor_list", "output_tensor_list"),
}


@models_of_named(C10D, *_FUNCTIONS)
def _exchange(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    importlib.import_module(MODULE)  # the fake of the operator that waits
    name, call = function.__name__, _FUNCTIONS[function.__name__]
    given: dict[str, Value] = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    group = group_of(tx, function, given)
    not_coalesced(tx, function)
    out, parts = _tensors(tx, function, given, call.writes), _tensors(tx, function, given, call.reads)
    root = _root(tx, function, given, group)
    _check(function, group, root, parts, out)
    for each in out:
        sent_by(tx, function, each, out)
    sent = [sent_by(tx, function, each, out) for each in parts]
    operation = _operation(tx, function, given)
    more = [ConstVal(each) for each in (operation, root, group.group_name)]
    with torch.no_grad():
        lists = [tx.new_list(sent), tx.new_list(out)]
        started = tx.torch_op("call_function", EXCHANGE, [ConstVal(name), *lists, *more], {})
        wait = torch.ops._c10d_functional.wait_tensor.default
        found = [tx.torch_op("call_function", wait, [each], {}) for each in tx.unpack(started)]
        for each, part in zip(out, found, strict=False):  # a token goes nowhere
            tx.torch_op("call_method", "copy_", [each, part], {})
    return WorkVal(out) if wants_handle(tx, given) else ConstVal(None)


def _tensors(tx: Tracer, function: types.FunctionType, given: dict[str, Value], name: str) -> list[Value]:
    """The argument's tensors; none where the program gives None, as processes other than the root do."""
    value = given.get(name, ConstVal(None))
    if not name.endswith("list"):
        return [value]
    if value.is_const() and value.const() is None:
        return []
    if value.py_type() is not list:
        raise GraphBreak(breaks.OP_RAISES, f"{name_of_call(function)} with {value.describe()} as {name}")
    return tx.unpack(value)


def _root(tx: Tracer, function: types.FunctionType, given: dict[str, Value], group: Any) -> int:
    """The rank in the group to or from which it goes; -1: there is none."""
    name = _FUNCTIONS[function.__name__].root
    if not name:
        return -1
    if name not in given and f"group_{name}" not in given and function.__name__ != "reduce":
        given = {**given, name: ConstVal(0)}
    with ending_graph(breaks.RAISES, name_of_call(function), ValueError):  # a process that is not in the group
        return peer_of(tx, function, given, group, name)


def _check(function: types.FunctionType, group: Any, root: int, sent: list[Value], out: list[Value]) -> None:
    """Ends the graph where eager mode may refuse what is given: a list for each process, of equal tensors."""
    call, size = _FUNCTIONS[function.__name__], sys.modules["torch.distributed"].get_world_size(group)
    for name, tensors in ((call.reads, sent), (call.writes, out)):
        expected = 1
        if name.endswith("list"):
            expected = size if root in (-1, group.rank()) else 0
        if len(tensors) != expected:
            raise GraphBreak(breaks.OP_RAISES, f"{name_of_call(function)} with {len(tensors)} tensors as {name}")
    fakes = [getattr(each, "fake", None) for each in (*sent, *out)]
    shapes = {None if fake is None else tuple(fake.shape) for fake in fakes}
    if None in shapes or (len(shapes) != 1 and function.__name__ != "all_to_all"):
        raise GraphBreak(breaks.OP_RAISES, f"{name_of_call(function)} of tensors with other shapes")
    if len({fake.dtype for fake in fakes if fake is not None}) != 1:
        raise GraphBreak(breaks.OP_RAISES, f"{name_of_call(function)} between dtypes")


def _operation(tx: Tracer, function: types.FunctionType, given: dict[str, Value]) -> str:
    if "reduce" not in function.__name__:
        return ""
    return str(operation_of(tx, function, given).const())
