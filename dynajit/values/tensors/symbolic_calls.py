"""Models of functions on symbolic numbers: torch.sym_*, torch._check, products of sizes.

In: numbers as values, symbolic or not. Out: the result's model. Operators and functions of `math` that take numbers one
by one are in `dynajit/values/scalars/symbolic.py`.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from dynajit.report import breaks
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.registry import builtin, by_tracing, constructor, models_of
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.polyfills.sizes import broadcast_size
from dynajit.values.scalars.constant import ConstVal, is_none
from dynajit.values.scalars.symbolic import SymVal
from dynajit.values.tensors.ragged_sizes import RaggedNumber
from dynajit.values.tensors.tensor import TensorVal

_TORCH_C: Any = torch._C


@models_of(torch.sym_int, torch.sym_float, torch.sym_not, torch.sym_max, torch.sym_min, torch.sym_ite)
def _on_numbers(function: Any, tx: Tracer, *args: Value) -> Value:
    if any(isinstance(arg, TensorVal) for arg in args):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{function.__name__}() of a tensor")
    return tx.fold(function, list(args))


@builtin(torch.sym_sum)
def sym_sum(tx: Tracer, numbers: Value) -> Value:
    return tx.call(tx.from_real(sum), [numbers], {})


@builtin(math.prod, torch.Size.numel)
def prod(tx: Tracer, numbers: Value, *, start: Value | None = None) -> Value:
    total: Value = ConstVal(1) if start is None else start
    for number in tx.unpack(numbers):
        total = tx.call(tx.from_real(operator.mul), [total, number], {})
    return total


@constructor(torch.Size)
def torch_size(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    """Sizes that vary stay as they are; all else, and what torch refuses, is torch's own."""
    if len(args) == 1 and not kwargs and not args[0].is_const():
        items = tx.unpack(args[0])
        args = (tx.new_tuple(items),)  # what gives its items once has given them
        numbers = all(item.py_type() is int or isinstance(item, RaggedNumber) for item in items)
        if numbers and any(isinstance(item, (SymVal, RaggedNumber)) for item in items):
            return TupleVal(items, torch.Size)
    return tx.fold(torch.Size, list(args), kwargs)


builtin(_TORCH_C._infer_size)(by_tracing(broadcast_size))


@builtin(torch._check)
def check(tx: Tracer, condition: Value, message: Value | None = None) -> Value:
    """A promise of the user's: of data, it is checked when the graph runs, and torch's ShapeEnv may rely on it."""
    if isinstance(condition, SymVal) and condition.from_graph:
        _promise(tx, condition)
    elif condition.py_type() is not bool or not condition.truth(tx):
        raise GraphBreak(breaks.RAISES, "torch._check on a condition that does not hold, or that is no bool")
    return ConstVal(None)


def _promise(tx: Tracer, condition: SymVal) -> None:
    text = "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    text += "enhancement request to PyTorch.)"
    tx.graph.assert_promises()
    node = condition.node
    torch._check(condition.number)  # type: ignore[no-untyped-call]
    tx.graph.assume_promises()
    tx.graph.create("call_function", torch.ops.aten._assert_scalar.default, [node, text], {}, tx.node_meta(None))
    tx.graph.impure = True


@builtin(torch._check_is_size)
def check_is_size(tx: Tracer, size: Value, message: Value | None = None, *, max: Value | None = None) -> None:
    check(tx, tx.call(tx.from_real(operator.ge), [size, ConstVal(0)], {}))
    if not is_none(max):
        check(tx, tx.call(tx.from_real(operator.le), [size, max], {}))  # type: ignore[list-item]
