"""The memory pool of CPU tensors: its bound, its use, and giving its memory back.

In:  `config.memory_pool_mb`. Out: `configure()`, called where a plan for CPUs is made; `stats()`, a `PoolStats`;
`trim()`; `allocated()`, what the process has in use with and without the pool.
The pool itself is in csrc/plan/memory_pool.cpp.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os

import torch

from dynajit import _C
from dynajit.config import config

_MB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class PoolStats:
    """What the memory pool holds, in bytes.

    `in_use` is in tensors, `kept` in memory and free, at most `bound`; `mapped` is address space. `outside` are large
    tensors of torch's own allocator made since the first compile; `peak` is the most that `in_use` and `outside` came
    to. `hits` and `misses` count requests that kept memory could serve, and those for which new pages were touched.
    """

    in_use: int
    kept: int
    bound: int
    mapped: int
    outside: int
    peak: int
    hits: int
    misses: int

    def __str__(self) -> str:
        return (
            f"{self.in_use / _MB:.1f} MB in tensors, {self.kept / _MB:.1f} MB kept (at most {self.bound / _MB:.0f}), "
            f"{self.hits} requests served from kept memory, {self.misses} from new"
        )


def configure() -> None:
    """Have the pool keep as much as the settings say."""
    _C.memory_pool_set_bound(max(0, config.memory_pool_mb) * _MB)


def stats() -> PoolStats:
    """The pool as it is now."""
    return PoolStats(**_C.memory_pool_stats())


def trim() -> None:
    """Give all free memory back to the system."""
    _C.memory_pool_trim()


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated() -> int | None:
    """Bytes allocated now: by malloc, by the pool, on the GPU. None where the C library does not tell."""
    gc.collect()
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None) if os.name == "posix" else None
    if mallinfo is None:
        return None
    mallinfo.restype = _MallInfo
    found = mallinfo()
    on_gpu = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    return int(found.uordblks + found.hblkhd + stats().in_use + on_gpu)
