"""Operators for what one process sends to another: each is started by one node of a graph, and waited for by another.

In: a tensor, the other process's rank in the group, a tag, the group's name. Out: `isend` gives a token, `irecv` what
comes; both are waited for by `_c10d_functional.wait_tensor`, as functional collectives are. torch has operators of
these names since 2.13, of which what is received is written into the argument.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

NAMESPACE = "dynajit_c10d"
_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_library.define("isend(Tensor tensor, int peer, int tag, str group_name) -> Tensor")  # type: ignore[no-untyped-call]
_library.define("irecv(Tensor like, int peer, int tag, str group_name) -> Tensor")  # type: ignore[no-untyped-call]


def _group(name: str) -> Any:
    return sys.modules["torch.distributed"].distributed_c10d._resolve_process_group(name)


def _isend(tensor: torch.Tensor, peer: int, tag: int, group_name: str) -> torch.Tensor:
    token = torch.empty(1, device=tensor.device)
    _register(token, _group(group_name).send([tensor], peer, tag))
    return token


def _irecv(like: torch.Tensor, peer: int, tag: int, group_name: str) -> torch.Tensor:
    received = torch.empty_like(like, memory_format=torch.contiguous_format)
    _register(received, _group(group_name).recv([received], peer, tag))
    return received


def _register(tensor: torch.Tensor, work: Any) -> None:
    """`wait_tensor` of the tensor waits for the work, which holds what is on its way."""
    torch._C._distributed_c10d._register_work(tensor, work)


_library.impl("isend", _isend, "CPU")  # type: ignore[no-untyped-call]
_library.impl("irecv", _irecv, "CPU")  # type: ignore[no-untyped-call]


@torch.library.register_fake(f"{NAMESPACE}::isend", lib=_library)  # type: ignore[untyped-decorator]
def _isend_fake(tensor: torch.Tensor, peer: int, tag: int, group_name: str) -> torch.Tensor:
    return torch.empty(1, device=tensor.device)


@torch.library.register_fake(f"{NAMESPACE}::irecv", lib=_library)  # type: ignore[untyped-decorator]
def _irecv_fake(like: torch.Tensor, peer: int, tag: int, group_name: str) -> torch.Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


START_SEND, START_RECEIVE = torch.ops.dynajit_c10d.isend.default, torch.ops.dynajit_c10d.irecv.default
