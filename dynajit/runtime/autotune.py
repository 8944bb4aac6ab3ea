"""Which way to run a kernel is fastest on this GPU, by timing: `max-autotune`.

In:  the ways to print a kernel (`codegen.triton.generate.Launches`) and the device.
Out: `chooser(device)`: a function that gives the number of the fastest. What was found is kept in the artifact store.
Arguments are made up: timing does not depend on values, and indices among them would be zero.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from dynajit import _C
from dynajit.codegen.plan import GpuKernel
from dynajit.codegen.triton.functions import parameter_type
from dynajit.codegen.triton.generate import Launches
from dynajit.codegen.triton.printer import rename
from dynajit.codegen.triton.products import Operand, Product
from dynajit.report import logs, phases, progress
from dynajit.runtime import compile_pool, gpu, native, store, triton_compiler
from dynajit.runtime.triton_worker import Binary

_FORMAT = "2"
_NAME = "dj_timed"  # no part of any other word in a kernel's text
# Kernels that move less than this are not worth timing: launching them costs more.
_SMALL_BYTES = 1 << 20
_ROUNDS, _CALLS = 5, 4


def chooser(device: torch.device) -> Callable[[Sequence[Launches]], int]:
    """Chooses by timing on that device."""
    return functools.partial(_choose, device)


def _choose(device: torch.device, ways: Sequence[Launches]) -> int:
    tensors = {tensor for way in ways for printed in way.printed for tensor in printed.arguments}
    if len(ways) < 2 or sum(tensor.numel * tensor.dtype.itemsize for tensor in tensors) < _SMALL_BYTES:
        return 0
    texts = [[(p.text, p.warps, p.programs, p.stages) for p in way.printed] + [str(way.call)] for way in ways]
    facts = (_FORMAT, triton_compiler.version(), torch.cuda.get_device_name(device), texts)
    key = hashlib.sha256(repr(facts).encode()).hexdigest()

    def make(path: Path) -> None:
        with phases.timer("autotune"):
            path.write_text(json.dumps(_fastest(device, ways)), encoding="ascii")

    try:
        best = int(json.loads(store.get_or_make(key, ".best", make, once=False).read_text(encoding="ascii")))
    except torch.OutOfMemoryError:
        logs.emit("perf", "no memory left to time kernels with: heuristics choose")
        return 0
    return best if 0 <= best < len(ways) else 0


def _fastest(device: torch.device, ways: Sequence[Launches]) -> int:
    runs = _runnable(device, ways)
    times = [float("inf")] * len(ways)
    with torch.cuda.device(device):
        for run in runs:
            if run is not None:
                run()
        torch.cuda.synchronize()
        for turn in range(_ROUNDS):
            progress.count(turn, _ROUNDS, "rounds of timing")
            for number, run in enumerate(runs):
                if run is not None:
                    times[number] = min(times[number], _timed(run))
    logs.emit("perf", "timed: " + ", ".join(f"{time * 1e3:.1f} us" for time in times))
    return min(range(len(ways)), key=times.__getitem__)


def _timed(run: Callable[[], Any]) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(_CALLS):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / _CALLS


def _runnable(device: torch.device, ways: Sequence[Launches]) -> list[Callable[[], Any] | None]:
    """Each way as a callable on made-up tensors; None for one that can't be compiled or loaded."""
    memory: dict[str, torch.Tensor] = {}
    slots: dict[str, int] = {}
    for way in ways:
        for printed in way.printed:
            for tensor in printed.arguments:
                name = _name(tensor)
                if name not in memory:
                    slots[name] = len(slots)
                    memory[name] = _made_up(tensor, device)
    found: list[Callable[[], Any] | None] = []
    for way, binaries in zip(ways, _compiled(gpu.capability(device), ways), strict=True):
        try:
            with torch.cuda.device(device):
                loaded = [_C.GpuKernel(b.cubin, b.symbol, b.shared, b.threads, None, b.scratch) for b in binaries or ()]
        except RuntimeError:
            binaries = None  # more registers or shared memory than there are
        if binaries is None:
            found.append(None)
            continue
        steps = [
            native.launch(kernel, [slots[_name(t)] for t in printed.arguments], int(printed.programs))
            for kernel, printed in zip(loaded, way.printed, strict=True)
        ]
        executor = _C.PlanExecutor(device, len(slots), [None] * len(slots), [], steps, [])
        run = functools.partial(executor, *memory.values())
        found.append(run if way.call is None else _after(_library_call(way.call, memory), run))
    return found


def _compiled(level: int, ways: Sequence[Launches]) -> list[list[Binary] | None]:
    """The kernels of each way, compiled side by side; None where Triton refuses one."""

    def compiled(way: Launches) -> list[Binary] | None:
        try:
            return triton_compiler.compile_kernels(kernels_of(way), level)
        except triton_compiler.TritonError:
            return None

    found: list[list[Binary] | None] = []
    with phases.timer("triton_compile"), ThreadPoolExecutor(compile_pool.workers()) as pool:
        running = [pool.submit(compiled, way) for way in ways]
        try:
            for one in running:
                progress.count(len(found), len(ways), "ways to be timed")
                found.append(one.result())
        finally:  # of an interrupt
            pool.shutdown(wait=False, cancel_futures=True)
    return found


def kernels_of(way: Launches) -> list[GpuKernel]:
    """What is compiled to time a way."""
    return [
        GpuKernel(_NAME, rename(p.text, _NAME), tuple(map(parameter_type, p.arguments)), p.warps, stages=p.stages)
        for p in way.printed
    ]


def _after(first: Callable[[], Any], second: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        first()
        second()

    return run


def _library_call(product: Product, memory: dict[str, torch.Tensor]) -> Callable[[], Any]:
    """The product as torch computes it, on the made-up tensors."""

    def seen(operand: Operand) -> torch.Tensor:
        return memory[_name(operand.tensor)].as_strided(operand.shape, operand.stride, operand.offset)

    a, b = seen(product.a), seen(product.b)
    out = memory[_name(product.result)].view(product.result.shape)
    if product.ends is not None:
        ends = seen(product.ends)
        # groups of the same length
        ends.copy_(torch.linspace(0, a.shape[0], len(ends) + 1, device=ends.device)[1:])
        return lambda: torch._grouped_mm(a, b, offs=ends)
    one, added = (torch.mm, torch.addmm) if a.dim() == 2 else (torch.bmm, torch.baddbmm)
    if product.bias is None:
        return lambda: one(a, b, out=out)
    bias = seen(product.bias)
    return lambda: added(bias, a, b, out=out)


def _name(tensor: Any) -> str:
    return f"{tensor.name}{list(tensor.shape)}"


def _made_up(tensor: Any, device: torch.device) -> torch.Tensor:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride, strict=True))
    flat = torch.empty(last + 1, dtype=tensor.dtype, device=device)
    return flat.normal_() if tensor.dtype.is_floating_point else flat.zero_()
