"""Random numbers in kernels for GPUs: those that torch's own kernels would draw, and the generator is left as by them.

In/out: see `registry.py`. On CPUs, whose generator gives its numbers one after another, and for what torch's kernels
draw in ways that are not known here, the ops are the dispatcher's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dynajit.loopir import nodes, philox
from dynajit.loopir.build import apply, convert, rounded
from dynajit.loopir.builder import Builder, affine, dense_stride
from dynajit.loopir.index import Index, contiguous_strides, linearise
from dynajit.loopir.nodes import Extern, Number, Scalar, StoredTensor, View, const
from dynajit.loopir.registry import NotLowered, lowering

aten = torch.ops.aten

_SINGLE = (torch.float32, torch.float16, torch.bfloat16)
_MAX_ELEMENTS = 1 << 31
_ALIGNED = 16


@lowering(aten.native_dropout.default)
def _native_dropout(build: Builder, x: View, p: float, train: bool | None) -> tuple[View, View]:
    out, device = build.out[0], build.program.device
    numel = _numel(out)
    if train is False or not 0 < p < 1 or not _lies_as(x, out) or not _begins_aligned(build, x):
        raise NotLowered("a dropout that draws nothing, or of memory of unknown layout")
    vector = philox.dropout_vector(device, out.dtype.itemsize)
    if vector < 4 or numel % vector:
        raise NotLowered("torch's kernel draws in another order")
    draw = _draw(build, numel, vector)
    keep = rounded(1 - p, torch.float32)
    scale = const(rounded(1 / keep, torch.float32), torch.float32)
    stride = dense_stride(out)

    def kept(axes: tuple[Index, ...]) -> Scalar:
        drawn = draw(linearise(axes, stride))
        return apply("lt", drawn, const(keep, torch.float32))

    def scaled(axes: tuple[Index, ...]) -> Scalar:
        value = convert(build.element(x, axes), torch.float32)
        factor = convert(build.element(mask, axes), torch.float32)
        return convert(apply("mul", apply("mul", value, factor), scale), out.dtype)

    mask = build.pointwise(out.shape, kept, stride)
    return build.pointwise(out.shape, scaled, stride), mask


@lowering(aten.rand.default)
def _rand(build: Builder, size: Any, **options: Any) -> View:
    return _uniform_below_one(build)


@lowering(aten.rand_like.default)
def _rand_like(build: Builder, x: View, **options: Any) -> View:
    return _uniform_below_one(build)


@lowering(aten.uniform.default)
def _uniform(build: Builder, x: View, low: float = 0.0, high: float = 1.0, generator: Any = None) -> View:
    if generator is not None or (low, high) != (0, 1):
        raise NotLowered("bounds that torch's kernel computes with in ways of the compiler's choice")
    return _uniform_below_one(build)


@lowering(aten.bernoulli.p)
def _bernoulli(build: Builder, x: View, p: float = 0.5, generator: Any = None) -> View:
    if generator is not None or isinstance(p, bool) or not isinstance(p, (int, float)):
        raise NotLowered("a generator of the program's own")
    below = const(rounded(p, torch.float32), torch.float32)
    return _one_each(build, lambda drawn: apply("lt", drawn, below))


def _uniform_below_one(build: Builder) -> View:
    """From 0 on, and below 1: torch's kernels make 0 of what is 1 when it is rounded to the dtype."""
    dtype = build.out.dtype
    zero, one = const(0.0, torch.float32), const(1.0, torch.float32)

    def body(drawn: Scalar) -> Scalar:
        rounded = convert(convert(drawn, dtype), torch.float32)
        return apply("where", apply("eq", rounded, one), zero, rounded)

    return _one_each(build, body)


def _one_each(build: Builder, body: Callable[[Scalar], Scalar]) -> View:
    """`body` of the first number that a thread of its own draws for each element, of no more than there are threads."""
    out = build.out
    numel = _numel(out)
    # Several to a thread: each element's are drawn anew here for the one it takes, which is no faster than a call.
    if out.dtype not in _SINGLE or numel > philox.threads(build.program.device, numel):
        raise NotLowered("more elements than threads")
    stride = dense_stride(out)
    if stride != tuple(out.stride()):
        raise NotLowered("memory with holes")
    draw = _draw(build, numel, 1)
    return build.result(lambda axes: body(draw(linearise(axes, stride))))


def _numel(out: Any) -> int:
    numel = 1
    for size in out.shape:
        if type(size) is not int:
            raise NotLowered("how much is drawn depends on a size that varies")
        numel *= size
    if out.device.type != "cuda" or out.dtype not in _SINGLE or numel >= _MAX_ELEMENTS:
        raise NotLowered("the dispatcher draws")
    return numel


def _draw(build: Builder, numel: int, vector: int) -> Callable[[Index], Scalar]:
    """Take what so many elements need from the generator: a function from the place of one in memory to its number."""
    program, device = build.program, build.program.device
    call = philox.Draw(device, philox.increment(device, numel))
    build.order += 1
    name = build.name("draw")
    numbers = tuple(
        Number(f"{name}_{what}", (), (), torch.int64, build.order, build.origin, device)
        for what in ("seed", "offset", "seed_at", "offset_at")
    )
    program.sources.update((number.name, number) for number in numbers)
    program.items.append(Extern(call, (), {}, numbers, False, build.order, build.origin, keep_order=True))
    seed, offset, seed_at, offset_at = (nodes.read(number, ()) for number in numbers)
    state = [nodes.op("state", pair, torch.int64) for pair in ((seed, seed_at), (offset, offset_at))]

    layout = [const(size, torch.int64) for size in (vector, philox.threads(device, numel))]

    def at(element: Index) -> Scalar:
        return nodes.op("uniform", (*state, nodes.position(element), *layout), torch.float32)

    return at


def _lies_as(x: View, out: Any) -> bool:
    """Does what eager has for `x` lie in memory as the result does, without holes?"""
    if x.dtype is not out.dtype or tuple(out.stride()) != dense_stride(out) or x.shape != tuple(out.shape):
        return False
    layout = affine(x)
    stride = x.stride or (layout[0] if layout else contiguous_strides(x.shape))
    return all(a == b for size, a, b in zip(x.shape, stride, out.stride(), strict=True) if size != 1)


def _begins_aligned(build: Builder, x: View) -> bool:
    """Is it known that eager's `x` begins at a multiple of 16 bytes? Memory from torch's allocator does; a program's
    inputs and what a call gives of its arguments may begin anywhere."""
    root = x.root
    if isinstance(root, StoredTensor):
        fresh = (item for item in build.program.items if isinstance(item, Extern) and not item.aliases)
        if not any(root in item.results for item in fresh):
            return False
    layout = affine(x)
    return layout is None or (layout[1] * x.dtype.itemsize) % _ALIGNED == 0
