"""Short loops that end within a vector. Compilers run what is left over one element after the other, which costs more
than all whole vectors where functions are computed; processors that can leave out lanes need one vector more.

In:  what is computed in a loop along an axis, and how many elements it has.
Out: `filled`: how many elements it is to be written for, each under a test of its number (`PADDED` in `mathlib`).
Measured with gcc 12 on AVX-512: rows of 20 to 100 elements take 0.5 to 0.9 of the time. One element that is left over
is cheaper by itself, and so are half a vector of them and rows of less than a vector that are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from dynajit.codegen.c.mathlib import inlined
from dynajit.loopir.index import Axis, Index, stride_of
from dynajit.loopir.nodes import Op, Scalar, Tensor, scalars_in
from dynajit.loopir.ops import CHECKS, OPS
from dynajit.schedule.kernel import Load

# Elements of a vector, and of a loop from which on what is left over is little.
VECTOR = 16
MAX_LENGTH = 7 * VECTOR
# These are no arithmetic of lanes.
_ELSEWHERE = frozenset({*CHECKS, "fetch", "guard"})


def filled(
    count: int,
    last: Axis,
    values: Sequence[Scalar],
    stores: Iterable[Index],
    reduces: bool,
    needs: Callable[[Scalar], frozenset[Axis | str]],
    written: Iterable[Tensor],
) -> int:
    """`count`, or that many elements if lanes that are left out pay: `stores` are the places that are written."""
    left = count % VECTOR
    if not 5 <= count <= MAX_LENGTH or left in (0, 1) or (count < VECTOR if reduces else left == VECTOR // 2):
        return count
    nodes = {node for value in values for node in scalars_in(value)}
    functions = [node for node in nodes if isinstance(node, Op) and OPS[node.name].helper and last in needs(node)]
    if not functions and not reduces:
        return count
    lanes = all(stride_of(place, last) == 1 for place in stores) and _in_lanes(nodes, last, set(written))
    return (8 if count < 8 else -(-count // VECTOR) * VECTOR) if lanes else count


def _in_lanes(nodes: set[Scalar], last: Axis, written: set[Tensor]) -> bool:
    """Is all of this arithmetic of float32, on what lies side by side or is the same for all lanes?"""
    for node in nodes:
        if node.dtype not in (torch.float32, torch.bool):
            return False
        if isinstance(node, Op) and (node.name in _ELSEWHERE or not inlined(OPS[node.name])):
            return False
        if isinstance(node, Load):
            step = stride_of(node.address, last)
            same = step == 0 and node.tensor not in written
            if node.dtype is not torch.float32 or not (same or step == 1):
                return False
    return True
