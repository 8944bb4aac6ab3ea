"""The launches that one scheduled kernel becomes: one Triton function, or two where programs share rows.

In:  `schedule.loops.Kernel` and a tile.
Out: `launches(kernel, tile)`: printed functions in order, and the tensors that exist only between them.
"""

from __future__ import annotations

import dataclasses

import torch

from dynajit.codegen.triton.printer import PrintedTriton, print_kernel
from dynajit.codegen.triton.products import Product
from dynajit.codegen.triton.tiling import Tile, tile
from dynajit.loopir.index import Axis, axis, contiguous_strides, linearise
from dynajit.loopir.nodes import Op, Reduction, Scalar, Source, Tensor
from dynajit.loopir.size import hint_of
from dynajit.schedule.fuse import Group
from dynajit.schedule.loops import Kernel, Load, LoadAt, Section, load


@dataclasses.dataclass(slots=True)
class Launches:
    """Functions in order, and tensors in memory that only they use; `call` is made first, by a library."""

    printed: list[PrintedTriton]
    between: list[Source]
    call: Product | None = None


def launches(kernel: Kernel, cut: Tile, device: torch.device) -> Launches:
    """Print the kernel. Raises Unprintable."""
    if cut.pieces == 1:
        return Launches([print_kernel(kernel, cut)], [])
    rows = 1
    for outer in kernel.outer:
        rows *= outer.size
    partial = []
    for reduction, _ in kernel.sections[0].reductions:
        shape = (cut.pieces, rows)
        name = f"{reduction.name}_pieces"
        partial.append(
            Source(name, shape, contiguous_strides(shape), reduction.dtype, reduction.order, reduction.origin, device)
        )
    first = print_kernel(kernel, cut, tuple(partial))
    rest = _combining(kernel, partial, cut.pieces, rows)
    return Launches([first, print_kernel(rest, dataclasses.replace(tile(rest), pieces=1))], partial)


def _combining(kernel: Kernel, partial: list[Source], pieces: int, rows: int) -> Kernel:
    """The kernel that combines the pieces' results and does what came after the reductions."""
    along = axis("p", pieces)
    sizes = [outer.size for outer in kernel.outer]
    row = linearise([axis(outer.name, outer.size) for outer in kernel.outer], contiguous_strides(sizes))
    first = kernel.sections[0]
    reductions: list[tuple[Reduction, Scalar]] = [
        (reduction, load(tensor, along * rows + row))
        for (reduction, _), tensor in zip(first.reductions, partial, strict=True)
    ]
    sections = [Section(first.rows, first.row_stores, reductions), *kernel.sections[1:]]
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
    made.reads = list(dict.fromkeys(_loaded(made)))
    return made


def _loaded(kernel: Kernel) -> list[Tensor]:
    found: list[Tensor] = []
    todo: list[Scalar] = list(kernel.expressions())
    seen = set(todo)
    while todo:
        node = todo.pop(0)
        if isinstance(node, (Load, LoadAt)):
            found.append(node.tensor)
        if isinstance(node, Op):
            fresh = [argument for argument in node.arguments if argument not in seen]
            seen.update(fresh)
            todo.extend(fresh)
    return found
