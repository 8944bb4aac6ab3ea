"""Whether loops over as many points go through memory together: kernels that read the same tensors.

In:  tensors of a group, one that might join it, and what they read. Out: `run_together`: the dimensions of all of them
can be loops of one nest, so that no place is found by a division: 95 rows of 96 and 96 rows of 95 can't. What reads
everything as it lies goes along with any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dynajit.loopir.index import contiguous_strides, linearise
from dynajit.loopir.nodes import Reduction, Tensor, axes_for, domain_of
from dynajit.loopir.size import is_symbolic


def run_together(item: Tensor, members: Iterable[Tensor], reads: Mapping[Tensor, Sequence[tuple[Tensor, Any]]]) -> bool:
    """`members`: those of the group, of which such as have fewer points count for nothing. `reads`: of each which
    tensors, and at which place of each."""
    points = math.prod(domain_of(item))
    inner: set[int] = set()  # how many points a step of a loop goes by
    for tensor in (item, *members):
        domain = domain_of(tensor)
        if is_symbolic(domain):
            return True
        if math.prod(domain) == points and not _as_it_lies(tensor, reads[tensor]):
            inner.update(math.prod(domain[at:]) for at in range(1, len(domain)))
    return all(more % less == 0 for less, more in itertools.pairwise(sorted(inner)))


def _as_it_lies(tensor: Tensor, readings: Sequence[tuple[Tensor, Any]]) -> bool:
    domain = domain_of(tensor)
    axes = tensor.place if isinstance(tensor, Reduction) else axes_for(domain)
    here = linearise(axes, contiguous_strides(domain))
    return all(
        source.numel == 1 or (position is not None and linearise(position, contiguous_strides(source.shape)) is here)
        for source, position in readings
    )
