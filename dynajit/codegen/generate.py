"""The entry of code generation: lowering, schedule, C text, and the plan that ties them together.

In:  `generate(gm, example_inputs, name)`, see the package's docstring.
Out: `Plan`. A kernel that equals an earlier one of the graph, but for the tensors it works on, is printed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from dynajit.codegen import refusal
from dynajit.codegen.c import mathlib
from dynajit.codegen.c.printer import Printed, print_kernel
from dynajit.codegen.memory import plan_memory, views_when_made
from dynajit.codegen.plan import (
    AllocStep,
    Buffer,
    BufferRef,
    DrawStep,
    ExternStep,
    GpuKernel,
    KernelInfo,
    KernelStep,
    NumberStep,
    Plan,
    SizeStep,
    Step,
    TouchStep,
    ViewStep,
)
from dynajit.codegen.triton import attention, horizontal_fusion, products, prologue, sizes, tiling
from dynajit.codegen.triton.functions import Unprintable, parameter_type
from dynajit.codegen.triton.generate import Launches, launches
from dynajit.codegen.triton.printer import PrintedTriton, rename
from dynajit.codegen.unroll import unroll
from dynajit.graph.meta import Repeated
from dynajit.locks import process_lock
from dynajit.loopir import nodes
from dynajit.loopir.builder import affine
from dynajit.loopir.host_numbers import HostNumber
from dynajit.loopir.lower_graph import SymbolicShapes, forget, lower
from dynajit.loopir.nodes import (
    Extern,
    NameRef,
    Number,
    Op,
    Origin,
    Program,
    Scan,
    SizeOrigin,
    StoredTensor,
    Tensor,
    View,
)
from dynajit.loopir.philox import Draw
from dynajit.loopir.printer import program_text
from dynajit.loopir.size import RuntimeFloat, Size, Undecided, hint_of, symbols_in
from dynajit.nested import map_leaves
from dynajit.report import debug, progress
from dynajit.report.phases import timer
from dynajit.schedule.fuse import Call, Group, Schedule, direct_reads, read_by_call, values_in
from dynajit.schedule.in_place import donors, taken_over
from dynajit.schedule.joined import Joined, place_pieces
from dynajit.schedule.kernel import Kernel
from dynajit.schedule.loops import build_kernel, build_tile_kernel
from dynajit.schedule.sink import sink_units
from dynajit.schedule.spread import fuse_spread
from dynajit.schedule.target import for_device
from dynajit.torch_compat import copy_version_exempt

_CPU = torch.device("cpu")
# Which of several ways to launch a kernel is taken.
Choose = Callable[[list[Launches]], int]
# The loop IR interns its nodes in tables of the process: one graph at a time.
_lock = process_lock()


class CannotGenerate(Exception):
    """This graph can't be planned: run it as it is."""


def generate(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    name: str = "graph",
    device: torch.device = _CPU,
    choose: Choose | None = None,
    eager_rounding: bool = False,
    backward: bool = False,
    repeated: Repeated | None = None,
) -> Plan:
    """Plan the graph; kernels run on `device`. `example_inputs` are the fake inputs, in the order of the placeholders.
    `choose` decides between ways to print a kernel for a GPU (without it the first is taken). `eager_rounding`: as for
    `lower`. `backward`: what the graph is given may die while it runs. `repeated`: the graph is the beginning of the
    one to plan; raises NotRepeated then."""
    _fill_placeholders(gm, example_inputs)
    left: set[str] = set()
    with _lock:
        while True:
            try:
                with timer("lowering"):
                    program = lower(gm, name, device, left, eager_rounding)
                    if device.type != "cpu" and any(isinstance(i, Extern) and i.origins for i in program.items):
                        raise SymbolicShapes("a size that an operator's result tells")
                    if debug.enabled():
                        debug.write("ir_pre_fusion.txt", program_text(program))
                    schedule = fuse_spread(program, for_device(device))
                    if backward and device.type == "cpu":
                        early = {v.root for at in program.waited_for for v in values_in(program.outputs[at])}
                        schedule.units = sink_units(schedule.units, schedule.reads, set(schedule.stored_in), early)
                    joined: list[Joined] = []
                    if device.type == "cpu":
                        # the pieces of layers that are yet to be repeated are not there
                        joined = place_pieces(schedule, _kept(program)) if repeated is None else []
                        store_over(program, schedule, joined, backward)
                with timer("codegen"):
                    if device.type == "cpu":
                        return _Planner(program, schedule, joined).plan(gm, backward, repeated)
                    return _TritonPlanner(program, schedule, choose).plan(repeated=repeated)
            except (SymbolicShapes, Undecided) as error:
                raise CannotGenerate(f"symbolic shape: {error}") from error
            except _Unprintable as error:
                if error.ops <= left:
                    raise CannotGenerate(str(error)) from error
                left |= error.ops
            finally:
                forget()


def store_over(program: Program, schedule: Schedule, joined: Sequence[Joined] = (), backward: bool = False) -> None:
    """Have kernels store over what they alone still need. `joined`: where they store pieces instead. `backward`: no one
    asks what gradients are views of."""
    returned = list(values_in(program.outputs))
    times = Counter(value.root for value in returned)
    views = {value.root for value in returned if not (value.whole or (backward and times[value.root] == 1))}
    whole = times.keys() - views
    pieces = {piece: each.memory for each in joined for piece in each.computed}
    elsewhere = {**schedule.stored_in, **pieces}
    found = taken_over(schedule.units, schedule.reads, elsewhere, _kept(program) | pieces.keys(), whole)
    schedule.stored_in.update(found)
    schedule.whole = whole & found.keys()
    if backward:
        given = {program.sources[name] for name in program.inputs if name in program.sources} - times.keys()
        schedule.donors = donors(schedule.units, schedule.reads, elsewhere | found, given)


def _kept(program: Program) -> set[Tensor]:
    """What is returned, or whose memory is not the graph's to write."""
    given = {program.sources[name] for name in (*program.inputs, *program.constants) if name in program.sources}
    return given.union(value.root for value in values_in(program.outputs))


class _Unprintable(Exception):
    """A kernel that the target's printer can't print: its ops are left to torch."""

    def __init__(self, what: str, ops: set[str]) -> None:
        super().__init__(what)
        self.ops = ops


def _fill_placeholders(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, example in zip(placeholders, example_inputs, strict=False):
        node.meta.setdefault("val", example)


class _Planner:
    """The plan while it is being made."""

    def __init__(self, program: Program, schedule: Schedule, joined: Sequence[Joined] = ()) -> None:
        self.program = program
        self.schedule = schedule
        self.joined = {each.call: each for each in joined}
        self.piece_of = {piece: each for each in joined for piece in each.computed}
        self.allocated: set[str] = set()  # of what is joined
        self.steps: list[Step] = []
        self.buffers: dict[str, Buffer] = {}
        self.views: dict[tuple[Tensor, Any, Any], str] = {}
        self.kernels: dict[str, Any] = {}
        self.texts: list[str] = []
        self.helpers: dict[str, None] = {}
        self.read_by_kernels: set[str] = set()
        self.known: set[str] = set()

    def plan(
        self, gm: torch.fx.GraphModule | None = None, backward: bool = False, repeated: Repeated | None = None
    ) -> Plan:
        """The plan; kernels that fail leave it to `gm` to raise the error."""
        program = self.program
        for source in program.sources.values():
            self._add_buffer(source, source.device)
        self._sizes(program.size_origins)
        for number, unit in enumerate(self.schedule.units):
            progress.count(number, len(self.schedule.units), "steps printed")
            if isinstance(unit, Group):
                self._kernel(unit)
            else:
                self._extern(unit)
        outputs = tuple(self._ref(v) if isinstance(v, (View, NameRef)) else v for v in program.outputs)
        self._finish()
        whole = gm if repeated is None or repeated.whole is None else repeated.whole
        checked = whole if gm is not None and any(kernel.checked for kernel in self.kernels.values()) else None
        plan = Plan(
            program.name,
            self._source(),
            tuple(self.kernels.values()),
            self.buffers,
            program.inputs,
            program.constants,
            tuple(self.steps),
            outputs,
            device=program.device,
            returns=program.returns,
            eager=refusal.rerun(checked, backward) if checked is not None else None,
        )
        plan = views_when_made(plan) if program.waited_for else plan
        needed = refusal.needed(checked, backward) if checked is not None else frozenset()
        if repeated is not None:
            plan = unroll(plan, repeated)
            needed = frozenset(plan.inputs) if needed and repeated.whole is None else needed
        return plan_memory(plan, needed)

    def _finish(self) -> None:
        """Last changes to the steps."""

    def _buffer(self, tensor: Tensor) -> str:
        """The name of the buffer that holds the tensor."""
        return self.schedule.stored_in.get(tensor, tensor).name

    def _add_buffer(self, tensor: Tensor, device: torch.device) -> None:
        self.buffers[tensor.name] = Buffer(tensor.name, tensor.shape, tensor.stride, tensor.dtype, device)

    # ---- symbolic sizes

    def _sizes(self, origins: Sequence[SizeOrigin]) -> None:
        """Symbols that are known from here on, and those that can be computed now."""
        for origin in origins:
            self.known.add(origin.symbol)
            self.steps.append(SizeStep(origin.symbol, origin.what, origin.name, origin.at))
        for name, text in self.program.size_definitions.items():
            if name not in self.known and self.known.issuperset(symbols_in(text)):
                self.known.add(name)
                self.steps.append(SizeStep(name, "expression", text))

    # ---- kernels

    def _kernel(self, group: Group) -> None:
        if not group.stored:
            return
        kernel = self._build(group)
        over = {
            tensor: [donor for donor in self.schedule.donors.get(tensor, ()) if donor in kernel.reads]
            for tensor in kernel.writes
        }
        printed = print_kernel(kernel, self.schedule.stored_in, over)
        function = self._function(kernel, printed)
        self._view_parts(kernel)
        for tensor in kernel.writes:
            if tensor in self.piece_of:
                joined = self.piece_of[tensor]
                self._view_piece(joined, joined.computed[tensor], tensor)
            elif tensor not in self.schedule.stored_in:
                self._add_buffer(tensor, _CPU)
                self.steps.append(AllocStep(tensor.name, donors=tuple(donor.name for donor in over[tensor])))
        self.read_by_kernels.update(self._buffer(tensor) for tensor in kernel.reads)
        written = tuple(map(self._buffer, kernel.writes))
        self.steps.append(KernelStep(function, tuple(map(self._buffer, printed.parameters)), written))
        self._touch(kernel)

    def _build(self, group: Group) -> Kernel:
        kernel = build_kernel(group, self.schedule.inlined, for_device(self.program.device))
        written = {self._buffer(tensor) for tensor in kernel.writes}
        if any(self._buffer(tensor) in written for tensor, _ in kernel.parts.values()):
            group.piece, group.common = False, set()  # each pointer that a kernel is given is to memory of its own
            return self._build(group)
        return kernel

    def _view_parts(self, kernel: Kernel) -> None:
        """Views of the memory of which the kernel is given the rest from some element on."""
        for part, (tensor, start) in kernel.parts.items():
            if part.name not in self.buffers:
                self._add_buffer(part, self.program.device)
                self.steps.append(ViewStep(part.name, self._buffer(tensor), start))

    def _view_piece(self, joined: Joined, number: int, like: Tensor | View) -> str:
        """The view of a piece's memory within the whole, which is there from the first one on."""
        memory = joined.memory
        if memory.name not in self.allocated:
            self.allocated.add(memory.name)
            self.steps.append(AllocStep(memory.name))
        stride, offset = joined.places[number]
        name = like.name if isinstance(like, Tensor) else f"{memory.name}_piece{number}"
        stride = like.stride if isinstance(like, Tensor) else stride
        self.buffers[name] = Buffer(name, like.shape, stride, memory.dtype, _CPU)
        self.steps.append(ViewStep(name, memory.name, offset))
        return name

    def _copy_pieces(self, joined: Joined) -> None:
        """Into the whole, what no kernel stored there."""
        for number in joined.copied():
            into = BufferRef(self._view_piece(joined, number, joined.pieces[number]))
            value = self._ref(joined.pieces[number])
            self.steps.append(ExternStep(torch.ops.aten.copy_.default, (into, value), {}, (None,)))

    def _touch(self, kernel: Kernel) -> None:
        """What the kernel stored in an input counts as a change of it."""
        counted = {*self.program.inputs} - self.program.version_exempt
        for tensor in kernel.writes:
            over = self.schedule.stored_in.get(tensor)
            if isinstance(over, StoredTensor) and over.name in counted:
                self.steps.append(TouchStep(self._buffer(tensor)))

    def _function(self, kernel: Kernel, printed: Printed) -> str:
        """The name of the C function that is this kernel: an earlier one of equal text, or a new one."""
        found = self.kernels.get(printed.text)
        if found is not None:
            return found.name
        ops, lines, short = _short_name(kernel)
        name, arity = f"k{len(self.kernels)}_{short}", len(printed.parameters)
        info = KernelInfo(name, arity, ops, lines, checked=printed.checked, sizes=printed.sizes)
        self.kernels[printed.text] = info
        self.helpers.update(dict.fromkeys(printed.helpers))
        comment = "".join(map(_comment, lines[:6]))
        self.texts.append(comment + printed.text.replace("NAME", info.name, 1))
        return info.name

    def _source(self) -> str:
        if not self.texts:
            return ""
        return "\n".join((mathlib.PRELUDE, mathlib.definitions(self.helpers), *self.texts))

    # ---- extern calls

    def _extern(self, call: Call) -> None:
        extern = call.extern
        if call in self.joined:
            self._copy_pieces(self.joined[call])
            return
        if isinstance(extern.target, Draw):
            numbers = tuple(result.name for result in extern.results if isinstance(result, Number))
            self.steps.append(DrawStep(numbers, extern.target.increment))
            return
        names = tuple(result.name if isinstance(result, StoredTensor) else result for result in extern.results)
        if isinstance(extern.target, HostNumber):
            (given,) = extern.args
            source = given.bits if isinstance(given, RuntimeFloat) else self._name(given)
            self.steps.append(NumberStep(str(names[0]), source))
            return
        target = extern.target
        if target is torch.ops.aten.copy_.default:
            written = extern.args[0].root if isinstance(extern.args[0], View) else extern.args[0]
            target = copy_version_exempt if written.name in self.program.version_exempt else target
        args, kwargs = map_leaves(self._ref, (extern.args, dict(extern.kwargs)), (View, NameRef))
        holds = tuple(map(self._buffer, extern.holds))
        step = ExternStep(target, args, kwargs, names, extern.single, aliases=extern.aliases, holds=holds)
        self.steps.append(step)
        if target is torch.ops.aten.copy_.default and args[0].name in self.views.values():
            self.steps.append(TouchStep(self._buffer(extern.args[0].root)))  # only a part was written
        self._sizes(extern.origins)

    def _name(self, value: View) -> str:
        """The buffer that holds the value, made a view of its root if it is none of the program's tensors."""
        root = value.root
        memory = self.schedule.stored_in.get(root, root)
        as_it_is = value.whole and (memory.shape, memory.stride) == (root.shape, root.stride)
        if as_it_is and value.stride in (None, root.stride):
            return self._buffer(root)
        layout = affine(value)
        assert layout is not None
        stride, offset = layout
        if value.stride is not None:
            # only dimensions of size 1 may take eager's stride: the others say where the elements are
            pairs = zip(value.shape, stride, value.stride, strict=True)
            stride = tuple(theirs if size == 1 else own for size, own, theirs in pairs)
            if as_it_is and stride == root.stride:
                return self._buffer(root)
        key = (root, value.shape, (stride, offset))
        found = self.views.get(key)
        if found is None:
            found = self.views[key] = f"{root.name}_view{len(self.views)}"
            device = root.device if isinstance(root, StoredTensor) else self.program.device
            self.buffers[found] = Buffer(found, value.shape, stride, root.dtype, device)
            own = value.whole and root in self.schedule.whole
            self.steps.append(ViewStep(found, self._buffer(root), offset, own=own))
        return found

    def _ref(self, value: View | NameRef) -> BufferRef:
        return BufferRef(self._name(value) if isinstance(value, View) else value.name)


# The ops a kernel fuses, the user's lines, and a name of the first ops.
_Named = tuple[tuple[str, ...], tuple[str, ...], str]


def _short_name(kernel: Kernel) -> _Named:
    members = kernel.fused
    ops = tuple(dict.fromkeys(member.origin.op.removeprefix("aten.") for member in members))
    lines = tuple(dict.fromkeys(member.origin.line for member in members if member.origin.line))
    return ops, lines, "_".join(op.split(".")[0].strip("_") for op in ops[:4])


def _named(origin: Origin, short: str = "") -> _Named:
    """As `_short_name`, of a call."""
    op = origin.op.removeprefix("aten.")
    return (op,), (origin.line,) if origin.line else (), short or op.split(".")[0].strip("_")


def _comment(line: str) -> str:
    """A C comment holding the user's line and nothing after it: a backslash at its end would go on to the next line."""
    text = "".join(char if char.isprintable() else " " for char in line)
    return "// " + text.rstrip("\\/? ") + "\n"


def _mentions(member: Tensor, what: str) -> bool:
    """Does the tensor's expression have an operation that this text names?"""
    body = getattr(member, "body", None)
    names = {node.name for node in nodes.scalars_in(body) if isinstance(node, Op)} if body is not None else set()
    return bool(names & set(what.split()))


# Inputs of at most so many bytes are read from any address by one kernel.
SMALL_INPUT = 256
# Kernels that move more than this keep the GPU busy: one that waits beside them only takes room.
SHORT_BYTES = 1 << 27


def _early(printed: PrintedTriton) -> bool:
    return hint_of(sum(tensor.numel * tensor.dtype.itemsize for tensor in printed.arguments)) <= SHORT_BYTES


def _read_in(program: Program) -> frozenset[Tensor]:
    """What the program reads or returns."""
    found = {value.root for value in values_in(program.outputs)}
    for item in program.items:
        if isinstance(item, Extern):
            found |= read_by_call(item)
        else:
            found.update(tensor for tensor, _ in direct_reads(item))
    return frozenset(found)


class _TritonPlanner(_Planner):
    """The plan of a graph whose kernels run on a GPU."""

    def __init__(self, program: Program, schedule: Schedule, choose: Choose | None) -> None:
        super().__init__(program, schedule)
        self.choose = choose
        self.taken: dict[Group, Launches] = {}
        self.products: dict[Call, Launches | None] = {}  # how calls are launched whose operands were looked at before
        self.reads_of: dict[Group, Collection[Tensor]] = {}
        self.read = _read_in(program)
        self.extents: dict[Size, None] = {}
        self.grids: dict[str, str] = {}

    def _extern(self, call: Call) -> None:
        extern = call.extern
        if self.program.sizes_vary:
            super()._extern(call)
            return
        own = attention.launches_of(extern, self.read, self.program.device)
        if own is not None:
            self._launch(own, own.printed[-1].written, _named(extern.origin, "attention"))
        elif not self._taken_by_a_kernel(call):
            super()._extern(call)

    def _taken_by_a_kernel(self, call: Call) -> bool:
        """Is the call a product that is faster in one kernel with what is done to its result?"""
        if call in self.products:
            chosen = self.products[call]
            if chosen is not None and chosen.printed:
                self._launch(chosen, chosen.printed[-1].written, _named(call.extern.origin))
            return chosen is not None
        product = products.product_of(call.extern)
        if product is None or (self.choose is None and not products.memory_binds(product)):
            return False
        group = self._only_reader(call)
        if group is None or group in self.taken:
            return False
        if not product.read.isdisjoint(self.schedule.stored_in.get(tensor, tensor) for tensor in group.stored):
            return False  # one tile would be stored over what others still multiply
        kernel = build_tile_kernel(group, self.schedule.inlined, product.sizes, for_device(self.program.device))
        if not products.fits(product, kernel):
            return False
        try:
            chosen = (
                self._without_timing(product, kernel) if self.choose is None else self._timed(product, kernel, group)
            )
        except Unprintable:
            return False
        if chosen is not None:
            self.taken[group] = chosen
        return chosen is not None

    def _taken_by_a_product(self, group: Group) -> bool:
        """Is the group faster computed where the product needs it that alone reads it?"""
        call = self._only_product(group)
        product = products.product_of(call.extern) if call is not None else None
        if call is None or product is None or product.ends is not None or call in self.products:
            return False
        sides = [side for side, part in (("left", product.a), ("right", product.b)) if part.tensor in group.stored]
        others = [part for part in (product.bias,) if part is not None and part.tensor in group.stored]
        if len(sides) != 1 or others:
            return False
        operand = product.a if sides == ["left"] else product.b
        target = for_device(self.program.device)
        made = build_tile_kernel(group, self.schedule.inlined, prologue.stored_shape(operand), target)
        reader = self._only_reader(call)
        if not prologue.is_part(operand, made) or not self._unchanged_until(group, reader or call):
            return False
        kernel = products.nothing_done(product)
        if reader is not None:
            kernel = build_tile_kernel(reader, self.schedule.inlined, product.sizes, target)
            if reader in self.taken or not products.fits(product, kernel):
                return False
        try:
            chosen = self._timed(product, kernel, reader, (group, {sides[0]: made}))
        except Unprintable:
            return False
        return self._settled(call, reader, group, chosen)

    def _settled(self, call: Call, reader: Group | None, group: Group, chosen: Launches | None) -> bool:
        """Keep what was chosen for the call and for who reads its result; whether the group is part of that."""
        part = chosen is not None and not any(tensor in group.stored for tensor in chosen.printed[-1].arguments)
        if chosen is not None and reader is not None:
            self.taken[reader] = Launches(chosen.printed[-1:], [])
            self.products[call] = Launches([], [])
        else:
            self.products[call] = chosen
        return part

    def _only_product(self, group: Group) -> Call | None:
        """The call that alone reads the only tensor of the group."""
        if self.choose is None or len(group.stored) != 1 or group.stored[0] in self.schedule.stored_in:
            return None
        (tensor,) = group.stored
        later = self.schedule.units[self.schedule.units.index(group) + 1 :]
        readers = [unit for unit in later if isinstance(unit, Call) and tensor in read_by_call(unit.extern)]
        if len(readers) != 1 or any(value.root is tensor for value in values_in(self.program.outputs)):
            return None
        # last, for it builds their kernels
        read = any(tensor in self._reads(unit) for unit in later if isinstance(unit, Group))
        return None if read else readers[0]

    def _unchanged_until(self, group: Group, last: Group | Call) -> bool:
        """Does nothing write to memory of earlier tensors between the two?"""
        units = self.schedule.units
        between = units[units.index(group) + 1 : units.index(last) + 1]
        return not any(
            any(tensor in self.schedule.stored_in for tensor in unit.stored)
            if isinstance(unit, Group)
            else unit.extern.mutates or unit.extern.barrier
            for unit in between
        )

    def _only_reader(self, call: Call) -> Group | None:
        """The group that alone reads the call's result, if the call can as well be made where that group is."""
        (result,) = call.extern.results
        if any(value.root is result for value in values_in(self.program.outputs)):
            return None
        readers: list[Group] = []
        for unit in self.schedule.units[self.schedule.units.index(call) + 1 :]:
            if isinstance(unit, Group):
                if result in self._reads(unit):
                    readers.append(unit)
                elif not readers and any(tensor in self.schedule.stored_in for tensor in unit.stored):
                    return None
                continue
            extern = unit.extern
            reads = result in read_by_call(extern)
            if reads or (not readers and (extern.mutates or extern.barrier)):
                return None
        return readers[0] if len(readers) == 1 and readers[0].stored else None

    def _reads(self, group: Group) -> Collection[Tensor]:
        if group not in self.reads_of:
            kernel = build_kernel(group, self.schedule.inlined, for_device(self.program.device))
            self.reads_of[group] = {*kernel.reads, *(tensor for tensor, _ in kernel.parts.values())}
        return self.reads_of[group]

    def _without_timing(self, product: products.Product, kernel: Kernel) -> Launches | None:
        return Launches([products.usual(product, kernel)], []) if products.pays(product, kernel) else None

    def _timed(
        self,
        product: products.Product,
        kernel: Kernel,
        reader: Group | None,
        before: tuple[Group, dict[str, Kernel]] | None = None,
    ) -> Launches | None:
        """The fastest way: None for the library's product and kernels apart. `kernel` is all that `reader` does;
        `before` a group, and the kernels of it that a product may have as parts (`products.ways`)."""
        apart = self._apart(reader) if reader is not None else Launches([], [])
        first = self._apart(before[0]) if before is not None else Launches([], [])
        ways = [Launches([*first.printed, *apart.printed], [*first.between, *apart.between], product)]
        if reader is not None:
            ways += [Launches([*first.printed, one], first.between) for one in products.ways(product, kernel)]
        if before is not None:
            ways += [Launches([one], []) for one in products.ways(product, kernel, before[1])]
        assert self.choose is not None
        chosen = self.choose(ways)
        return ways[chosen] if chosen else None

    def _apart(self, group: Group) -> Launches:
        kernel = build_kernel(group, self.schedule.inlined, for_device(self.program.device))
        return launches(kernel, tiling.tile(kernel), self.program.device)

    def _kernel(self, group: Group) -> None:
        if not group.stored or (group not in self.taken and self._taken_by_a_product(group)):
            return
        kernel = self._build(group)
        try:
            chosen = self.taken[group] if group in self.taken else self._launches(kernel)
        except Unprintable as error:
            scans = isinstance(group.members[0], Scan)
            ops = {
                member.origin.op
                for member in kernel.fused
                if (isinstance(member, Scan) if scans else _mentions(member, error.what))
            }
            ops = ops or {member.origin.op for member in kernel.fused}
            raise _Unprintable(f"{error.what} in {', '.join(sorted(ops))}", ops) from error
        self._view_parts(kernel)
        self._launch(chosen, kernel.writes, _short_name(kernel))
        self._touch(kernel)

    def _launch(self, chosen: Launches, writes: Sequence[Tensor], named: _Named) -> None:
        """Allocate what is written, and launch the functions."""
        for tensor in (*writes, *chosen.between):
            if tensor in self.schedule.stored_in:
                continue
            self._add_buffer(tensor, self.program.device)
            self.steps.append(AllocStep(tensor.name))
        for printed in chosen.printed:
            name = self._triton_function(named, printed)
            arguments = tuple(map(self._buffer, printed.arguments))
            written = tuple(map(self._buffer, printed.written))
            self.read_by_kernels.update(arguments)
            self.extents.update(dict.fromkeys(printed.extents))
            self.steps.append(KernelStep(name, arguments, written, self._programs(printed.programs)))

    def _programs(self, programs: int | str) -> int | str:
        """The number, or the symbol that is it when the plan runs."""
        return programs if isinstance(programs, int) else self.grids.setdefault(programs, f"grid{len(self.grids)}")

    def _launches(self, kernel: Kernel) -> Launches:
        device = self.program.device
        if self.choose is None:
            return launches(kernel, tiling.tile(kernel), device)
        ways = [launches(kernel, cut, device) for cut in tiling.candidates(kernel)]
        return ways[self.choose(ways)]

    def _triton_function(self, named: _Named, printed: PrintedTriton) -> str:
        pointers, early = tuple(map(parameter_type, printed.arguments)), _early(printed)
        anywhere = self._unaligned(printed)
        key = f"{printed.text}{pointers}{printed.warps} {printed.stages} {early} {anywhere}"
        found = self.kernels.get(key)
        if found is None:
            ops, lines, short = named
            name = f"k{len(self.kernels)}_{short}"
            text = rename(printed.text, name)
            found = GpuKernel(
                name, text, pointers, printed.warps, ops, lines, printed.stages, printed.sizes, early, anywhere
            )
            self.kernels[key] = found
        return found.name

    def _unaligned(self, printed: PrintedTriton) -> tuple[int, ...]:
        """The arguments that the kernel takes at any address: small inputs, which may begin elsewhere at each call, as
        the word at hand of a text does. Wide loads gain nothing there, and another kernel for them costs a second."""
        inputs = {self.program.sources[name] for name in self.program.inputs if name in self.program.sources}
        return tuple(
            at
            for at, tensor in enumerate(printed.arguments)
            if tensor in inputs
            and tensor not in printed.written
            and hint_of(tensor.numel * tensor.dtype.itemsize) <= SMALL_INPUT
        )

    def _finish(self) -> None:
        if self.program.sizes_vary:
            self._finish_sizes()
            return
        self.steps, kernels = horizontal_fusion.merged(
            self.steps, {kernel.name: kernel for kernel in self.kernels.values()}, self.buffers
        )
        self.kernels = {kernel.name: kernel for kernel in kernels}

    def _finish_sizes(self) -> None:
        """Symbols that are known once the inputs' sizes are: whether numbers of 32 bits do, how many programs run."""
        at = sum(isinstance(step, SizeStep) for step in self.steps)
        made = [SizeStep(name, "expression", text) for text, name in self.grids.items()]
        if self.extents:
            numbers = ", ".join(map(repr, self.extents))
            made.insert(0, SizeStep("small0", "expression", f"small({sizes.LIMIT}, [{numbers}])"))
        self.steps[at:at] = made

    def _source(self) -> str:
        return "\n".join(kernel.text for kernel in self.kernels.values())
