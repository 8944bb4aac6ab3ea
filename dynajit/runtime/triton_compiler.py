"""Triton text to machine code of a GPU: compiled in parallel, kept in the artifact store.

In:  `GpuKernel`s and the GPU's compute capability.
Out: `compile_kernels`: for each a `Binary`, its cubin and how to launch it. They are compiled by the processes of
     `compile_pool`, or in threads where there are none. A process that finds all of its kernels in the store never
     imports Triton. `TritonError` where Triton is missing, of a version not known, or refuses the text.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dynajit.codegen.plan import GpuKernel
from dynajit.report import phases, progress
from dynajit.runtime import compile_pool, store
from dynajit.runtime.triton_worker import Binary, Job, compile_job, load, pack, unpack

# Bump when what is compiled from the same text changes meaning.
_FORMAT = "2"
# Releases whose calling convention for kernels (pointers, then two for scratch memory) is known.
_OLDEST, _NEWEST = (3, 5), (3, 7)
_STAGES = 2
# From this compute capability on GPUs copy tiles by themselves, and start a kernel while the one before it ends: the
# kernel waits before it does anything.
_COPIES_TILES = 90
STARTS_EARLY = 90
_WAITS = "    gdc_wait()\n    gdc_launch_dependents()\n"
_ALIGNED = "ALIGNED = tl.constexpr(True)"


class TritonError(Exception):
    """No kernel can be compiled; the text says why and what to do."""


@functools.cache
def version() -> str:
    """The version of the installed Triton. Raises TritonError if there is none, or one too old or too new."""
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise TritonError("Triton is not installed (pip install triton)") from None
    release = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
    if not _OLDEST <= release <= _NEWEST:
        known = f"{'.'.join(map(str, _OLDEST))} to {'.'.join(map(str, _NEWEST))}"
        raise TritonError(f"Triton {found} is installed; dynajit knows {known} (pip install triton==3.6.0)")
    return found


def compile_kernels(
    kernels: Sequence[GpuKernel], capability: int, unaligned: Sequence[frozenset[int]] | None = None
) -> list[Binary]:
    """The kernels for GPUs of that compute capability (90 for 9.0). Addresses of arguments are multiples of 16, save
    those at the positions `unaligned` names for each kernel, and those that the kernel itself names."""
    odd = unaligned if unaligned is not None else [frozenset()] * len(kernels)
    with phases.timer("triton_compile"):
        jobs = list(zip(kernels, odd, strict=True))
        if len(jobs) <= 1:
            return [_compiled(kernel, capability, positions) for kernel, positions in jobs]
        binaries: list[Binary] = []
        with ThreadPoolExecutor(min(len(jobs), compile_pool.workers())) as pool:
            progress.count(0, len(jobs))
            running = [pool.submit(_compiled, kernel, capability, positions) for kernel, positions in jobs]
            try:
                for one in running:
                    binaries.append(one.result())
                    progress.count(len(binaries), len(jobs))
            finally:  # of an interrupt, or of a kernel that can't be compiled
                pool.shutdown(wait=False, cancel_futures=True)
        return binaries


def _compiled(kernel: GpuKernel, capability: int, unaligned: frozenset[int]) -> Binary:
    symbol = _symbol(kernel.name)
    text = kernel.text.replace(kernel.name, symbol)
    if starts_early(kernel, capability):
        text = re.sub(rf"(def {symbol}\(.*\):\n)", rf"\1{_WAITS}", text)
    if unaligned or capability < _COPIES_TILES:
        text = text.replace(_ALIGNED, _ALIGNED.replace("True", "False"))
    positions = sorted(unaligned.union(kernel.unaligned))
    signature = (*kernel.pointers, *["i32"] * len(kernel.sizes))
    facts: tuple[Any, ...] = (_FORMAT, version(), capability, signature, positions, kernel.warps, text)
    if kernel.stages != _STAGES:
        facts += (kernel.stages,)
    key = hashlib.sha256(repr(facts).encode()).hexdigest()

    job = Job(text, symbol, signature, kernel.warps, kernel.stages, capability, tuple(positions))
    return unpack(store.get_or_make(key, ".cubin", functools.partial(_make, job)).read_bytes())


def _make(job: Job, path: Path) -> None:
    """Compile into that file: in another process, or here where there is none."""
    try:
        if not compile_pool.compile_to(job, path):
            path.write_bytes(pack(compile_job(job)))
    except OSError:  # no place left
        raise
    except Exception as error:
        raise TritonError(f"Triton {version()} refuses a kernel: {error}\n{job.text}") from error


def starts_early(kernel: GpuKernel, capability: int) -> bool:
    """Does the kernel wait for the one before it by itself, so that it may be launched before that has ended?"""
    return kernel.early and capability >= STARTS_EARLY


def _symbol(name: str) -> str:
    """What profilers show: the kernel's name without its number, so that equal kernels of two graphs are one."""
    return f"dynajit_{re.sub(r'^k[0-9]+_', '', name)}"


__all__ = ["Binary", "TritonError", "compile_kernels", "load", "starts_early", "version"]
