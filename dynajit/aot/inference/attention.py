"""Attention written by hand becomes torch's fused kernel for it.

In:  a functional ATen graph for inference, with fake tensors in `meta["val"]`.
Out: `recognise(gm)`: the graph, or another that computes the same, in which products of queries and keys, scale, mask,
     softmax and product with the values are the operator that `scaled_dot_product_attention` is on that device.

What is recognised is found backwards from the second product. Between the products there may be views and copies that
keep the elements' order (what `matmul` and `einsum` leave), one scale, additive masks and masks that put -inf. Scores
or weights that anything else reads are not recognised, nor what the device has no fused kernel for. One more thing
that may stand between the products: a case in `_Chain._before`. Where it pays: `pays`.
Training graphs stay as they are: their backward graph reads the weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from dynajit.aot.inference.layout_tracker import COPIES, VIEWS, LayoutTracker, shape_of
from dynajit.aot.passes.constants import constant_of
from dynajit.aot.rewrite import copied, same_numbers
from dynajit.aot.trace import NotSimple, eliminate_dead_code, trace_functional
from dynajit.graph.meta import value_of
from dynajit.op_facts import LOW_PRECISION, facts
from dynajit.report import logs
from dynajit.symbols import has_symbols

aten = torch.ops.aten
F = torch.nn.functional

_FILLS = (aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor)
_PRODUCTS = (aten.bmm.default, aten.mm.default)
# Names of what `scaled_dot_product_attention` becomes where the device has a fused kernel.
_FUSED = ("_scaled_dot_product_flash", "_scaled_dot_product_efficient", "_scaled_dot_product_cudnn")


@dataclasses.dataclass
class Mask:
    """`adds`: the tensor is added to the scores. Else scores become -inf where it is true, or false if `keeps`."""

    tensor: Node
    adds: bool = False
    keeps: bool = False


@dataclasses.dataclass
class Attention:
    """What was found. `shapes` are the four sizes that the fused kernel gets query, key and value in, `scores` those of
    the scores as the softmax reads them."""

    query: Node
    key: Node  # seen as columns: (..., width, keys)
    value: Node
    shapes: list[tuple[Any, ...]]
    scores: tuple[Any, ...]
    scale: float
    masks: list[Mask]
    product: Node


def pays(found: Attention) -> bool:
    """Whether the fused kernel is the faster one, from measurements."""
    query = found.query.meta["val"]
    rows, keys, width = (_hint(size) for size in (*found.scores[-2:], found.shapes[0][-1]))
    if query.device.type == "cpu":
        # Half types: the scores are not rounded and written; float32: from where both take as long (0.7 to 1.05 of the
        # products' time), and the scores and the copies of queries, keys and values take more memory. A mask that is
        # read in each of the softmax's passes costs more than in the fused kernel's one.
        if query.dtype in LOW_PRECISION:
            return keys >= width
        return query.dtype is torch.float32 and rows * keys >= (1 << 12 if found.masks else 1 << 14)
    return query.dtype in LOW_PRECISION and width % 8 == 0 and width <= 256 and rows >= 64 and keys >= 128


def recognise(gm: torch.fx.GraphModule, worthwhile: Callable[[Attention], bool] = pays) -> torch.fx.GraphModule:
    """`gm`, or a copy of it with fused attention. `worthwhile` decides for each one found."""
    if not any(node.target is aten._softmax.default for node in gm.graph.nodes):
        return gm
    made = copied(gm)
    graph = made.graph
    count = 0
    with _disable_current_modes():  # masks are looked into, and AOTAutograd compiles under a mode for fake tensors
        for node in list(graph.nodes):
            if node.target in _PRODUCTS:
                found = _find(node)
                if found is not None and worthwhile(found) and _replace(graph, found):
                    count += 1
    if not count:
        return gm
    eliminate_dead_code(graph)
    logs.emit("fusion", f"{count} attention written by hand: torch's fused kernel")
    return made


def _hint(size: Any) -> int:
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return hint if isinstance(hint, int) else 1


# ---- finding


def _find(product: Node) -> Attention | None:
    """The attention whose second product this is."""
    weights, value = product.args
    assert isinstance(weights, Node) and isinstance(value, Node)
    chain = _Chain(weights, product)
    softmax = chain.back_to((aten._softmax.default,))
    if softmax is None or chain.masks or chain.scale != 1:
        return None
    scores, dim, _ = softmax.args
    assert isinstance(scores, Node) and isinstance(dim, int)
    shape = shape_of(scores)
    if dim % max(len(shape), 1) != len(shape) - 1 or len(shape) < 2 or not chain.order.settled(softmax):
        return None
    chain = _Chain(scores, softmax)
    first = chain.back_to(_PRODUCTS)
    if first is None or not chain.order.settled(first):
        return None
    if not same_numbers(shape[-2:], shape_of(first)[-2:]) or not same_numbers(shape[-2:], shape_of(weights)[-2:]):
        return None
    query, key = first.args
    assert isinstance(query, Node) and isinstance(key, Node)
    dtype = query.meta["val"].dtype
    if value.meta["val"].dtype is not dtype or not _precise(chain.dtypes, dtype):
        return None
    return _found(query, key, value, shape, chain, product)


def _found(
    query: Node, key: Node, value: Node, scores: tuple[Any, ...], chain: _Chain, product: Node
) -> Attention | None:
    flat = (*shape_of(value)[:-2], 1) if len(shape_of(value)) == 3 else (1, 1)
    batch = scores[:2] if len(scores) == 4 else flat
    operands = (query, key, value)
    shapes = [(*batch, *shape_of(node)[-2:]) for node in operands]
    sources: list[Node | None]
    if len(scores) == 4:
        sources = [_seen_as(node, shape) for node, shape in zip(operands, shapes, strict=True)]
    elif any(has_symbols(node.meta["val"]) for node in operands) or (len(scores) > 4 and chain.masks):
        return None
    else:
        sources = [query, key, value]
    first, second, third = sources
    if first is None or second is None or third is None:
        return None
    return Attention(first, second, third, shapes, scores, chain.scale, chain.masks[::-1], product)


def _seen_as(node: Node, shape: tuple[Any, ...]) -> Node | None:
    """The tensor of that shape, but for dimensions of size 1, with the same elements in the same order, that is
    farthest from the product: with no copies made for the product."""
    order = LayoutTracker(node)
    symbolic = has_symbols(node.meta["val"])
    wanted = _without_ones(shape)
    found = node if not symbolic or same_numbers(shape_of(node), shape) else None
    source: Node | None = node
    while source is not None:
        seen = shape_of(source)
        if same_numbers(seen, shape) if symbolic else order.settled(source) and _without_ones(seen) == wanted:
            found = source if order.settled(source) else found
        source = order.back(source)
    return found


def _without_ones(shape: tuple[Any, ...]) -> list[str]:
    return [str(size) for size in shape if not isinstance(size, int) or size != 1]


def _precise(dtypes: set[torch.dtype], dtype: torch.dtype) -> bool:
    """Whether the fused kernel, which carries float32 for half types, is at least as precise as what was written."""
    if dtype in LOW_PRECISION:
        return dtypes <= {*LOW_PRECISION, torch.float32}
    return dtypes <= {*LOW_PRECISION, torch.float32, dtype} and dtype in (torch.float32, torch.float64)


class _Chain:
    """A way back from a product: what was done on it to the scores."""

    def __init__(self, start: Node, user: Node) -> None:
        self.order = LayoutTracker(start)
        self.node = start
        self.user = user
        self.shape = shape_of(start)
        self.scale = 1.0
        self.masks: list[Mask] = []
        self.dtypes = {start.meta["val"].dtype}

    def back_to(self, targets: Sequence[Any]) -> Node | None:
        """The call of one of these that the way leads to, if nothing else reads what is on it."""
        while True:
            if list(self.node.users) != [self.user] or self.node.op != "call_function":
                return None
            if self.node.target in targets:
                return self.node
            before = self.order.back(self.node) if self.node.target is not aten._to_copy.default else None
            before = before or self._before(self.node)
            if before is None:
                return None
            self.node, self.user = before, self.node
            self.dtypes.add(before.meta["val"].dtype)

    def _before(self, node: Node) -> Node | None:
        """What this was made of."""
        if node.target is aten._to_copy.default:
            return _cast(node)
        if node.target in (aten.mul.Tensor, aten.div.Tensor):
            return self._scaled(node)
        if node.target is aten.add.Tensor and not node.kwargs:
            return self._added(node)
        if node.target in _FILLS:
            return self._filled(node)
        return None

    def _scaled(self, node: Node) -> Node | None:
        by = _number(node.args[1])
        source: Any = node.args[0]
        if by is None and node.target is aten.mul.Tensor:
            by, source = _number(node.args[0]), node.args[1]
        if by is None or not math.isfinite(by) or by == 0 or not isinstance(source, Node) or not self._fits(source):
            return None
        if source.meta["val"].dtype is not node.meta["val"].dtype:
            return None
        self.scale *= by if node.target is aten.mul.Tensor else 1 / by
        return source

    def _added(self, node: Node) -> Node | None:
        one, other = node.args[:2]
        if not isinstance(one, Node) or not isinstance(other, Node) or one is other or self.scale != 1:
            return None
        for source, mask in ((one, other), (other, one)):
            if self._leads_back(source, node) and self._masks_fit() and self._fits(source):
                if mask.meta["val"].dtype is not source.meta["val"].dtype:
                    return None
                self.masks.append(Mask(mask, adds=True))
                return source
        return None

    def _filled(self, node: Node) -> Node | None:
        condition, yes, no = node.args if node.target is aten.where.self else (node.args[1], node.args[2], node.args[0])
        assert isinstance(condition, Node)
        for source, fill, keeps in ((no, yes, False), (yes, no, True)):
            if isinstance(source, Node) and _number(fill) == -math.inf and self._fits(source):
                if not self._masks_fit() or self.scale < 0:
                    return None
                self.masks.append(Mask(condition, keeps=keeps))
                return source
        return None

    def _leads_back(self, source: Node, user: Node) -> bool:
        """Whether scores may be there: they are read once and come from a product, over few steps."""
        for _ in range(12):
            if list(source.users) != [user]:
                return False
            if source.target in _PRODUCTS:
                return True
            steps = (*COPIES, aten._to_copy.default, aten.mul.Tensor, aten.div.Tensor, aten.add.Tensor, *_FILLS)
            views = (aten.view.default, aten._unsafe_view.default, aten.permute.default)
            if source.target not in (*steps, *views):
                return False
            inputs = [arg for arg in source.args if isinstance(arg, Node)]
            inputs = [arg for arg in inputs if same_numbers(shape_of(arg), shape_of(source))] or inputs
            source, user = inputs[-1 if source.target is aten.where.self else 0], source
        return False

    def _fits(self, source: Node) -> bool:
        """Whether the other operand was not broadcast against something larger."""
        return same_numbers(shape_of(source), shape_of(self.node))

    def _masks_fit(self) -> bool:
        """Whether a mask's dimensions are those of the scores as the softmax reads them."""
        return self.order.identity() and same_numbers(shape_of(self.node), self.shape)


def _cast(node: Node) -> Node | None:
    source = node.args[0]
    assert isinstance(source, Node)
    before, after = source.meta["val"], node.meta["val"]
    kinds = (*LOW_PRECISION, torch.float32)
    plain = before.device == after.device and before.dtype in kinds and after.dtype in kinds
    return source if plain and same_numbers(before.stride(), after.stride()) else None


def _number(value: Any) -> float | None:
    """A Python number or a constant tensor without dimensions, as a float."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Node) and isinstance(fake := value_of(value), torch.Tensor) and fake.dim() == 0:
        constant = constant_of(value)
        return None if constant is None or constant.is_complex() else float(constant)
    return None


# ---- replacing


def _replace(graph: torch.fx.Graph, found: Attention) -> bool:
    """Put the fused kernel where the second product was. False where the device has none for it."""
    inputs = [found.query, found.key, found.value, *(mask.tensor for mask in found.masks)]
    causal, blank = _known_mask(found)
    fakes = [node.meta["val"] for node in inputs]
    mode = detect_fake_mode(fakes)
    if mode is None:
        return False

    def written(*tensors: torch.Tensor) -> torch.Tensor:
        return _attention(found, causal, blank, *tensors)

    inner = torch.fx.Graph()
    places = [inner.placeholder(f"arg{at}") for at in range(len(fakes))]
    inner.output((inner.call_function(written, tuple(places)),))
    try:
        with torch.no_grad(), torch._C._DisableAutocast():  # as written: autocast's conversions are in the graph
            traced = trace_functional(torch.fx.GraphModule({}, inner), fakes, mode, {}).module.graph
    except (NotSimple, RuntimeError) as error:
        logs.emit("fusion", f"attention written by hand stays: {str(error).splitlines()[0]}")
        return False
    if not any(getattr(node.target, "__name__", "").startswith(_FUSED) for node in traced.nodes):
        return False
    with graph.inserting_before(found.product):
        for node in traced.nodes:
            node.meta.setdefault("stack_trace", found.product.meta.get("stack_trace"))
        copies: dict[Node, Node] = dict(zip(traced.find_nodes(op="placeholder"), inputs, strict=True))
        results: Any = graph.graph_copy(traced, copies)  # type: ignore[arg-type]
        _read_in_place_of(graph, found.product, results[0])
    return True


def _read_in_place_of(graph: torch.fx.Graph, product: Node, result: Node) -> None:
    """Whoever reads the product reads the result. Views that only undo what `matmul` did to the shape are gone."""
    wanted = _without_ones(shape_of(result))
    for reader in (*product.users, product):
        if reader.target not in (*VIEWS, *_PRODUCTS) or not reader.users or _reshaped_by_symbols(reader, result):
            continue
        if _without_ones(shape_of(reader)) == wanted:
            with graph.inserting_before(reader):
                seen = _seen(graph, result, reader)
            reader.replace_all_uses_with(seen)
            if len(product.users) <= 1:
                _drop_copy(seen, result)
    if product.users:  # with dimensions that only symbols tell apart, or merged ones
        with graph.inserting_before(product):
            whole = _dense(graph, result)
            seen = graph.call_function(aten.reshape.default, (whole, _sizes(product)))
            seen.meta.update(product.meta)
        product.replace_all_uses_with(seen)


def _reshaped_by_symbols(reader: Node, result: Node) -> bool:
    return has_symbols(reader.meta["val"]) and len(shape_of(reader)) != len(shape_of(result))


def _seen(graph: torch.fx.Graph, result: Node, reader: Node) -> Node:
    """The result in the reader's shape, which differs by dimensions of size 1."""
    if not _takes_any_strides(reader):
        result = _dense(graph, result)
    if len(shape_of(reader)) == len(shape_of(result)):
        seen = graph.call_function(aten.alias.default, (result,))
    else:
        seen = graph.call_function(aten.view.default, (result, [*shape_of(reader)]))
    seen.meta.update(reader.meta)
    return seen


def _drop_copy(seen: Node, result: Node) -> None:
    """Fused kernels write heads side by side, so that the copy which puts them there is none. Only where nothing else
    reads the result: a copy is memory of its own."""
    turned = next(iter(seen.users), None)
    if len(seen.users) != 1 or turned is None or seen.target is not aten.alias.default or seen.args[0] is not result:
        return
    copy = next(iter(turned.users), None)
    if len(turned.users) != 1 or copy is None or copy.target is not aten.clone.default:
        return
    if turned.target not in (aten.transpose.int, aten.permute.default) or not copy.kwargs.get("memory_format"):
        return
    real = turned.target(result.meta["val"], *turned.args[1:])  # type: ignore[operator]
    if has_symbols(real) or real.stride() != copy.meta["val"].stride():
        return
    turned.meta["val"] = real
    copy.replace_all_uses_with(turned)


def _dense(graph: torch.fx.Graph, result: Node) -> Node:
    """The product's memory is row-major; the fused kernel's need not be."""
    copy = graph.call_function(aten.clone.default, (result,), {"memory_format": torch.contiguous_format})
    copy.meta.update(result.meta, val=result.meta["val"].clone(memory_format=torch.contiguous_format))
    return copy


def _takes_any_strides(node: Node) -> bool:
    """Whether nothing that reads the node is a view that its own memory has and another may not."""
    turned = (aten.transpose.int, aten.permute.default, aten.alias.default, aten.detach.default)
    for user in node.users:
        if user.target in turned:
            if not _takes_any_strides(user):
                return False
        elif isinstance(user.target, torch._ops.OpOverload):
            if facts(user.target).is_view or user.target is aten._unsafe_view.default:
                return False
        elif user.op != "output":
            return False
    return True


def _sizes(product: Node) -> list[Any]:
    """The product's sizes as arguments: those that are symbols are read from its operands."""
    weights, value = product.args
    assert isinstance(weights, Node) and isinstance(value, Node)
    sizes: list[Any] = []
    for at, size in enumerate(shape_of(product)):
        if isinstance(size, int):
            sizes.append(size)
            continue
        owner = value if at == len(shape_of(product)) - 1 else weights
        node = product.graph.call_function(aten.sym_size.int, (owner, at))
        node.meta["val"] = size
        sizes.append(node)
    return sizes


def _known_mask(found: Attention) -> tuple[bool, bool]:
    """Whether the mask is the causal one, and whether a row may be masked as a whole: from masks that are constants."""
    if not found.masks:
        return False, False
    tensors = [constant_of(mask.tensor) for mask in found.masks]
    rows, keys = found.scores[-2:]
    if any(tensor is None for tensor in tensors) or not isinstance(rows, int) or not isinstance(keys, int):
        return False, True
    total = _combined(found.masks, [tensor for tensor in tensors if tensor is not None])
    kept = total if total.dtype is torch.bool else total != -math.inf
    kept = kept.broadcast_to((*kept.shape[:-2], rows, keys)) if kept.dim() >= 2 else kept.broadcast_to((rows, keys))
    causal = rows == keys and kept.numel() == rows * keys and torch.equal(kept.reshape(rows, keys), _causal(rows))
    only_masks = total.dtype is torch.bool or bool(((total == 0) | (total == -math.inf)).all())
    return causal and only_masks, not bool(kept.any(-1).all())


def _causal(size: int) -> torch.Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


def _combined(masks: Sequence[Mask], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One mask: what is added, or a bool tensor that is true for what stays."""
    total: torch.Tensor | None = None
    for mask, tensor in zip(masks, tensors, strict=True):
        if mask.adds:
            if total is not None and total.dtype is torch.bool:
                total = torch.where(total, torch.zeros((), dtype=tensor.dtype, device=tensor.device), -math.inf)
            total = tensor if total is None else total + tensor
            continue
        stays = tensor if mask.keeps else ~tensor
        if total is None:
            total = stays
        else:
            total = total & stays if total.dtype is torch.bool else torch.where(stays, total, -math.inf)
    assert total is not None
    return total


def _attention(
    found: Attention,
    causal: bool,
    blank: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *masks: Any,
) -> torch.Tensor:
    """The attention in terms of torch's function for it, (batch, heads, rows, width)."""
    query, key, value = (_four(x, shape) for x, shape in zip((query, key, value), found.shapes, strict=True))
    query, key, value = _by_rows(query), _by_rows(key.transpose(-2, -1)), _by_rows(value)
    if causal or not masks:
        result = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=found.scale)
        if not causal:
            return result
        # The kernel leaves out what is masked; as written, zero times an infinite value is NaN.
        return torch.where((value * 0).sum(-2, keepdim=True).isnan(), math.nan, result)
    mask = _four_mask(_combined(found.masks, masks), len(found.scores))
    result = F.scaled_dot_product_attention(query, key, value, mask, scale=found.scale)
    if not blank:
        return result
    kept = mask if mask.dtype is torch.bool else mask != -math.inf
    return torch.where(kept.any(-1, keepdim=True), result, math.nan)


def _four(x: torch.Tensor, shape: tuple[Any, ...]) -> torch.Tensor:
    return x if x.dim() == 4 and same_numbers(x.shape, shape) else x.reshape(shape)


def _four_mask(x: torch.Tensor, rank: int) -> torch.Tensor:
    """A mask that broadcasts against scores of that rank, in four dimensions."""
    x = x.reshape((1,) * (rank - x.dim()) + tuple(x.shape))
    while x.dim() < 4:
        x = x.unsqueeze(1 if x.dim() == 3 else 0)
    return _by_rows(x)


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    """Fused kernels read rows whose elements stand side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
