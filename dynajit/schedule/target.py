"""What the schedule has to know of the machine that kernels run on.

In:  a device. Out: `KernelTarget`, whose methods answer the questions on which CPUs and GPUs differ; `for_device`.
One more difference between targets: a field or method here, asked for in `fuse.py` or `loops.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dynajit.loopir.size import hint_of


@dataclass(frozen=True, slots=True)
class KernelTarget:
    """A kind of machine.

    `keeps_rows`: a value needed by a later loop over the row may be kept in a local array (a GPU's kernel has the whole
    row in registers, or computes the value again).
    `joins_siblings`: what is computed from the same memory at the same points is one kernel, whether or not one needs
    the other, and so is what is too small to be worth a launch of its own.
    `forgets_broadcasts`: a cheap value of one element and others that are the same for many is computed again where it
    is read, not kept in memory.
    `stores_in_place`: what is copied to an input at the end is stored there at once where that is safe.
    `reads_first`: a kernel without reductions reads what it stores over, at each place, before it stores there; kernels
    and calls may raise for what they are given.
    `adds_up_early`: what calls gave is added up a few results at a time, for the memory that they need.
    `cuts_loops`: what is put together from pieces is computed by a loop for each.
    `spreads`: what is large and made of little, and cheap, is computed by each kernel that reads it, not stored.
    `few_rows`, `long_row`: reductions of fewer rows than the one, each longer than the other, do not fill the machine
    if a row is one worker's; 0: they do, the printer sees to it. `few_columns`, `long_column`: the same where a worker
    has neighbouring rows, for what is reduced lies across them in memory.
    """

    name: str
    keeps_rows: bool
    joins_siblings: bool = False
    forgets_broadcasts: bool = False
    stores_in_place: bool = False
    reads_first: bool = False
    cuts_loops: bool = False
    adds_up_early: bool = False
    spreads: bool = False
    few_rows: int = 0
    long_row: int = 0
    few_columns: int = 0
    long_column: int = 0

    def splits(self, rows: int, length: int, columns: bool) -> bool:
        """Is a reduction of `rows` rows of that length (`columns`: across memory) computed in pieces, by one kernel for
        the pieces and one that combines them? Such a kernel has one loop over its rows: nothing that needs its result
        a row long joins it."""
        rows, length = hint_of(rows), hint_of(length)
        if columns:
            return rows < self.few_columns and length > self.long_column
        return rows < self.few_rows and length > self.long_row


CPU = KernelTarget(
    "cpu",
    keeps_rows=True,
    stores_in_place=True,
    reads_first=True,
    cuts_loops=True,
    adds_up_early=True,
    spreads=True,
)
# Fewer rows than twice the multiprocessors leave some without work; rows up to the length fit one of them whole. Where
# rows lie across memory one program has 16 of them at least, and 512 elements of those fit it.
CUDA = KernelTarget(
    "cuda",
    keeps_rows=False,
    joins_siblings=True,
    forgets_broadcasts=True,
    stores_in_place=True,
    few_rows=256,
    long_row=16_384,
    few_columns=4096,
    long_column=512,
)


def for_device(device: torch.device) -> KernelTarget:
    """The target that computes on that device."""
    return CUDA if device.type == "cuda" else CPU
