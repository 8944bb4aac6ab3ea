"""What the schedule has to know of the machine that kernels run on.

In:  a device. Out: `Target`, whose methods answer the questions on which CPUs and GPUs differ; `for_device`.
One more difference between targets: a field or method here, asked for in `fuse.py` or `loops.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of machine.

    `keeps_rows`: a value needed by a later loop over the row may be kept in a local array (a GPU's kernel has the whole
    row in registers, or computes the value again).
    `few_rows`, `long_row`: reductions of fewer rows than the one, each longer than the other, do not fill the machine
    if a row is one worker's; 0: they do, the printer sees to it.
    """

    name: str
    keeps_rows: bool
    few_rows: int = 0
    long_row: int = 0

    def splits(self, rows: int, length: int) -> bool:
        """Is a reduction of `rows` rows of that length computed in pieces, by one kernel for the pieces and one that
        combines them? Such a kernel has one loop over its rows: nothing that needs its result a row long joins it."""
        return rows < self.few_rows and length > self.long_row


CPU = Target("cpu", keeps_rows=True)
# Fewer rows than twice the multiprocessors leave some without work; rows up to the length fit one of them whole.
CUDA = Target("cuda", keeps_rows=False, few_rows=256, long_row=16_384)


def for_device(device: torch.device) -> Target:
    """The target that computes on that device."""
    return CUDA if device.type == "cuda" else CPU
