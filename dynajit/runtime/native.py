"""A call plan as the plain data that `csrc/plan/plan_builder.cpp` makes a native executor of.

In:  a `codegen.plan.Plan`, and its kernels loaded: for a GPU `_C.GpuKernel`s, for CPUs `CpuKernel`s.
Out: `build(plan, kernels)`: a `_C.PlanExecutor`. Tensors live in numbered slots: inputs first, then whatever else has
     a name. Operators of torch's are called through the dispatcher with arguments converted once; what is no operator
     is a Python function of slots and sizes.
One more kind of step: a case in `_NativeWriter.step`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dynajit import _C
from dynajit.codegen.memory import memories, names_in, refs_in
from dynajit.codegen.plan import (
    AllocStep,
    BufferRef,
    DrawStep,
    ExternStep,
    FreeStep,
    GpuKernel,
    KernelStep,
    NumberStep,
    Plan,
    SizeStep,
    TouchStep,
    ViewStep,
)
from dynajit.loopir.size import RuntimeFloat, Size, is_symbolic
from dynajit.nested import leaves_in, map_leaves
from dynajit.op_facts import facts
from dynajit.runtime.plan_sizes import PlanSizes

_ALLOC, _REUSE, _KERNEL, _EXTERN, _VIEW, _FREE, _PYTHON, _CPU_KERNEL, _TOUCH, _DRAW, _NUMBER, _SIZES = range(12)


@dataclasses.dataclass(frozen=True, slots=True)
class CpuKernel:
    """A C function: its address, what keeps its library open, and, if it returns a status, what is called with the
    graph's inputs where that is not 0."""

    address: int
    owner: object
    refused: Callable[..., Any] | None = None
    sizes: tuple[str, ...] = ()  # the symbols whose values it takes after the addresses


def build(plan: Plan, kernels: Mapping[str, Any]) -> Callable[..., tuple[Any, ...]]:
    """The plan's executor; `kernels` are the loaded kernels by name."""
    writer = _NativeWriter(plan, kernels)
    steps = list(writer.steps())
    outputs = [writer.output(place, value) for place, value in enumerate(plan.outputs)]
    constants = [(writer.slot(name), value) for name, value in plan.constants.items()]
    buffers = writer.buffers()
    sizes = writer.sizes.data()
    return _C.PlanExecutor(plan.device, len(plan.inputs), buffers, constants, steps, outputs, sizes, writer.ends())


def launch(kernel: Any, slots: Sequence[int], programs: int) -> tuple[Any, ...]:
    """The step that launches a loaded kernel on these slots."""
    return _KERNEL, kernel, tuple(slots), (), programs, (), -1


class _NativeWriter:
    """The slots given out so far."""

    def __init__(self, plan: Plan, kernels: Mapping[str, Any]) -> None:
        self.plan = plan
        self.kernels = kernels
        self.slots = {name: number for number, name in enumerate(plan.inputs)}
        self.sizes = PlanSizes(plan, self.slot)
        self.unchecked: list[str] = []  # results whose layouts are not known yet
        self.memories = memories(plan)
        self.used: dict[str, int] = {}  # memory -> how many steps there are up to the last that names it
        self.takes = {kernel.name: kernel.sizes for kernel in plan.kernels}
        self.unaligned = {kernel.name: kernel.unaligned for kernel in plan.kernels if isinstance(kernel, GpuKernel)}
        self.tensors = tensors_used(plan)
        self.visible = {out.name for out in plan.outputs if isinstance(out, BufferRef)}
        self.referred = _referred(plan)
        self.laid_out = _laid_out(plan) if plan.device.type == "cpu" else None
        # Memory from torch's allocators starts at multiples of 16; inputs and results of operators may not.
        self.aligned = {step.buffer for step in plan.steps if isinstance(step, AllocStep)}
        self.aligned.update(name for step in plan.steps if isinstance(step, DrawStep) for name in step.outputs)
        self.aligned.update(step.output for step in plan.steps if isinstance(step, NumberStep))

    def slot(self, name: str) -> int:
        """The number of a tensor's slot."""
        return self.slots.setdefault(name, len(self.slots))

    def output(self, place: int, value: Any) -> tuple[int, Any]:
        """Where an output comes from: its slot, or the value itself."""
        if isinstance(value, Size):
            return -2, self.sizes.number(value)
        if isinstance(value, RuntimeFloat):
            return -3, self.sizes.number(value.bits)
        if not isinstance(value, BufferRef):
            return -1, value
        own = f"{value.name}.own"  # no name of a buffer has a dot
        if own in self.slots and (self.plan.returns is None or place < self.plan.returns):
            return self.slots[own], None
        return self.slot(value.name), None

    def buffers(self) -> list[Any]:
        """What is known of each slot."""
        found: list[Any] = [None] * len(self.slots)
        for name, number in self.slots.items():
            buffer = self.plan.buffers.get(name)
            if buffer is not None:
                shape, stride = self.sizes.row(number, 0, buffer.shape), self.sizes.row(number, 1, buffer.stride)
                found[number] = (shape, stride, buffer.dtype, self.sizes.row(number, 2, (buffer.nbytes,))[0])
        return found

    def steps(self) -> Iterator[tuple[Any, ...]]:
        """The plan's steps as tuples, but for sizes that its inputs tell."""
        count = 0
        for late, group in itertools.groupby(self.plan.steps, self._is_late):
            steps = list(group)
            if late:
                symbols = self.sizes.add(steps)  # type: ignore[arg-type]
                ready = [name for name in self.unchecked if self._known(name)]
                self.unchecked = [name for name in self.unchecked if name not in ready]
                count += 1
                self._use((*ready, *itertools.chain.from_iterable(map(names_in, steps))), count)
                yield _SIZES, *symbols, tuple(map(self.slot, ready))
            else:
                for step in steps:
                    if not isinstance(step, SizeStep):
                        count += 1
                        self._use(names_in(step), count)
                        yield self.step(step)

    def _use(self, names: Iterable[str], count: int) -> None:
        self.used.update((self.memories.get(name, name), count) for name in names)

    def ends(self) -> list[int]:
        """For each slot: how many steps there are up to the last that makes or reads its memory."""
        names = (name.removesuffix(".own") for name in self.slots)
        return [self.used.get(self.memories.get(name, name), 0) for name in names]

    def _is_late(self, step: Any) -> bool:
        return isinstance(step, SizeStep) and step in self.sizes.late

    def step(self, step: Any) -> tuple[Any, ...]:
        """One step as a tuple."""
        match step:
            case AllocStep(buffer, None, donors):
                return _ALLOC, self.slot(buffer), buffer in self.tensors, tuple(map(self.slot, donors))
            case AllocStep(buffer, str(reuse), donors):
                return (
                    _REUSE,
                    self.slot(buffer),
                    self.slot(reuse),
                    buffer in self.tensors,
                    tuple(map(self.slot, donors)),
                )
            case KernelStep(kernel, args, _, programs):
                loaded = self.kernels[kernel]
                if isinstance(loaded, CpuKernel):
                    slots = tuple(map(self.slot, args))
                    name = f"dynajit {kernel}"
                    symbols = self.sizes.symbols_of(loaded.sizes)
                    return _CPU_KERNEL, loaded.owner, loaded.address, slots, loaded.refused, name, symbols
                anywhere = self.unaligned.get(kernel, ())
                checked = tuple(n for n, name in enumerate(args) if name not in self.aligned and n not in anywhere)
                symbols = self.sizes.symbols_of(self.takes.get(kernel, ()))
                slots = tuple(map(self.slot, args))
                if isinstance(programs, int):
                    return _KERNEL, loaded, slots, checked, programs, symbols, -1
                return _KERNEL, loaded, slots, checked, 0, symbols, *self.sizes.symbols_of([programs])
            case ViewStep(output, base, offset, detached, own):
                size = self.sizes.number(offset) if isinstance(offset, Size) else -1
                tracked = output in self.visible and not own
                known = 0 if isinstance(offset, Size) else offset
                return _VIEW, self.slot(output), self.slot(base), known, tracked, size, detached
            case DrawStep(outputs, increment):
                return _DRAW, tuple(map(self.slot, outputs)), increment
            case NumberStep(output, str(source)):
                return _NUMBER, self.slot(output), self.slot(source), -1
            case NumberStep(output, Size() as source):
                return _NUMBER, self.slot(output), -1, self.sizes.number(source)
            case FreeStep(buffers):
                return _FREE, tuple(map(self.slot, buffers))
            case TouchStep(buffer):
                return _TOUCH, self.slot(buffer)
            case ExternStep():
                return self._extern(step)
        raise AssertionError(step)

    def _extern(self, step: ExternStep) -> tuple[Any, ...]:
        given = self._native_arguments(step) if isinstance(step.target, torch._ops.OpOverload) else None
        if given is None:
            return self._python(step)
        schema = step.target._schema  # type: ignore[attr-defined]
        # the graph has a name for a result even where there is none
        names = self._native_results(step) if schema.returns else ()
        plain = schema.name.startswith("aten::") and not step.aliases and not facts(step.target).writes
        return _EXTERN, schema.name, schema.overload_name, *given, *self._results(step, names), plain

    def _results(self, step: ExternStep, names: Sequence[str | None]) -> tuple[tuple[int, ...], ...]:
        """The slots of results, whether each is to have its buffer's layout, the slots for them as they were given."""
        checked = [name if step.check and self._relied_on(name) else None for name in names]
        own = tuple(-1 if name is None else self._own(name) for name in checked)
        ready = tuple(name is not None and self._known(name) for name in checked)
        self.unchecked += [name for name, known in zip(checked, ready, strict=True) if name is not None and not known]
        return tuple(-1 if name is None else self.slot(name) for name in names), ready, own

    def _known(self, name: str) -> bool:
        buffer = self.plan.buffers[name]
        return self.sizes.known((*buffer.shape, *buffer.stride))

    def _native_results(self, step: ExternStep) -> tuple[str | None, ...]:
        """The results' names, without those of numbers that nothing reads, as attention has."""
        kinds = [result.type for result in step.target._schema.returns]  # type: ignore[attr-defined]
        if len(kinds) != len(step.outputs):
            return step.outputs  # a list of tensors
        pairs = zip(step.outputs, kinds, strict=True)
        return tuple(name if name in self.referred or _returns_tensors(kind, 1) else None for name, kind in pairs)

    def _relied_on(self, name: str | None) -> bool:
        """Does anything rely on the strides that this result was to have?"""
        return name in self.plan.buffers and (self.laid_out is None or name in self.laid_out)

    def _own(self, name: str | None) -> int:
        """The slot for a result as its operator gave it, -1 if the user does not see it."""
        return self.slot(f"{name}.own") if self.laid_out is not None and name in self.visible else -1

    def _native_arguments(self, step: ExternStep) -> tuple[list[Any], list[Any]] | None:
        """The values of the schema's arguments, and which of them are tensors of slots; None where an argument or
        result is of a kind that only Python can handle."""
        schema = step.target._schema  # type: ignore[attr-defined]
        kept = zip(schema.returns, self._native_results(step)) if schema.returns else ()
        if not all(name is None or _returns_tensors(result.type, len(schema.returns)) for result, name in kept):
            return None
        values: list[Any] = []
        patches: list[Any] = []
        for number, argument in enumerate(schema.arguments):
            if not argument.kwarg_only and number < len(step.args):
                value = step.args[number]
            elif argument.name in step.kwargs:
                value = step.kwargs[argument.name]
            else:
                value = argument.default_value
            for_python = isinstance(value, torch.Tensor) or _number_for_tensor(argument.type, value)
            patch = self._patch(number, value, "Optional[Tensor]" in str(argument.type))
            patch = patch or self._sized(number, value, "Tensor" in str(argument.type))
            if patch is not None:
                patches.append(patch)
                value = None
            elif for_python or any(isinstance(leaf, _FILLED) for leaf in leaves_in(value)):
                return None
            values.append(_plain(value))
        return values, patches

    def _patch(self, number: int, value: Any, optional: bool) -> tuple[int, int, tuple[int, ...]] | None:
        if isinstance(value, BufferRef):
            return None if value.name not in self.plan.buffers else (number, 0, (self.slot(value.name),))
        if isinstance(value, (tuple, list)) and any(isinstance(item, BufferRef) for item in value):
            known = [item is None or (isinstance(item, BufferRef) and item.name in self.plan.buffers) for item in value]
            if not all(known):
                return None
            return number, 2 if optional else 1, tuple(-1 if item is None else self.slot(item.name) for item in value)
        return None

    def _sized(self, number: int, value: Any, for_tensor: bool) -> tuple[int, int, tuple[int, ...]] | None:
        in_tensor = 4 if for_tensor else 0
        if isinstance(value, Size):
            return number, 3 + in_tensor, (self.sizes.number(value),)
        if isinstance(value, RuntimeFloat):
            return number, 5 + in_tensor, (self.sizes.number(value.bits),)
        sizes = isinstance(value, (tuple, list)) and all(isinstance(item, (int, Size)) for item in value)
        return (number, 4, tuple(map(self.sizes.number, value))) if sizes and is_symbolic(value) else None

    def _python(self, step: ExternStep) -> tuple[Any, ...]:
        filled = dict.fromkeys(leaf for leaf in leaves_in((step.args, step.kwargs)) if isinstance(leaf, _FILLED))
        refs = [leaf for leaf in filled if isinstance(leaf, BufferRef)]
        sizes = [leaf for leaf in filled if not isinstance(leaf, BufferRef)]
        numbers = tuple(self.sizes.number(size.bits if isinstance(size, RuntimeFloat) else size) for size in sizes)
        function = functools.partial(_call, step, (*refs, *sizes))
        slots = tuple(self.slot(ref.name) for ref in refs)
        return _PYTHON, function, slots, numbers, *self._results(step, step.outputs)


# What stands for a value in the arguments of a call.
_FILLED = (BufferRef, Size, RuntimeFloat)


def _plain(value: Any) -> Any:
    """fx's own lists stand for plain ones."""
    return list(value) if isinstance(value, (list, tuple)) else value


def _number_for_tensor(kind: Any, value: Any) -> bool:
    """Is the value a number where the operator takes a tensor? Python's calls make one of it."""
    return isinstance(value, (bool, int, float, complex)) and "Tensor" in str(kind)


def _returns_tensors(kind: Any, count: int) -> bool:
    """Whether one of `count` results is a tensor, or the only one a list of them, whose items are the results."""
    return str(kind) in ("Tensor", "Optional[Tensor]") or (count == 1 and str(kind) == "List[Tensor]")


def _call(step: ExternStep, given: tuple[Any, ...], *values: Any) -> tuple[Any, ...]:
    """Call what is no operator of torch's, with these values of `_FILLED`."""
    table = dict(zip(given, values, strict=True))

    def value_of(given: Any) -> Any:
        return _C.float_of_bits(table[given]) if isinstance(given, RuntimeFloat) else table[given]

    # A torch-function mode saw the user's calls while they were traced; it must not see the plan's own as well.
    with torch._C.DisableTorchFunction():
        args, kwargs = map_leaves(value_of, (step.args, dict(step.kwargs)), _FILLED)
        result = step.target(*args, **kwargs)
    return (result,) if step.single else tuple(result)


def _laid_out(plan: Plan) -> set[str]:
    """The buffers whose strides something relies on: kernels, views, the backward graph. To the user and to other
    operators goes what an operator gave."""
    found = {arg for step in plan.steps if isinstance(step, KernelStep) for arg in step.args}
    found |= {step.base for step in plan.steps if isinstance(step, ViewStep) and not step.detached}
    if plan.returns is not None:
        found |= {ref.name for ref in plan.outputs[plan.returns :] if isinstance(ref, BufferRef)}
    return found


def _referred(plan: Plan) -> set[str]:
    """The names that operators, sizes and the user read."""
    trees: list[Any] = [plan.outputs]
    trees += [(step.args, dict(step.kwargs)) for step in plan.steps if isinstance(step, ExternStep)]
    sources = {step.source for step in plan.steps if isinstance(step, SizeStep)}
    return sources | {ref.name for tree in trees for ref in refs_in(tree)}


def tensors_used(plan: Plan) -> set[str]:
    """The buffers that anything other than a kernel reads or writes, so that there must be a tensor."""
    used = {ref.name for ref in refs_in(plan.outputs)}
    for step in reversed(plan.steps):
        match step:
            case ExternStep(args=args, kwargs=kwargs):
                used.update(ref.name for ref in refs_in((args, dict(kwargs))))
            case ViewStep(base=base) | NumberStep(source=str(base)):
                used.add(base)
            case AllocStep(buffer, str(reuse)) if buffer in used:
                used.add(reuse)
    return used
