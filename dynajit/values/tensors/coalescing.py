"""The model of torch.distributed's block that makes its collectives together, `_coalescing_manager`.

In: the block's entry and end, and the collectives called in it. Out: what was put off is one functional operator of
lists of tensors where the block ends, waited for, and copies. Generated code can't stand inside of the block: a break
in there is lifted to the call that makes the manager.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any, NamedTuple

import torch

from dynajit.report import breaks
from dynajit.values.core.registry import builtin, models_of_named
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.polyfills import coalescing as polyfills
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.collectives import (
    C10D,
    Exchange,
    WorkVal,
    exchange_of,
    group_of,
    name_of_call,
    not_coalesced,
    receive,
    wants_handle,
)


class CoalescingBlock(NamedTuple):
    """What `tx.coalescing` is while a manager is open.

    group: whose collectives are put off. entered: whether they are by now. calls: which, with their arguments.
    """

    group: Any
    entered: bool = False
    calls: tuple[tuple[types.FunctionType, dict[str, Value]], ...] = ()

    def puts_off(self, tx: Tracer, function: types.FunctionType, given: dict[str, Value], group: Any) -> bool:
        """Whether the call is to be made at the block's end, which it is noted for."""
        if not self.entered or group is not self.group or function.__name__ not in _TOGETHER:
            return False
        if wants_handle(tx, given):
            raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} for a handle, in a block that puts it off")
        tx.journal.set_attr(tx, "coalescing", self._replace(calls=(*self.calls, (function, given))))
        return True


#: The operators of lists, of `_c10d_functional`.
_TOGETHER = {
    "all_reduce": "all_reduce_coalesced",
    "all_gather_into_tensor": "all_gather_into_tensor_coalesced",
    "all_gather_single": "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single": "reduce_scatter_tensor_coalesced",
}


@models_of_named(C10D, "_coalescing_manager")
def _manager(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    given: dict[str, Value] = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    group = group_of(tx, function, given)
    not_coalesced(tx, function)
    device = given.get("device", ConstVal(None))
    if not device.is_const() or device.const() is not None:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} for a device")
    if tx.coalescing is not None:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} in another such block")
    asynchronous = ConstVal(wants_handle(tx, given, "async_ops"))
    tx.opening()
    tx.journal.set_attr(tx, "open_levels", tx.open_levels + 1)
    tx.journal.set_attr(tx, "coalescing", CoalescingBlock(group))
    manager = tx.call(tx.from_real(sys.modules[C10D]._CoalescingManager), [], {})
    return tx.run_python(polyfills.coalescing_manager, [manager, asynchronous], {})


@builtin(polyfills.enter_block)
def _enter(tx: Tracer) -> None:
    tx.journal.set_attr(tx, "coalescing", tx.coalescing._replace(entered=True))


@builtin(polyfills.leave_block)
def _leave(tx: Tracer, asynchronous: Value) -> Value:
    block: CoalescingBlock = tx.coalescing
    made = [exchange_of(tx, function, given, block.group) for function, given in block.calls]
    if made:
        _make(tx, block, made)
    tx.journal.set_attr(tx, "open_levels", tx.open_levels - 1)
    tx.journal.set_attr(tx, "coalescing", None)
    if not made or not asynchronous.const():
        return ConstVal(None)
    return WorkVal([tensor for each in made for tensor in each.own])


def _make(tx: Tracer, block: CoalescingBlock, made: list[Exchange]) -> None:
    """All of them at once, if they differ in their tensors alone."""
    names = [_TOGETHER[function.__name__] for function, _ in block.calls]
    kinds = {
        (name, each.sent.fake.dtype, each.sent.fake.device, *(more.const() for more in each.more))
        for name, each in zip(names, made, strict=True)
    }
    if len(kinds) != 1:
        raise GraphBreak(breaks.OP_RAISES, "collectives of several kinds in a block that makes them together")
    if any(each.own is not each.out for each in made):  # whose elements gloo takes in another order then
        raise GraphBreak(breaks.SKIPPED_CALL, "what is not contiguous, in a block that makes collectives together")
    ops = torch.ops._c10d_functional
    with torch.no_grad():
        sent = tx.new_list([each.sent for each in made])
        more = [*made[0].more, ConstVal(block.group.group_name)]
        found = tx.torch_op("call_function", getattr(ops, names[0]).default, [sent, *more], {})
        parts = [tx.torch_op("call_function", ops.wait_tensor.default, [each], {}) for each in tx.unpack(found)]
        for (function, _), each, part in zip(block.calls, made, parts, strict=True):
            receive(tx, function, part, each)
