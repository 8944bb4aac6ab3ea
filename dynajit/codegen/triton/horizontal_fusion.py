"""Kernels that do not need each other's results become one launch: some of its programs run the one, some the other.

In:  a plan's steps, and its kernels by name.
Out: `merged(steps, kernels, buffers)`: the steps with such neighbours joined, and the kernels they call.
What is joined: `_Launch.takes`. Launching a kernel costs the GPU more than a small one computes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dynajit.codegen.plan import AllocStep, Buffer, ExternStep, GpuKernel, KernelStep, Step, TouchStep

# Two kernels that both move more than this keep the GPU busy by themselves.
LARGE = 16 << 20
# A kernel that moves no more than this may run with more warps than it was cut for.
TINY = 1 << 20
# Text of a launch, for the time to compile it.
MAX_TEXT = 12_000
MAX_PARTS = 6

_START = "@triton.jit\n"
_PROGRAM = "tl.program_id(0)"


@dataclass(slots=True)
class _Launch:
    """Kernels of one launch, so far."""

    parts: list[tuple[GpuKernel, KernelStep]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def takes(self, kernel: GpuKernel, step: KernelStep, size: int) -> bool:
        """Does one more fit?"""
        texts = [kernel.text, *(other.text for other, _ in self.parts)]
        if (
            not self.parts
            or len(self.parts) == MAX_PARTS
            or not all(text.lstrip().startswith(_START) for text in texts)
        ):
            return False
        if min(size, sum(self.sizes)) > LARGE or sum(map(len, texts)) > MAX_TEXT:
            return False
        warps = self.parts[0][0].warps
        if kernel.warps != warps and not (kernel.warps < warps and size <= TINY):
            return False
        return not any(set(step.outputs) & set(s.args) or set(s.outputs) & set(step.args) for _, s in self.parts)


def merged(
    steps: Sequence[Step], kernels: Mapping[str, GpuKernel], buffers: Mapping[str, Buffer]
) -> tuple[list[Step], list[GpuKernel]]:
    """Steps and kernels of the plan with neighbours joined."""
    # Where an operator's result may share memory with another tensor, names do not tell who reads what is written.
    aliases = any(isinstance(step, ExternStep) and step.aliases for step in steps)
    allocated = {step.buffer for step in steps if isinstance(step, AllocStep)}
    found: dict[tuple[str, tuple[str, ...], int], GpuKernel] = {}
    result: list[Step] = []
    open_launch = _Launch()
    held: list[Step] = []

    def close() -> None:
        nonlocal open_launch
        if open_launch.parts:
            result.append(_launch(open_launch, found))
        result.extend(held)
        held.clear()
        open_launch = _Launch()

    for step in steps:
        if isinstance(step, AllocStep):
            result.append(step)
        elif isinstance(step, TouchStep):
            held.append(step)
        elif isinstance(step, KernelStep):
            kernel = kernels[step.kernel]
            size = sum(buffers[name].nbytes for name in dict.fromkeys(step.args))
            fresh = not aliases or allocated.issuperset(step.outputs)
            if not (fresh and open_launch.takes(kernel, step, size)):
                close()
            open_launch.parts.append((kernel, step))
            open_launch.sizes.append(size)
            if not fresh:
                close()
        else:
            close()
            result.append(step)
    close()
    return result, list(found.values())


def _launch(launch: _Launch, found: dict[tuple[str, tuple[str, ...], int], GpuKernel]) -> KernelStep:
    """The step that launches these, and its kernel: an earlier one that is equal, or a new one."""
    first, step = launch.parts[0]
    if len(launch.parts) == 1:
        found.setdefault((first.name, (), 0), first)
        return step
    text = _text([(kernel, int(part.programs)) for kernel, part in launch.parts])
    pointers = tuple(pointer for kernel, _ in launch.parts for pointer in kernel.pointers)
    unaligned, count = list[int](), 0
    for kernel, _ in launch.parts:
        unaligned += [count + at for at in kernel.unaligned]
        count += len(kernel.pointers)
    key = (f"{text}{unaligned}", pointers, first.warps)
    made = found.get(key)
    if made is None:
        name = "_".join((first.name, "beside", *(re.sub(r"^k\d+_", "", k.name) for k, _ in launch.parts[1:])))[:80]
        name = f"{name}_{len(found)}"
        ops = tuple(dict.fromkeys(op for kernel, _ in launch.parts for op in kernel.ops))
        lines = tuple(dict.fromkeys(line for kernel, _ in launch.parts for line in kernel.lines))
        early = all(kernel.early for kernel, _ in launch.parts)
        text_of = text.replace("def NAME(", f"def {name}(")
        made = GpuKernel(name, text_of, pointers, first.warps, ops, lines, early=early, unaligned=tuple(unaligned))
        found[key] = made
    args = tuple(name for _, part in launch.parts for name in part.args)
    outputs = tuple(name for _, part in launch.parts for name in part.outputs)
    return KernelStep(made.name, args, outputs, sum(int(part.programs) for _, part in launch.parts))


def _text(parts: Sequence[tuple[GpuKernel, int]]) -> str:
    """One function that calls each part in its share of the programs."""
    functions: dict[str, None] = {}
    names: dict[str, str] = {}
    lines = []
    start = count = 0
    for number, (kernel, programs) in enumerate(parts):
        *helpers, own = [_START + piece for piece in kernel.text.split(_START)[1:]]
        functions.update(dict.fromkeys(helpers))
        if kernel.name not in names:
            names[kernel.name] = f"part{len(names)}"
            own = own.replace(f"def {kernel.name}(", f"def {names[kernel.name]}(first, ", 1)
            functions[own.replace(_PROGRAM, f"({_PROGRAM} - first)", 1)] = None
        given = ", ".join(f"a{count + at}" for at in range(len(kernel.pointers)))
        count += len(kernel.pointers)
        test = "else:" if number == len(parts) - 1 else f"{'elif' if number else 'if'} pid < {start + programs}:"
        lines += [f"    {test}", f"        {names[kernel.name]}({start}, {given})"]
        start += programs
    arguments = ", ".join(f"a{at}" for at in range(count))
    head = f"{_START}def NAME({arguments}):\n    pid = {_PROGRAM}\n"
    return "".join(functions) + head + "\n".join(lines) + "\n"
