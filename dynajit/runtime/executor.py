"""Runs a call plan: one straight-line Python function for each plan, everything it needs bound to its globals.

In:  a `codegen.plan.Plan`.
Out: a function from the graph's inputs to the tuple of its outputs. Its text is in `linecache`, so tracebacks show it.
To support one more kind of step: a method `_<step>` of `_Writer` and its line in `_Writer.write`.
"""

from __future__ import annotations

import dataclasses
import itertools
import keyword
import linecache
import math
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from dynajit import _C, torch_compat
from dynajit.codegen.plan import (
    AllocStep,
    Buffer,
    BufferRef,
    ExternStep,
    FreeStep,
    KernelInfo,
    KernelStep,
    Plan,
    SizeStep,
    TouchStep,
    ViewStep,
)
from dynajit.loopir.size import RuntimeFloat, Size, is_symbolic
from dynajit.runtime import load

_serial = itertools.count()

# ATen operators whose function in `torch` takes the same arguments in the same order and costs a microsecond less.
_DIRECT = (
    *("mm", "bmm", "addmm", "baddbmm", "convolution", "embedding", "index_select"),
    *("native_layer_norm", "native_group_norm", "_softmax", "_log_softmax"),
)


def build(plan: Plan) -> Callable[..., tuple[Any, ...]]:
    """Compile the plan's kernels, if it has any, and its Python function. Raises ToolchainError.

    The function has attributes `source` (its text) and `plan`.
    """
    writer = _Writer(plan)
    text = writer.write()
    scope = writer.scope
    if plan.kernels:
        library = load.load_source(plan.source, len(plan.kernels))
        prototypes = {name: _prototype(kernel) for name, kernel in writer.kernels.items()}
        scope.update(library.functions(prototypes), _library=library)
    filename = f"<dynajit plan {plan.name} {next(_serial)}>"
    exec(compile(text, filename, "exec"), scope)
    call = scope.pop("call")
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    weakref.finalize(call, linecache.cache.pop, filename, None).atexit = False
    call.source, call.plan = text, plan
    return call  # type: ignore[no-any-return]


def _prototype(kernel: KernelInfo) -> str:
    arguments = ", ".join(["uintptr_t"] * kernel.arity + ["int64_t"] * len(kernel.sizes)) or "void"
    return f"{'int' if kernel.checked else 'void'} {{}}({arguments});"


def _changed(tensor: torch.Tensor) -> None:
    """Count a change of the tensor, for autograd."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


class _Writer:
    """Writes the text of one plan's function and collects in `scope` what the text refers to."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scope: dict[str, Any] = {"_fix": _fix, "refused": refused, "math": math}
        self.scope.update(_with_sizes=_with_sizes, float_bits=_C.float_bits)
        self.scope.update(_enter_pool=_C.memory_pool_enter, _leave_pool=_C.memory_pool_leave)
        self.lines: list[str] = []
        self.names: dict[str, str] = {}
        self._taken: set[str] = {kernel.name for kernel in plan.kernels} | {"_", "refused", "_library", "math"}
        self._taken.add("float_bits")
        self._taken.update(step.symbol for step in plan.steps if isinstance(step, SizeStep))
        self.kernels = {kernel.name: kernel for kernel in plan.kernels if isinstance(kernel, KernelInfo)}
        self._bound: dict[tuple[str, int], str] = {}
        self._fresh: set[str] = set()  # tensors allocated here: they start at offset 0 of their memory
        self._dtypes: dict[str, torch.dtype] = {}  # what the tensor behind an allocated buffer really holds
        self._pointers: dict[str, str] = {}  # buffer -> variable that holds its address
        self._pointer_uses = Counter(arg for step in plan.steps if isinstance(step, KernelStep) for arg in step.args)
        self._tensor_uses = _tensors_used(plan)
        self._returns = len(plan.outputs) if plan.returns is None else plan.returns
        # Only these rely on strides known beforehand; to the user and to other operators goes what an operator gave.
        views = (step for step in plan.steps if isinstance(step, ViewStep))
        self._laid_out = set(self._pointer_uses) | {step.base for step in views if not step.detached}
        self._laid_out |= {ref.name for ref in plan.outputs[self._returns :] if isinstance(ref, BufferRef)}
        self._outputs = {ref.name for ref in plan.outputs[: self._returns] if isinstance(ref, BufferRef)}
        self._unchecked: list[tuple[str, Callable[..., Any]]] = []
        self._returned: dict[str, str] = {}  # output -> variable with the operator's own result

    def write(self) -> str:
        plan = self.plan
        for name, value in plan.constants.items():
            self.scope[self._name(name)] = value
        parameters = ", ".join(self._name(name) for name in plan.inputs)
        for step in plan.steps:
            if not isinstance(step, SizeStep):
                self._check_results()
            match step:
                case AllocStep():
                    self._alloc(step)
                case KernelStep():
                    self._kernel(step)
                case ExternStep():
                    self._extern(step)
                case ViewStep():
                    self._view(step)
                case SizeStep():
                    self._size(step)
                case FreeStep():
                    self._free(step)
                case TouchStep(buffer):
                    self.lines.append(f"{self._bind('changed', _changed)}({self._name(buffer)})")
        self._check_results()
        outputs = "".join(f"{self._output(place, value)}, " for place, value in enumerate(plan.outputs))
        self.lines.append(f"return ({outputs.strip()})" if plan.outputs else "return ()")
        opening = [f"def call({parameters}):", "    _enter_pool()", "    try:"]
        body = [f"        {line}" for line in self.lines]
        return "\n".join([*opening, *body, "    finally:", "        _leave_pool()"]) + "\n"

    def _alloc(self, step: AllocStep) -> None:
        buffer = self.plan.buffers[step.buffer]
        name = self._name(step.buffer)
        if step.reuse is None:
            self.lines.append(f"{name} = {self._empty(buffer)}")
            self._fresh.add(step.buffer)
            self._dtypes[step.buffer] = buffer.dtype
            return
        base = self._name(step.reuse)
        dtype = self._dtypes.get(step.reuse, self.plan.buffers[step.reuse].dtype)
        if step.buffer not in self._tensor_uses:
            # Only kernels touch it, so its address is all there has to be; the old tensor keeps the memory.
            self._pointers[step.buffer] = self._pointer(step.reuse, held=True)
            self.lines.append(f"{name} = {base}")
        else:
            if dtype != buffer.dtype:
                base = f"{self._bind('_reinterpret', _reinterpret)}({base}, {self._bind('dtype', buffer.dtype)})"
                dtype = buffer.dtype
            # a result is nobody's view: autograd would refuse writes to it
            own = step.buffer in self._outputs
            seen = self._bind("own", _own) if own else self._bind("as_strided", torch.as_strided)
            self.lines.append(f"{name} = {seen}({base}, {buffer.shape!r}, {buffer.stride!r}, 0)")
        self._dtypes[step.buffer] = dtype
        self._fresh.add(step.buffer)

    def _empty(self, buffer: Buffer) -> str:
        if buffer.device.type == "cpu":
            make = self._bind("empty", torch_compat.empty_strided_cpu)
            return f"{make}({buffer.shape!r}, {buffer.stride!r}, {self._bind('dtype', buffer.dtype)})"
        make = self._bind("empty_strided", torch.empty_strided)
        dtype, device = self._bind("dtype", buffer.dtype), self._bind("device", buffer.device)
        return f"{make}({buffer.shape!r}, {buffer.stride!r}, dtype={dtype}, device={device})"

    def _kernel(self, step: KernelStep) -> None:
        info = self.kernels[step.kernel]
        call = f"{step.kernel}({', '.join([*map(self._pointer, step.args), *info.sizes])})"
        if not info.checked:
            self.lines.append(call)
            return
        inputs = ", ".join([self._bind("eager", self.plan.eager), *map(self._name, self.plan.inputs)])
        self.lines.append(f"if {call}: refused({inputs})")

    def _pointer(self, buffer: str, held: bool = False) -> str:
        """Text for the address of a buffer; kept in a variable if it is asked for again."""
        known = self._pointers.get(buffer)
        if known is not None:
            return known
        text = f"{self._name(buffer)}.data_ptr()"
        if self._pointer_uses[buffer] < 2 and not held:
            return text
        variable = self._pointers[buffer] = self._unused(f"p_{self._name(buffer)}")
        self.lines.append(f"{variable} = {text}")
        return variable

    def _extern(self, step: ExternStep) -> None:
        arguments = [self._expression(arg) for arg in step.args]
        arguments += [f"{key}={self._expression(value)}" for key, value in step.kwargs.items()]
        call = f"{self._target(step.target)}({', '.join(arguments)})"
        kept = [name for name in step.outputs if name is not None]
        if not kept:
            self.lines.append(call)
        elif step.single:
            self.lines.append(f"{self._name(kept[0])} = {call}")
        else:
            targets = ", ".join("_" if name is None else self._name(name) for name in step.outputs)
            self.lines.append(f"{targets}{',' if len(step.outputs) == 1 else ''} = {call}")
        if step.check:
            self._unchecked = [(output, step.target) for output in kept if output in self._laid_out]

    def _check_results(self) -> None:
        """Of the last operator: once the sizes that only its results tell are known."""
        for output, target in self._unchecked:
            self._check(output, target)
        self._unchecked = []

    def _check(self, output: str, target: Callable[..., Any]) -> None:
        # Sizes follow from the arguments' metadata; strides are the operator's own choice, and so is the dtype of
        # statistics where the fake implementation is wrong about it.
        buffer = self.plan.buffers.get(output)
        if buffer is None:
            return
        name = self._name(output)
        if output in self._outputs:
            self._returned[output] = self._unused(f"own_{name}")
            self.lines.append(f"{self._returned[output]} = {name}")
        # an operation may leave out a result that this machine's implementation does not need
        wrong = f"{name} is not None and ({name}.stride() != {buffer.stride!r}"
        if getattr(target, "namespace", "") != "aten" or target.overloadpacket.__name__ not in _DIRECT:  # type: ignore[attr-defined]
            wrong += f" or {name}.dtype is not {self._bind('dtype', buffer.dtype)}"
        expected = self._bind("buffer", buffer)
        if is_symbolic((*buffer.shape, *buffer.stride)):
            expected = f"_with_sizes({expected}, {buffer.shape!r}, {buffer.stride!r})"
        self.lines.append(f"if {wrong}): {name} = _fix({name}, {expected})")

    def _view(self, step: ViewStep) -> None:
        buffer = self.plan.buffers[step.output]
        base = self._name(step.base)
        if step.detached:
            self.lines.append(f"{self._name(step.output)} = {self._bind('detach', torch.detach)}({base})")
            return
        offset = str(step.offset)
        if step.base not in self._fresh:
            offset = f"{base}.storage_offset()" + (f" + {step.offset}" if step.offset else "")
        seen = self._bind("own", _own) if step.own else self._bind("as_strided", torch.as_strided)
        name = self._name(step.output)
        self.lines.append(f"{name} = {seen}({base}, {buffer.shape!r}, {buffer.stride!r}, {offset})")

    def _size(self, step: SizeStep) -> None:
        if step.what == "expression":
            self.lines.append(f"{step.symbol} = {step.source}")
        elif step.what in ("number", "float"):
            self.lines.append(f"{step.symbol} = {self._name(step.source)}")
        else:
            read = self._bind(step.what, _C.tensor_size if step.what == "size" else _C.tensor_stride)
            self.lines.append(f"{step.symbol} = {read}({self._name(step.source)}, {step.at})")

    def _free(self, step: FreeStep) -> None:
        # names of inputs stay: they are arguments of what is called where a kernel refuses a value
        inputs = [name for name in step.buffers if name in self.plan.inputs]
        self.lines += [f"{self._name(name)} = None" for name in inputs]
        others = [self._name(name) for name in step.buffers if name not in inputs]
        if others:
            self.lines.append("del " + ", ".join(others))

    def _target(self, target: Callable[..., Any]) -> str:
        if isinstance(target, torch._ops.OpOverload):
            packet = target.overloadpacket.__name__
            if target.namespace == "aten" and target._overloadname == "default" and packet in _DIRECT:
                return self._bind(packet, getattr(torch, packet))
            return self._bind(f"aten_{packet}", target)
        return self._bind(getattr(target, "__name__", "fn"), target)

    def _output(self, place: int, value: Any) -> str:
        if place < self._returns and isinstance(value, BufferRef) and value.name in self._returned:
            return self._returned[value.name]
        return self._expression(value)

    def _expression(self, value: Any) -> str:
        """Text that evaluates to `value`."""
        if isinstance(value, BufferRef):
            return self._name(value.name)
        # fx's own immutable lists and dictionaries stand for plain ones, and so does torch.Size.
        if type(value) in (tuple, torch.Size):
            return f"({''.join(f'{self._expression(item)}, ' for item in value)})"
        if isinstance(value, list):
            return f"[{', '.join(self._expression(item) for item in value)}]"
        if isinstance(value, dict) and all(type(key) is str for key in value):
            return "{" + ", ".join(f"{key!r}: {self._expression(item)}" for key, item in value.items()) + "}"
        if value is None or type(value) in (bool, int, str, Size, RuntimeFloat):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        return self._bind("constant", value)

    def _bind(self, hint: str, value: Any) -> str:
        """The global that holds `value`."""
        key = (hint, id(value))
        name = self._bound.get(key)
        if name is None:
            name = self._bound[key] = self._unused(hint)
            self.scope[name] = value
        return name

    def _name(self, buffer: str) -> str:
        name = self.names.get(buffer)
        if name is None:
            name = self.names[buffer] = self._unused(buffer)
        return name

    def _unused(self, hint: str) -> str:
        base = hint if hint.isidentifier() and not keyword.iskeyword(hint) and hint != "call" else "v"
        name = base
        for number in itertools.count(1):
            if name not in self._taken and name not in self.scope:
                break
            name = f"{base}_{number}"
        self._taken.add(name)
        return name


def _tensors_used(plan: Plan) -> set[str]:
    """Buffers that something other than a kernel reads or writes, so that there must be a tensor."""
    used: set[str] = set()

    def visit(value: Any) -> None:
        if isinstance(value, BufferRef):
            used.add(value.name)
        elif isinstance(value, (tuple, list)):
            for item in value:
                visit(item)
        elif isinstance(value, dict):
            visit(tuple(value.values()))

    visit(plan.outputs)
    for step in plan.steps:
        match step:
            case ExternStep(args=args, kwargs=kwargs):
                visit(args)
                visit(tuple(kwargs.values()))
            case ViewStep(base=base):
                used.add(base)
            case SizeStep(what=what, source=source) if what in ("size", "stride"):
                used.add(source)
            case AllocStep(reuse=reuse) if reuse is not None and step.buffer in used:
                used.add(reuse)
    return used


def _with_sizes(buffer: Buffer, shape: tuple[int, ...], stride: tuple[int, ...]) -> Buffer:
    """A buffer of symbolic sizes, with those of this call."""
    return dataclasses.replace(buffer, shape=shape, stride=stride)


def _fix(tensor: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    """`tensor` with the strides and dtype that kernels were compiled for: itself where only strides that don't count
    differ."""
    if tuple(tensor.shape) != buffer.shape:
        raise RuntimeError(
            f"{buffer.name} is {list(tensor.shape)}, was to be {list(buffer.shape)}: "
            "the operator's fake implementation and its kernel disagree"
        )
    pairs = zip(tensor.shape, tensor.stride(), buffer.stride, strict=True)
    same_layout = tensor.numel() == 0 or all(size == 1 or stride == expected for size, stride, expected in pairs)
    if same_layout and tensor.dtype == buffer.dtype:
        return tensor
    made = torch.empty_strided(buffer.shape, buffer.stride, dtype=buffer.dtype, device=buffer.device)
    return made.copy_(tensor)


def _reinterpret(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The memory of a tensor that starts at offset 0, as elements of another dtype."""
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage())


def _own(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> torch.Tensor:
    """The tensor's memory as another tensor, which is no view of it."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), offset, shape, stride)


def refused(eager: Callable[..., Any] | None, *inputs: Any) -> None:
    """A kernel met a value that the operator refuses: run the graph operator by operator for the operator's error."""
    with torch.no_grad():
        if eager is not None:
            eager(*inputs)
    raise IndexError("index out of range")
