"""The launches that one scheduled kernel becomes: one Triton function, or two where programs share rows.

In:  `schedule.loops.Kernel` and a tile.
Out: `launches(kernel, tile)`: printed functions in order, and the tensors that exist only between them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence

import torch

from dynajit.codegen.triton.printer import PrintedTriton, print_kernel
from dynajit.codegen.triton.products import Product
from dynajit.codegen.triton.tiling import Tile, tile
from dynajit.loopir.build import apply, convert, like, select
from dynajit.loopir.index import Axis, axis, contiguous_strides, linearise
from dynajit.loopir.nodes import Reduction, Scalar, StoredTensor, Tensor, scalars_in
from dynajit.loopir.ops import MOMENTS
from dynajit.loopir.size import hint_of
from dynajit.schedule.fuse import Group
from dynajit.schedule.kernel import Kernel, Load, LoadAt, Section, load, local, points_of


@dataclasses.dataclass(slots=True)
class Launches:
    """Functions in order, and tensors in memory that only they use; `call` is made first, by a library."""

    printed: list[PrintedTriton]
    between: list[StoredTensor]
    call: Product | None = None


def launches(kernel: Kernel, cut: Tile, device: torch.device) -> Launches:
    """Print the kernel. Raises Unprintable."""
    if cut.pieces == 1:
        return Launches([print_kernel(kernel, cut)], [])
    rows = 1
    for outer in kernel.outer:
        rows *= outer.size
    shape = (cut.pieces, rows)

    def pieces_of(reduction: Reduction, what: str) -> StoredTensor:
        strides, name = contiguous_strides(shape), f"{reduction.name}_{what}"
        return StoredTensor(name, shape, strides, reduction.dtype, reduction.order, reduction.origin, device)

    reductions = kernel.sections[0].reductions
    partial = {reduction: pieces_of(reduction, "pieces") for reduction, _ in reductions if reduction.kind != "mean"}
    moments = {body: reduction for reduction, body in reversed(reductions) if reduction.kind in MOMENTS}
    means = {body: pieces_of(moments[body], "means") for _, body in reductions if body in moments}
    counts = [pieces_of(reduction, "counts") for reduction in moments.values()][:1]
    between = [*partial.values(), *means.values(), *counts]
    first = print_kernel(kernel, cut, tuple(between))
    rest = _combining(kernel, partial, means, counts, cut.pieces, rows)
    return Launches([first, print_kernel(rest, dataclasses.replace(tile(rest), pieces=1))], between)


def _combining(
    kernel: Kernel,
    partial: Mapping[Reduction, StoredTensor],
    means: Mapping[Scalar, StoredTensor],
    counts: Sequence[StoredTensor],
    pieces: int,
    rows: int,
) -> Kernel:
    """The kernel that combines the pieces' results and does what came after the reductions."""
    along = axis("p", pieces)
    sizes = [outer.size for outer in kernel.outer]
    row = linearise([axis(outer.name, outer.size) for outer in kernel.outer], contiguous_strides(sizes))
    first, *after = kernel.sections
    combined = Section(first.rows, first.row_stores)

    def total(reduction: Reduction, value: Scalar) -> Scalar:
        added = copy.copy(reduction)
        added.kind = "sum"
        combined.reductions.append((added, value))
        return local(added)

    found: list[tuple[Tensor, Scalar]] = []
    off: dict[Scalar, Scalar] = {}
    for reduction, body in first.reductions:
        if reduction.kind not in MOMENTS:
            combined.reductions.append((reduction, load(partial[reduction], along * rows + row)))
            continue
        # Distances to the first piece's mean, and what that one is off the mean of all.
        near, many = load(means[body], row), convert(load(counts[0], along * rows + row), reduction.dtype)
        distance = apply("sub", load(means[body], along * rows + row), near)
        distances = apply("mul", distance, many)
        if body not in off:
            off[body] = total(reduction, distances)
        away = apply("div", off[body], like(points_of(kernel.inner), off[body]))
        if reduction.kind == "mean":
            found.append((reduction, apply("add", near, away)))
            continue
        inside = load(partial[reduction], along * rows + row)
        squared = total(reduction, apply("add", inside, apply("mul", distances, distance)))
        whole = apply("sub", squared, apply("mul", off[body], away))
        found.append((reduction, select(apply("lt", whole, like(0, whole)), like(0, whole), whole)))
    sections = [combined, dataclasses.replace(after[0], rows=[*found, *after[0].rows]), *after[1:]]
    stored = {store.tensor for section in sections for store in section.row_stores}
    group = Group((rows, pieces), (True, False), kernel.group.members)
    inner = tuple(atom for atom, _ in along.terms if isinstance(atom, Axis))
    made = dataclasses.replace(
        kernel,
        group=group,
        inner=inner,
        mode="column" if hint_of(rows) > 1 else "row",
        sections=sections,
        writes=[tensor for tensor in kernel.writes if tensor in stored],
    )
    nodes = (node for value in made.expressions() for node in scalars_in(value))
    made.reads = list(dict.fromkeys(node.tensor for node in nodes if isinstance(node, (Load, LoadAt))))
    return made
