"""From a functional ATen graph to a program of the loop IR.

In:  `lower(gm, name)`: an fx GraphModule whose nodes carry fake tensors in `meta["val"]`, with symbolic sizes or not.
Out: `Program`. A node whose op has no lowering, or whose lowering says `NotLowered`, or that is on another device
     than the program's, or whose op is in `left`, becomes an extern call. Symbolic sizes are `Size`s from here on;
     `SymbolicShapes` where the plan could not know a symbol's value.
To lower one more op: see `registry.py`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx.node import map_arg

from dynajit import optimizer_steps
from dynajit.config import config
from dynajit.graph.meta import graph_notes, notes
from dynajit.loopir import (
    host_numbers,
    index,
    lower_bilinear,
    lower_gradients,
    lower_index,
    lower_matmul,
    lower_norm,
    lower_pieces,
    lower_pointwise,
    lower_pool,
    lower_random,
    lower_reduction,
    lower_scatter,
    lower_view,
    nodes,
)
from dynajit.loopir.build import apply, convert
from dynajit.loopir.builder import Builder, affine, dense_stride, whole
from dynajit.loopir.gpu_calls import REWRITES
from dynajit.loopir.nodes import (
    CPU,
    Extern,
    NameRef,
    Origin,
    Program,
    SizedFake,
    SizeOrigin,
    StoredTensor,
    View,
    const,
)
from dynajit.loopir.ops import STORED, SUPPORTED
from dynajit.loopir.partial_writes import Part, PartialWrites, reads_written
from dynajit.loopir.registry import LOWERINGS, NotLowered
from dynajit.loopir.rounding import rounds_as_eager
from dynajit.loopir.same import Same
from dynajit.loopir.size import RuntimeFloat, SizeTable, Undecided
from dynajit.nested import leaves_in, map_leaves
from dynajit.op_facts import facts, is_wait
from dynajit.symbols import has_symbols, is_symbolic

__all__ = [
    "SymbolicShapes",
    "lower",
    "lower_bilinear",
    "lower_gradients",
    "lower_index",
    "lower_matmul",
    "lower_norm",
    "lower_pieces",
    "lower_pointwise",
    "lower_pool",
    "lower_random",
    "lower_reduction",
    "lower_scatter",
    "lower_view",
]

aten = torch.ops.aten


class SymbolicShapes(Exception):
    """The graph has sizes that nobody can tell when it runs."""


def forget() -> None:
    """Empty the tables of interned nodes. A program is of use only until then."""
    index.clear()
    nodes.clear()


def lower(
    gm: torch.fx.GraphModule,
    name: str,
    device: torch.device = CPU,
    left: Collection[str] = (),
    eager_rounding: bool = False,
) -> Program:
    """The graph as a program that computes on `device`; the ops named in `left` are left to the dispatcher, and with
    `eager_rounding` those whose results in bfloat16 and float16 may differ from eager's."""
    by_host: set[torch.fx.Node] = set()
    while True:
        try:
            return _Lowering(gm, name, device, left, eager_rounding, by_host).run()
        except _ForTheHost as error:
            by_host.add(error.node)


class _ForTheHost(Exception):
    """A call on the CPU that kernels of the device were to compute, and can't."""

    def __init__(self, node: torch.fx.Node) -> None:
        super().__init__(node.name)
        self.node = node


class _Lowering:
    """One graph: what each fx node became, and the builder."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        name: str,
        device: torch.device,
        left: Collection[str],
        eager_rounding: bool,
        by_host: Collection[torch.fx.Node],
    ) -> None:
        self.gm = gm
        self.eager_rounding = eager_rounding
        self.left = left
        self.device = device
        noted = graph_notes(gm)
        self.program = Program(name, (), device, returns=noted.returns, waited_for=noted.waited_for)
        self.build = Builder(self.program)
        self.build.call, self.build.eager_rounding = self._call_library, eager_rounding
        self.values: dict[torch.fx.Node, Any] = {}
        self.tail = _trailing_copies(gm.graph)
        self.updates = _updates(gm.graph, self.tail)
        self.partial = PartialWrites(self.tail)
        self.line = (object(), "")
        self.sizes = SizeTable()
        self.bound: set[str] = set()
        self.padded: list[tuple[View, View]] = []
        self.calling: Any = None
        self.same = Same()
        of_the_device = host_numbers.of_the_device(gm.graph, device, self._is_lowered)
        self.hosted = {node for node in of_the_device if node not in by_host}
        self.has_names = False  # of tensors that are not what their memory holds
        self.device_values: dict[Any, Any] = {}

    def run(self) -> Program:
        inputs: list[str] = []
        for node in self.gm.graph.nodes:
            self.build.origin = Origin(node.name, str(node.target), self._line_of(node))
            if node.op == "placeholder":
                inputs.append(node.name)
                self.program.size_origins += self._bind_sizes(node.name, node.meta.get("val"))
                self.values[node] = self._source(node.name, node.meta.get("val"), external=True)
            elif node.op == "get_attr":
                self.values[node] = self._constant(node)
            elif node.op == "output":
                self.program.outputs = tuple(self._output(arg) for arg in node.args[0])
            else:
                self.values[node] = self._call(node)
        self.program.inputs = tuple(inputs)
        unbound = set(self.sizes.symbols) - self.bound - set(self.sizes.definitions)
        if unbound:
            raise SymbolicShapes(", ".join(sorted(unbound)))
        self.program.size_definitions = dict(self.sizes.definitions)
        return self.program

    # ---- symbolic sizes

    def _numbers(self, numbers: Any) -> tuple[Any, ...]:
        """Sizes or strides of a fake tensor."""
        found = tuple(numbers)
        return found if all(type(number) is int for number in found) else tuple(map(self.sizes.of, found))

    def _bind_sizes(self, name: str, fake: Any) -> list[SizeOrigin]:
        """The symbols whose values are known as soon as there is the number or tensor of that name."""
        if isinstance(fake, (torch.SymInt, torch.SymFloat)):
            places: list[tuple[str, int, Any]] = [("float" if isinstance(fake, torch.SymFloat) else "number", 0, fake)]
        elif isinstance(fake, torch.Tensor) and fake.layout is torch.strided:
            places = [("size", at, size) for at, size in enumerate(fake.shape)]
            places += [("stride", at, stride) for at, stride in enumerate(fake.stride())]
        else:
            return []
        made = []
        for what, at, number in places:
            if is_symbolic(number) and number.node.expr.is_Symbol:
                symbol = str(number.node.expr)
                if symbol not in self.bound:
                    self.bound.add(symbol)
                    self.sizes.of(number)
                    made.append(SizeOrigin(symbol, what, name, at))
        return made

    def _line_of(self, node: torch.fx.Node) -> str:
        trace = node.meta.get("stack_trace")
        if trace is None:
            return ""
        if trace is not self.line[0]:
            lines = [line.strip() for line in trace.strip().splitlines()]
            code = [line for line in lines if line and not line.startswith(("File ", "^"))]
            self.line = (trace, code[-1] if code else "")
        return self.line[1]

    def _source(self, name: str, fake: Any, external: bool = False) -> Any:
        """The value of something in memory; a `NameRef` for what is no plain tensor."""
        if isinstance(fake, (torch.SymInt, torch.SymFloat)):
            return self.sizes.of(fake)
        if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided:
            return NameRef(name)
        if fake.is_neg() or fake.is_conj():  # the memory holds something else than the tensor
            self.has_names = True
            return NameRef(name)
        shape, stride = tuple(map(self.sizes.of_size, fake.shape)), self._numbers(fake.stride())
        return whole(self._result(name, shape, stride, fake.dtype, fake.device))

    def _constant(self, node: torch.fx.Node) -> Any:
        found: Any = self.gm
        for part in str(node.target).split("."):
            found = getattr(found, part)
        self.program.constants[node.name] = found
        return self._source(node.name, found)

    # ---- calls

    def _call(self, node: torch.fx.Node) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), self.values.__getitem__)
        if node.target is operator.getitem and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]  # type: ignore[index]
        written = self.partial.value_of(node)
        if written is not None and _lowerable(self.values[written], self.device, SUPPORTED):
            return _as_in_eager(self._again(self.values[written]), self._sized(node.meta["val"]))
        out = node.meta.get("val")
        if isinstance(out, (torch.SymInt, torch.SymFloat, int)) and not isinstance(out, bool) and self._is_known(out):
            return self.sizes.of(out)
        if self._is_lowered(node.target) and self._in_kernels(node, args) and self._are_known(out):
            lowered = self._lowered(node, LOWERINGS[node.target], args, kwargs)
            if lowered is not None:
                return lowered
        if node in self.hosted:
            raise _ForTheHost(node)
        return self._extern(node, args, kwargs)

    def _is_lowered(self, target: Any) -> bool:
        return target in LOWERINGS and str(target) not in self.left

    def _in_kernels(self, node: torch.fx.Node, args: Any) -> bool:
        """May a kernel compute the call? One that updates an input writes to the input's own memory, which on a CPU is
        the operator's to do: it raises before it writes."""
        if node not in self.updates:
            return True
        if self.device.type == "cpu":
            return False
        given = self._sized(node.all_input_nodes[0].meta["val"])
        return isinstance(args[0], View) and dense_stride(given) == tuple(given.stride())

    def _is_known(self, number: Any) -> bool:
        return isinstance(number, int) or all(str(symbol) in self.bound for symbol in number.node.expr.free_symbols)

    def _are_known(self, out: Any) -> bool:
        """Whether the sizes of what a call gives are known before it is made; else they are read from its result."""
        made = out if isinstance(out, (tuple, list)) else (out,)
        fakes = [fake for fake in made if isinstance(fake, torch.Tensor) and fake.layout is torch.strided]
        return all(map(self._is_known, (number for fake in fakes for number in (*fake.shape, *fake.stride()))))

    def _lowered(self, node: torch.fx.Node, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        build = self.build
        out = (node.all_input_nodes[0] if node in self.updates else node).meta.get("val")
        dtypes = STORED if node.target in _MOVES or facts(node.target).is_view else SUPPORTED
        if node not in self.hosted and not _computed_on(out, self.device):
            return None
        if self.device.type != "cpu":
            args, kwargs = map_leaves(self._for_kernels, (args, kwargs), (View, RuntimeFloat))
        if not all(_lowerable(arg, self.device, dtypes) for arg in (*args, *kwargs.values())):
            return None
        if self.eager_rounding and not rounds_as_eager(node.target, function, (out, *args, *kwargs.values())):
            return None
        build.out = self._sized(out)
        build.takes_first = notes(node).takes_first or node in self.updates
        made = len(self.program.items)
        try:
            made_here = _as_in_eager(function(build, *args, **kwargs), build.out)
            if _is_lost_view(node.target, made_here):
                raise NotLowered("no strides are known that give the view")
            return _spoilt(build, made_here) if str(node.target) == config.planted_bug else made_here
        except (NotLowered, Undecided):
            del self.program.items[made:]
            return None

    def _for_kernels(self, given: Any) -> Any:
        """A number of the host's as kernels are given it; anything else as it is."""
        if isinstance(given, RuntimeFloat):
            key: Any = given.name
            if key not in self.device_values:
                device_value = host_numbers.for_kernels(self.build, given)
                self.device_values[key] = RuntimeFloat(given.name, given.bits, device_value)
            return self.device_values[key]
        root = given.root
        if (
            given.shape
            or not isinstance(root, StoredTensor)
            or root.device.type != "cpu"
            or root.dtype not in SUPPORTED
        ):
            return given
        key = (root, given.position)
        if key not in self.device_values:
            held = self.program.constants.get(root.name)
            self.device_values[key] = host_numbers.as_tensor(self.build, given, held)
        return self.device_values[key]

    def _sized(self, out: Any) -> Any:
        """Fake results as lowerings may look at them: themselves, or stand-ins with `Size`s for symbolic sizes."""
        if isinstance(out, (tuple, list)):
            return [self._sized(fake) for fake in out]
        if out is None:
            return None
        if not has_symbols(out):
            return out
        shape = tuple(map(self.sizes.of_size, out.shape))
        return SizedFake(shape, self._numbers(out.stride()), out.dtype, out.device)

    def _extern(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        target = node.target if node.op == "call_function" else operator.methodcaller(str(node.target))
        in_place = node in self.tail
        args, kwargs = map_leaves(self.in_memory, (args, kwargs), View)
        if node in self.updates and (step := optimizer_steps.in_place(target)) is not None:
            changed = optimizer_steps.written(step, args, kwargs)
            mutates = tuple(value.root for value in changed)
            self._append_extern(node, args, kwargs, (None,), single=True, mutates=mutates, early=True, target=step)
            return changed
        if node in self.updates:
            target = _IN_PLACE[node.target]
            self._append_extern(
                node, args, kwargs, (None,), single=True, mutates=(args[0].root,), early=True, target=target
            )
            return args[0]
        if target is aten.copy_.default and in_place:
            if notes(node).version_exempt:
                self.program.version_exempt.add(args[0].root.name if isinstance(args[0], View) else args[0].name)
            if node.args[1] in self.updates:
                return args[0]
            mutates = (args[0].root,) if isinstance(args[0], View) else ()
            for into, value in self._parts(node, args[0]) or [args[:2]]:
                # what a name stands for may be a view of what is written here
                self._append_extern(
                    node, (into, value), kwargs, (None,), single=True, mutates=mutates, barrier=self.has_names
                )
            return args[0]
        out = node.meta.get("val")
        rewritten = self._rewritten(node, args, kwargs, out)
        if rewritten is not None:
            return rewritten
        several = isinstance(out, (tuple, list))
        given = {f"{node.name}_{i}": fake for i, fake in enumerate(out or ())} if several else {node.name: out}
        origins = [origin for name, fake in given.items() for origin in self._bind_sizes(name, fake)]
        results = tuple(self._source(name, fake) for name, fake in given.items())
        # a number among the results, as attention's greatest length, has a name and may be symbolic
        names = tuple(v.root if isinstance(v, View) else name for name, v in zip(given, results, strict=True))
        self._append_extern(node, args, kwargs, names, single=not several, origins=origins)
        return results if several else results[0]

    def _parts(self, copy: torch.fx.Node, into: Any) -> list[tuple[View, View]]:
        """What is copied in place of all; nothing where only data tells which part it is, or whether there is one."""
        made = len(self.program.items)
        try:
            return [self._part(into, part) for part in self.partial.parts.get(copy, [])]
        except (NotLowered, Undecided):
            del self.program.items[made:]
            return []

    def _part(self, into: View, part: Part) -> tuple[View, View]:
        """The part of an input that is written, and its value, in memory of its own: the input may be read by it."""
        views, node = part
        for target, rest, like in views:
            self.build.out = self._sized(like.meta["val"])
            into = LOWERINGS[target](self.build, into, *map_arg(rest, self.values.__getitem__))
        value = self.values[node]
        if not value.whole or isinstance(value.root, StoredTensor):
            value = self._again(value)
        return into, self.in_memory(value)

    def _again(self, value: View) -> View:
        """The value, computed once more."""
        if value.root.dtype not in STORED:
            raise NotLowered(f"kernels have no {value.root.dtype}")
        return self.build.pointwise(value.shape, lambda axes: self.build.element(value, axes))

    # ---- calls in another layout (`gpu_calls.Caller`)

    def _rewritten(self, node: torch.fx.Node, args: Any, kwargs: Any, out: Any) -> View | None:
        function = REWRITES.get(node.target)
        static = isinstance(out, torch.Tensor) and not has_symbols(out)
        if function is None or kwargs or not static or self.device.type == "cpu" or out.device != self.device:
            return None
        if node.target is aten.convolution.default:
            kwargs = {"shape": tuple(out.shape)}
        self.calling = node
        found = function(self, *args, **kwargs)
        return None if found is None else replace(found, stride=tuple(out.stride()))

    def call(self, target: Any, args: Any, shape: Any, stride: Any, dtype: torch.dtype) -> View:
        """As `Caller` says."""
        name = self.calling.name
        name = name if name not in self.program.sources else self.build.name(f"{name}_")
        args = map_leaves(self.in_memory, args, View)
        source = self._result(name, shape, stride, dtype)
        self._append_extern(self.calling, args, {}, (source,), single=True, target=target)
        return whole(source)

    def _call_library(self, target: Any, args: Any, kwargs: Any, *results: tuple[Any, torch.dtype]) -> Any:
        """As `Builder.call` says."""
        args = map_leaves(self.in_memory, args, View)
        made = tuple(
            self._result(self.build.name("call"), shape, index.contiguous_strides(shape), dtype)
            for shape, dtype in results
        )
        self._append_extern(None, args, kwargs, made, single=len(made) == 1, target=target)
        return tuple(map(whole, made))

    def _result(
        self, name: str, shape: Any, stride: Any, dtype: torch.dtype, device: torch.device | None = None
    ) -> StoredTensor:
        self.build.order += 1
        device = self.device if device is None else device
        source = StoredTensor(name, shape, stride, dtype, self.build.order, self.build.origin, device)
        self.program.sources[name] = source
        return source

    def program_keeps(self) -> bool:
        """As `Caller` says."""
        return self.program.returns is not None

    def _append_extern(
        self,
        node: torch.fx.Node | None,
        args: Any,
        kwargs: Any,
        results: Any,
        *,
        single: bool,
        mutates: Any = (),
        origins: Sequence[SizeOrigin] = (),
        early: bool = False,
        barrier: bool = False,
        target: Any = None,
    ) -> None:
        target = target or (node and node.target)
        schema = target._schema if isinstance(target, torch._ops.OpOverload) else None
        known = None if schema is None else facts(target)
        if known is not None and not _has_effect(target) and not known.is_view:
            args, kwargs = map_leaves(self._first, (args, kwargs), View)
        pure_function = target is operator.getitem
        self.build.order += 1
        extern = Extern(
            target,
            args,
            kwargs,
            results,
            single,
            self.build.order,
            self.build.origin,
            keep_order=known is not None and (known.draws or known.communicates or known.foreign),
            mutates=mutates,
            early=early,
            barrier=barrier
            or bool(origins)
            or (not mutates and not pure_function and (schema is None or _has_effect(target))),
            origins=tuple(origins),
            aliases=schema is None or facts(target).is_view,
            holds=self._sent(args[0].root) if is_wait(target) else (),
        )
        self.program.items.append(extern)

    def _sent(self, result: Any) -> tuple[Any, ...]:
        """What the collective with this result reads."""
        made = (item for item in self.program.items if isinstance(item, Extern) and result in item.results)
        return tuple(part.root for item in made for part in leaves_in(item.args) if isinstance(part, View))

    def _first(self, value: View) -> View:
        """The value, of the first tensor with the same elements."""
        root = self.same.first(value.root)
        return value if root is value.root else replace(value, root=root)

    # ---- into memory

    def in_memory(self, value: View, fake: Any = None) -> View:
        """A value that is a strided view of its root; a copy if no strides express it."""
        if value.whole or affine(value) is not None:
            return value
        return self._again(value)

    def _output(self, arg: Any) -> Any:
        if not isinstance(arg, torch.fx.Node):
            return arg
        value = self.values[arg]
        if not isinstance(value, View):
            return value
        fake: Any = arg.meta.get("val")
        layout = affine(value)
        expected = self._numbers(fake.stride())
        if layout is not None and _same_strides(value.shape, layout[0], expected):
            return replace(value, stride=expected)
        build = self.build
        return build.pointwise(value.shape, lambda axes: convert(build.element(value, axes), value.dtype), expected)


def _as_in_eager(value: Any, fake: Any) -> Any:
    """A lowered op's result that knows its strides in eager."""
    if isinstance(value, tuple):
        return tuple(_as_in_eager(item, part) for item, part in zip(value, fake, strict=True))
    return replace(value, stride=tuple(fake.stride())) if isinstance(value, View) else value


def _is_lost_view(target: Any, value: Any) -> bool:
    """Whether torch gives a view here, whose memory is its base's, and the value found is none that memory has: with
    symbolic sizes it may take knowledge that nobody has here to tell the strides."""
    return isinstance(value, View) and facts(target).is_view and affine(value) is None


def _has_effect(target: Any) -> bool:
    """Whether a call writes to its arguments, or is made for something else than what it gives."""
    return bool(facts(target).writes) or not target._schema.returns


def _same_strides(shape: Any, one: Any, other: Any) -> bool:
    return 0 in shape or all(a == b for size, a, b in zip(shape, one, other, strict=True) if size != 1)


def _computed_on(out: Any, device: torch.device) -> bool:
    """Are all results plain tensors of that device with at least one element? The dispatcher sees to the others."""
    if isinstance(out, (tuple, list)):
        return all(fake is None or _computed_on(fake, device) for fake in out)
    if not isinstance(out, torch.Tensor):
        return False
    empty = any(type(size) is int and size == 0 for size in out.shape)
    return not empty and out.device == device and out.layout is torch.strided


def _lowerable(arg: Any, device: torch.device, dtypes: frozenset[torch.dtype]) -> bool:
    if isinstance(arg, View):
        root = arg.root
        if 0 in arg.shape:
            return False
        return root.dtype in dtypes and (not isinstance(root, StoredTensor) or root.device == device)
    if isinstance(arg, (tuple, list)):
        return all(_lowerable(item, device, dtypes) for item in arg)
    return not isinstance(arg, (NameRef, complex))


def _trailing_copies(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The `copy_` calls into inputs at the end of the graph, where functionalisation puts them."""
    found: set[torch.fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        if node.op == "output" or reads_written(node):
            continue
        target = node.args[0] if node.args else None
        into_input = isinstance(target, torch.fx.Node) and target.op == "placeholder"
        if node.target is not aten.copy_.default or not into_input:
            break
        found.add(node)
    return found


# Operators that compute nothing: they take floats of 8 bits.
_MOVES = frozenset(
    {aten._to_copy.default, torch.ops.prims.convert_element_type.default, aten.clone.default, aten.copy.default}
)
# Operators that write a part of a tensor -> the same in place.
_IN_PLACE: dict[Any, Any] = {
    functional: getattr(getattr(aten, f"{functional.overloadpacket.__name__}_"), functional._overloadname)
    for functional in (
        *(aten.index_copy.default, aten.index_put.default, aten.index_add.default, aten.index_reduce.default),
        *(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.masked_scatter.default, aten.put.default),
        *(aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce),
        *(aten.scatter_reduce.two, aten.scatter_add.default),
    )
}


def _updates(graph: torch.fx.Graph, tail: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """The calls that give an input with a part of it exchanged, where nothing but the copy into that input at the end
    uses the input besides: they can be done in place, and no copy is made."""
    found: set[torch.fx.Node] = set()
    outputs: Any = graph.output_node().args[0]
    for copy in tail:
        given, node = copy.args[:2]
        assert isinstance(given, torch.fx.Node)
        found |= _step(copy, tail)
        if (
            isinstance(node, torch.fx.Node)
            and node.target in _IN_PLACE
            and node.args[0] is given
            and set(given.users) == {node, copy}
            and all(user not in tail or user is copy for user in node.users)
            and node not in outputs
            and given not in node.args[1:]
            and not (given.meta["val"].is_neg() or given.meta["val"].is_conj())
        ):
            found.add(node)
    return found


def _step(copy: torch.fx.Node, tail: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """The step of an optimizer whose first result is copied, with its results, if it can be done in place: as above."""
    first: Any = copy.args[1]
    node = first.args[0] if isinstance(first, torch.fx.Node) and first.target is operator.getitem else None
    if not isinstance(node, torch.fx.Node) or first.args[1] != 0:
        return set()
    step = optimizer_steps.in_place(node.target)
    if step is None:
        return set()
    results = {user.args[1]: user for user in node.users}
    copies = {user.args[0]: user for part in node.users for user in part.users if user in tail}
    given = optimizer_steps.written(step, node.args, node.kwargs)
    times = Counter(leaves_in((node.args, node.kwargs)))
    for place, one in enumerate(given):
        part, into = results.get(place), copies.get(one)
        if part is None or into is None or into.args[1] is not part or times[one] > 1:
            return set()
        if any(user not in (node, into) and user.op != "output" for user in one.users):
            return set()
        if any(user.op == "output" or (user in tail and user is not into) for user in part.users):
            return set()
        if one.meta["val"].is_neg() or one.meta["val"].is_conj():
            return set()
    return {node, *results.values()}


def _spoilt(build: Builder, value: Any) -> Any:
    """The value plus one hundredth: the fault that tests of `verify` look for."""
    if not isinstance(value, View) or not value.dtype.is_floating_point:
        return value
    return build.elementwise(lambda a: apply("add", a, const(0.01, a.dtype)), value)
