"""Building the torch.fx graph of one frame.

In: calls `call_function` / `call_method` with fx nodes and constants as arguments. Out: the fake result of each, and
`finish()`, the GraphModule. Rolling back to a mark erases the nodes added since.
Symbolic sizes and numbers (`shapes.py`): each symbol in the sizes of a tensor that the graph uses is a placeholder too,
before the first tensor that has it, and its input is an int; numbers computed from symbols are nodes made when an
operation needs them.
"""

from __future__ import annotations

import collections
import logging
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from dynajit import _C, symbols, torch_compat
from dynajit.graph.fake import FakeMode, fake_of
from dynajit.graph.meta import is_view, note, notes, value_of
from dynajit.graph.opaque import OPAQUE
from dynajit.graph.seen import NOTHING_VARIES, Dimensions
from dynajit.graph.shapes import Shapes
from dynajit.graph.subgraph import CutNodes
from dynajit.guards.kinds_tensor import has_history
from dynajit.guards.source import ConstSource, Source
from dynajit.nested import leaves_in
from dynajit.op_facts import facts, starts_collective
from dynajit.report.records import FrameLoc
from dynajit.torch_warnings import unwarned
from dynajit.wrappers import is_wrapper, leaves_of


class _Quiet(threading.local):
    """Whether the thread runs operations whose faults torch need not log. Its filter is there for good: one that comes
    and goes would stay behind where an interrupt ends the call that takes it away."""

    on = False

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.on


_quiet = _Quiet()
logging.getLogger("torch._subclasses.fake_tensor").addFilter(_quiet.filter)


def version_of(tensor: torch.Tensor) -> int:
    """How often the tensor, and those that it wraps, were written in place; inference tensors don't count."""
    own = 0 if tensor.is_inference() else tensor._version
    return own + sum(map(version_of, leaves_of(tensor))) if is_wrapper(tensor) else own


# bytes: what is copied before a graph that writes it and may raise; the second where it would break otherwise
_KEPT_FOR_UNDO = 1 << 20, 1 << 24

# methods that no schema names
_CASTS = frozenset(("float", "double", "half", "bfloat16", "int", "long", "short", "byte", "char", "bool"))


class GraphInput:
    """A placeholder: where its real tensor or number comes from, and the fake tensor or symbolic number that stands
    for it. `sizes` and `strides`: what the tensor's guard compares, with None where they are symbolic."""

    def __init__(self, source: Source, node: fx.Node, real: Any, fake: Any, symbol: str | None = None) -> None:
        self.source = source
        self.node = node
        self.real = real
        self.fake = fake
        self.symbol = symbol
        self.sizes: list[int | None] | None = None
        self.strides: list[int | None] | None = None
        self.version = version_of(fake) if symbol is None else 0
        self.layout = _layout(fake) if symbol is None else None
        self.requires_grad = symbol is None and fake.requires_grad
        self.foreign = False  # its memory belongs to no storage of torch's: another input may share it

    @property
    def mutated(self) -> bool:
        """Whether the graph writes into the tensor or gives it another layout, which inference mode doesn't count."""
        return self.symbol is None and (
            version_of(self.fake) != self.version or self.fake.is_inference() or self.changes_metadata
        )

    @property
    def changes_metadata(self) -> bool:
        """Whether the graph gives the tensor another layout, or makes it require gradients."""
        return self.symbol is None and (
            _text(_layout(self.fake)) != _text(self.layout) or self.fake.requires_grad != self.requires_grad
        )


# the argument after the tensor, of random_ and uniform_, that is named by a keyword of Python
_FROM = "from"


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """What autograd has it as a view of, or the tensor itself."""
    base = torch_compat.base_of(tensor)
    return tensor if base is None else base


class GraphBuilder:
    """The graph of one frame, from its first operation to the break or return."""

    def __init__(self, locate: Callable[[], FrameLoc | None] = lambda: None) -> None:
        self.graph = fx.Graph()
        self.shapes = Shapes(locate)
        self.inputs: list[GraphInput] = []
        self._parts: collections.defaultdict[int, list[GraphInput]] = collections.defaultdict(list)  # by their whole
        self.op_count = 0
        self.impure = False
        #: an operation was called for its effect; one raises where values are not what the trace took them for
        self.effects = False
        self.checks = False
        #: called with each operation before it is added
        self.watch: Callable[[Any], None] | None = None
        self._nodes: list[fx.Node] = []
        self._last_placeholder: fx.Node | None = None
        self._names: set[str] = set()
        self.takes_nested = False  # whether an input is a nested tensor, or was; never goes back
        #: in the place of tensors from outside that the graph makes anew of their parts: the parts that hold elements
        self.assembled: list[torch.Tensor] = []
        self._modules: dict[str, fx.GraphModule] = {}
        self._symbol_nodes: dict[str, fx.Node] = {}
        self._number_nodes: dict[symbols.Tree, fx.Node] = {}
        # symbol that depends on data -> the node and dimension that it is the size of
        self._data_sizes: dict[str, tuple[fx.Node, int]] = {}
        self._asserted: set[str] = set()

    @property
    def mode(self) -> FakeMode:
        """torch's fake mode."""
        return self.shapes.mode

    # -- checkpoints

    def mark(self) -> tuple[int, int, int, bool]:
        return len(self._nodes), len(self.inputs), self.op_count, self.impure

    def rollback(self, mark: tuple[int, int, int, bool]) -> None:
        """Erase what was added since `mark`, newest first."""
        nodes, inputs, self.op_count, self.impure = mark
        self._erase_from(nodes)
        while len(self.inputs) > inputs:
            entry = self.inputs.pop()
            self.graph.erase_node(entry.node)
            if entry.symbol is not None:
                del self._symbol_nodes[entry.symbol]
            else:
                self._parts[id(_whole(entry.real))].pop()
        self._last_placeholder = self.inputs[-1].node if self.inputs else None

    def read_since(self, mark: tuple[int, int, int, bool]) -> list[list[GraphInput]]:
        """The tensors among the inputs that each node added since `mark` reads."""
        entries = {entry.node: entry for entry in self.inputs if entry.symbol is None}
        return [[entries[part] for part in node.all_input_nodes if part in entries] for node in self._nodes[mark[0] :]]

    def communicates_since(self, mark: tuple[int, int, int, bool]) -> bool:
        """Whether one of the nodes added since `mark` starts a collective."""
        return any(starts_collective(node.target) for node in self._nodes[mark[0] :])

    def written_since(self, mark: tuple[int, int, int, bool]) -> list[tuple[int, int]]:
        """Of each write by the nodes added since `mark` their node's place, and the place of that which made the
        memory; -1: it was there before."""
        added = self._nodes[mark[0] :]
        writes = [(place, memory) for place, node in enumerate(added) for memory in notes(node).writes]
        if not writes:
            return []
        before = [value_of(node) for node in self._nodes[: mark[0]]]
        made = dict.fromkeys(
            map(torch_compat.memory_of, leaves_in([before, [entry.fake for entry in self.inputs]])), -1
        )
        for place, node in enumerate(added):
            for value in leaves_in(value_of(node)):
                made.setdefault(torch_compat.memory_of(value), place)
        return [(place, made[memory]) for place, memory in writes]

    def computes_alone(self, mark: tuple[int, int, int, bool]) -> bool:
        """Whether the nodes added since `mark` would give the same at any time: beside constants of the trace they read
        nothing that was there before, draw no numbers, and all that they do is known."""
        held = {entry.node for entry in self.inputs if isinstance(entry.source, ConstSource)}
        added = self._nodes[mark[0] :]
        return all(
            held.union(added).issuperset(node.all_input_nodes)
            and (node.target in _CASTS or (facts(node.target).known and not facts(node.target).draws))
            for node in added
        )

    def _erase_from(self, place: int) -> None:
        """Erase the nodes from this one on, and forget which numbers they were."""
        erased = set(self._nodes[place:])
        while len(self._nodes) > place:
            node = self._nodes.pop()
            if "unbacked_bindings" in node.meta:  # whose fake keeps them, for the next who asks
                for fake in (given.meta.get("example_value") for given in node.all_input_nodes):
                    if isinstance(fake, FakeTensor):
                        fake.item_memo = fake.nonzero_memo = None
            self.graph.erase_node(node)
        if erased:
            self._number_nodes = {tree: node for tree, node in self._number_nodes.items() if node not in erased}

    def has_written(self) -> bool:
        """Whether an input was written so far, or a collective started, of which other ranks have had their part; of
        inference tensors it is not known."""
        tensors = (entry for entry in self.inputs if entry.symbol is None)
        written = any(entry.mutated and not entry.fake.is_inference() for entry in tensors)
        return written or bool(self.written()) or any(starts_collective(node.target) for node in self._nodes)

    def memories_written(self, mark: tuple[int, int, int, bool] | None = None) -> set[int | None]:
        """The memory that nodes write, or those added since `mark`."""
        nodes = self._nodes[mark[0] :] if mark is not None else self._nodes
        return {memory for node in nodes for memory in notes(node).writes}

    def written(self) -> list[GraphInput]:
        """The inputs that nodes write, also where torch does not count it: through `.data`, and statistics."""
        memories = self.memories_written()
        if not memories:
            return []
        tensors = (entry for entry in self.inputs if entry.symbol is None)
        return [entry for entry in tensors if torch_compat.memory_of(entry.fake) in memories]

    def writes_inputs(self) -> bool:
        """Whether an input is written in place, if only statistics that a batch norm updates unseen by autograd."""
        return any(entry.mutated for entry in self.inputs) or bool(self.written())

    def undo(self, needed: bool = True) -> tuple[str, ...] | None:
        """Names of the inputs written so far, if writing what they held undoes all that was done, at no great cost."""
        written = self.written()
        writes = any(notes(node).writes for node in self._nodes)
        if writes and any(entry.symbol is None and is_wrapper(entry.fake) for entry in self.inputs):
            return None  # which share memory with others unnoticed
        if not self.only_draws() or not all(entry.symbol or _stays_as_it_is(entry) for entry in self.inputs):
            return None
        if any(entry.real.layout is not torch.strided for entry in written):
            return None
        size = sum(entry.real.numel() * entry.real.element_size() for entry in written)
        return tuple(entry.node.name for entry in written) if size <= _KEPT_FOR_UNDO[needed] else None

    def only_draws(self) -> bool:
        """Whether what the graph does besides writing its inputs is at most to draw random numbers."""
        others = (node.target in OPAQUE or starts_collective(node.target) for node in self._nodes)
        return not self.effects and not any(others)

    def may_raise(self) -> bool:
        """Whether one of the operations raises for some values of the tensors: it runs, whoever needs what it gives."""
        return any(notes(node).may_raise for node in self._nodes)

    def conflict(self) -> bool:
        """Whether an input is written that may share memory with another one, which only storages of torch's tell."""
        tensors = [entry for entry in self.inputs if entry.symbol is None]
        foreign = any(entry.foreign for entry in tensors)
        return foreign and len(tensors) > 1 and self.writes_inputs()

    # -- what autograd knows of inputs that are views of each other

    def outdates(self, written: torch.Tensor) -> bool:
        """Whether a write of the tensor gives an input another history, or none that autograd tells, of which its fake
        hears nothing: those of sizes that vary are no views, of each other or of anything."""
        if not self.shapes.active:
            return False
        own, whole = torch_compat.memory_of(written), _whole(written)
        sharing = [entry for entry in self.inputs if entry.symbol is None and torch_compat.memory_of(entry.fake) == own]
        counts = any(entry.mutated for entry in sharing)
        through = [_whole(entry.real) for entry in sharing if _whole(entry.fake) is whole]
        for entry in sharing:
            hears = _whole(entry.fake) is whole
            if hears and entry.sizes is None:
                continue
            has_history = written.requires_grad or entry.real.requires_grad
            if counts and has_history and torch_compat.is_lost_by_writes(entry.real):
                return True
            gets_history = not hears and written.requires_grad and not entry.fake.requires_grad
            if gets_history and any(_whole(entry.real) is other for other in through):
                return True
        return False

    def writes_assembled(self, written: torch.Tensor) -> bool:
        """Whether a write of the tensor is one of a tensor from outside that the graph made anew of its parts."""
        memories = {torch_compat.memory_of(leaf) for leaf in leaves_of(written)} if self.assembled else ()
        return any(torch_compat.memory_of(part) in memories for part in self.assembled)

    def is_outdated(self, real: torch.Tensor) -> bool:
        """Whether the graph has written a tensor's memory, through another input, so that it has another history in
        eager mode than a fake that is made of it now, or none that autograd tells."""
        parts = self._parts.get(id(_whole(real)), ())
        if any(entry.fake.requires_grad > entry.real.requires_grad for entry in parts):
            return True
        return real.requires_grad and torch_compat.is_lost_by_writes(real) and any(entry.mutated for entry in parts)

    # -- growing

    def add_input(self, source: Source, real: torch.Tensor, dimensions: Dimensions | None = None) -> GraphInput:
        """A placeholder for a real tensor reached through `source`; `dimensions`: what of it is symbolic."""
        if dimensions is None and not self.shapes.in_symbolic_memory(real):
            return self._add_placeholder(source, real, fake_of(self.mode, real))
        fake, sizes, strides = self.shapes.tensor(real, source, dimensions or NOTHING_VARIES)
        for name in list(self.shapes.symbols):
            self._symbol_input(name)
        made = self._add_placeholder(source, real, fake)
        made.sizes, made.strides = sizes, strides
        return made

    def add_number(self, source: Source, real: Any) -> Any:
        """A symbolic int or float for the one reached through `source`."""
        return self.shapes.number(real, source)

    def add_made(self, source: Source, like: torch.Tensor, fake: torch.Tensor) -> GraphInput:
        """A placeholder for a tensor that generated code makes before the graph's call; `like`: a real one like it."""
        made = self._add_placeholder(source, like, fake)
        made.sizes = [size if isinstance(size, int) else None for size in fake.shape]
        made.strides = [stride if isinstance(stride, int) else None for stride in fake.stride()]
        return made

    def _add_placeholder(self, source: Source, real: Any, fake: Any, symbol: str | None = None) -> GraphInput:
        if self._last_placeholder is not None:
            where = self.graph.inserting_after(self._last_placeholder)
        else:
            where = self.graph.inserting_before(next(iter(self.graph.nodes), None))
        with where:
            node = self.graph.placeholder(self._input_name(source) if symbol is None else symbol)
        node.meta["example_value"] = fake
        version = fake._version if isinstance(fake, torch.Tensor) and not fake.is_inference() else None
        waited_for = isinstance(real, torch.Tensor) and _C.has_gradient_hooks(real)
        grad_fn = getattr(fake, "grad_fn", None)
        note(node, source=source.name(), grad_fn=grad_fn, version=version, waited_for=waited_for)
        made = GraphInput(source, node, real, fake, symbol)
        self.takes_nested |= isinstance(real, torch.Tensor) and real.is_nested
        self._last_placeholder = node
        self.inputs.append(made)
        if symbol is None:
            self._parts[id(_whole(real))].append(made)
        return made

    # -- symbolic numbers

    def _symbol_input(self, name: str) -> fx.Node:
        """The placeholder of a symbol; one that nothing needs is dropped at the end."""
        node = self._symbol_nodes.get(name)
        if node is None:
            symbol = self.shapes.symbols[name]
            entry = self._add_placeholder(symbol.source, symbol.hint, self.shapes.symbolic(symbol), name)
            node = self._symbol_nodes[name] = entry.node
        return node

    def number_node(self, number: Any) -> Any:
        """What stands for a symbolic number in the graph: a node, or the number if it is a constant after all."""
        tree = symbols.tree_of(number.node.expr)
        if tree in self._number_nodes:
            return self._number_nodes[tree]
        return symbols.node_of(tree, self._create_number, self._leaf, self._number_nodes)

    def _leaf(self, name: str) -> fx.Node:
        if name in self.shapes.symbols:
            return self._symbol_input(name)
        owner, dimension = self._data_sizes[name]
        node = self._create_number(torch.ops.aten.sym_size.int, (owner, dimension))
        self._number_nodes[name] = node
        return node

    def knows(self, number: Any) -> bool:
        """Whether a symbolic number follows from the inputs and from what the graph has computed so far."""
        tree = symbols.tree_of(number.node.expr)
        return tree in self._number_nodes or all(
            name in self.shapes.symbols or name in self._data_sizes or name in self._number_nodes
            for name in symbols.names_in(tree)
        )

    def bind_data(self, node: fx.Node, result: Any) -> None:
        """Note which symbols that depend on data become known by `node`, whose fake result this is."""
        if not self.shapes.active:
            return
        if symbols.is_symbolic(result) and not self.knows(result):
            tree = symbols.tree_of(result.node.expr)
            self._number_nodes[tree] = node
        elif isinstance(result, torch.Tensor):
            for dimension, size in enumerate(result.shape):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and not self.knows(size):
                    self._data_sizes[str(size.node.expr)] = (node, dimension)

    def assert_promises(self) -> None:
        """Nodes that check, when the graph runs, what torch took for granted of numbers that depend on data."""
        for key, tree, message in self.shapes.promises():
            if key not in self._asserted and all(map(self._is_bound, symbols.names_in(tree))):
                self._asserted.add(key)
                condition = symbols.node_of(tree, self._create_number, self._leaf, self._number_nodes)
                node = self.graph.call_function(torch.ops.aten._assert_scalar.default, (condition, message))
                node.meta["example_value"] = None
                self._nodes.append(node)
                self.impure = True

    def assume_promises(self) -> None:
        """Whatever was promised so far is checked otherwise."""
        self._asserted.update(key for key, _, _ in self.shapes.promises())

    def _is_bound(self, name: str) -> bool:
        return name in self.shapes.symbols or name in self._data_sizes or name in self._number_nodes

    def _create_number(self, target: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        node = self.graph.call_function(target, args)
        examples = [arg.meta["example_value"] if isinstance(arg, fx.Node) else arg for arg in args]
        node.meta["example_value"] = target(*examples)
        note(node, part=True)
        self._nodes.append(node)
        return node

    def example(self, entry: GraphInput) -> torch.Tensor:
        """The fake input as the graph's caller gives it. `entry.fake` is what tracing left of it: an operation like
        `unsqueeze_` changes the shape of the tensor it is called on."""
        fake = entry.fake
        if entry.layout is None or _text(entry.layout) == _text(_layout(fake)):
            return fake
        shape, stride, _ = entry.layout
        if all(type(size) is int for size in shape):
            return self.mode.anew(entry.real)
        with self.mode:
            fresh = torch.empty_strided(shape, stride, dtype=fake.dtype, device=fake.device)
        return fresh.requires_grad_(fake.requires_grad)

    def _input_name(self, source: Source) -> str:
        """A parameter's name that tells where it comes from, and is unique."""
        text = "".join(char if char.isascii() and char.isalnum() else "_" for char in source.name())
        base = name = "arg_" + "_".join(part for part in text.split("_") if part)[-48:].lower()
        count = 0
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def create(
        self, op: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any], meta: dict[str, Any]
    ) -> fx.Node:
        """Append a node; its fake value is set by the caller in `meta["example_value"]`."""
        if self.watch is not None:
            self.watch(target)
        if _FROM in kwargs and len(args) == 1:  # fx prints `name=value`, and this is no name to Python
            kwargs = dict(kwargs)
            args = [*args, kwargs.pop(_FROM)]
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs))
        node.meta.update(meta)
        self._nodes.append(node)
        self.op_count += 1
        return node

    def create_part(self, whole: fx.Node, index: int, meta: dict[str, Any]) -> fx.Node:
        """A node for one item of what `whole` returns; no operation of the program's."""
        node = self.graph.call_function(operator.getitem, (whole, index))
        node.meta.update(meta)
        note(node, part=True)
        self._nodes.append(node)
        return node

    @contextmanager
    def running_fake(self) -> Iterator[None]:
        """Operations in the body run on fake tensors; what they raise is the program's, and torch need not log it."""
        before = _quiet.on
        try:
            _quiet.on = True
            with self.mode, self._composites():
                yield
        finally:
            _quiet.on = before

    # -- bodies of higher-order operators

    def cut(self, mark: tuple[int, int, int, bool], results: Sequence[fx.Node]) -> CutNodes:
        """Take out the nodes added since `mark`; the inputs added since then stay."""
        made = CutNodes([node for node in self._nodes[mark[0] :] if node.op != "get_attr"], results)
        self._erase_from(mark[0])
        self.op_count = mark[2]
        return made

    def attach(self, module: fx.GraphModule, hint: str) -> fx.Node:
        """A node for a module that the graph holds."""
        name = f"{hint}_{len(self._modules)}"
        self._modules[name] = module
        with unwarned():  # the module is given its attributes at the end
            node = self.graph.get_attr(name)
        note(node, part=True)
        self._nodes.append(node)
        return node

    def _composites(self) -> AbstractContextManager[Any]:
        """With symbols, operators made of others run as Python where torch has that: its C++ asks for ints."""
        if not self.shapes.active:
            return nullcontext()
        from torch._dispatch.python import enable_python_dispatcher

        return enable_python_dispatcher()  # type: ignore[no-untyped-call, no-any-return]

    # -- finishing

    def finish(self, outputs: Sequence[fx.Node]) -> tuple[fx.GraphModule, list[GraphInput]]:
        """Close the graph with these outputs; drop unused placeholders and unused parts of results."""
        self.graph.output(tuple(outputs))
        for node in reversed(self._nodes):
            noted = notes(node)
            if not node.users and (noted.part or (not noted.changes and not noted.may_raise and is_view(node))):
                self.graph.erase_node(node)
        used = []
        needed = self._symbols_of_inputs()
        for entry in self.inputs:
            if entry.node.users or entry.symbol in needed:
                used.append(entry)
            else:
                self.graph.erase_node(entry.node)
        root = torch.nn.Module()
        for node in self.graph.nodes:
            if node.op == "get_attr":
                setattr(root, node.target, self._modules[node.target])
        module = torch_compat.graph_module(root, self.graph, "DynajitGraph")
        return module, used

    def _symbols_of_inputs(self) -> set[str]:
        """The symbols in the sizes of the tensors that the graph uses: as torch has it, they are inputs too."""
        return {
            name
            for entry in self.inputs
            if entry.sizes is not None and entry.node.users
            for size in (*entry.fake.shape, *entry.fake.stride())
            if isinstance(size, torch.SymInt)
            for name in symbols.names_in(symbols.tree_of(size.node.expr))
        }


def _stays_as_it_is(entry: GraphInput) -> bool:
    """Whether all that may become of an input tensor is another content, on the CPU."""
    if entry.real.device.type != "cpu" or entry.fake.is_inference() or entry.changes_metadata:
        return False
    with torch.inference_mode(False):  # a view written in inference mode has another one made, which fails there
        return has_history(entry.fake) and entry.fake.grad_fn is notes(entry.node).grad_fn


def run_target(op: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the node computes, on whatever tensors the arguments hold."""
    if op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    function: Callable[..., Any] = target
    return function(*args, **kwargs)


def _layout(fake: torch.Tensor) -> tuple[Any, ...]:
    return tuple(fake.shape), fake.stride(), fake.storage_offset()


def _text(layout: tuple[Any, ...] | None) -> str:
    """To compare layouts: symbolic numbers that are compared would have to be decided."""
    return str(layout)
