"""Triton text to machine code of a GPU: compiled in parallel, kept in the artifact store.

In:  `GpuKernel`s and the GPU's compute capability.
Out: `compile_kernels`: for each a `Binary`, its cubin and how to launch it. A process that finds all of its kernels in
     the store never imports Triton. `TritonError` where Triton is missing, of a version not known, or refuses the text.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import linecache
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dynajit.codegen.plan import GpuKernel
from dynajit.locks import process_lock
from dynajit.report import phases, progress
from dynajit.runtime import store

# Bump when what is compiled from the same text changes meaning.
_FORMAT = "2"
# Releases whose calling convention for kernels (pointers, then two for scratch memory) is known.
_OLDEST, _NEWEST = (3, 5), (3, 7)
PREAMBLE = "import triton\nimport triton.language as tl\n{lib}\n\n"
_LIBDEVICE = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice as lib"
# a * b + c rounds twice and small numbers are not flushed to zero, as in eager.
_OPTIONS = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
_STAGES = 2
# What torch's allocator keeps.
_SCRATCH_ALIGNMENT = 512
# From this compute capability on GPUs copy tiles by themselves, and start a kernel while the one before it ends: the
# kernel waits before it does anything.
_COPIES_TILES = 90
STARTS_EARLY = 90
_WAITS = "    gdc_wait()\n    gdc_launch_dependents()\n"
_ALIGNED = "ALIGNED = tl.constexpr(True)"


_parsing = process_lock()


class TritonError(Exception):
    """No kernel can be compiled; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel: the symbol in the cubin, dynamic shared memory in bytes, threads in a block."""

    cubin: bytes
    symbol: str
    shared: int
    threads: int
    registers: int = 0
    scratch: int = 0  # bytes of device memory for each program


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
    those at the positions `unaligned` names for each kernel."""
    odd = unaligned if unaligned is not None else [frozenset()] * len(kernels)
    with phases.timer("triton_compile"):
        jobs = list(zip(kernels, odd, strict=True))
        if len(jobs) <= 1:
            return [_compiled(kernel, capability, positions) for kernel, positions in jobs]
        binaries: list[Binary] = []
        with ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
            progress.count(0, len(jobs))
            for binary in pool.map(lambda job: _compiled(job[0], capability, job[1]), jobs):
                binaries.append(binary)
                progress.count(len(binaries), len(jobs))
        return binaries


def _compiled(kernel: GpuKernel, capability: int, unaligned: frozenset[int]) -> Binary:
    symbol = _symbol(kernel.name)
    text = kernel.text.replace(kernel.name, symbol)
    if starts_early(kernel, capability):
        text = re.sub(rf"(def {symbol}\(.*\):\n)", rf"\1{_WAITS}", text)
    if unaligned or capability < _COPIES_TILES:
        text = text.replace(_ALIGNED, _ALIGNED.replace("True", "False"))
    facts: tuple[Any, ...] = (_FORMAT, version(), capability, kernel.pointers, sorted(unaligned), kernel.warps, text)
    if kernel.stages != _STAGES:
        facts += (kernel.stages,)
    key = hashlib.sha256(repr(facts).encode()).hexdigest()

    def make(path: Path) -> None:
        made = compile_text(text, symbol, kernel.pointers, kernel.warps, capability, unaligned, kernel.stages)
        path.write_bytes(_pack(made))

    return _unpack(store.get_or_make(key, ".cubin", make).read_bytes())


def _pack(binary: Binary) -> bytes:
    head: dict[str, Any] = {
        "symbol": binary.symbol,
        "shared": binary.shared,
        "threads": binary.threads,
        "registers": binary.registers,
    }
    if binary.scratch:
        head["scratch"] = binary.scratch
    return json.dumps(head).encode() + b"\n" + binary.cubin


def _unpack(data: bytes) -> Binary:
    head, _, cubin = data.partition(b"\n")
    return Binary(cubin, **json.loads(head))


def starts_early(kernel: GpuKernel, capability: int) -> bool:
    """Does the kernel wait for the one before it by itself, so that it may be launched before that has ended?"""
    return kernel.early and capability >= STARTS_EARLY


def _symbol(name: str) -> str:
    """What profilers show: the kernel's name without its number, so that equal kernels of two graphs are one."""
    return f"dynajit_{re.sub(r'^k[0-9]+_', '', name)}"


def compile_text(
    text: str,
    symbol: str,
    pointers: Sequence[str],
    warps: int,
    capability: int,
    unaligned: frozenset[int] = frozenset(),
    stages: int = 2,
) -> Binary:
    """Compile the function `symbol` in `text`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(load(text, _LIBDEVICE), symbol)
    names = function.arg_names
    signature = dict(zip(names, pointers, strict=True))
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(len(names)) if n not in unaligned}
    source = ASTSource(function, signature, attrs=aligned)
    try:
        compiled = triton.compile(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": warps, "num_stages": stages, **_OPTIONS},
        )
    except Exception as error:
        raise TritonError(f"Triton {version()} refuses a kernel: {error}\n{text}") from error
    metadata = compiled.metadata
    if metadata.profile_scratch_size or metadata.global_scratch_align > _SCRATCH_ALIGNMENT:
        raise TritonError("a kernel wants scratch memory of a kind that generated kernels never need")
    scratch = metadata.global_scratch_size
    return Binary(compiled.asm["cubin"], metadata.name, metadata.shared, metadata.num_warps * 32, scratch=scratch)


def load(text: str, lib: str) -> ModuleType:
    """The module of Triton functions with this text; `lib` is the line that defines `lib`."""
    source = PREAMBLE.format(lib=lib) + text
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<dynajit triton {digest}>"
    module = ModuleType(f"dynajit_triton_{digest}")
    module.__dict__["__file__"] = filename
    # Triton reads the source of a function through inspect.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope: dict[str, Any] = module.__dict__
    with _parsing:
        exec(compile(source, filename, "exec"), scope)
        for value in list(scope.values()):
            if hasattr(value, "parse"):
                value.parse = functools.partial(_known, value.parse())
    return module


def _known(tree: Any) -> Any:
    """What `JITFunction.parse` would give. CPython 3.11's `ast.parse` fails when threads are in it at once."""
    return tree
