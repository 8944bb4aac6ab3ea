"""Models of what one process sends to another: `send`, `recv`, `isend`, `irecv`, `batch_isend_irecv`.

In: the functions' arguments. Out: two nodes, the start where the call is and the wait where the program waits, for a
process may wait for what it gets only after it has sent what the other one waits for. A handle that a graph would have
to hand over before its `wait` ends the graph at the call: `left_unwaited` finds it when the trace is there, and the
next trace knows. Of groups of gloo's on the CPU alone: others join what is sent as a batch.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

from dynajit.graph.collective import MODULE
from dynajit.graph.point_to_point import START_RECEIVE, START_SEND
from dynajit.op_facts import is_wait
from dynajit.report import breaks
from dynajit.values.containers.sequence import ListVal
from dynajit.values.core.registry import models_of_named
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.collectives import C10D, WorkVal, group_of, name_of_call, peer_of, real_of, sent_by
from dynajit.values.tensors.tensor import TensorVal

_FUNCTIONS = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}


def left_unwaited(graph: torch.fx.Graph) -> bool:
    """Whether something is sent or received that this graph does not wait for."""
    return any(
        node.target in (START_SEND, START_RECEIVE) and not any(is_wait(user.target) for user in node.users)
        for node in graph.nodes
    )


@models_of_named(C10D, *_FUNCTIONS)
def _exchange(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    importlib.import_module(MODULE)  # the fake of the operator that waits
    given: dict[str, Value] = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    blocking, sends = function.__name__ in ("send", "recv"), "send" in function.__name__
    distributed = sys.modules["torch.distributed"]
    group = group_of(tx, function, given)
    tensor = given["tensor"]
    sent = sent_by(tx, function, tensor, [] if sends else [tensor])
    if not _is_gloo(group, sent):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} over another backend than gloo")
    if not blocking and tx.seen.handles_outlive_graphs:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)}, which is waited for outside of the graph")
    peer = peer_of(tx, function, given, group, _FUNCTIONS[function.__name__])
    if blocking and peer == group.rank():
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} to or from this process itself")
    tag = real_of(tx, given["tag"]) if "tag" in given else 0
    start = START_SEND if sends else START_RECEIVE
    more = [ConstVal(peer), ConstVal(tag), ConstVal(group.group_name)]
    with torch.no_grad():
        started = tx.torch_op("call_function", start, [sent, *more], {})
    work = PendingVal(started, None if sends else tensor)
    if not blocking:
        return work
    work.wait(tx)
    return ConstVal(None) if sends else tx.from_real(distributed.get_global_rank(group, peer))


def _is_gloo(group: Any, sent: Value) -> bool:
    device = sent.fake.device
    return device.type == "cpu" and group._get_backend(device).name() == "gloo"


@models_of_named(C10D, "batch_isend_irecv")
def _batch(function: types.FunctionType, tx: Tracer, operations: Value) -> Value:
    """Without a backend that joins them: one after the other."""
    distributed = sys.modules["torch.distributed"]
    items = tx.unpack(operations) if isinstance(operations, ListVal) else []
    if not items or any(item.py_type() is not distributed.P2POp for item in items):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} of what is no list of P2POp")
    groups = [real_of(tx, item.getattr(tx, "group")) for item in items]
    if any(group is not groups[0] for group in groups):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{name_of_call(function)} in several groups")
    made = []
    for item in items:
        real = item.getattr(tx, "op").real()
        peer = "group_dst" if real is distributed.isend else "group_src"
        given = {"group": item.getattr(tx, "group"), "tag": item.getattr(tx, "tag")}
        given[peer] = item.getattr(tx, "group_peer")
        made.append(_exchange(real, tx, item.getattr(tx, "tensor"), **given))
    return tx.new_list(made)


class PendingVal(WorkVal):
    """What `isend` and `irecv` give.

    started: what waits is given, the token or what comes. into: where the program gets what comes.
    """

    answers = ("wait",)

    def __init__(self, started: Value, into: Value | None) -> None:
        # the trace is dropped where a handle is needed that isn't waited for; one that is needed is done
        super().__init__([started])
        self.started, self.into = started, into

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs:
            self.unsupported(f"{name}() with a timeout")
        return super().call_method(tx, name, args, kwargs)

    def wait(self, tx: Tracer) -> None:
        """At the first wait what came is where the program wants it."""
        assert isinstance(self.started, TensorVal)
        if any(is_wait(user.target) for user in self.started.node.users):
            return
        with torch.no_grad():
            wait = torch.ops._c10d_functional.wait_tensor.default
            found = tx.torch_op("call_function", wait, [self.started], {})
            if self.into is not None:
                tx.torch_op("call_method", "copy_", [self.into, found], {})

    def children(self) -> Sequence[Value]:
        return [self.started, *([] if self.into is None else [self.into])]
