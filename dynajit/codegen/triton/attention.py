"""Attention of a few queries, as when text is generated word by word, as Triton functions.

In:  a call of one of torch's fused kernels for attention, and which tensors are read.
Out: `launches_of(extern, read, device)`: functions in its place, or None where the library's kernel stays.
One more operator: a line in `_CALLS`.

The library's kernels are made for many queries: with a few of them most of the GPU has nothing to do. Here the keys are
cut in parts, each a program's, for all queries and heads that share them; a second function combines the parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from dynajit.codegen.triton import functions
from dynajit.codegen.triton.functions import TYPES
from dynajit.codegen.triton.generate import Launches
from dynajit.codegen.triton.printer import PrintedTriton
from dynajit.codegen.triton.tiling import MULTIPROCESSORS, ceil_div, power_of_two
from dynajit.loopir.builder import affine
from dynajit.loopir.index import contiguous_strides
from dynajit.loopir.nodes import Extern, Shape, StoredTensor, Tensor, View
from dynajit.op_facts import LOW_PRECISION

aten = torch.ops.aten

# Rows, and columns, of the smallest product of tiles: so many queries, of all heads that share a head of keys, are one
# program's.
ROWS = 16
# Keys that a program multiplies with in one step, the widest head, and the fewest keys for which this is worth it.
STEP, MAX_WIDTH, FEW_KEYS = 64, 256, 128
# Heads of keys from which on the library's kernel fills the GPU too, and is a tenth faster.
MANY_HEADS = 2 * MULTIPROCESSORS
_INT32 = 1 << 31
LOWEST = "-3.4028234663852886e38"

# Operator -> the names of its arguments; the result is its first.
_CALLS: dict[Any, tuple[str, ...]] = {
    aten._scaled_dot_product_flash_attention.default: ("query", "key", "value", "dropout_p", "is_causal"),
    aten._scaled_dot_product_efficient_attention.default: (
        *("query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"),
    ),
    aten._scaled_dot_product_cudnn_attention.default: (
        *("query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"),
    ),
}


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor of four dimensions in memory: batch, heads, rows, width."""

    tensor: Tensor
    shape: Shape
    stride: Shape
    start: int


@dataclass(frozen=True, slots=True)
class _Attention:
    query: _Operand
    key: _Operand
    value: _Operand
    bias: _Operand | None
    scale: float
    out: StoredTensor
    averages: bool  # what a row gives all of whose keys are masked: the average of the values, or zeros

    @property
    def operands(self) -> list[_Operand]:
        return [operand for operand in (self.query, self.key, self.value, self.bias) if operand is not None]


def launches_of(extern: Extern, read: frozenset[Tensor], device: torch.device) -> Launches | None:
    """Functions that compute what the call gives, of which nothing but the first result is in `read`."""
    found = _attention_of(extern, read)
    if found is None:
        return None
    heads = found.key.shape[0] * found.key.shape[1]
    if heads > MANY_HEADS:
        return None
    keys = found.key.shape[2]
    part = ceil_div(ceil_div(keys, MANY_HEADS // heads), STEP) * STEP
    parts = ceil_div(keys, part)
    if parts == 1:
        return Launches([_function(found, part, 1, [])], [])

    def between(what: str, shape: Shape) -> StoredTensor:
        strides = contiguous_strides(shape)
        return StoredTensor(
            f"{found.out.name}_{what}", shape, strides, torch.float32, extern.order, extern.origin, device
        )

    places = (heads * parts, ROWS)
    partial = [
        between("sums", (*places, _tile(found.value.shape[3]))),
        between("peaks", places),
        between("totals", places),
    ]
    return Launches([_function(found, part, parts, partial), _combination(found, parts, partial)], partial)


def _attention_of(extern: Extern, read: frozenset[Tensor]) -> _Attention | None:
    names = _CALLS.get(extern.target)
    out = extern.results[0] if names else None
    if names is None or not isinstance(out, StoredTensor) or read.intersection(_tensors(extern.results[1:])):
        return None
    given = {**dict(zip(names, extern.args, strict=False)), **extern.kwargs}
    if any(given.get(name) for name in ("dropout_p", "is_causal", "return_debug_mask")):
        return None
    query, key, value = (_operand(given.get(name)) for name in ("query", "key", "value"))
    if query is None or key is None or value is None:
        return None
    bias = _operand(given.get("attn_bias"), (*query.shape[:3], key.shape[2]))
    if bias is None and given.get("attn_bias") is not None:
        return None
    scale = given.get("scale") or 1 / math.sqrt(query.shape[3])
    averages = extern.target is aten._scaled_dot_product_cudnn_attention.default
    found = _Attention(query, key, value, bias, scale, out, averages)
    return found if _has_a_function(found) else None


def _has_a_function(found: _Attention) -> bool:
    """Is it of halves, few queries and many keys, each row of which lies together in memory?"""
    query, key, value = found.query, found.key, found.value
    batch, heads, rows, width = query.shape
    shared = key.shape[1]
    return (
        query.tensor.dtype in LOW_PRECISION
        and all(operand.tensor.dtype is query.tensor.dtype for operand in found.operands)
        and key.shape == (batch, shared, key.shape[2], width)
        and value.shape[:3] == key.shape[:3]
        and heads % shared == 0
        and heads // shared * rows <= ROWS
        and max(width, value.shape[3]) <= MAX_WIDTH
        and key.shape[2] >= FEW_KEYS
        and {operand.stride[3] for operand in (query, key, value) if operand.shape[3] > 1} <= {1}
        and all(operand.tensor.numel + sum(operand.tensor.stride) < _INT32 for operand in found.operands)
    )


def _tensors(results: Any) -> list[Tensor]:
    return [result for result in results if isinstance(result, Tensor)]


def _operand(value: Any, shape: Shape | None = None) -> _Operand | None:
    """Where the tensor lies, broadcast to the shape; None for what is none of four dimensions."""
    if not isinstance(value, View):
        return None
    layout, missing = affine(value), 4 - len(value.shape)
    shape = value.shape if shape is None else shape
    if layout is None or len(shape) != 4 or missing < 0:
        return None
    own, stride = (1,) * missing + tuple(value.shape), (0,) * missing + tuple(layout[0])
    if any(size not in (1, wanted) for size, wanted in zip(own, shape, strict=True)):
        return None
    spread = [0 if size == 1 else step for size, step in zip(own, stride, strict=True)]
    return _Operand(value.root, tuple(shape), tuple(spread), layout[1])


def _tile(width: int) -> int:
    """How wide the tile is that holds so much of a row."""
    return max(ROWS, power_of_two(width))


class _Text:
    """The pieces of text that both functions have in common."""

    def __init__(self, found: _Attention) -> None:
        self.rows, self.heads = found.query.shape[2], found.key.shape[1]
        self.group = found.query.shape[1] // self.heads
        self.used = self.group * self.rows
        self.width, self.wide = _tile(found.query.shape[3]), _tile(found.value.shape[3])

    def head_of_row(self) -> str:
        """The number of a row's head of queries."""
        return f"(head * {self.group} + row // {self.rows})"

    def of_row(self, operand: _Operand | StoredTensor, start: int = 0) -> str:
        """Where the rows of queries, or what belongs to them, begin."""
        a, b, c, _ = operand.stride
        return f"{start} + batch * {a} + {self.head_of_row()} * {b} + row % {self.rows} * {c}"


def _function(found: _Attention, part: int, parts: int, partial: list[StoredTensor]) -> PrintedTriton:
    """The attention to one part of the keys."""
    text, keys = _Text(found), found.key.shape[2]
    written: tuple[StoredTensor, ...] = tuple(partial) or (found.out,)
    tensors = tuple(dict.fromkeys((*(operand.tensor for operand in found.operands), *written)))
    names = {tensor: f"a{n}" for n, tensor in enumerate(tensors)}
    query, key, value = (names[operand.tensor] for operand in found.operands[:3])
    keys_left = part * parts != keys
    down = f"s[:, None] < {keys}" if keys_left else ""
    live = "live[:, None]"
    in_d = f"d[None, :] < {found.query.shape[3]}" if found.query.shape[3] != text.width else ""
    in_e = f"e[None, :] < {found.value.shape[3]}" if found.value.shape[3] != text.wide else ""
    dtype = TYPES[found.value.tensor.dtype]
    lines = [
        "pid = tl.program_id(0)",
        f"batch, head = pid // {parts * text.heads}, pid // {parts} % {text.heads}",
        f"row, d, e = tl.arange(0, {ROWS}), tl.arange(0, {text.width}), tl.arange(0, {text.wide})",
        f"live = row < {text.used}",
        f"first = {text.of_row(found.query, found.query.start)}",
        f"q = tl.load({query} + first[:, None] + d[None, :]{_mask(live, in_d)})",
        f'peak = tl.full([{ROWS}], float("-inf"), tl.float32)',
        f"total = tl.full([{ROWS}], 0.0, tl.float32)",
        f"sums = tl.full([{ROWS}, {text.wide}], 0.0, tl.float32)",
        f"for at in range(0, {part}, {STEP}):",
        f"    s = pid % {parts} * {part} + at + tl.arange(0, {STEP})",
        f"    k = tl.load({key} + {_of_keys(found.key)} + d[None, :]{_mask(down, in_d)})",
        f"    v = tl.load({value} + {_of_keys(found.value)} + e[None, :]{_mask(down, in_e)})",
        f"    scores = tl.dot(q, k.T) * {found.scale!r}",
    ]
    across = down.replace("s[:, None]", "s[None, :]")
    if found.bias is not None:
        place = f"({text.of_row(found.bias, found.bias.start)})[:, None] + s[None, :] * {found.bias.stride[3]}"
        lines.append(f"    scores += tl.load({names[found.bias.tensor]} + {place}{_mask(live, across)}).to(tl.float32)")
        if found.averages:
            lines.append(f"    scores = tl.where(scores < {LOWEST}, {LOWEST}, scores)")
    if keys_left:
        lines.append(f'    scores = tl.where({across}, scores, float("-inf"))')
    lines += [
        "    up = dj_max(peak, tl.reduce(scores, 1, dj_max))",
        '    base = tl.where(up == float("-inf"), 0.0, up)',
        "    weights, again = tl.exp(scores - base[:, None]), tl.exp(peak - base)",
        "    total = total * again + tl.reduce(weights, 1, dj_add)",
        f"    sums = sums * again[:, None] + tl.dot(weights.to({dtype}), v)",
        "    peak = up",
    ]
    if partial:
        sums, peaks, totals = (names[tensor] for tensor in partial)
        lines += [
            f"tl.store({sums} + (pid * {ROWS} + row)[:, None] * {text.wide} + e[None, :], sums)",
            f"tl.store({peaks} + pid * {ROWS} + row, peak)",
            f"tl.store({totals} + pid * {ROWS} + row, total)",
        ]
    else:
        place = f"({text.of_row(found.out)})[:, None] + e[None, :] * {found.out.stride[3]}"
        mask = " & ".join(filter(None, (live, in_e)))
        lines += [
            "result = tl.where(total[:, None] == 0.0, 0.0, sums / total[:, None])",
            f"tl.store({names[found.out]} + {place}, result.to({dtype}), {mask})",
        ]
    return PrintedTriton(_body(names.values(), lines), tensors, written, found.key.shape[0] * text.heads * parts, 4, 3)


def _of_keys(operand: _Operand) -> str:
    a, b, c, _ = operand.stride
    return f"{operand.start} + batch * {a} + head * {b} + s[:, None] * {c}"


def _mask(*conditions: str) -> str:
    """The arguments of a load that reads zeros elsewhere."""
    text = " & ".join(f"({condition})" for condition in conditions if condition)
    return f", {text}, other=0.0" if text else ""


def _combination(found: _Attention, parts: int, partial: list[StoredTensor]) -> PrintedTriton:
    """The parts of one row: their sums, weighted by how far each greatest score is from the greatest of all."""
    text = _Text(found)
    tensors = (*partial, found.out)
    names = {tensor: f"a{n}" for n, tensor in enumerate(tensors)}
    sums, peaks, totals = (names[tensor] for tensor in partial)
    high, dtype = found.value.shape[3], TYPES[found.out.dtype]
    lines = [
        "pid = tl.program_id(0)",
        f"batch, head, row = pid // {text.used * text.heads}, pid // {text.used} % {text.heads}, pid % {text.used}",
        f"e, p = tl.arange(0, {text.wide}), tl.arange(0, {power_of_two(parts)})",
        f"there = p < {parts}",
        f"place = ((batch * {text.heads} + head) * {parts} + p) * {ROWS} + row",
        f'peak = tl.load({peaks} + place, there, other=float("-inf"))',
        "greatest = tl.reduce(peak, 0, dj_max)",
        'weight = tl.exp(peak - tl.where(greatest == float("-inf"), 0.0, greatest))',
        f"total = tl.reduce(tl.load({totals} + place, there, other=0.0) * weight, 0, dj_add)",
        f"part = tl.load({sums} + place[:, None] * {text.wide} + e[None, :], there[:, None], other=0.0)",
        "sums = tl.reduce(part * weight[:, None], 0, dj_add)",
        "result = tl.where(total == 0.0, 0.0, sums / total)",
        f"tl.store({names[found.out]} + {text.of_row(found.out)} + e * {found.out.stride[3]}, result.to({dtype}),"
        f" e < {high})",
    ]
    programs = found.key.shape[0] * text.heads * text.used
    return PrintedTriton(_body(names.values(), lines), tensors, (found.out,), programs, 2 if parts > 16 else 1)


def _body(names: Iterable[str], lines: list[str]) -> str:
    text = f"@triton.jit\ndef NAME({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in lines)
    return functions.with_helpers(text)
