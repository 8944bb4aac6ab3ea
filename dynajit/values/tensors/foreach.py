"""torch's `_foreach_*` operations whose lists a functional graph can't take as they are, and steps of optimizers that
are one operator, with a learning rate that varies.

In: the operation's name and arguments as values. Out: the result made of other operations, or None: it goes into the
graph as it stands. One more rule: a function called by `rewrite`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit import torch_compat
from dynajit.op_facts import FUSED_STEPS, facts, overloads_of
from dynajit.values.containers.sequence import ListVal, SequenceVal, TupleVal
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.wrapper_subclass import WrapperVal

_WITH_NUMBER = {f"_foreach_{name}": name for name in ("lerp", "lerp_", "pow")}
_FACTORED = {f"_foreach_{name}": name for name in ("addcdiv", "addcdiv_", "addcmul", "addcmul_")}


def rewrite(tx: Tracer, name: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a foreach operation is in terms of others."""
    if name in FUSED_STEPS:
        return _with_rate_in_tensor(tx, target, args, kwargs)
    if not name.startswith("_foreach_"):
        return None
    if name in _FACTORED:
        made = _tensors_as_factors(tx, _FACTORED[name], args, kwargs)
        if made is not None:
            return made
    if name in _WITH_NUMBER and not kwargs:
        made = _tensor_as_number(tx, _WITH_NUMBER[name], args)
        if made is not None:
            return made
    return _one_by_one(tx, target, args, kwargs) if facts(target).writes else None


def _tensors_as_factors(tx: Tracer, method: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """`_foreach_addcdiv_` and its like with tensors for factors, one by one; torch's optimizers call them so where they
    see a compiler."""
    factors = args[3] if len(args) == 4 and not kwargs else kwargs.get("value", kwargs.get("scalars"))
    if len(args) + len(kwargs) != 4 or len(args) < 3:
        return None
    if isinstance(factors, SequenceVal) and any(isinstance(item, TensorVal) for item in factors.values(tx)):
        each = factors.values(tx)
    elif isinstance(factors, TensorVal):
        each = tx.unpack(factors) if factors.fake.dim() else []
    else:
        return None
    columns = [_written(tx, method, tx.unpack(args[0])), *(tx.unpack(arg) for arg in args[1:3])]
    each = each or [factors] * len(columns[0])
    made = [
        tx.torch_op("call_method", method, list(row), {"value": factor})
        for *row, factor in zip(*columns, each, strict=True)
    ]
    return _result(method, args, made)


def _with_rate_in_tensor(tx: Tracer, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """A step of `fused=True` whose learning rate varies, with a tensor for it: kernels on CPUs take the number out of
    it, those on GPUs round it."""
    rate = kwargs.get("lr")
    known = [each._overloadname for each in overloads_of(target)]  # a release may lack one
    if rate is None or not rate.symbolic or len(known) < 2 or "tensor_lr" not in known:
        return None
    if any(each.fake.device.type != "cpu" for each in tx.unpack(args[0])):  # type: ignore[attr-defined]
        return None
    made = tx.torch_op("call_function", torch.scalar_tensor, [rate], {"dtype": ConstVal(torch.float64)})
    return tx.torch_op("call_function", target, args, {**kwargs, "lr": made})


def _written(tx: Tracer, method: str, items: Sequence[Value]) -> Sequence[Value]:
    """The first of an operation's lists. What such operations write of instances of wrapper subclasses autograd does
    not count, as it does what they write of tensors."""
    if not facts(method).writes:
        return items
    return [item.getattr(tx, "data") if isinstance(item, WrapperVal) else item for item in items]


def _result(method: str, args: Sequence[Value], made: Sequence[Value]) -> Value:
    """What such an operation gives the program: releases of torch differ where it writes in place."""
    if facts(method).writes:
        return args[0] if torch_compat.foreach_returns_what_it_writes() else ConstVal(None)
    return TupleVal(made)


def _tensor_as_number(tx: Tracer, method: str, args: Sequence[Value]) -> Value | None:
    """`_foreach_lerp(xs, ys, number)` and `_foreach_pow(number, xs)` with a tensor for the number, one by one."""
    lists = [arg for arg in args if isinstance(arg, SequenceVal)]
    numbers = [arg for arg in args if isinstance(arg, TensorVal) and arg.fake.dim() == 0]
    if len(numbers) != 1 or len(lists) + 1 != len(args):
        return None
    columns = [[numbers[0]] * 4096 if arg is numbers[0] else tx.unpack(arg) for arg in args]
    rows = zip(_written(tx, method, columns[0]), *columns[1:], strict=False)
    made: list[Value] = [tx.torch_op("call_method", method, list(row), {}) for row in rows]
    return _result(method, args, made)


def _one_by_one(tx: Tracer, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """An operation in place on lists that hold one memory at two positions: later positions see what earlier ones
    wrote, which a functional graph of the whole list would not."""
    written = args[0].values(tx) if args and isinstance(args[0], SequenceVal) else []
    length = len(written)
    lists = [arg.values(tx) for arg in (*args, *kwargs.values()) if isinstance(arg, SequenceVal)]
    if length < 2 or any(len(items) != length for items in lists) or not _overlap(written, lists):
        return None
    for position in range(length):
        take = _taker(tx, position)
        tx.torch_op("call_function", target, [take(arg) for arg in args], {k: take(v) for k, v in kwargs.items()})
    return _result(target.__name__, args, [])


def _taker(tx: Tracer, position: int) -> Callable[[Value], Value]:
    return lambda arg: ListVal([arg.values(tx)[position]]) if isinstance(arg, SequenceVal) else arg


def _overlap(written: Sequence[Value], lists: Sequence[Sequence[Value]]) -> bool:
    """Whether a written tensor's memory is that of a tensor at another position."""
    places: dict[object, set[int]] = {}
    for items in lists:
        for position, item in enumerate(items):
            if isinstance(item, TensorVal):
                places.setdefault(_memory(item), set()).add(position)
    return any(len(places[_memory(item)]) > 1 for item in written if isinstance(item, TensorVal))


def _memory(value: TensorVal) -> object:
    return torch_compat.memory_below(value.fake)
