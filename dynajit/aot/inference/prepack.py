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

from dynajit.aot.rewrite import Copy, compute
from dynajit.aot.trace import has_symbols
from dynajit.graph.meta import value_of
from dynajit.nested import reached
from dynajit.op_facts import facts

aten = torch.ops.aten
_TRANSPOSITIONS = (aten.t.default, aten.permute.default, aten.transpose.int)


@dataclasses.dataclass
class Split:
    """`values` are fakes of the constants, in the order in which `constants` returns and `main` takes them."""

    constants: GraphModule
    main: GraphModule
    values: list[Any]


class _GivesUp(Exception):
    """The graph stays whole."""


def split(gm: GraphModule, weights: frozenset[int]) -> Split | None:
    """The two graphs; None where nothing is gained or can be told."""
    inputs = gm.graph.find_nodes(op="placeholder")
    if any(has_symbols(value_of(node)) for node in inputs):
        return None
    for packs in (True, False):
        try:
            made = _Splitter(gm, weights, packs).run()
        except _GivesUp:
            continue
        return made if made.values else None
    return None


class _Splitter:
    """The two graphs while they are being written."""

    def __init__(self, gm: GraphModule, weights: frozenset[int], packs: bool) -> None:
        self.gm = gm
        self.packs = packs
        self.escaping = _escaping(gm.graph)
        self.constant = self._constants(weights)
        self.early, self.main = Copy(gm), Copy(gm)
        self.inputs: list[Node] = []  # of the main graph: the constants
        self.made: list[Node] = []  # what the graph of constants returns
        self.values: list[Any] = []

    def run(self) -> Split:
        for node in self.gm.graph.find_nodes(op="placeholder"):
            self.early.take(node)
            self.main.take(node)
        for node in self.gm.graph.nodes:
            if node.op == "output":
                self._outputs(node)
            elif node not in self.main.of and node not in self.constant:
                self._copy(node)
        self.early.graph.output(tuple(self.made))
        return Split(self.early.module(), self.main.module(), self.values)

    def _constants(self, weights: frozenset[int]) -> set[Node]:
        """Nodes whose value is decided by constant inputs."""
        written = {node.args[0] for node in self.gm.graph.nodes if node.target is aten.copy_.default}
        found: set[Node] = set()
        position = 0
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                if position in weights and node not in written:
                    found.add(node)
                position += 1
            elif self._follows(node, found):
                found.add(node)
        return found

    def _follows(self, node: Node, constant: set[Node]) -> bool:
        if node.op != "call_function" or node in self.escaping or not node.all_input_nodes:
            return False
        return all(argument in constant for argument in node.all_input_nodes) and facts(node.target).pure

    # ---- copying

    def _copy(self, node: Node) -> Node:
        """The node in the main graph."""
        packed = _PACKED.get(node.target) if self.packs else None
        if packed is not None:
            made = packed(self, node)
            if made is not None:
                self.main.of[node] = made
                return made
        for argument in node.all_input_nodes:
            self.in_main(argument)
        made = self.main.take(node)
        return self._with_value(made) if self.packs and node.op == "call_function" else made

    def _with_value(self, node: Node) -> Node:
        """The node with its fake value, which layouts before it may have changed."""
        values = [value_of(argument) for argument in node.all_input_nodes]
        if node.target is aten.view.default and not _can_view(values[0], node.args[1]):
            with self.main.graph.inserting_before(node):
                whole = self.call(node, aten.clone.default, node.args[0], memory_format=torch.contiguous_format)
            node.args = (whole, node.args[1])
        node.meta["val"] = self._value(node)
        return node

    def _value(self, node: Node) -> Any:
        try:
            return compute(node)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise _GivesUp from error

    def in_main(self, node: Node) -> Node:
        """The node as the main graph has it: a constant becomes one of its inputs, a view of one is taken again."""
        if node not in self.main.of:
            is_view = facts(node.target).is_view and node.target is not operator.getitem
            self.main.of[node] = self._copy(node) if is_view else self.constant_input(node, self.in_early(node))
        return self.main.of[node]  # type: ignore[no-any-return]

    def in_early(self, node: Node) -> Node:
        """The node in the graph of constants."""
        if node not in self.early.of:
            for argument in node.all_input_nodes:
                self.in_early(argument)
            self.early.take(node)
        return self.early.of[node]  # type: ignore[no-any-return]

    def constant_input(self, node: Node, made: Node) -> Node:
        """An input of the main graph for what `made` of the other gives; `node` has its fake value."""
        last = self.inputs[-1] if self.inputs else self.main.graph.find_nodes(op="placeholder")[-1]
        with self.main.graph.inserting_after(last):
            found = self.main.graph.placeholder(f"constant_{len(self.inputs)}")
        found.meta["val"] = node.meta["val"]
        self.inputs.append(found)
        self.made.append(made)
        self.values.append(node.meta["val"])
        return found

    def call(self, like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A node of the main graph in the place of `like`."""
        made = self.main.graph.call_function(target, args, kwargs)
        made.meta = dict(like.meta)
        made.meta["val"] = self._value(made)
        return made

    def _outputs(self, node: Node) -> None:
        """The outputs, in the layouts that they had."""
        results = []
        for before in node.args[0]:  # type: ignore[union-attr]
            after = self.in_main(before) if isinstance(before, Node) else before
            if isinstance(after, Node) and isinstance(value := value_of(after), torch.Tensor):
                wanted = before.meta["val"]  # type: ignore[union-attr]
                if value.stride() != wanted.stride():
                    after = self.call(before, aten.new_empty_strided.default, after, wanted.shape, wanted.stride())  # type: ignore[arg-type]
                    after = self.call(before, aten.copy.default, after, self.in_main(before))  # type: ignore[arg-type]
            results.append(after)
        self.main.graph.output(tuple(results))


def _can_view(value: Any, shape: Any) -> bool:
    try:
        value.view(shape)
    except (RuntimeError, ValueError):
        return False
    return True


def _escaping(graph: Graph) -> set[Node]:
    """Nodes whose memory the outputs have: a constant must not be handed out."""
    results = graph.output_node().all_input_nodes
    return {*reached(results, lambda node: node.all_input_nodes if facts(node.target).is_view else ())}


# ---- packed weights


def _convolution(splitter: _Splitter, node: Node) -> Node | None:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    value = value_of(x)
    if value is None or value.dim() != 4 or not _packable(value) or transposed or weight not in splitter.constant:
        return None
    if bias is not None and bias not in splitter.constant:
        return None
    reorder = torch.ops.mkldnn._reorder_convolution_weight.default
    early = splitter.in_early(weight)  # type: ignore[arg-type]
    sizes = list(value.shape)
    made = splitter.early.graph.call_function(reorder, (early, padding, stride, dilation, groups, sizes))
    packed = splitter.constant_input(weight, made)  # type: ignore[arg-type]
    pointwise = torch.ops.mkldnn._convolution_pointwise.default
    operands = (splitter.in_main(x), packed, None if bias is None else splitter.in_main(bias))  # type: ignore[arg-type]
    (user, *others) = node.users
    after = "relu" if user.target is aten.relu.default and not others else "none"
    result = splitter.call(node, pointwise, *operands, padding, stride, dilation, groups, after, [], "")
    if after != "none":
        splitter.main.of[user] = result
    return result


def _product(splitter: _Splitter, node: Node) -> Node | None:
    bias = node.args[0] if node.target is aten.addmm.default else None
    x, turned = node.args[-2:]
    value = value_of(x)
    if node.kwargs or value is None or not _packable(value) or not isinstance(turned, Node):
        return None
    weight = turned.args[0] if turned.target in _TRANSPOSITIONS else None
    if not isinstance(weight, Node) or weight not in splitter.constant or weight.meta["val"].dim() != 2:
        return None
    shape = weight.meta["val"].shape
    if tuple(turned.meta["val"].shape) != (shape[1], shape[0]) or not weight.meta["val"].is_contiguous():
        return None
    if bias is not None and (bias not in splitter.constant or tuple(bias.meta["val"].shape) != (shape[0],)):  # type: ignore[union-attr]
        return None
    rows = value.shape[0]
    early = splitter.in_early(weight)
    made = splitter.early.graph.call_function(torch.ops.mkl._mkl_reorder_linear_weight.default, (early, rows))
    packed = splitter.constant_input(weight, made)
    operands = (splitter.in_main(x), packed, splitter.in_main(weight), None if bias is None else splitter.in_main(bias))  # type: ignore[arg-type]
    return splitter.call(node, torch.ops.mkl._mkl_linear.default, *operands, rows)


def _packable(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype is torch.float32 and x.numel() > 0


_PACKED: dict[Any, Callable[[_Splitter, Node], Node | None]] = {}
if torch._C._has_mkldnn:
    _PACKED[aten.convolution.default] = _convolution
    if torch._C.has_mkl and hasattr(torch.ops.mkl, "_mkl_linear"):
        _PACKED |= {aten.addmm.default: _product, aten.mm.default: _product}
