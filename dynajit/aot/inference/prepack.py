"""An inference graph in two: what depends on weights alone, and the rest; weights in the libraries' own layouts.

In:  a functional ATen graph and the positions of its constant inputs.
Out: `split(...)`: a graph of the constants, with all the inputs of the whole, and the main graph, to whose inputs the
     constants are appended. Convolutions take weights that oneDNN has reordered, and give channels-last results;
     products with weights take those that MKL has packed.
One more operator that takes packed weights: a function in `_PACKED`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dynajit.aot.rewrite import ancestors, call, compute, copied, cut, results_of
from dynajit.graph.meta import value_of
from dynajit.nested import reached
from dynajit.op_facts import facts
from dynajit.symbols import has_symbols

aten = torch.ops.aten
_TRANSPOSITIONS = (aten.t.default, aten.permute.default, aten.transpose.int)


@dataclasses.dataclass
class Split:
    """`values` are fakes of the constants, in the order in which `constants` returns and `main` takes them."""

    constants: GraphModule
    main: GraphModule
    values: list[Any]


def split(gm: GraphModule, weights: frozenset[int]) -> Split | None:
    """The two graphs; None where nothing is gained or can be told."""
    if any(has_symbols(value_of(node)) for node in gm.graph.find_nodes(op="placeholder")):
        return None
    for packs in (True, False):
        whole = copied(gm)
        constant = _constants(whole.graph, weights)
        try:
            if packs:
                _pack(whole.graph, constant)
        except (RuntimeError, ValueError, TypeError, KeyError):  # an operator does not take the libraries' layouts
            continue
        made = _parted(whole, constant)
        return made if made.values else None
    return None


def _constants(graph: Graph, weights: frozenset[int]) -> set[Node]:
    """Nodes whose value is decided by constant inputs."""
    written = {node.args[0] for node in graph.find_nodes(op="call_function", target=aten.copy_.default)}
    inputs = graph.find_nodes(op="placeholder")
    found = {node for position, node in enumerate(inputs) if position in weights and node not in written}
    escaping = _escaping(graph)
    for node in graph.nodes:
        follows = node.op == "call_function" and node not in escaping and bool(node.all_input_nodes)
        if follows and found.issuperset(node.all_input_nodes) and facts(node.target).pure:
            found.add(node)
    return found


def _escaping(graph: Graph) -> set[Node]:
    """Nodes whose memory the outputs have: a constant must not be handed out."""
    results = graph.output_node().all_input_nodes
    return {*reached(results, lambda node: node.all_input_nodes if facts(node.target).is_view else ())}


def _parted(gm: GraphModule, constant: set[Node]) -> Split:
    """The graph cut in two. A view of a constant is taken again in the main graph."""
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    handed: set[Node] = set()
    again: set[Node] = set()
    for node in (gm.graph.output_node(), *reversed(calls)):
        if node not in constant or node in again:
            for one in constant.intersection(node.all_input_nodes):
                is_view = facts(one.target).is_view and one.target is not operator.getitem
                (again if is_view else handed).add(one)
    inputs = gm.graph.find_nodes(op="placeholder")
    given = [node for node in calls if node in handed]
    early = ancestors(given)
    main = [node for node in calls if node not in constant or node in again]
    return Split(
        cut(gm, [node for node in calls if node in early], inputs, given),
        cut(gm, main, [*inputs, *given], results_of(gm)),
        [node.meta["val"] for node in given],
    )


# ---- packed weights


def _pack(graph: Graph, constant: set[Node]) -> None:
    """Have operators take packed weights, which are further constants, and give results in the layouts that they had.
    Fake values are found anew, since layouts change."""
    end = graph.output_node()
    results: Any = end.args[0]
    before = [value_of(result) if isinstance(result, Node) else None for result in results]
    gone: set[Node] = set()
    for node in [node for node in graph.nodes if node.op == "call_function" and node not in constant]:
        if node in gone:
            continue
        with graph.inserting_before(node):
            made = _PACKED[node.target](node, constant) if node.target in _PACKED else None
            if made is None:
                _find_value(node)
                continue
        packed, replaced = made
        for old in reversed(replaced):
            old.replace_all_uses_with(packed)
            graph.erase_node(old)
        gone.update(replaced)
    given = list(end.args[0])  # type: ignore[arg-type]
    with graph.inserting_before(end):
        for at, (result, wanted) in enumerate(zip(given, before, strict=True)):
            if isinstance(wanted, torch.Tensor) and value_of(result).stride() != wanted.stride():
                blank = call(result, aten.new_empty_strided.default, result, wanted.shape, wanted.stride())
                given[at] = call(result, aten.copy.default, blank, result)
    end.args = (tuple(given),)


def _find_value(node: Node) -> None:
    """Give the node its fake value; where the graph inserts, a copy of what these strides have no view for."""
    if node.target is aten.view.default and not _can_view(value_of(node.args[0]), node.args[1]):
        node.args = (call(node, aten.clone.default, node.args[0], memory_format=torch.contiguous_format), node.args[1])
    node.meta["val"] = compute(node)


def _can_view(value: Any, shape: Any) -> bool:
    try:
        value.view(shape)
    except (RuntimeError, ValueError):
        return False
    return True


def _reordered(weight: Node, constant: set[Node], reorder: Any, *layout: Any) -> Node:
    """The weight as the library wants it. To fakes it is the weight itself."""
    made = weight.graph.call_function(reorder, (weight, *layout))
    made.meta["val"] = weight.meta["val"]
    constant.add(made)
    return made


# what computes the same of packed weights, and the nodes that it is in place of
Packed = tuple[Node, list[Node]]


def _convolution(node: Node, constant: set[Node]) -> Packed | None:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    value = value_of(x)
    if value is None or value.dim() != 4 or not _packable(value) or transposed or weight not in constant:
        return None
    if bias is not None and bias not in constant:
        return None
    reorder = torch.ops.mkldnn._reorder_convolution_weight.default
    packed = _reordered(weight, constant, reorder, padding, stride, dilation, groups, list(value.shape))  # type: ignore[arg-type]
    (user, *others) = node.users
    relu = [user] if user.target is aten.relu.default and not others else []
    options: tuple[Any, ...] = (padding, stride, dilation, groups, "relu" if relu else "none", [], "")
    return call(node, torch.ops.mkldnn._convolution_pointwise.default, x, packed, bias, *options), [node, *relu]


def _product(node: Node, constant: set[Node]) -> Packed | None:
    bias = node.args[0] if node.target is aten.addmm.default else None
    x, turned = node.args[-2:]
    value = value_of(x)
    if node.kwargs or value is None or not _packable(value) or not isinstance(turned, Node):
        return None
    weight = turned.args[0] if turned.target in _TRANSPOSITIONS else None
    if not isinstance(weight, Node) or weight not in constant or weight.meta["val"].dim() != 2:
        return None
    shape = weight.meta["val"].shape
    if tuple(turned.meta["val"].shape) != (shape[1], shape[0]) or not weight.meta["val"].is_contiguous():
        return None
    if bias is not None and (bias not in constant or tuple(bias.meta["val"].shape) != (shape[0],)):  # type: ignore[union-attr]
        return None
    rows = value.shape[0]
    packed = _reordered(weight, constant, torch.ops.mkl._mkl_reorder_linear_weight.default, rows)
    return call(node, torch.ops.mkl._mkl_linear.default, x, packed, weight, bias, rows), [node]


def _packable(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype is torch.float32 and x.numel() > 0


_PACKED: dict[Any, Callable[[Node, set[Node]], Packed | None]] = {}
if torch._C._has_mkldnn:
    _PACKED[aten.convolution.default] = _convolution
    if torch._C.has_mkl and hasattr(torch.ops.mkl, "_mkl_linear"):
        _PACKED |= {aten.addmm.default: _product, aten.mm.default: _product}
