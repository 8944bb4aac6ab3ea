"""Operators for the collectives that `_c10d_functional` has none for: of lists of tensors, and to or from one process.

In: the collective's name, the tensors that are sent, tensors like those that are received, the operation that reduces
('' for none), the rank in the group to or from which it goes (-1 for none), the group's name. Out: what is received,
to be waited for by `_c10d_functional.wait_tensor`; where that is nothing, a token. The group's own collective is
called, so that a rank that runs a graph meets one that doesn't.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import torch

from dynajit.graph.collective import MODULE
from dynajit.graph.point_to_point import NAMESPACE

_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "exchange(str name, Tensor[] sent, Tensor[] like, str reduce_op, int root, str group_name) -> Tensor[]"
)


def _received(sent: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Memory for what is received, or the token."""
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in like] or [sent[0].new_empty(1)]


def _exchange(
    name: str, sent: list[torch.Tensor], like: list[torch.Tensor], reduce_op: str, root: int, group_name: str
) -> list[torch.Tensor]:
    c10d = sys.modules["torch.distributed"].distributed_c10d
    group = c10d._resolve_process_group(group_name)
    received = _received(sent, like)
    options = getattr(c10d, _OPTIONS[name])()
    options.asyncOp = True
    if reduce_op:
        names = importlib.import_module(MODULE).REDUCE_OP_TO_STR
        options.reduceOp = next(each for each, text in names.items() if text == reduce_op)
    if root >= 0:
        options.rootRank = root
    if name == "reduce":
        received[0].copy_(sent[0])
        work = group.reduce(received, options)
    elif name == "scatter":
        work = group.scatter(received, [sent] if sent else [], options)
    elif name == "gather":
        work = group.gather([received] if like else [], sent, options)
    elif name == "reduce_scatter":
        work = group.reduce_scatter(received, [sent], options)
    else:
        work = group.alltoall(received, sent, options)
    for each in received:
        torch._C._distributed_c10d._register_work(each, work)
    return received


_OPTIONS = {
    "reduce": "ReduceOptions",
    "scatter": "ScatterOptions",
    "gather": "GatherOptions",
    "reduce_scatter": "ReduceScatterOptions",
    "all_to_all": "AllToAllOptions",
}
_library.impl("exchange", _exchange, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


@torch.library.register_fake(f"{NAMESPACE}::exchange", lib=_library)  # type: ignore[untyped-decorator]
def _exchange_fake(
    name: str, sent: list[torch.Tensor], like: list[torch.Tensor], reduce_op: str, root: int, group_name: str
) -> list[torch.Tensor]:
    return _received(sent, like)


EXCHANGE = torch.ops.dynajit_c10d.exchange.default
