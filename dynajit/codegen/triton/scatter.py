"""Writing a part of a tensor where indices say, as a Triton function: `index_copy_`, by which caches grow.

In:  an extern call. Out: `print_call(extern)`: the function, or None where the call is left to torch.
One more operator: a case in `print_call`.
"""

from __future__ import annotations

import math

import torch

from dynajit.codegen.triton import functions
from dynajit.codegen.triton.printer import Printed
from dynajit.codegen.triton.tiling import ceil_div, power_of_two
from dynajit.loopir.builder import affine
from dynajit.loopir.index import contiguous_strides
from dynajit.loopir.nodes import Extern, Source, Value

aten = torch.ops.aten

_BLOCK = 512
_INT32 = 1 << 31


def print_call(extern: Extern) -> Printed | None:
    """The call as a function; its program stops where an index is outside, as torch's does."""
    if extern.target is not aten.index_copy_.default or torch.are_deterministic_algorithms_enabled():
        return None
    target, dim, index, source = extern.args
    if not isinstance(target.root, Source) or target.dtype not in functions.POINTERS or not source.shape:
        return None
    if index.dtype is not torch.int64 or len(index.shape) != 1 or 0 in source.shape or target.dtype is not source.dtype:
        return None
    layouts = [affine(value) for value in (target, index, source)]
    if any(layout is None for layout in layouts) or _reach(target) >= _INT32 or _reach(source) >= _INT32:
        return None
    (to, to_start), (along, first), (of, of_start) = (layout for layout in layouts if layout is not None)
    tensors = tuple(dict.fromkeys((target.root, index.root, source.root)))
    names = {tensor: f"a{n}" for n, tensor in enumerate(tensors)}
    count = math.prod(source.shape)
    block = min(_BLOCK, max(32, power_of_two(count)))
    dim %= len(source.shape)
    places = [
        f"e // {step} % {size}" if at else f"e // {step}"
        for at, (step, size) in enumerate(zip(contiguous_strides(source.shape), source.shape, strict=True))
    ]
    read = " + ".join([str(of_start), *(f"c{at} * {stride}" for at, stride in enumerate(of))])
    written = " + ".join([str(to_start), *(f"c{at} * {stride}" for at, stride in enumerate(to) if at != dim)])
    lines = [
        f"e = tl.program_id(0) * {block} + tl.arange(0, {block})",
        f"m = e < {count}",
        *(f"c{at} = {place}" for at, place in enumerate(places)),
        f"at = tl.load({names[index.root]} + {first} + c{dim} * {along[0]}, m, other=0)",
        f"dj_refuse((at < 0) | (at >= {target.shape[dim]}))",
        f"value = tl.load({names[source.root]} + {read}, m)",
        f"tl.store({names[target.root]} + ({written}) + at * {to[dim]}, value, m)",
    ]
    function = f"@triton.jit\ndef NAME({', '.join(names.values())}):\n" + "".join(f"    {line}\n" for line in lines)
    text = functions.HELPERS["dj_refuse"] + "\n" + function
    return Printed(text, tensors, (target.root,), ceil_div(count, block), max(1, block // 256))


def _reach(value: Value) -> int:
    return value.root.numel + sum(value.root.stride)
