"""Products of large matrices as Triton functions, with what is done to their results: where a result costs more to
write and read than to compute; and for max-autotune, which times them against a library's product and kernels, also
with what is done to the matrices before (`prologue.py`).

In:  a call of `mm`, `addmm`, `bmm`, `baddbmm` or `_grouped_mm`, and the kernel that alone reads its result.
Out: `product_of(extern)`: what is multiplied, or None; `ways(product, kernel)`: functions that do it all;
     `usual(product, kernel)`: the one to take without timing, where `memory_binds` and it `pays`.
One more size of tiles: a line in `CUTS`. One more operator: a case in `product_of`.

Programs stay for many tiles. On GPUs of compute capability 9.0 tiles are copied by the hardware, by descriptors that
each program makes. What the kernel does is printed as for any pointwise kernel, on a tile that is still in registers:
- tiles that it reads beside the result are asked for before the sum, and arrive while it is computed;
- halves are rounded by machine code. Triton computes on the tile as the product's instructions leave it up to the last
  conversion that it sees: each thread would load a few elements of what varies along columns, many times over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from dynajit.codegen.triton import functions
from dynajit.codegen.triton.printer import PrintedTriton, Printer, Scope
from dynajit.codegen.triton.prologue import TilePrinter
from dynajit.codegen.triton.tiling import MULTIPROCESSORS, Tile, ceil_div, power_of_two
from dynajit.loopir.builder import affine
from dynajit.loopir.index import contiguous_strides, linearise
from dynajit.loopir.nodes import Extern, Tensor, View, axes_for, axis_of
from dynajit.schedule.fuse import Group
from dynajit.schedule.kernel import Kernel, Load, Section, Store, load

aten = torch.ops.aten

# Multiplications from which on a product is worth timing.
LARGE = 1 << 30
# Neighbouring tiles that share rows of the first matrix and columns of the second while they are in the cache.
TOGETHER = 8
_ROUNDED = {torch.bfloat16: "dj_round_bf16", torch.float16: "dj_round_f16"}
_HALF = tuple(_ROUNDED)
# Memory binds products of at most so many steps whose result has at least so many bytes: on an H200, nine of a
# ResNet-50 with a norm, an addition and a ReLU took 0.6 to 0.95 of the time that the library's and a kernel need at
# least; three with longer sums took 0.98 to 1.08.
SHORT_SUM, MANY_BYTES = 512, 8 << 20
# Tensors as large as the result that are held in registers beside it.
MAX_READ = 2
# Groups whose ends each program holds in registers.
MAX_GROUPS = 1024
# Which operand a name in a kernel's text is, and where its tile begins.
_SIDES = {"left": "a", "right": "b"}
_PLACES = (("down", "step"), ("step", "across"))
_GROUPED = aten._grouped_mm.default if hasattr(aten, "_grouped_mm") else None  # older releases have none


@dataclass(frozen=True, slots=True)
class Operand:
    """A vector, a matrix, or a batch of them, in a tensor's memory."""

    tensor: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Product:
    """bias + a @ b, stored in `result`, whose rows lie one after the other. Of a batch of matrices all have three
    dimensions; a bias that is the same for several elements has strides of 0."""

    a: Operand
    b: Operand
    bias: Operand | None
    result: Tensor
    ends: Operand | None = None  # of groups of rows of `a`, each of which has its matrix in the batch `b`

    @property
    def sizes(self) -> tuple[int, ...]:
        """Matrices if there is a batch of them, rows, columns."""
        return (*self.a.shape[:-1], self.b.shape[-1])

    @property
    def read(self) -> frozenset[Tensor]:
        """What the product is made of."""
        return frozenset(part.tensor for part in (self.a, self.b, self.bias, self.ends) if part is not None)

    @property
    def length(self) -> int:
        """What is summed over."""
        return self.a.shape[-1]

    def __str__(self) -> str:
        parts = (self.a, self.b, self.bias, self.ends)
        return f"{[(p.shape, p.stride, p.offset) for p in parts if p is not None]} {self.result.dtype}"


@dataclass(frozen=True, slots=True)
class Cut:
    """Sizes of tiles: rows, columns, and how much is multiplied in one step."""

    rows: int
    columns: int
    length: int
    warps: int
    stages: int
    together: int = 1  # programs of one multiprocessor: one computes while the other stores


# Where memory binds. One step needs no memory for a third.
_ONE_STEP, _STEPS = Cut(128, 64, 64, 4, 2, 3), Cut(128, 64, 64, 4, 3, 3)
CUTS = (
    *(Cut(128, 256, 64, 8, 4), Cut(128, 256, 64, 8, 3), Cut(128, 128, 64, 8, 4), Cut(128, 128, 64, 4, 4)),
    *(_ONE_STEP, _STEPS),
)


def product_of(extern: Extern) -> Product | None:
    """The product that this call is, if it is large and tiles can be copied from where its operands lie."""
    if not extern.single or not isinstance(extern.results[0], Tensor) or not _sizes_known(extern):
        return None
    if extern.target is _GROUPED:
        return _grouped(extern)
    if extern.kwargs:
        return None
    if extern.target in (aten.mm.default, aten.bmm.default):
        bias, (a, b) = None, extern.args
    elif extern.target in (aten.addmm.default, aten.baddbmm.default) and len(extern.args) == 3:
        bias, a, b = extern.args
    else:
        return None
    result = extern.results[0]
    sizes = (*a.shape[:-1], b.shape[-1])
    if a.dtype not in _HALF or math.prod((*sizes, a.shape[-1])) < LARGE or result.stride != contiguous_strides(sizes):
        return None
    left, right, added = _operand(a), _operand(b), None if bias is None else _operand(bias)
    if left is None or right is None or not (_copied_in_tiles(left) and _copied_in_tiles(right)):
        return None
    if bias is not None:
        added = _for_all(added, sizes) if len(sizes) == 3 else added
        if added is None or added.shape not in (sizes, sizes[-1:]) or len(added.shape) == 2:
            return None
    return Product(left, right, added, result)


def _sizes_known(extern: Extern) -> bool:
    shapes = [value.shape for value in (*extern.args, *extern.results) if isinstance(value, (View, Tensor))]
    return all(type(size) is int for shape in shapes for size in shape)


def _grouped(extern: Extern) -> Product | None:
    """Rows of a matrix in groups, each times a matrix of its own."""
    given = {**dict(zip(("a", "b", "offs", "bias", "out_dtype"), extern.args, strict=False)), **extern.kwargs}
    a, b, offs, result = given["a"], given["b"], given.get("offs"), extern.results[0]
    assert isinstance(result, Tensor)
    if (len(a.shape), len(b.shape)) != (2, 3) or offs is None or given.get("bias") is not None:
        return None
    if a.dtype not in _HALF or result.dtype is not a.dtype or offs.dtype is not torch.int32:
        return None
    sizes = (a.shape[0], b.shape[-1])
    if math.prod((*sizes, a.shape[-1])) < LARGE or result.stride != contiguous_strides(sizes):
        return None
    left, right, ends = _operand(a), _operand(b), _operand(offs)
    if left is None or right is None or ends is None or ends.stride != (1,) or ends.shape[0] > MAX_GROUPS:
        return None
    copied = _copied_in_tiles(left) and _copied_in_tiles(right)
    return Product(left, right, None, result, ends) if copied else None


def _for_all(bias: Operand | None, sizes: tuple[int, ...]) -> Operand | None:
    """The bias of a batch of products, with an element for each of theirs."""
    if bias is None:
        return None
    missing = len(sizes) - len(bias.shape)
    stride = tuple(0 if size == 1 else step for size, step in zip(bias.shape, bias.stride, strict=True))
    return Operand(bias.tensor, sizes, (*[0] * missing, *stride), bias.offset)


def _operand(value: View) -> Operand | None:
    layout = affine(value)
    return None if layout is None else Operand(value.root, tuple(value.shape), tuple(layout[0]), layout[1])


def _copied_in_tiles(matrix: Operand) -> bool:
    """Do rows or columns lie densely, and start at multiples of 16 bytes, as the matrices of a batch do?"""
    size = matrix.tensor.dtype.itemsize
    apart = [stride for stride in matrix.stride[-2:] if stride != 1]
    starts = (*apart, *matrix.stride[:-2])
    dense = len(apart) == 1 and min(matrix.shape) > 1 and min(starts) > 0
    return dense and all(number * size % 16 == 0 for number in (*starts, matrix.offset))


def fits(product: Product, kernel: Kernel) -> bool:
    """Does the kernel read the result only at the element at hand, of a tile of rows and columns?"""
    axes = (*kernel.outer, *kernel.inner)
    if kernel.group.reduces or tuple(axis.size for axis in axes) != product.sizes:
        return False
    expected = dict(zip(axes, contiguous_strides(product.sizes), strict=True))
    return all(
        not node.address.constant and dict(node.address.terms) == expected
        for node in kernel.scalars()
        if isinstance(node, Load) and node.tensor is product.result
    )


def memory_binds(product: Product) -> bool:
    """Does it take longer to write and read the result than to compute it?"""
    *batch, rows, columns = product.sizes
    if batch or product.ends is not None or product.length > SHORT_SUM or not rows >= columns >= _STEPS.columns:
        return False
    return rows * columns * product.result.dtype.itemsize >= MANY_BYTES


def pays(product: Product, kernel: Kernel) -> bool:
    """Is one function without a doubt faster, for a product that memory binds?"""
    numel = math.prod(product.sizes)
    return sum(tensor.numel >= numel for tensor in kernel.reads if tensor is not product.result) <= MAX_READ


def usual(product: Product, kernel: Kernel) -> PrintedTriton:
    """The product and the kernel in one function, where that pays. Raises Unprintable."""
    cut = _ONE_STEP if product.length <= _ONE_STEP.length else _STEPS
    return _ProductPrinter(product, kernel, cut).printed()


def ways(product: Product, kernel: Kernel, made: Mapping[str, Kernel] | None = None) -> Iterator[PrintedTriton]:
    """The product and the kernel in one function, cut in one way after the other. `made`: kernels that compute the
    matrices "left" and "right", as parts of the function (`prologue.is_part`). Raises Unprintable."""
    for cut in CUTS:
        yield _ProductPrinter(product, kernel, cut, made or {}).printed()


def nothing_done(product: Product) -> Kernel:
    """The kernel that stores the result as it is."""
    sizes = product.sizes
    indices = axes_for(sizes)
    place, group = linearise(indices, contiguous_strides(sizes)), Group(sizes, (True,) * len(sizes))
    section = Section(stores=[Store(product.result, place, load(product.result, place))])
    axes = tuple(axis for index in indices if (axis := axis_of(index)) is not None)
    read, written = [product.result], [product.result]
    return Kernel(group, axes, (), "row", [section], read, written, [], 0, [product.result])


class _ProductPrinter(Printer):
    """The text of one function."""

    def __init__(self, product: Product, kernel: Kernel, cut: Cut, made: Mapping[str, Kernel] | None = None) -> None:
        down = (*kernel.outer, *kernel.inner)[-2]
        super().__init__(kernel, Tile(cut.columns, y=down, y_size=cut.rows, warps=cut.warps), ())
        self.product, self.cut = product, cut
        self.made = {
            name: TilePrinter(matrix, made[name], shape)
            for name, matrix, shape in self._matrices()
            if made is not None and name in made
        }
        computed = [getattr(product, _SIDES[name]) for name in self.made]
        operands = [
            o.tensor for o in (product.a, product.b, product.bias, product.ends) if o is not None and o not in computed
        ]
        operands += [tensor for part in self.made.values() for tensor in part.reads]
        others = (t for t in self.arguments if t is not product.result or t in self.written)
        tensors = dict.fromkeys((*operands, *others))
        self.arguments = {tensor: f"a{n}" for n, tensor in enumerate(tensors)}
        self.outer = Scope(2, frozenset("xyz"))
        self.before = Scope(2, frozenset("xyz"))  # the sum
        if product.ends is not None:
            self.masked.add("y")

    def printed(self) -> PrintedTriton:
        for section in self.kernel.sections:
            self._rows(section)
            self._elements(section, self.outer)
        cut = self.cut
        *batch, rows, columns = self.product.sizes
        tiles = math.prod(batch) * ceil_div(rows, cut.rows) * ceil_div(columns, cut.columns)
        programs = min(tiles, cut.together * MULTIPROCESSORS)  # groups have a few tiles more
        lines = [*self._descriptors(), *self._tile(tiles, programs), *self._axes(), *self.before.text()]
        lines += [*self._sum(), *self._result(), *self.outer.text()]
        body = "\n".join(part.text(f"{name}_tile") for name, part in self.made.items())
        body += f"@triton.jit\ndef NAME({', '.join(self.arguments.values())}):\n" + "\n".join(lines) + "\n"
        text = f"ALIGNED = tl.constexpr(True)\n{functions.with_helpers(body)}"
        return PrintedTriton(text, tuple(self.arguments), self.written, programs, cut.warps, cut.stages)

    def _descriptors(self) -> list[str]:
        lines = ["    if ALIGNED:"] if len(self.made) < 2 else []
        for name, matrix, shape in self._matrices():
            if name in self.made:
                continue
            order = (-1, -2) if matrix.stride[-1] != 1 else (-2, -1)
            size, block = [*matrix.shape[:-2], *(matrix.shape[n] for n in order)], [shape[n] for n in order]
            strides = [*matrix.stride[:-2], matrix.stride[order[0]], 1]
            block = [*[1] * (len(size) - 2), *block]
            lines.append(
                f"        {name}_d = tl.make_tensor_descriptor({self._start_of(matrix)}, {size}, {strides}, {block})"
            )
        return lines

    def _matrices(self) -> list[tuple[str, Operand, tuple[int, int]]]:
        cut = self.cut
        return [("left", self.product.a, (cut.rows, cut.length)), ("right", self.product.b, (cut.length, cut.columns))]

    def _start_of(self, operand: Operand) -> str:
        name = self.arguments[operand.tensor]
        return f"{name} + {operand.offset}" if operand.offset else name

    def _tile(self, tiles: int, programs: int) -> list[str]:
        """Which tile is next: `down` rows of tiles and `across` columns of them."""
        cut = self.cut
        if self.product.ends is not None:
            return self._tile_of_groups(self.product.ends, programs)
        *batch, rows, columns = self.product.sizes
        high, wide = ceil_div(rows, cut.rows), ceil_div(columns, cut.columns)
        loop = f"for tile in tl.range(tl.program_id(0), {tiles}, {programs}):"
        matrix = [f"        z = tile // {high * wide}", f"        place = tile % {high * wide}"]
        place = "place" if batch else "tile"
        return [
            f"    {loop}",
            *(matrix if batch else ()),
            f"        start = {place} // {TOGETHER * wide} * {TOGETHER}",
            f"        few = tl.minimum({high} - start, {TOGETHER})",
            f"        down = (start + {place} % {TOGETHER * wide} % few) * {cut.rows}",
            f"        across = {place} % {TOGETHER * wide} // few * {cut.columns}",
        ]

    def _tile_of_groups(self, ends: Operand, programs: int) -> list[str]:
        """Which tile is next: in group `z`, whose rows end at `last`. No tile has rows of two groups."""
        rows, wide = self.cut.rows, ceil_div(self.product.sizes[1], self.cut.columns)
        count, start = ends.shape[0], self._start_of(ends)
        return [
            f"    groups = tl.arange(0, {power_of_two(count)})",
            f"    ends = tl.load({start} + groups, mask=groups < {count}, other=0)",
            f"    firsts = tl.load({start} + groups - 1, mask=(groups > 0) & (groups < {count}), other=0)",
            f"    tiles = (ends - firsts + {rows - 1}) // {rows}",
            "    so_far = tl.associative_scan(tiles, 0, dj_add)",
            f"    for tile in tl.range(tl.program_id(0), tl.reduce(tiles, 0, dj_add) * {wide}, {programs}):",
            f"        place = tile // {wide}",
            f"        across = tile % {wide} * {self.cut.columns}",
            f"        z = tl.reduce(((so_far <= place) & (groups < {count})).to(tl.int32), 0, dj_add)",
            "        before = tl.reduce(tl.where(groups == z, so_far - tiles, 0), 0, dj_add)",
            f"        down = tl.reduce(tl.where(groups == z, firsts, 0), 0, dj_add) + (place - before) * {rows}",
            "        last = tl.reduce(tl.where(groups == z, ends, 0), 0, dj_add)",
        ]

    def _sum(self) -> list[str]:
        cut, length = self.cut, self.product.length
        lines = [
            f"        total = tl.full([{cut.rows}, {cut.columns}], 0.0, tl.float32)",
            f"        for step in range(0, {length}, {cut.length}):",
            *self._computed(),
        ]
        if len(self.made) == 2:
            return [*lines, "            total = tl.dot(left, right, total)"]
        lines.append("            if ALIGNED:")
        loads = []
        for (name, matrix, shape), (top, left) in zip(self._matrices(), _PLACES, strict=True):
            if name in self.made:
                continue
            turned = matrix.stride[-1] != 1
            tall = (shape[1], shape[0]) if turned else shape
            batch = f"z, {left}, {top}" if turned else f"z, {top}, {left}"
            loaded = f"{name}_d.load([{batch if len(matrix.shape) == 3 else batch.removeprefix('z, ')}])"
            if len(matrix.shape) == 3:
                loaded += f".reshape([{tall[0]}, {tall[1]}])"
            lines.append(f"                {name} = {loaded}{'.T' if turned else ''}")
            row, column = (
                f"({top} + tl.arange(0, {shape[0]}))[:, None]",
                f"({left} + tl.arange(0, {shape[1]}))[None, :]",
            )
            where = f"{row} * {matrix.stride[-2]} + {column} * {matrix.stride[-1]}"
            mask = f"({row} < {matrix.shape[-2]}) & ({column} < {matrix.shape[-1]})"
            wide = ".to(tl.int64)" if matrix.tensor.numel + matrix.offset >= 1 << 31 else ""
            if len(matrix.shape) == 3:
                where = f"z{wide} * {matrix.stride[0]} + {where}"
            loads.append(
                f"                {name} = tl.load({self._start_of(matrix)} + ({where}){wide}, mask={mask}, other=0.0)"
            )
        return [*lines, "            else:", *loads, "            total = tl.dot(left, right, total)"]

    def _computed(self) -> list[str]:
        """The tiles of matrices that are computed here."""
        lines = []
        for (name, _, _), place in zip(self._matrices(), _PLACES, strict=True):
            if name in self.made:
                given = ", ".join((*(self.arguments[tensor] for tensor in self.made[name].reads), *place))
                lines.append(f"            {name} = {name}_tile({given})")
        return lines

    def _axes(self) -> list[str]:
        """The axes' variables as the kernel's text has them."""
        cut, wide = self.cut, ".to(tl.int64)" if self.wide else ""
        lines = [
            f"        y = (down + tl.arange(0, {cut.rows})[:, None]){wide}",
            f"        x = across + tl.arange(0, {cut.columns})[None, :]",
        ]
        ends = {"y": self.sizes["y"] if self.product.ends is None else "last", "x": self.sizes["x"]}
        lines += [f"        {name}m = {name} < {end}" for name, end in ends.items() if name in self.masked]
        if len(self.product.sizes) == 3 and self.wide:
            lines.insert(0, "        z = z.to(tl.int64)")
        return lines

    def _result(self) -> list[str]:
        """The product as eager rounds it."""
        lines = []
        bias = self.product.bias
        if bias is not None:
            names = "zyx"[-len(bias.shape) :]
            used = [(name, stride) for name, stride in zip(names, bias.stride, strict=True) if stride]
            place = " + ".join(name if stride == 1 else f"{name} * {stride}" for name, stride in used) or "0"
            mask = " & ".join(f"{name}m" for name, _ in used if name in self.masked)
            mask = f", mask={mask}" if mask else ""
            lines.append(f"        total += tl.load({self._start_of(bias)} + {place}{mask}).to(tl.float32)")
        return [*lines, f"        product = total.to({functions.TYPES[self.product.result.dtype]})"]

    def _load(self, node: Load, scope: Scope) -> str:
        if node.tensor is self.product.result:
            return "product"
        if self.guards or not self._fills_tile(node):
            return super()._load(node, scope)
        name = self._fresh("early")
        self.before.put(f"{name} = {super()._load(node, self.before)}")
        return name

    def _converted(self, source: torch.dtype, target: torch.dtype, value: str) -> str:
        if target in _ROUNDED and source in (torch.float32, *_HALF):  # a float32 in a variable
            return f"{_ROUNDED[target]}({value})"
        return super()._converted(source, target, value)
