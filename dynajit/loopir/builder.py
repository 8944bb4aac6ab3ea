"""What a lowering builds with: new computed tensors, elements of tensors seen through views, reductions.

In:  `View`s and the fake result of the op being lowered (`out`).
Out: `View`s; the tensors made are appended to the program in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.loopir import nodes
from dynajit.loopir.build import apply, convert, number
from dynajit.loopir.index import Atom, Axis, Index, axis, constant, contiguous_strides, linearise, substitute, unravel
from dynajit.loopir.nodes import (
    Origin,
    Pointwise,
    Program,
    Reduction,
    Scalar,
    Scan,
    Scatter,
    Shape,
    View,
    axes_for,
    axis_of,
)
from dynajit.loopir.one_hot import only_element
from dynajit.loopir.ops import STORED, SUPPORTED
from dynajit.loopir.registry import NotLowered
from dynajit.loopir.size import hint_of
from dynajit.op_facts import compute_dtype

Number = bool | int | float
Body = Callable[..., Scalar]


class Builder:
    """The state of lowering one graph: the program so far, and the node at hand (`out`: its fake result, `origin`)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.out: Any = None
        self.takes_first = False  # whether the op may write over its first argument
        self.origin = Origin("", "")
        self.eager_rounding = False
        # Calls an operator of the library: its results, given the shapes and dtypes that they have.
        self.call: Callable[..., tuple[View, ...]] = _no_calls
        self.sorted: dict[Any, Any] = {}  # what `lower_segments.py` knows of tensors of indices
        self._count = 0
        self.order = 0

    # ---- reading

    def element(self, value: View, axes: Sequence[Index]) -> Scalar:
        """The element of `value`, broadcast to the axes."""
        if not isinstance(value, View):
            raise NotLowered("a number in the place of a tensor")
        return nodes.read(value.root, position_at(value, axes))

    def argument(self, x: View | Number, axes: Sequence[Index], dtype: torch.dtype, exact: bool = False) -> Scalar:
        """A tensor's element or a number, converted to `dtype` and then to its compute dtype. Numbers and
        tensors without dimensions that are `exact` are not rounded to bfloat16 or float16 on the way."""
        if isinstance(x, View) and (x.shape or not exact):
            return convert(convert(self.element(x, axes), dtype), compute_dtype(dtype))
        if isinstance(x, View):
            return convert(self.element(x, axes), compute_dtype(dtype))
        return number(x, compute_dtype(dtype)) if exact else convert(number(x, dtype), compute_dtype(dtype))

    # ---- making tensors

    def name(self, prefix: str = "t") -> str:
        """A name no other tensor of the program has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def pointwise(
        self, shape: Sequence[int], body: Callable[[tuple[Index, ...]], Scalar], stride: Shape | None = None
    ) -> View:
        """A new tensor whose element at `axes` is `body(axes)`."""
        shape = tuple(shape)
        axes = axes_for(shape)
        scalar = body(axes)
        return self._computed(Pointwise, shape, stride, scalar.dtype, body=scalar)

    def _computed(
        self, made: type[nodes.Tensor], shape: Shape, stride: Shape | None, dtype: torch.dtype, /, **fields: Any
    ) -> View:
        """The next tensor of the program, with the fields of its class."""
        self.order += 1
        tensor = made(self.name(), shape, stride or contiguous_strides(shape), dtype, self.order, self.origin)
        for name, value in fields.items():
            setattr(tensor, name, value)
        self.program.items.append(tensor)
        return whole(tensor)

    def result(self, body: Callable[[tuple[Index, ...]], Scalar], moved: bool = False) -> View:
        """A new tensor with the shape, strides and dtype of the op's fake result. `moved`: nothing is computed, so it
        may have any dtype that can be stored."""
        dtype = self.out.dtype if moved and self.out.dtype in STORED else check_dtype(self.out.dtype)
        return self.pointwise(self.out.shape, lambda axes: convert(body(axes), dtype), dense_stride(self.out))

    def elementwise(
        self, function: Body, *args: View | Number, dtype: torch.dtype | None = None, exact: int = -1
    ) -> View:
        """`function` on the arguments, broadcast to the result's shape, in the compute dtype of `dtype` (default: the
        result's dtype). `exact` is the place of the argument that is exact in the sense of `argument`."""
        kind = check_dtype(dtype or self.out.dtype)
        return self.result(
            lambda axes: function(*(self.argument(arg, axes, kind, exact == i) for i, arg in enumerate(args)))
        )

    def map(self, function: Body, *args: View | Number, dtype: torch.dtype, shape: Sequence[int] | None = None) -> View:
        """An intermediate: `function` on the broadcast arguments, all as `dtype`."""
        if shape is None:
            shape = broadcast(*(arg.shape for arg in args if isinstance(arg, View)))
        return self.pointwise(shape, lambda axes: function(*(self.argument(arg, axes, dtype) for arg in args)))

    def reduce(self, kind: str, x: View, dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> View:
        """`x` (converted to `dtype`) combined over `dims`."""
        rank = len(x.shape)
        reduced = {dim % rank for dim in dims} if dims and rank else set(range(rank))
        if all(x.shape[dim] == 1 for dim in reduced):
            return self._reduce_nothing(kind, x, reduced, keepdim, dtype)
        only = only_element(x, *reduced) if kind == "sum" and len(reduced) == 1 and keepdim else None
        if only is not None:
            return self.pointwise(
                [1 if i in reduced else n for i, n in enumerate(x.shape)], lambda axes: convert(only, dtype)
            )
        kept_shape = [1 if i in reduced else size for i, size in enumerate(x.shape)]
        shape = tuple(kept_shape) if keepdim else tuple(size for i, size in enumerate(x.shape) if i not in reduced)
        outer = iter(axes_for(shape))
        inner: list[Index] = []
        where: list[Index] = []
        for i, size in enumerate(x.shape):
            if i in reduced:
                inner.append(axis(f"r{i}", size))
                where.append(inner[-1])
                if keepdim:
                    next(outer)
            else:
                where.append(next(outer))
        kept = tuple(i not in reduced for i in range(rank))
        body, place = convert(self.element(x, where), dtype), tuple(where)
        fields = {"kind": kind, "inner": tuple(inner), "body": body, "place": place, "bounds": ()}
        return self._computed(Reduction, shape, None, dtype, **fields, domain=x.shape, outer_mask=kept)

    def sum_between(
        self,
        shape: Sequence[int],
        bounds: Callable[[tuple[Index, ...]], tuple[Scalar, Scalar]],
        length: int,
        body: Callable[[tuple[Index, ...], Index], Scalar],
        dtype: torch.dtype,
    ) -> View:
        """For each point of the shape the sum of `body` at the numbers, below `length`, from one bound to the other."""
        shape = tuple(shape)
        axes, along = axes_for(shape), axis("r0", length)
        value, domain, kept = convert(body(axes, along), dtype), (*shape, length), (*(True for _ in shape), False)
        fields = {"kind": "sum", "inner": (along,), "body": value, "place": (*axes, along), "bounds": bounds(axes)}
        return self._computed(Reduction, shape, None, dtype, **fields, domain=domain, outer_mask=kept)

    def scan(self, kind: str, x: View, dim: int) -> View:
        """`x` combined along `dim` up to each place: the op's result."""
        dtype = check_dtype(self.out.dtype)
        shape = tuple(self.out.shape)
        body = convert(self.element(x, axes_for(shape)), dtype)
        return self._computed(Scan, shape, dense_stride(self.out), dtype, kind=kind, dim=dim, body=body)

    def scatter(
        self,
        kind: str,
        base: View,
        domain: Sequence[int],
        at: Callable[[tuple[Index, ...]], Sequence[Scalar]],
        body: Callable[[tuple[Index, ...]], Scalar],
    ) -> View:
        """`base`, a tensor that nothing else reads, with `body` combined into the elements `at` for all of `domain`."""
        root = base.root
        domain = tuple(domain)
        inner = tuple(axis(f"s{i}", size) for i, size in enumerate(domain))
        places, value = tuple(at(inner)), convert(body(inner), root.dtype)
        fields = {"kind": kind, "base": root, "inner": inner, "domain": domain, "at": places, "body": value}
        return self._computed(Scatter, root.shape, root.stride, root.dtype, **fields)

    def _reduce_nothing(self, kind: str, x: View, reduced: set[int], keepdim: bool, dtype: torch.dtype) -> View:
        """The combination of single elements. A sum starts at 0.0, which makes 0.0 of -0.0; what is not finite has no
        distance to itself."""
        shape = [size for dim, size in enumerate(x.shape) if keepdim or dim not in reduced]
        flat = self.reshape(x, shape)
        zero = number(0, dtype)
        single = {"sum": lambda a: apply("add", a, zero), "squared_deviations": lambda a: apply("sub", a, a)}
        return self.map(single.get(kind, lambda a: a), flat, dtype=dtype)

    def as_result(self, value: View, out: Any = None) -> View:
        """`value` in the shape, strides and dtype of the fake result: itself, or a conversion of it."""
        out = self.out if out is None else out
        stride = dense_stride(out)
        if value.dtype is out.dtype and value.root.stride == stride and value.whole:
            return value
        dtype = check_dtype(out.dtype)
        return self.pointwise(out.shape, lambda axes: convert(self.element(value, axes), dtype), stride)

    # ---- views

    def view(self, value: View, shape: Sequence[int], where: Callable[[tuple[Index, ...]], Sequence[Index]]) -> View:
        """`value` seen in another shape; `where` gives the position in `value` of the element at the new axes."""
        shape = tuple(shape)
        return View(value.root, position_at(value, where(axes_for(shape))), shape)

    def reshape(self, value: View, shape: Sequence[int]) -> View:
        """`value`'s elements in row-major order in another shape."""
        if tuple(shape) == value.shape:
            return value
        strides = contiguous_strides(shape)
        return self.view(value, shape, lambda axes: unravel(linearise(axes, strides), value.shape))


def _no_calls(*_: Any) -> tuple[View, ...]:
    raise NotLowered("calls of operators")


def broadcast(*shapes: Shape) -> Shape:
    """The shape all shapes broadcast to."""
    rank = max(len(shape) for shape in shapes)
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                result[i] = size
    return tuple(result)


def whole(tensor: nodes.Tensor) -> View:
    """The tensor itself as a value."""
    return View(tensor, tensor.axes, tensor.shape)


def position_at(value: View, axes: Sequence[Index]) -> tuple[Index, ...]:
    """Where in the root the element of `value` at `axes` is; `value` is broadcast."""
    own = axes_for(value.shape)
    if len(axes) > len(own):
        axes = axes[len(axes) - len(own) :]
    replace: dict[Atom, Index] = {}
    for mine, at in zip(own, axes, strict=True):
        atom = axis_of(mine)
        if atom is not None and mine is not at:
            replace[atom] = at
    if not replace:
        return value.position
    return tuple(substitute(index, replace) for index in value.position)


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype, if kernels can have it."""
    if dtype not in SUPPORTED:
        raise NotLowered(f"dtype {dtype}")
    return dtype


def dense_stride(fake: Any) -> Shape:
    """The strides of a fake tensor if its elements fill the memory without overlap, else row-major ones."""
    shape, stride = tuple(fake.shape), tuple(fake.stride())
    expected = 1
    pairs = [(step, size) for step, size in zip(stride, shape, strict=True) if size != 1]
    for step, size in sorted(pairs, key=lambda pair: (hint_of(pair[0]), hint_of(pair[1]))):
        if step != expected:
            return contiguous_strides(shape)
        expected *= size
    return stride


def affine(value: View) -> tuple[Shape, int] | None:
    """Strides and offset of `value` over its root's memory; None where no strides give it."""
    address = linearise(value.position, value.root.stride)
    strides = dict.fromkeys(range(len(value.shape)), 0)
    index_of = {axis_of(mine): i for i, mine in enumerate(axes_for(value.shape)) if axis_of(mine) is not None}
    for atom, coefficient in address.terms:
        dim = index_of.get(atom) if isinstance(atom, Axis) else None
        if dim is None:
            return None
        strides[dim] = coefficient
    return tuple(strides.values()), address.constant


__all__ = [
    "Builder",
    "NotLowered",
    "affine",
    "apply",
    "check_dtype",
    "constant",
    "dense_stride",
    "position_at",
    "whole",
]
