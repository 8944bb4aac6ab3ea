"""The short road for graphs that autograd has no business with: one pass from torch calls to a functional ATen graph.

In:  a torch-level GraphModule, and for each placeholder a strided fake tensor (its sizes may be symbolic) or a symbolic
     number.
Out: `FunctionalGraph`: ATen operations only, no mutation but `copy_` into mutated inputs at the end, the same inputs
     and outputs; or `NotSimple` with the reason why torch's AOTAutograd has to do it.

torch's C++ functionalisation rewrites mutation, a dispatch mode below it writes down what reaches it. That is half the
time of a traced and retraced graph. Outputs that are views stay views of what they view, so running the graph on real
tensors aliases what eager aliases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _make_graph_module
from torch.utils._python_dispatch import TorchDispatchMode

from dynajit import optimizer_steps, torch_compat
from dynajit.aot.decompositions import Decompositions
from dynajit.aot.modes import one_at_a_time
from dynajit.aot.passes.constants import LITERAL
from dynajit.aot.passes.recurrent import whole_call
from dynajit.graph.meta import value_of
from dynajit.nested import leaves_in, map_leaves, tensors_in
from dynajit.op_facts import facts, written_arguments
from dynajit.symbols import SYMBOLIC_TYPES, Tree, Untranslatable, has_symbols, is_symbolic, node_of, plain, tree_of

aten = torch.ops.aten

# What a mode is asked that no graph has to do again.
QUERIES = frozenset({torch.ops.prim.device.default, torch.ops.prim.layout.default})
# What a tensor is called that the graph's module holds, and whose contents may change.
HELD = "_held_tensor"
# A tensor made from Python numbers reaches the dispatcher as a ready constant under one of these.
_LIFTS = frozenset({aten.lift.default, aten.lift_fresh.default, aten.lift_fresh_copy.default})


class NotSimple(Exception):
    """The short road does not take this graph; the text says why."""


class NotFunctional(Exception):
    """No functional graph gives what this one does; the text says why."""


@dataclasses.dataclass(frozen=True)
class FunctionalGraph:
    """`mutated` are the positions of the inputs that the graph writes to."""

    module: torch.fx.GraphModule
    inputs: list[Any]
    mutated: tuple[int, ...]


def trace_functional(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], fake_mode: FakeTensorMode, decompositions: Decompositions
) -> FunctionalGraph:
    """The functional ATen graph of `gm`. Raises NotSimple; whatever the program itself raises comes through."""
    recorder = _Recorder(decompositions, fake_mode)
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        recorder.add_input(node.name, value)
    for node in gm.graph.find_nodes(op="get_attr"):
        if isinstance(value := operator.attrgetter(node.target)(gm), torch.Tensor):
            recorder.constant(value, HELD)
    replay = _Replay(gm, recorder)
    grad_mode = torch.is_grad_enabled()
    symbolic = fake_mode.shape_env is not None and any(map(has_symbols, inputs))
    with (
        one_at_a_time(),
        torch.inference_mode(False),
        torch.set_grad_enabled(grad_mode),
        fake_mode,
        recorder,
        _python_composites() if symbolic or _updates_statistics(gm, inputs) else contextlib.nullcontext(),
        _functionalised(),
    ):
        wrapped = [torch._to_functional_tensor(v) if isinstance(v, torch.Tensor) else v for v in inputs]
        outputs = replay.run(*wrapped, enable_io_processing=False)
        replay.refuse_mutated_constants()
        if torch.is_grad_enabled() != grad_mode:
            raise NotSimple("the graph leaves with another grad mode")
        mutated = _write_mutations_back(recorder, inputs, wrapped, outputs)
        recorder.set_outputs(_outputs(gm, recorder, outputs, wrapped, inputs), mutated)
    return FunctionalGraph(recorder.graph_module(), list(inputs), tuple(mutated))


# Their C++ for GPUs ends in an operator whose schema does not say that it writes to the running statistics.
_NORMS = (torch.nn.functional.batch_norm, torch.nn.functional.instance_norm, torch.batch_norm, torch.instance_norm)


def _updates_statistics(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    on_gpu = any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in inputs)
    return on_gpu and any(_trains(node) for node in gm.graph.nodes if node.target in _NORMS)


def _trains(norm: torch.fx.Node) -> bool:
    """Does it normalise by its input's own statistics? They are an argument that is called in two ways."""
    names = {"use_input_stats": True, "training": False}
    given = [norm.kwargs[name] for name in names if name in norm.kwargs]
    default = norm.target is torch.nn.functional.instance_norm
    return bool(given[0]) if given else bool(norm.args[5]) if len(norm.args) > 5 else default


def _python_composites() -> contextlib.AbstractContextManager[Any]:
    """Operators made of others run as Python where torch has that: C++ asks for ints where there are symbols."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()  # type: ignore[no-untyped-call, no-any-return]


@contextlib.contextmanager
def _functionalised() -> Iterator[None]:
    # Views are recorded as views, not as copies.
    try:
        torch._enable_functionalization(reapply_views=True)
        yield
    finally:
        torch._disable_functionalization()  # type: ignore[no-untyped-call]


def _write_mutations_back(
    recorder: _Recorder, inputs: Sequence[Any], wrapped: Sequence[Any], outputs: Sequence[Any]
) -> dict[int, torch.fx.Node]:
    """Position of each mutated input -> node of its new contents. Refuses the aliasing that values can't express."""
    mutated: dict[int, torch.fx.Node] = {}
    for position, (before, wrapper) in enumerate(zip(inputs, wrapped, strict=True)):
        if not isinstance(before, torch.Tensor):
            continue
        after = _unwrap(wrapper)
        if after is before:
            continue
        if _sizes(after) != _sizes(before):
            raise NotSimple("an input is given another size")
        mutated[position] = recorder.node_of(after)
    written = {_storage(wrapped[position]) for position in mutated}
    known = {id(wrapper) for wrapper in wrapped}
    if any(
        isinstance(value, torch.Tensor) and id(value) not in known and _storage(value) in written for value in outputs
    ):
        raise NotSimple("an output is a view of a mutated input")
    return mutated


def _sizes(tensor: torch.Tensor) -> tuple[Any, ...]:
    """As text where they are symbolic: comparing symbols would decide something of them. Strides may differ: what a
    write makes in a functional graph is a new tensor, which is copied into the input."""
    return (*(size if type(size) is int else str(size) for size in tensor.shape), tensor.dtype)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _unwrap(wrapper: torch.Tensor) -> torch.Tensor:
    torch._functionalize_sync(wrapper)
    return torch._from_functional_tensor(wrapper)


def _become(wrapper: torch.Tensor, value: torch.Tensor) -> None:
    """Write all of a functional tensor, and what it is a view of."""
    torch._functionalize_replace(wrapper, value)
    torch._functionalize_commit_update(wrapper)
    torch._functionalize_sync(wrapper)


def _outputs(
    gm: torch.fx.GraphModule,
    recorder: _Recorder,
    outputs: Sequence[Any],
    wrapped: Sequence[Any],
    inputs: Sequence[Any],
) -> list[Any]:
    """The outputs' nodes. A tensor keeps its strides when it is written; the one that a functional graph makes instead
    may have others, and is laid out again."""
    nodes: Any = gm.graph.output_node().args[0]
    known = {id(wrapper) for wrapper in wrapped}
    memories = [_storage(value) for value in outputs if isinstance(value, torch.Tensor)]
    made = []
    for node, value in zip(nodes, outputs, strict=True):
        wanted = value_of(node)
        if isinstance(wanted, torch.Tensor) and isinstance(value, torch.Tensor) and id(value) not in known:
            inner = _unwrap(value) if torch._is_functional_tensor(value) else value
            if not same_layout(wanted, inner):
                if memories.count(_storage(value)) > 1:
                    raise NotFunctional("results share memory whose layout a functional graph would change")
                value = _laid_out(inner, wanted)
        made.append(_output(recorder, value, wrapped, inputs))
    return made


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the strides are the same, where they mean something, and whether the memory holds conjugates or negated
    numbers. Strides are compared as text, as comparing symbols would decide."""
    if (one.dim(), one.is_conj(), one.is_neg()) != (other.dim(), other.is_conj(), other.is_neg()):
        return False
    if any(type(size) is int and size == 0 for size in one.shape):
        return True
    pairs = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all((type(size) is int and size == 1) or str(left) == str(right) for size, left, right in pairs)


def _laid_out(value: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The same elements with the strides wanted, if they fill the memory as they are."""
    if has_symbols(wanted):
        raise NotFunctional("a tensor of symbolic size is written, and a functional graph would change its layout")
    order = sorted(range(wanted.dim()), key=lambda at: (wanted.stride()[at], wanted.shape[at] != 1), reverse=True)
    inverse = sorted(range(wanted.dim()), key=order.__getitem__)
    contiguous = aten.clone.default(aten.permute.default(value, order), memory_format=torch.contiguous_format)
    result: torch.Tensor = aten.permute.default(contiguous, inverse)
    if not same_layout(result, wanted):
        raise NotFunctional("a written tensor has gaps in its memory, or conjugates: a functional graph makes it anew")
    return result


def _output(
    recorder: _Recorder, value: Any, wrapped: Sequence[Any], inputs: Sequence[Any]
) -> torch.fx.Node | int | float | bool | str | None:
    value = plain(value)
    if is_symbolic(value):
        return recorder.number(value)
    if isinstance(value, torch.Tensor):
        for wrapper, before in zip(wrapped, inputs, strict=True):
            if value is wrapper:
                return recorder.node_of(before)
        return recorder.node_of(_unwrap(value) if torch._is_functional_tensor(value) else value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NotSimple(f"an output is a {type(value).__name__}")


class _Replay(torch.fx.Interpreter):
    """Runs the torch-level graph on functional tensors, telling the recorder whose turn it is."""

    def __init__(self, gm: torch.fx.GraphModule, recorder: _Recorder) -> None:
        super().__init__(gm)
        self.recorder = recorder
        self.constants: list[torch.Tensor] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        self.recorder.current, self.recorder.latest = n, None
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = self.fetch_attr(target)
        if not isinstance(value, torch.Tensor):
            return value
        wrapper = torch._to_functional_tensor(self.recorder.constant(value))
        self.constants.append(wrapper)
        return wrapper

    def refuse_mutated_constants(self) -> None:
        for wrapper in self.constants:
            if id(_unwrap(wrapper)) not in self.recorder.constant_ids:
                raise NotSimple("a tensor that the graph's module holds is mutated")

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise NotSimple(f"higher-order operator {target}")
        if target is getattr and args[1:] == ("data",):
            return args[0].detach()  # what autograd hears of writes is nothing here; `data` calls no operator
        node = self.recorder.current
        assert node is not None
        step = optimizer_steps.functional(target, kwargs)
        if step is not None:
            written = written_arguments(target, args, kwargs)
            for tensor, updated in zip(itertools.chain(*written), step(*args, **kwargs), strict=True):
                _become(tensor, _unwrap(updated))
            return None
        whole = whole_call(node)
        if whole is not None and self.recorder.made_here(results := node.meta["example_value"]):
            self.recorder.call(whole, torch.utils._pytree.tree_map_only(torch.Tensor, _unwrap, args), results)
            return tuple(map(torch._to_functional_tensor, results))
        outs = tensors_in(kwargs.get("out"))
        before = list(map(_unwrap, outs))
        result = super().call_function(target, args, kwargs)
        # some of torch's C++ gives wrapped tensors a result of their own, and leaves what it should write
        if any(_unwrap(out) is was for out, was in zip(outs, before, strict=True)):
            raise NotFunctional(f"{target} leaves its out= as it was")
        return result


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes each ATen call that reaches it to a graph, decomposing those in the table."""

    def __init__(self, decompositions: Decompositions, fake_mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.decompositions = decompositions
        self.fake_mode = fake_mode
        self.graph = torch.fx.Graph()
        self.attributes = torch.nn.Module()
        self.current: torch.fx.Node | None = None
        self.latest: Any = None  # the operator that ran last for `current`
        self._nodes: dict[int, torch.fx.Node] = {}
        # Keys of `_nodes` are identities, so what they identify has to stay alive.
        self._alive: list[torch.Tensor] = []
        self._constants: dict[int, FakeTensor] = {}
        self._numbers: dict[Tree, torch.fx.Node] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is aten._to_copy.default and self.latest is not None:
            self._refuse_result_of_other_dtype((kwargs or {}).get("dtype"))
        value = self._dispatched(func, args, kwargs or {})
        self.latest = func  # also after the parts of one that is decomposed
        return value

    def _refuse_result_of_other_dtype(self, dtype: torch.dtype | None) -> None:
        """Raise NotFunctional where functionalization is about to cast a result to the dtype of its `out=`: operators
        that are not elementwise compute in that dtype instead (`sum`), or refuse it (`any`)."""
        assert self.current is not None
        outs = [value_of(out) for out in leaves_in(self.current.kwargs.get("out")) if isinstance(out, torch.fx.Node)]
        if any(out.dtype is dtype for out in outs) and not facts(self.latest).pointwise:
            raise NotFunctional(f"{self.latest} writes an out= of another dtype than its own")

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in QUERIES:
            return func(*args, **kwargs)
        if func in _LIFTS and not isinstance(args[0], FakeTensor):
            # A fresh tensor at each call, so the constant itself must not get out.
            func, args, kwargs = aten.clone.default, (self.constant(args[0]),), {}
        decomposed = self._decompose(func, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        if not isinstance(func, torch._ops.OpOverload):
            raise NotSimple(f"{func} is not a plain operator")
        if facts(func).writes:
            raise NotSimple(f"{func} mutates and has no functional form")
        args, kwargs = map_leaves(self._fake, (args, kwargs), torch.Tensor)
        value = func(*args, **kwargs)
        self._record(func, args, kwargs, value)
        return value

    def _decompose(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        decomposition = self.decompositions.get(func)
        with self:
            if decomposition is not None:
                value = decomposition(*args, **kwargs)
                if value is not NotImplemented:
                    return value
            if isinstance(func, torch._ops.OpOverload) and func._can_decompose():
                return func.decompose(*args, **kwargs)
        return NotImplemented

    def _record(self, func: Any, args: Any, kwargs: Any, value: Any) -> None:
        given, named = map_leaves(self._operand, (args, kwargs), (torch.Tensor, *SYMBOLIC_TYPES))
        node = self.graph.create_node("call_function", func, given, named, name=func.overloadpacket.__name__)
        node.meta["val"] = value
        if self.current is not None and "stack_trace" in self.current.meta:
            node.meta["stack_trace"] = self.current.meta["stack_trace"]
        if isinstance(value, torch.Tensor):
            self._bind(value, node)
        elif isinstance(value, (tuple, list)):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    part = self.graph.call_function(operator.getitem, (node, index))
                    part.meta.update(node.meta, val=item)
                    self._bind(item, part)
        elif value is not None:
            # a number that depends on data, as of `item`
            raise NotSimple(f"{func} gives a {type(value).__name__}")

    def call(self, func: torch._ops.OpOverload, args: tuple[Any, ...], results: tuple[FakeTensor, ...]) -> None:
        """Write down a call that does not reach the dispatcher."""
        self._record(func, map_leaves(self._fake, args, torch.Tensor), {}, results)

    def made_here(self, results: Any) -> bool:
        """Whether they are fake tensors of this trace's own mode."""
        return isinstance(results, tuple) and all(
            isinstance(value, FakeTensor) and value.fake_mode is self.fake_mode for value in results
        )

    def _bind(self, value: torch.Tensor, node: torch.fx.Node) -> None:
        self._nodes[id(value)] = node
        self._alive.append(value)

    def add_input(self, name: str, value: Any) -> None:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        if is_symbolic(value):
            self._numbers[tree_of(value.node.expr)] = node
        elif isinstance(value, torch.Tensor):
            self._bind(value, node)

    def constant(self, real: torch.Tensor, kind: str = LITERAL) -> FakeTensor:
        """The fake of a real tensor that the graph holds, which becomes an attribute of the graph's module."""
        fake = self._constants.get(id(real))
        if fake is None:
            name = f"{kind}{len(self._constants)}"
            setattr(self.attributes, name, real)
            fake = self.fake_mode.from_tensor(real, static_shapes=True)
            node = self.graph.create_node("get_attr", name)
            node.meta["val"] = fake
            self._constants[id(real)] = fake
            self._bind(fake, node)
        return fake

    @property
    def constant_ids(self) -> set[int]:
        return {id(fake) for fake in self._constants.values()}

    def node_of(self, value: torch.Tensor) -> torch.fx.Node:
        node = self._nodes.get(id(value))
        if node is None:
            raise NotSimple(f"a tensor of unknown origin: {value}")
        return node

    # -- symbolic numbers

    def number(self, value: Any) -> Any:
        """The node of a symbolic number; the number itself if it is a constant after all."""
        value = plain(value)
        if not is_symbolic(value):
            return value
        try:
            return node_of(tree_of(value.node.expr), self._create_number, self._unknown, self._numbers)
        except Untranslatable as error:
            raise NotSimple(f"a number without a name: {error}") from error

    def _create_number(self, target: Callable[..., Any], args: tuple[Any, ...]) -> torch.fx.Node:
        node = self.graph.call_function(target, args)
        node.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args))
        return node

    def _unknown(self, name: str) -> torch.fx.Node:
        """A symbol that is no input itself: a size or stride of one."""
        for node in self.graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                continue
            reads: list[tuple[Any, Sequence[Any]]]
            reads = [(aten.sym_size.int, value.shape), (aten.sym_stride.int, value.stride())]
            for read, numbers in reads:
                for at, number in enumerate(numbers):
                    if is_symbolic(number) and str(number.node.expr) == name:
                        made = self._numbers[name] = self.graph.call_function(read, (node, at))
                        made.meta["val"] = number
                        return made
        raise NotSimple(f"a number of unknown origin: {name}")

    # -- arguments

    def _fake(self, value: Any) -> Any:
        return value if isinstance(value, FakeTensor) else self.constant(value)

    def _operand(self, value: Any) -> Any:
        return self.node_of(value) if isinstance(value, torch.Tensor) else self.number(value)

    def set_outputs(self, outputs: list[Any], mutated: dict[int, torch.fx.Node]) -> None:
        placeholders = self.graph.find_nodes(op="placeholder")
        for position, contents in mutated.items():
            copy = self.graph.call_function(aten.copy_.default, (placeholders[position], contents))
            copy.meta["val"] = placeholders[position].meta["val"]
        self.graph.output(tuple(outputs))

    def graph_module(self) -> torch.fx.GraphModule:
        eliminate_dead_code(self.graph)
        # Most backends never call the module, so its Python is generated when someone does.
        with torch_compat.lazy_graphs():
            return _make_graph_module(self.attributes, self.graph)


def eliminate_dead_code(graph: torch.fx.Graph) -> None:
    """Take out of a functional graph what nothing uses, but for what writes or draws random numbers."""
    for node in reversed(graph.nodes):
        if not node.users and (node.op == "get_attr" or (node.op == "call_function" and not _has_effect(node.target))):
            graph.erase_node(node)


def _has_effect(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):  # arithmetic on numbers, an item of a result
        return False
    return not (facts(target).known and facts(target).pure)
