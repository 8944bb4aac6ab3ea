"""Graphs with tensor subclasses that wrap tensors: without gradients, a graph of what their `__torch_dispatch__` does.

In:  a torch-level graph some of whose nodes give instances of wrapper subclasses. Out: `without_wrappers`: the same
with plain tensors alone, where each operation on an instance has become the operations that its class made of it; the
call takes its inputs apart and makes instances of results. With gradients, which are those of the operations on
instances, it is AOTAutograd that takes them apart. `why_as_captured` says what neither road expresses. A graph that
writes instances from outside writes the tensors in them, and their own versions rise as in eager.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dynajit.aot.legality import GraphFacts
from dynajit.aot.rewrite import Copy, results_of
from dynajit.aot.trace import QUERIES
from dynajit.graph.meta import value_of, written_by
from dynajit.symbols import is_symbolic
from dynajit.torch_compat import any_autocast_enabled, memory_of
from dynajit.wrappers import Expected, Flattened, is_on_its_way, is_wrapper, leaves_of

Makers = list[Callable[[Iterator[Any]], Any]]

WRITES = "it writes inputs, or by out=, and there are tensor subclasses"


class NotDesugared(Exception):
    """A graph's subclasses can't be taken apart; the text says why."""


def has_wrappers(gm: torch.fx.GraphModule) -> bool:
    """Whether a node gives an instance of a wrapper subclass."""
    return any(is_wrapper(part) for node in gm.graph.nodes for part in pytree.tree_leaves(value_of(node)))


def has_ragged_sizes(gm: torch.fx.GraphModule) -> bool:
    """Whether a node gives a jagged tensor. Here its ragged size is a number equal to itself alone, where AOTAutograd
    wants a symbol of torch's."""
    values = (part for node in gm.graph.nodes for part in pytree.tree_leaves(value_of(node)))
    return any(isinstance(part, torch.Tensor) and part.is_nested for part in values)


class Plain(NamedTuple):
    """A graph of plain tensors for one of instances.

    makers: what makes the results of that one of its own, in order. counts: how often the input at each place there is
    written, as autograd counts the writes of an instance. version_exempt: the places among its own inputs of tensors
    that are written with the instance that they are in, of which autograd hears nothing. of_classes: the names of the
    nodes that a class's `__torch_dispatch__` made.
    """

    module: torch.fx.GraphModule
    makers: Makers
    counts: dict[int, int]
    version_exempt: frozenset[int]
    of_classes: frozenset[str]


def writes_what_is_given(facts: GraphFacts) -> bool:
    """Whether a graph writes inputs, or tensors in them, or by out=."""
    written = {memory for parts in facts.writes.values() for part in parts for memory in _memories(value_of(part))}
    return not _given(facts).isdisjoint(written) or bool(facts.outs)


def why_as_captured(facts: GraphFacts) -> str | None:
    """Why a graph with wrapper subclasses runs as it was captured; None if it need not."""
    seen = _given(facts)
    for node in facts.returned:
        own = _memories(value_of(node))
        if not own.isdisjoint(seen):
            return "a result shares memory with an input or another result, and there are tensor subclasses"
        seen |= own
    wrappers = [value_of(node) for node in facts.inputs if is_wrapper(value_of(node))]
    if any(leaf.requires_grad for wrapper in wrappers for leaf in leaves_of(wrapper)):
        return "a tensor inside of a subclass has gradients of its own"
    return None


def _given(facts: GraphFacts) -> set[int | None]:
    return {memory for node in facts.inputs for memory in _memories(value_of(node))}


def _memories(value: Any) -> set[int | None]:
    """The memory of a tensor, and of those that it wraps."""
    own = [value] if isinstance(value, torch.Tensor) else []
    return {memory_of(part) for part in (*own, *leaves_of(value))} - {None}


def without_wrappers(gm: torch.fx.GraphModule) -> Plain:
    """A graph of plain tensors for `gm`, whose results have no gradients. Raises NotDesugared, and what the classes
    raise."""
    if any_autocast_enabled():
        raise NotDesugared("autocast, which is asked before a subclass, would be asked again")
    return _Desugar(gm).run()


def plain_inputs(inputs: Sequence[Any]) -> list[Any]:
    """The plain tensors, and the numbers, that a graph's inputs consist of."""
    return [leaf for value in inputs for leaf in _flat(value)]


def wrapped(gm: torch.fx.GraphModule, plain: Plain, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The call of `gm` by way of its graph of plain tensors: takes inputs apart, makes instances of results."""
    makers, risen = plain.makers, [place for place, count in plain.counts.items() for _ in range(count)]
    paths = [_paths(value_of(node), _is_plain) for node in gm.graph.find_nodes(op="placeholder")]

    def call(*given: Any) -> Any:
        flat: list[Any] = []
        for value, ways in zip(given, paths, strict=True):
            flat.extend(_at(value, way) for way in ways)
        results = iter(compiled(*flat))
        if risen:
            torch.autograd.graph.increment_version([given[place] for place in risen])
        return tuple([make(results) for make in makers])

    return call


def once_arrived(gm: torch.fx.GraphModule, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, the call of `gm`, after the wait for each instance of `AsyncCollectiveTensor` that its inputs are or
    consist of. That class waits when it is asked for anything, once, and so only in the first of several traces."""
    values = [value_of(node) for node in gm.graph.find_nodes(op="placeholder")]
    ways = [(place, way) for place, value in enumerate(values) for way in _paths(value, is_on_its_way)]
    if not ways:
        return compiled

    def call(*given: Any) -> Any:
        for place, way in ways:
            _at(given[place], way).trigger_wait()
        return compiled(*given)

    return call


class _AsCaptured(torch.fx.Interpreter):
    """A run of a graph of plain tensors. What a class's `__torch_dispatch__` calls runs as it does from there: autograd
    counts no writes, and knows of no views."""

    def __init__(self, plain: Plain) -> None:
        super().__init__(plain.module)
        self.of_classes = plain.of_classes

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.name not in self.of_classes:
            return super().run_node(n)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)):
            return super().run_node(n)


def one_by_one(plain: Plain, *inputs: Any) -> Any:
    """What a graph of plain tensors gives, by torch's operations as eager makes them."""
    return _AsCaptured(plain).run(*inputs)


def _flat(value: Any) -> list[Any]:
    return list(leaves_of(value)) if isinstance(value, torch.Tensor) else [value]


def _is_plain(value: Any) -> bool:
    return not is_wrapper(value)


def _paths(value: Any, wanted: Callable[[Any], bool]) -> list[tuple[str, ...]]:
    """The attributes that lead to each part of a value, itself among them, that is `wanted`."""
    names = Flattened(value).names if is_wrapper(value) else ()
    rest = [(name, *path) for name in names for path in _paths(getattr(value, name), wanted)]
    return [(), *rest] if wanted(value) else rest


def _at(value: Any, way: tuple[str, ...]) -> Any:
    """The part of a value that these attributes lead to."""
    return functools.reduce(getattr, way, value)


def _maker(value: Any) -> Callable[[Iterator[Any]], Any]:
    """What makes a result of the next ones of the plain graph's."""
    if not is_wrapper(value):
        return next
    flat = Flattened(value)
    known = pytree.tree_leaves((flat.context, flat.size, flat.stride))
    if any(isinstance(part, torch.Tensor) or is_symbolic(part) for part in known):
        raise NotDesugared("a subclass's context depends on what the graph computes")
    inner = [_maker(getattr(value, name)) for name in flat.names]
    return lambda results: flat.again(*[make(results) for make in inner])


def _fakes(value: Any) -> Iterator[FakeTensor]:
    for part in pytree.tree_leaves(value):
        yield from (leaf for leaf in leaves_of(part) if isinstance(leaf, FakeTensor))


class _Instance:
    """An instance among the inputs, as it was before the graph ran on it."""

    def __init__(self, value: Any) -> None:
        self.value, self.expected = value, Expected(value)
        self.parts = [(part, _version(part)) for part in _parts(value)]

    def count(self) -> int:
        """How often it was written. Raises NotDesugared where more than the tensors in it has changed."""
        same = [part for part, _ in self.parts]
        if not self.expected(self.value) or any(a is not b for a, b in zip(same, _parts(self.value), strict=True)):
            raise NotDesugared("it changes what an instance consists of")
        (_, before), *inner = self.parts
        if any(is_wrapper(part) and _version(part) != version for part, version in inner):
            raise NotDesugared("it writes an instance inside of another one, which is counted")
        return _version(self.value) - before

    def version_exempt(self) -> list[torch.Tensor]:
        """The plain tensors in it whose own versions stayed."""
        plain = ((part, version) for part, version in self.parts if not is_wrapper(part) and not part.is_inference())
        return [part for part, version in plain if part._version == version]


def _parts(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The instance, and all that it consists of."""
    yield value
    if is_wrapper(value):
        for name in Flattened(value).names:
            yield from _parts(getattr(value, name))


def _version(value: torch.Tensor) -> int:
    return 0 if value.is_inference() else value._version


class _Desugar(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A copy of a graph; operations on instances become those that reach this mode when they run on fakes."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gm = gm
        self.copy = Copy(gm)
        self.makers: Makers = []
        self._given: dict[int, _Instance] = {}  # by place among the inputs
        self._inputs: list[Any] = []  # of the plain graph
        self._of_classes: list[str] = []
        self._counted: set[int | None] = set()  # the memory that operations on plain tensors write
        self._interpreter = torch.fx.Interpreter(gm)
        self._values: dict[torch.fx.Node, Any] = {}
        # of plain tensors by identity, which live as long as they are here
        self._nodes: dict[int, tuple[torch.Tensor, torch.fx.Node]] = {}

    def run(self) -> Plain:
        """The graph of plain tensors."""
        mode = next((leaf.fake_mode for node in self.gm.graph.nodes for leaf in _fakes(value_of(node))), None)
        if mode is None:
            raise NotDesugared("its tensors are not fake")
        for place, node in enumerate(self.gm.graph.find_nodes(op="placeholder")):
            if is_wrapper(value_of(node)):
                self._given[place] = _Instance(value_of(node))
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self._input(node)
            elif node.op != "output":
                self._step(node, mode)
        flat: list[Any] = []
        for node in results_of(self.gm):
            value = self._values[node] if isinstance(node, torch.fx.Node) else node
            self.makers.append(_maker(value))
            plain = self.copy.of.get(node)
            flat.extend([self._operand(leaf) for leaf in _flat(value)] if plain is None else [plain])
        self.copy.graph.output(tuple(flat))
        counts = {place: one.count() for place, one in self._given.items()}
        return Plain(self.copy.module(), self.makers, counts, self._version_exempt(), frozenset(self._of_classes))

    def _version_exempt(self) -> frozenset[int]:
        places = {id(tensor): place for place, tensor in enumerate(self._inputs)}
        hidden = (leaf for one in self._given.values() for leaf in one.version_exempt())
        return frozenset(places[id(leaf)] for leaf in hidden if memory_of(leaf) not in self._counted)

    def _input(self, node: torch.fx.Node) -> None:
        value = self._values[node] = value_of(node)
        self._inputs.extend(_flat(value))
        if not is_wrapper(value):
            self._bind(value, self.copy.take(node))
            return
        for number, leaf in enumerate(leaves_of(value)):
            made = self.copy.graph.placeholder(f"{node.name}_{number}")
            made.meta = {**node.meta, "example_value": leaf}
            self._bind(leaf, made)

    def _step(self, node: torch.fx.Node, mode: FakeTensorMode) -> None:
        """A node among plain tensors as it is; else what it comes to."""
        value = value_of(node)
        parts = [*(self._values[part] for part in node.all_input_nodes), *pytree.tree_leaves(value)]
        if not any(map(is_wrapper, parts)) and all(part in self.copy.of for part in node.all_input_nodes):
            written = written_by(node)
            if value is None and node.op != "get_attr" and not written:
                raise NotDesugared("it changes torch's state")
            outs = pytree.tree_leaves(node.kwargs.get("out"))
            self._counted.update(memory_of(value_of(part)) for part in (*written, *outs))
            self._values[node] = value
            self._bind(value, self.copy.take(node))
            return
        args, kwargs = map_arg((node.args, node.kwargs), self._values.__getitem__)
        with mode, self:
            made = self._values[node] = getattr(self._interpreter, node.op)(node.target, args, kwargs)
        if isinstance(made, torch.Tensor) and not is_wrapper(made):
            self.copy.of[node] = self._operand(made)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(map(is_wrapper, pytree.tree_leaves((args, kwargs)))):
            return NotImplemented  # the class is asked
        result = func(*args, **kwargs)
        if func in QUERIES:
            return result
        if not isinstance(func, torch._ops.OpOverload):
            raise NotDesugared(f"{func} is not a plain operator")
        node = self.copy.graph.call_function(func, *pytree.tree_map(self._operand, (args, kwargs)))
        node.meta["example_value"] = result
        self._of_classes.append(node.name)
        self._bind(result, node)
        return result

    def _bind(self, value: Any, node: torch.fx.Node) -> None:
        if isinstance(value, torch.Tensor):
            self._nodes.setdefault(id(value), (value, node))
        elif isinstance(value, (tuple, list)):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    part = self.copy.graph.call_function(operator.getitem, (node, index))
                    part.meta["example_value"] = item
                    self._bind(item, part)

    def _operand(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found = self._nodes.get(id(value))
            if found is None:
                raise NotDesugared("a subclass computes with a tensor of unknown origin")
            return found[1]
        if is_symbolic(value):
            raise NotDesugared("a subclass computes with symbolic numbers")
        return value
