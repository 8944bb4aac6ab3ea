"""Plans for a GPU without one: kernels under Triton's interpreter, compared with eager and the reference interpreter.

In: a function of tensors, CPU tensors. Out: `check` raises AssertionError where a plan made for a GPU gives something
else; `compile_all` compiles each kernel for sm_90.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import helpers
import numpy as np
import torch
from reference_interpreter import interpret
from torch._subclasses.fake_tensor import FakeTensorMode
from well_formed import verify

import dynajit
from dynajit import _C
from dynajit.aot import compile_joint, decompositions
from dynajit.codegen.generate import Choose, generate
from dynajit.codegen.plan import (
    AllocStep,
    BufferRef,
    DrawStep,
    ExternStep,
    FreeStep,
    KernelStep,
    NumberStep,
    Plan,
    SizeStep,
    ViewStep,
)
from dynajit.codegen.triton.functions import HELPERS
from dynajit.loopir import lower_graph
from dynajit.loopir.host_numbers import HostNumber
from dynajit.loopir.philox import Draw
from dynajit.loopir.size import Size
from dynajit.runtime import triton_compiler
from dynajit.runtime.plan_sizes import small

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
BYTES = (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)


def trace(function: Callable[..., Any], *args: Any, host: int = 0) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The function's functional ATen graph on fake tensors of a GPU, and those. The last `host` arguments stay on the
    CPU, and what is computed of them alone."""

    # A torch built without CUDA can't trace all of it on a GPU's fake tensors: trace on the CPU's, then move them.
    gm = helpers.trace(function, *args)
    return moved(gm, args, host=range(len(args) - host, len(args)))


def moved(
    gm: torch.fx.GraphModule, args: Sequence[Any], mode: FakeTensorMode | None = None, host: Sequence[int] = ()
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The graph and its inputs as if they were on a GPU, but for the inputs in the places `host`."""
    mode = mode or FakeTensorMode()

    def move(value: Any, device: torch.device = GPU) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)([move(item, device) for item in value])
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

    inputs = gm.graph.find_nodes(op="placeholder")
    staying = {inputs[at] for at in host} | {node for node in inputs if isinstance(node.meta["val"], torch.SymFloat)}
    for node in gm.graph.nodes:
        if node.all_input_nodes and staying.issuperset(node.all_input_nodes):
            staying.add(node)
        if "val" in node.meta:
            node.meta["val"] = move(node.meta["val"], CPU if node in staying else GPU)
    return gm, [move(x, CPU if at in host else GPU) for at, x in enumerate(args)]


def plan_of(function: Callable[..., Any], *args: Any, choose: Choose | None = None, host: int = 0) -> Plan:
    """The plan of the function for these inputs, as if they were on a GPU, but for the last `host`."""
    gm, fakes = trace(function, *args, host=host)
    return generate(gm, fakes, "test", GPU, choose)


def plan_of_any_size(function: Callable[..., Any], *args: Any) -> Plan:
    """The plan of the function for inputs whose sizes vary, those of two and more."""

    gm = helpers.trace(function, *args, sizes="symbolic")
    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    mode = next(x.fake_mode for x in inputs if isinstance(x, torch.Tensor))
    gm, fakes = moved(gm, inputs, mode)
    return generate(gm, fakes, "test", GPU)


def plan_of_floats(function: Callable[..., Any], *args: Any, host: int = 0) -> Plan:
    """The plan of the function for floats that vary, which are behind the tensors there."""
    plans: list[Plan] = []

    def collect(gm: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Callable[..., Any]:
        mode = next(x.fake_mode for x in inputs if isinstance(x, torch.Tensor))
        tensors = sum(isinstance(x, torch.Tensor) for x in inputs)
        plans.append(generate(*moved(gm, inputs, mode, range(tensors - host, tensors)), "test", GPU))
        return gm.forward

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return compile_joint(gm, inputs, collect, decompositions.for_codegen("cuda", False))

    compiled = dynajit.compile(function, backend=backend)
    compiled(*args)
    compiled(*(arg + 1 if isinstance(arg, float) else arg for arg in args))
    return plans[-1]


def reference(function: Callable[..., Any], *args: Any, host: int = 0) -> tuple[Any, ...]:
    """What the reference interpreter of the loop IR gives."""
    gm, _ = trace(function, *args, host=host)
    program = lower_graph.lower(gm, "test", GPU)
    try:
        verify(program)
        return interpret(program, dict(zip(program.inputs, args, strict=True)))
    finally:
        lower_graph.forget()


def check(
    function: Callable[..., Any],
    *args: Any,
    kernels: int | None = None,
    externs: int | None = 0,
    host: int = 0,
    **tolerances: Any,
) -> Plan:
    """Run the plan's kernels under the interpreter; compare values, dtypes and strides with eager's."""
    expected = function(*args)
    expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
    plan = plan_of(function, *args, host=host)
    actual = run(plan, *args)
    for a, e, r in zip(actual, expected, reference(function, *args, host=host), strict=True):
        torch.testing.assert_close(a, e, equal_nan=True, **tolerances)
        torch.testing.assert_close(a, r.expand(a.shape), equal_nan=True, check_stride=False, **tolerances)
        assert a.stride() == e.stride() or 1 in e.shape, (a.stride(), e.stride())
    calls = [step for step in plan.steps if isinstance(step, KernelStep)]
    assert kernels is None or len(calls) == kernels, f"{plan}\n{plan.source}"
    found = [step for step in plan.steps if isinstance(step, ExternStep)]
    assert externs is None or len(found) == externs, str(plan)
    return plan


def run(plan: Plan, *inputs: Any) -> tuple[Any, ...]:
    """The plan, on the CPU. Raises TooLarge for sizes that its kernels have too few bits for."""
    symbols: dict[str, Any] = {"math": math, "small": small, "float_bits": _C.float_bits}
    takes = {kernel.name: kernel.sizes for kernel in plan.kernels}

    def known(size: Any) -> int:
        return size if isinstance(size, int) else eval(str(size), symbols)

    table: dict[str, Any] = {**plan.constants, **dict(zip(plan.inputs, inputs, strict=True))}
    functions = {kernel.name: interpreted(kernel.text, kernel.name) for kernel in plan.kernels}

    def value(tree: Any) -> Any:
        if isinstance(tree, BufferRef):
            return table[tree.name]
        if isinstance(tree, (tuple, list)):
            return type(tree)([value(item) for item in tree])
        if isinstance(tree, Size):
            return known(tree)
        return {key: value(item) for key, item in tree.items()} if isinstance(tree, dict) else tree

    for step in plan.steps:
        match step:
            case AllocStep(name):
                buffer = plan.buffers[name]
                shape, stride = (tuple(map(known, numbers)) for numbers in (buffer.shape, buffer.stride))
                table[name] = torch.empty_strided(shape, stride, dtype=buffer.dtype)
                table[name].fill_(7)  # what is not written is seen
            case DrawStep(outputs, increment):
                table.update(zip(outputs, (int(number) for number in Draw(GPU, increment)()), strict=True))
            case NumberStep(output, source):
                table[output] = int(HostNumber()(table[source])) if isinstance(source, str) else known(source)
            case KernelStep(kernel, args, _, programs):
                count = known(programs)
                if count:
                    functions[kernel][(count,)](*(_flat(table[arg]) for arg in args), *map(known, takes[kernel]))
            case SizeStep(symbol, "size" | "stride" as what, source, at):
                symbols[symbol] = getattr(table[source], what)(at)
            case SizeStep(symbol, what, source):
                symbols[symbol] = table[source] if what in ("number", "float") else known(source)
            case ExternStep():
                result = step.target(*value(step.args), **value(dict(step.kwargs)))
                for name, item in zip(step.outputs, (result,) if step.single else result, strict=True):
                    if name is not None:
                        table[name] = item
            case ViewStep(output, base, offset):
                buffer = plan.buffers[output]
                at = table[base].storage_offset() + known(offset)
                shape, stride = (tuple(map(known, numbers)) for numbers in (buffer.shape, buffer.stride))
                table[output] = table[base].as_strided(shape, stride, at)
            case FreeStep(names):
                for name in names:
                    del table[name]
    return tuple(value(output) for output in plan.outputs)


def _flat(tensor: Any) -> Any:
    """What kernels can take a pointer to: truth values and floats of 8 bits are bytes. Numbers stay what they are."""
    if isinstance(tensor, int):
        return tensor
    return tensor.view(torch.uint8) if tensor.dtype in BYTES else tensor


def compile_all(plan: Plan) -> None:
    """Compile each kernel for compute capability 9.0."""
    for kernel, binary in zip(plan.kernels, triton_compiler.compile_kernels(plan.kernels, 90), strict=True):
        assert binary.cubin.startswith(b"\x7fELF") and binary.threads == kernel.warps * 32


def interpreted(text: str, name: str) -> Any:
    """The Triton function, run by Triton's interpreter."""
    from triton import knobs
    from triton.runtime import interpreter

    global _patch_lang_tensor
    if _patch_lang_tensor is None:
        _patch_lang_tensor = interpreter._patch_lang_tensor
    interpreter.ReduceOps.generic_reduce = _reduce
    interpreter.ScanOps.generic_scan = _scan
    interpreter._convert_float = _convert_float
    interpreter.InterpreterBuilder.create_fma = _fma
    interpreter.InterpreterBuilder.create_dot = _dot
    interpreter._patch_lang_tensor = _patch_tensor
    for helper, plain in _PLAIN.items():
        text = text.replace(HELPERS[helper].strip(), plain)
    sys.modules.setdefault("dynajit_interpreted_lib", _library())
    before = knobs.runtime.interpret
    knobs.runtime.interpret = True
    try:
        return getattr(triton_compiler.load(text, "import dynajit_interpreted_lib as lib"), name)
    finally:
        knobs.runtime.interpret = before


# The interpreter runs no machine code.
_PLAIN = {
    "dj_refuse": """
@triton.jit
def dj_refuse(bad):
    assert not bad.handle.data.any(), "refused"
""",
    "dj_round_f16": """
@triton.jit
def dj_round_f16(x):
    return x.to(tl.float16).to(tl.float32)
""",
    "dj_round_bf16": """
@triton.jit
def dj_round_bf16(x):
    return x.to(tl.bfloat16).to(tl.float32)
""",
}


_COMBINED = {"dj_add": np.add, "dj_mul": np.multiply, "dj_max": np.maximum, "dj_min": np.minimum}
_COMBINED |= {"dj_or": np.bitwise_or, "dj_and": np.bitwise_and}


def _reduce(self: Any, inputs: Any) -> Any:
    """The interpreter's own goes from element to element."""
    (value,) = inputs
    data = value.handle.data
    result = _COMBINED[self.combine_fn.__name__].reduce(data, axis=self.axis).astype(data.dtype)
    return [self.to_tensor(result, value.dtype)]


def _scan(self: Any, inputs: Any) -> Any:
    """As `_reduce`."""
    (value,) = inputs
    data = value.handle.data
    result = _COMBINED[self.combine_fn.__name__].accumulate(data, axis=self.axis).astype(data.dtype)
    return [self.to_tensor(result, value.dtype)]


_patch_lang_tensor: Any = None


def _patch_tensor(tensor: Any, scope: Any) -> None:
    """The interpreter's own makes a number of an array with a dimension, which NumPy no longer does."""
    _patch_lang_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    """The interpreter's own rounds twice."""
    from triton.runtime.interpreter import TensorHandle

    exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
    return TensorHandle(exact.astype(z.data.dtype), z.dtype)


def _dot(self: Any, a: Any, b: Any, total: Any, *options: Any) -> Any:
    """The interpreter's own multiplies the bits of bfloat16."""
    from triton.runtime.interpreter import TensorHandle

    left, right = (_widened(x.data) if str(x.dtype.scalar) == "bf16" else x.data for x in (a, b))
    return TensorHandle(np.matmul(left, right, dtype=total.data.dtype) + total.data, total.dtype.scalar)


def _widened(data: Any) -> Any:
    """bfloat16 as float32."""
    return (np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
    """The interpreter's own does not round to even. bfloat16 is whole numbers of 16 bits."""
    if str(source) == "bf16":
        return (np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << 16).view(np.uint32)
    rounded = torch.from_numpy(np.ascontiguousarray(data)).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16)


def _library() -> ModuleType:
    """CUDA's library of mathematical functions, by torch's functions of the same meaning."""
    module = ModuleType("dynajit_interpreted_lib")
    renamed = {"rint": torch.round}
    names = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc"
    for name in [*names.split(), "trunc", "rint", "copysign", "pow", "fmod", "atan2", "hypot"]:
        setattr(module, name, _on_handles(renamed.get(name) or getattr(torch, name)))
    return module


def _on_handles(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    from triton.language import core
    from triton.runtime.interpreter import TensorHandle

    def call(*arguments: Any) -> Any:
        data = [torch.from_numpy(np.ascontiguousarray(argument.handle.data)) for argument in arguments]
        shaped = max(arguments, key=lambda argument: argument.handle.data.size)
        result = function(*data).numpy().astype(shaped.handle.data.dtype)
        return core.tensor(TensorHandle(result, shaped.handle.dtype), shaped.type)

    return call
