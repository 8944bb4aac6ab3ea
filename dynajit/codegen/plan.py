"""The call plan: a compiled graph as data. `codegen.generate` makes it, `runtime` runs it.

In:  nothing; these are the classes.
Out: `Plan`. Its steps run in order over a table of tensors, one for each name in `Plan.buffers`; inputs are there from
     the start. Nothing here knows how a step is run. One more kind of step: a dataclass here, a case in `Plan.__str__`
     and one in the executor.

What the executor has to keep:

* A kernel argument is the address of a tensor's first element (`data_ptr()`, so the storage offset is in it), in the
  order of `KernelStep.args`; then come the int64 values of the symbols `KernelInfo.sizes`. Shapes and strides are
  baked into the C text, in terms of these symbols where they are symbolic.
* Sizes, strides, offsets and arguments of extern calls may hold `loopir.size.Size`s, whose text is a Python expression
  over symbols; arguments of extern calls also `RuntimeFloat`s, whose text is a symbol. A symbol's value is known from
  its `SizeStep` on.
* A kernel returns nothing; or, where `KernelInfo.checked`, an int: 0, or 1 + an index into `KernelInfo.errors`,
  to be raised as IndexError.
* Sizes, strides, dtypes and devices of inputs are those of the example inputs (guards see to it).
* An extern call may return other strides (or another dtype) than the fake tensor had. Where `ExternStep.check` and a
  kernel, a view or the backward graph reads the result, the executor compares its sizes, strides (of dimensions longer
  than 1) and dtype with its `Buffer` and copies the result into a tensor made by `empty_strided` if they differ.
* Linking: compile with -fopenmp but do not link libgomp; torch's own copy is loaded with global visibility, and a
  second one would bring a second pool of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dynajit.loopir.size import Size
from dynajit.report.shown import dtype_name

# What the C text relies on. -fwrapv: integer overflow wraps as in torch. No -ffast-math or part of it that changes
# values: -fno-math-errno and -fno-trapping-math only drop errno and floating-point exception flags; -fno-signed-zeros
# is absent. -ffp-contract=off: a*b+c rounds twice, as in eager.
REQUIRED_CFLAGS = (
    "-std=gnu11",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fopenmp",
)
# Loop bodies are straight lines whose common expressions were found by the printer. These passes of gcc's make jumps of
# selections and move calls into one side of them, which its vectoriser does not take back.
GCC_CFLAGS = tuple(
    f"-fno-{name}"
    for name in ("tree-pre", "tree-sink", "thread-jumps", "tree-dominator-opts", "split-paths", "code-hoisting")
)
TUNING_CFLAGS = ("-O3", "-march=native", *GCC_CFLAGS)


CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor of the plan: an input, a constant, an allocation, a view or a result of an extern call."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # in elements
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Stands for a tensor in the arguments of an extern call and in `Plan.outputs`."""

    name: str


@dataclass(frozen=True, slots=True)
class AllocStep:
    """`buffer` becomes a new uninitialised tensor, or takes over the memory of `reuse`, which nothing reads any
    more. `donors`: inputs, two at most, whose memory it becomes rather than either where the call alone holds that of
    one: the next kernel is the last to read it, and stores each element over that of the same place."""

    buffer: str
    reuse: str | None = None
    donors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Call function `kernel` with the addresses of the tensors `args`; those in `outputs` are written. On a GPU
    `programs` blocks run it, or as many as the symbol of this name says; none where that is 0."""

    kernel: str
    args: tuple[str, ...]
    outputs: tuple[str, ...]
    programs: int | str = 0


@dataclass(frozen=True, slots=True)
class ExternStep:
    """Call `target(*args, **kwargs)`; `BufferRef`s anywhere in the arguments stand for tensors.

    `outputs` names the results: one name if `single`, else one for each element of the returned tuple, None for
    those that are not kept. `aliases`: a result may share memory with an argument. `holds`: buffers that are read until
    then, by what was started before. Results that are no tensors are kept under their name all the same and have no
    `Buffer`.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[str | None, ...]
    single: bool = True
    check: bool = True
    aliases: bool = False
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewStep:
    """`output` is `base` seen with `output`'s own sizes and strides, starting `offset` elements after base's first; or,
    where `detached`, all of `base` as `Tensor.detach` gives it: in the same memory, and no view of it to autograd. With
    `own` nothing is left of `base`: `output` is no view of it to anybody."""

    output: str
    base: str
    offset: int
    detached: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class SizeStep:
    """`symbol` gets its value: `what` is "number" or "float" (the int or float under the name `source`), "size" or
    "stride" (of the tensor `source`, in dimension `at`), or "expression" (`source` is Python text over symbols known
    before; it may call functions of `math`, `float_bits`: the int64 that has a float's bits, for a kernel's argument,
    and `small(limit, numbers)`: 0, or TooLarge where a number is not below the limit)."""

    symbol: str
    what: str
    source: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class DrawStep:
    """Move the generator of the plan's GPU on by `increment`; `outputs` are the state it had, as `philox.Draw` says:
    numbers in place of tensors, which kernels are given as they are."""

    outputs: tuple[str, ...]
    increment: int


@dataclass(frozen=True, slots=True)
class NumberStep:
    """`output` is a number in the place of a tensor, which kernels are given as it is: what `source`, a tensor of one
    element on the CPU, holds (as `host_numbers.HostNumber` says), or the int that is known by now."""

    output: str
    source: str | Size


@dataclass(frozen=True, slots=True)
class FreeStep:
    """Nothing reads these any more."""

    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TouchStep:
    """A kernel has written to this input: autograd is to know."""

    buffer: str


Step = AllocStep | KernelStep | ExternStep | ViewStep | SizeStep | DrawStep | NumberStep | FreeStep | TouchStep


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One C function: its name, how many pointers and then which symbols it takes, and for reports what it fuses and
    the user's lines."""

    name: str
    arity: int
    ops: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    checked: bool = False  # returns 1 where a value is refused, as an index outside of its tensor: see Plan.eager
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """One Triton function: its text, the dtypes it takes pointers to, and how many warps run a block of it.

    Where the text says `ALIGNED = tl.constexpr(True)`, it says False for addresses that are no multiples of 16, and for
    GPUs that do not copy tiles by themselves."""

    name: str
    text: str
    pointers: tuple[str, ...]
    warps: int
    ops: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    stages: int = 2  # of loads that are under way at once in a loop
    sizes: tuple[str, ...] = ()  # symbols whose values it takes after the pointers, as ints of 32 bits
    early: bool = False  # starts while the kernel before it ends, where the GPU can, and waits for that by itself
    unaligned: tuple[int, ...] = ()  # pointers that need not be multiples of 16


@dataclass(slots=True)
class Plan:
    """A compiled graph. `source` is one C translation unit ("" if there are no kernels), or, where `device` is a GPU,
    the Triton text of all kernels."""

    name: str
    source: str
    kernels: tuple[KernelInfo | GpuKernel, ...]
    buffers: dict[str, Buffer]
    inputs: tuple[str, ...]  # in the order of the graph's placeholders; those that are no tensors have no Buffer
    constants: dict[str, Any]  # tensors (and submodules) held by the graph, by name
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]  # BufferRef, or the constant itself (None, int, ...)
    # How many of the outputs, from the first on, go to the user with strides that an operator chose (None: all). The
    # others are kept for the backward graph, whose kernels read the strides of their `Buffer`s.
    returns: int | None = None
    device: torch.device = CPU  # where kernels run
    # Runs the graph operator by operator: raises eager's error where a kernel refused a value.
    eager: Callable[..., Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        lines = [f"plan {self.name}({', '.join(self.inputs)})"]
        lines += [f"  {_step_text(self, step)}" for step in self.steps]
        lines.append(f"  return {', '.join(_value_text(value) for value in self.outputs)}")
        return "\n".join(lines)


def _value_text(value: Any) -> str:
    return value.name if isinstance(value, BufferRef) else repr(value)


def _shape_text(plan: Plan, name: str) -> str:
    buffer = plan.buffers[name]
    return f"{name}: {dtype_name(buffer.dtype)}{list(buffer.shape)} strides {list(buffer.stride)}"


def _step_text(plan: Plan, step: Step) -> str:
    match step:
        case AllocStep(buffer, reuse, donors):
            over = f" over {' or '.join(donors)} if nobody else holds it" if donors else ""
            return f"alloc {_shape_text(plan, buffer)}" + (f" from {reuse}" if reuse else "") + over
        case KernelStep(kernel, args, outputs):
            return f"{', '.join(outputs)} <- {kernel}({', '.join(args)})"
        case ExternStep(target, args, kwargs, outputs):
            names = ", ".join(name or "_" for name in outputs)
            return (
                f"{names} = {target}({', '.join(_value_text(arg) for arg in args)}"
                + "".join(f", {key}={_value_text(value)}" for key, value in kwargs.items())
                + ")"
            )
        case ViewStep(output, base, _, True):
            return f"view {output}: {base} detached"
        case ViewStep(output, base, offset):
            return f"view {_shape_text(plan, output)} of {base} at {offset}"
        case SizeStep(symbol, what, source, at):
            return f"{symbol} = {source}" + (f".{what}({at})" if what in ("size", "stride") else "")
        case DrawStep(outputs, increment):
            return f"{', '.join(outputs)} = draw({increment})"
        case NumberStep(output, source):
            return f"{output} = number({source})"
        case FreeStep(buffers):
            return f"free {', '.join(buffers)}"
        case TouchStep(buffer):
            return f"changed {buffer}"
