"""The nodes of the loop IR. All are immutable; scalar nodes are interned, so equal expressions are one object.

In:  the lowerings build them.
Out: `Program`: tensors and extern calls, in the graph's order. Tensors are in memory (`StoredTensor`), or computed
     element by element from others (`Pointwise`, `Reduction`), or others changed at places that values say (`Scatter`).
     A computed tensor's body is a scalar expression over its axes: what one element is. Where and when elements are
     computed and which are stored is the schedule's business.

The grammar of scalar expressions (checked by `verify.py`):

    Const(value, dtype) | Position(index) | Read(tensor, position, dtype) | Op(name, arguments, dtype)
        | Fetch(tensor, arguments, dtype)

`Fetch` reads where values say, not indices: its arguments are int64 expressions, one for each dimension. They have to
be inside of the tensor, which `Op("inside")` sees to.

An expression of dtype bfloat16 or float16 is a float that this dtype can hold: arithmetic is done in float32, and
`Op("convert")` rounds. One of a float of 8 bits is these bits: there is no arithmetic on them, only `Op("convert")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from dynajit.loopir.index import Axis, Index, axis
from dynajit.loopir.size import hint_of

Shape = tuple[int, ...]
CPU = torch.device("cpu")


class Tensor:
    """A tensor of the program. `stride` is how it lies in memory if it is stored. `order` counts in graph order."""

    __slots__ = ("axes", "dtype", "name", "order", "origin", "shape", "stride")

    def __init__(self, name: str, shape: Shape, stride: Shape, dtype: torch.dtype, order: int, origin: Origin) -> None:
        self.name = name
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.order = order
        self.origin = origin
        self.axes: tuple[Index, ...] = axes_for(shape)

    @property
    def numel(self) -> int:
        """How many elements."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def nbytes(self) -> int:
        """How many bytes, with the sizes at hand."""
        return hint_of(self.numel) * self.dtype.itemsize

    def __repr__(self) -> str:
        return self.name


class StoredTensor(Tensor):
    """A tensor in memory: a graph input, a constant, a result of an extern call."""

    __slots__ = ("device",)

    def __init__(
        self,
        name: str,
        shape: Shape,
        stride: Shape,
        dtype: torch.dtype,
        order: int,
        origin: Origin,
        device: torch.device,
    ) -> None:
        super().__init__(name, shape, stride, dtype, order, origin)
        self.device = device


class Number(StoredTensor):
    """An int64, or the bits of a float64, that the host knows when the plan runs: kernels are given it, not where it
    lies."""

    __slots__ = ()


class Pointwise(Tensor):
    """Element at `axes` is `body`."""

    __slots__ = ("body",)
    body: Scalar


class Scan(Pointwise):
    """Element at `axes` is `body` combined by `kind` ("sum" or "prod") over all places up to this one along `dim`.

    Sums and products of float32 are carried in float64, as in eager.
    """

    __slots__ = ("dim", "kind")
    kind: str
    dim: int


class Reduction(Tensor):
    """Element at `axes` is `body` combined over all `inner` axes by `kind` (a key of `ops.REDUCTIONS`, or a moment).

    `body` has the dtype of the tensor; sums of float32 are carried in at least float32 and may be reassociated.
    `place` is the position that (axes, inner) stands for in the tensor that is reduced, in its order of dimensions.
    With `bounds`, int64 expressions over `axes`, the only inner axis runs from the one to before the other; on GPUs.
    """

    __slots__ = ("body", "bounds", "domain", "inner", "kind", "outer_mask", "place")
    kind: str
    inner: tuple[Index, ...]
    body: Scalar
    place: tuple[Index, ...]
    bounds: tuple[()] | tuple[Scalar, Scalar]
    domain: Shape  # sizes of the reduced tensor's dimensions
    outer_mask: tuple[bool, ...]  # for each: kept (True) or reduced (False)


class Scatter(Tensor):
    """`base` with, for each point of `inner` (the axes of `domain`) in row-major order, `body` combined into the
    element at `at`: `kind` is "set" or a key of `ops.REDUCTIONS`.

    It takes over the memory of `base`, which nothing else reads. A place that is just an axis is one that no two values
    of this axis share.
    """

    __slots__ = ("at", "base", "body", "domain", "inner", "kind")
    kind: str
    base: Tensor
    inner: tuple[Index, ...]
    domain: Shape
    at: tuple[Scalar, ...]
    body: Scalar


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor comes from, for reports: the fx node's name, its op, the user's line."""

    name: str
    op: str
    line: str = ""


class Scalar:
    """A scalar expression; `dtype` is what it evaluates to."""

    __slots__ = ("dtype",)
    dtype: torch.dtype


class Const(Scalar):
    """A number."""

    __slots__ = ("value",)
    value: bool | int | float


class Position(Scalar):
    """An index as an int64 value."""

    __slots__ = ("index",)
    index: Index


class Read(Scalar):
    """The element of `tensor` at `position`."""

    __slots__ = ("position", "tensor")
    tensor: Tensor
    position: tuple[Index, ...]


class Op(Scalar):
    """`name` (a key of `ops.OPS`) applied to `arguments`."""

    __slots__ = ("arguments", "name")
    name: str
    arguments: tuple[Scalar, ...]


class Fetch(Op):
    """The element of `tensor` at the position that the arguments evaluate to. `name` is "fetch"."""

    __slots__ = ("tensor",)
    tensor: Tensor


@dataclass(slots=True)
class View:
    """What an fx node that is a tensor stands for: `root` seen through a view; element at `axes` is root's at
    `position`. `stride` is what eager's tensor has, where that is known: positions don't tell those of dimensions of
    size 1, which the user sees all the same."""

    root: Tensor
    position: tuple[Index, ...]
    shape: Shape
    stride: Shape | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""
        return self.root.dtype

    @property
    def whole(self) -> bool:
        """Is this the root itself?"""
        return self.shape == self.root.shape and self.position == self.root.axes


@dataclass(frozen=True, slots=True)
class SizeOrigin:
    """Where a symbol's value comes from: `what` is "number" (`name` is an int), "float" (it is a float), "size" or
    "stride" (of the tensor `name`, in dimension `at`)."""

    symbol: str
    what: str
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class SizedFake:
    """What lowerings see of a fake tensor with symbolic sizes."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    def stride(self) -> tuple[Any, ...]:
        """As of a tensor."""
        return self.strides

    def dim(self) -> int:
        """As of a tensor."""
        return len(self.shape)


@dataclass(slots=True)
class Extern:
    """A call through the dispatcher. Arguments are as in the fx graph with `View`s in place of nodes."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[StoredTensor | str | None, ...]
    single: bool
    order: int
    origin: Origin
    keep_order: bool = False  # random numbers, side effects: not to be exchanged with another such call
    mutates: tuple[Tensor, ...] = ()  # written in place: everything that reads the former contents comes first
    early: bool = False  # what is written is read afterwards, and nothing reads the former contents
    barrier: bool = False  # nothing moves across it
    aliases: bool = False  # a result shares memory with an argument
    holds: tuple[Tensor, ...] = ()  # what stays as it is until this has run: a collective sends it that is waited for
    origins: tuple[SizeOrigin, ...] = ()  # symbols that are known when it has run


@dataclass(slots=True)
class Program:
    """A graph in the loop IR. `outputs` holds Values, names of non-tensor values (as `NameRef`), constants."""

    name: str
    inputs: tuple[str, ...]
    device: torch.device = CPU  # of every computed tensor
    sources: dict[str, StoredTensor] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    items: list[Tensor | Extern] = field(default_factory=list)
    outputs: tuple[Any, ...] = ()
    returns: int | None = None  # how many of the outputs are the user's; the others are kept for the backward graph
    waited_for: frozenset[int] = frozenset()  # places of outputs that are handed out before the graph has run
    version_exempt: set[str] = field(default_factory=set)  # inputs whose writes autograd does not count
    size_origins: list[SizeOrigin] = field(default_factory=list)  # symbols that are known from the inputs
    size_definitions: dict[str, str] = field(default_factory=dict)  # symbols that are computed, as Python text

    @property
    def sizes_vary(self) -> bool:
        """Are there symbols besides floats?"""
        return any(origin.what != "float" for origin in self.size_origins)


@dataclass(frozen=True, slots=True)
class NameRef:
    """A value of the plan that is no tensor of the IR: an input or extern result of another type."""

    name: str


def expressions_of(tensor: Tensor) -> tuple[Scalar, ...]:
    """What a computed tensor's elements are made of."""
    if isinstance(tensor, Scatter):
        return (*tensor.at, tensor.body)
    if isinstance(tensor, Reduction):
        return (tensor.body, *tensor.bounds)
    return (tensor.body,) if isinstance(tensor, Pointwise) else ()


def scalars_in(scalar: Scalar) -> Iterator[Scalar]:
    """Each distinct node of an expression once."""
    seen = {scalar}
    todo = [scalar]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, Op):
            for argument in node.arguments:
                if argument not in seen:
                    seen.add(argument)
                    todo.append(argument)


def indices_of(node: Scalar) -> tuple[Index, ...]:
    """Those that the node itself has."""
    if isinstance(node, Read):
        return node.position
    return (node.index,) if isinstance(node, Position) else ()


def domain_of(tensor: Tensor) -> Shape:
    """The points at which a tensor's expressions are evaluated."""
    return tensor.domain if isinstance(tensor, (Reduction, Scatter)) else tensor.shape


def axes_for(shape: Sequence[int]) -> tuple[Index, ...]:
    """The axes of a tensor of that shape: shared by all tensors, so that equal positions are equal objects."""
    return tuple(axis(f"d{i}", size) for i, size in enumerate(shape))


def axis_of(index: Index) -> Axis | None:
    """The axis, if the index is just an axis."""
    if len(index.terms) == 1 and not index.constant and index.terms[0][1] == 1:
        atom = index.terms[0][0]
        return atom if isinstance(atom, Axis) else None
    return None


_interned: dict[tuple[Any, ...], Scalar] = {}


def clear() -> None:
    """Forget the interned expressions."""
    _interned.clear()


AnyScalar = TypeVar("AnyScalar", bound=Scalar)


def interned(kind: type[AnyScalar], key: tuple[Any, ...], **fields: Any) -> AnyScalar:
    """The expression of that key, which is made with these fields if there is none yet."""
    found = _interned.get(key)
    if found is None:
        found = kind()
        for name, value in fields.items():
            setattr(found, name, value)
        _interned[key] = found
    assert isinstance(found, kind)
    return found


def const(value: bool | float, dtype: torch.dtype) -> Const:
    """The number as an expression of that dtype."""
    if dtype is torch.bool:
        value = bool(value)
    elif dtype.is_floating_point:
        value = float(value)
    else:
        value = int(value)
    key = ("const", repr(value), dtype)  # repr keeps -0.0 and 0.0, 1 and True apart and nan equal to itself
    found = _interned.get(key)
    if found is None:
        found = Const()
        found.value = value
        found.dtype = dtype
        _interned[key] = found
    assert isinstance(found, Const)
    return found


def position(index: Index) -> Scalar:
    """An index as an int64 value."""
    key = ("position", index)
    found = _interned.get(key)
    if found is None:
        if not index.terms and isinstance(index.constant, int):
            return const(index.constant, torch.int64)
        found = Position()
        found.index = index
        found.dtype = torch.int64
        _interned[key] = found
    return found


def read(tensor: Tensor, at: tuple[Index, ...]) -> Read:
    """The element of `tensor` at the position `at`."""
    key = (tensor, at)
    found = _interned.get(key)
    if found is None:
        found = Read()
        found.tensor = tensor
        found.position = at
        found.dtype = tensor.dtype
        _interned[key] = found
    assert isinstance(found, Read)
    return found


def fetch(tensor: Tensor, at: tuple[Scalar, ...]) -> Scalar:
    """The element of `tensor` where the int64 expressions `at` say."""
    return interned(Fetch, ("fetch", tensor, at), name="fetch", arguments=at, dtype=tensor.dtype, tensor=tensor)


def op(name: str, arguments: tuple[Scalar, ...], dtype: torch.dtype) -> Scalar:
    """An operation without any simplification; lowerings use `build.py`."""
    key = (name, arguments, dtype)
    found = _interned.get(key)
    if found is None:
        found = Op()
        found.name = name
        found.arguments = arguments
        found.dtype = dtype
        _interned[key] = found
    return found
