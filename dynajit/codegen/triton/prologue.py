"""A matrix that is multiplied, computed tile by tile where the product needs it, not by a kernel of its own before.

In:  an operand of a product, and the kernel that computes it.
Out: `is_part(operand, kernel)`: can the product's kernel do it; `TilePrinter`, whose `text` is a Triton function from a
     tile's place to the tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynajit.codegen.triton import functions
from dynajit.codegen.triton.printer import Printer
from dynajit.codegen.triton.tiling import Tile
from dynajit.loopir.index import Axis, contiguous_strides
from dynajit.loopir.nodes import Tensor
from dynajit.schedule.kernel import Kernel

if TYPE_CHECKING:
    from dynajit.codegen.triton.products import Operand


def stored_shape(operand: Operand) -> tuple[int, ...]:
    """The matrix's sizes in the order in which it lies in memory."""
    return operand.shape if operand.stride[-1] == 1 else operand.shape[::-1]


def is_part(operand: Operand, kernel: Kernel) -> bool:
    """Is all that the kernel does to compute the operand, each element by itself? The kernel's axes are those of
    `stored_shape`."""
    shape = stored_shape(operand)
    whole = len(shape) == 2 and not operand.offset and sorted(operand.stride) == [1, shape[1]]
    axes = (*kernel.outer, *kernel.inner)
    if not whole or kernel.group.reduces or tuple(axis.size for axis in axes) != shape or len(kernel.sections) != 1:
        return False
    (section,) = kernel.sections
    alone = len(section.stores) == 1 and not (section.rows or section.row_stores or section.kept or section.updates)
    if not alone or section.stores[0].tensor is not operand.tensor:
        return False
    address = section.stores[0].address
    expected: dict[object, int] = dict(zip(axes, contiguous_strides(shape), strict=True))
    return not address.constant and dict(address.terms) == expected and not kernel.checked


class TilePrinter(Printer):
    """The text of the function that computes one tile."""

    def __init__(self, operand: Operand, kernel: Kernel, shape: tuple[int, int]) -> None:
        self.turned = operand.stride[-1] != 1
        high, wide = reversed(shape) if self.turned else shape
        axes: tuple[Axis, ...] = (*kernel.outer, *kernel.inner)
        super().__init__(kernel, Tile(wide, y=axes[0], y_size=high), ())
        self.reads: tuple[Tensor, ...] = tuple(kernel.reads)
        self.operand = operand

    def text(self, name: str) -> str:
        """The function: of what the kernel reads, and of the tile's first row and column."""
        (store,) = self.kernel.all_stores()
        value = self._whole_tile(self._expression(store.value, self.outer), store.value)
        first, second = ("across", "down") if self.turned else ("down", "across")
        wide = ".to(tl.int64)" if self.wide else ""
        lines = [
            f"    y = ({first} + tl.arange(0, {self.blocks['y']})[:, None]){wide}",
            f"    x = {second} + tl.arange(0, {self.blocks['x']})[None, :]",
            *(f"    {dim}m = {dim} < {self.sizes[dim]}" for dim in "yx" if dim in self.masked),
            *self.outer.text(),
        ]
        inside = " & ".join(f"{dim}m" for dim in "yx" if dim in self.masked)
        if inside:  # what is not there adds nothing to the sum
            value = f"tl.where({inside}, {value}, 0.0)"
        tile = f"({value}).to({functions.TYPES[self.operand.tensor.dtype]})"
        given = ", ".join((*(self.arguments[tensor] for tensor in self.reads), "down", "across"))
        body = "\n".join([*lines, f"    return {f'tl.trans({tile})' if self.turned else tile}"])
        return f"@triton.jit\ndef {name}({given}):\n{body}\n"
