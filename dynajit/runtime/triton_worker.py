"""One kernel through Triton's compiler, and a program that does it for another process: `python triton_worker.py`.

In:  a `Job`: the text of a Triton function and what it is compiled for.
Out: `compile_job(job)`: a `Binary`. `pack` and `unpack` write one as a file's contents and read it.
As a program: jobs are lines of JSON on the standard input, each with a number and the path of a file for the result;
each is done in a process of its own, forked from one that has imported Triton, and answered by a line `[number, exit
status]` on the standard output. It ends with its input, with its parent, or after a while without a job.

Nothing of dynajit or torch is imported, so that such a process starts soon and stays small. Triton's own cache is gone
round: its key is a digest of all of Triton, and dynajit keeps what was compiled in a store of its own.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import linecache
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

PREAMBLE = "import triton\nimport triton.language as tl\n{lib}\n\n"
_LIBDEVICE = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice as lib"
# a * b + c rounds twice and small numbers are not flushed to zero, as in eager.
_OPTIONS = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
# What torch's allocator keeps.
_SCRATCH_ALIGNMENT = 512
# Exit status of a process that wrote a result, and of one that wrote the text of an error (path + ERROR).
DONE, REFUSED = 0, 1
ERROR = ".error"
# Seconds without a job after which the program ends, and between looks whether its parent is alive.
IDLE_S, _LOOK_S = 120.0, 2.0


@dataclass(frozen=True, slots=True)
class Job:
    """What decides the machine code: text of the function `symbol`, Triton's types of its arguments, compute capability
    (90 for 9.0), and the positions of arguments whose addresses may be no multiples of 16."""

    text: str
    symbol: str
    pointers: tuple[str, ...]
    warps: int
    stages: int
    capability: int
    unaligned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel: the symbol in the cubin, dynamic shared memory in bytes, threads in a block."""

    cubin: bytes
    symbol: str
    shared: int
    threads: int
    registers: int = 0
    scratch: int = 0  # bytes of device memory for each program


_parsing = RLock()
os.register_at_fork(after_in_child=_parsing._at_fork_reinit)  # type: ignore[attr-defined]


def pack(binary: Binary) -> bytes:
    """The binary as a file's contents."""
    head: dict[str, Any] = {name: getattr(binary, name) for name in ("symbol", "shared", "threads", "registers")}
    if binary.scratch:
        head["scratch"] = binary.scratch
    return json.dumps(head).encode() + b"\n" + binary.cubin


def unpack(data: bytes) -> Binary:
    """What `pack` made a file's contents of."""
    head, _, cubin = data.partition(b"\n")
    return Binary(cubin, **json.loads(head))


def compile_job(job: Job) -> Binary:
    """The compiled kernel. Raises what Triton raises, and ValueError for scratch memory that generated kernels never
    need."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    function = getattr(load(job.text, _LIBDEVICE), job.symbol)
    names = function.arg_names
    signature = dict(zip(names, job.pointers, strict=True))
    aligned = {
        (n,): [["tt.divisibility", 16]]
        for n, kind in enumerate(job.pointers)
        if kind.startswith("*") and n not in job.unaligned
    }
    source = ASTSource(function, signature, attrs=aligned)
    target = GPUTarget("cuda", job.capability, 32)
    backend = make_backend(target)
    options = backend.parse_options({"num_warps": job.warps, "num_stages": job.stages, **_OPTIONS})
    context = ir.context()
    if hasattr(context, "disable_multithreading"):  # newer contexts have no threads
        context.disable_multithreading()
    ir.load_dialects(context)
    backend.load_dialects(context)
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    made: Any = source.make_ir(target, options, functions, modules, context)
    for stage in stages.values():
        made = stage(made, metadata)
    if metadata["profile_scratch_size"] or metadata["global_scratch_align"] > _SCRATCH_ALIGNMENT:
        raise ValueError("a kernel wants scratch memory of a kind that generated kernels never need")
    scratch = metadata["global_scratch_size"]
    return Binary(made, metadata["name"], metadata["shared"], metadata["num_warps"] * 32, scratch=scratch)


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


# ---- the program

# Compiled before the first job, so that jobs are forked from a process that has imported and set up all they need.
_FIRST = """@triton.jit
def first(a0, a1):
    x = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(a1 + x, lib.exp(tl.load(a0 + x)) + tl.sum(x))
"""


def serve(limit: int, capability: int, idle: float = IDLE_S) -> None:
    """Answer jobs, `limit` at a time, until there are none any more."""
    jobs, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # Triton prints
    awake, waker = os.pipe()
    for end in (awake, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    parent, buffered, last = os.getppid(), b"", time.monotonic()
    waiting: list[dict[str, Any]] = []
    running: dict[int, int] = {}
    compile_job(Job(_FIRST, "first", ("*fp32", "*fp32"), 4, 2, capability))
    gc.freeze()
    while True:
        ready = select.select([jobs, awake], [], [], _LOOK_S)[0]
        if jobs in ready:
            data = os.read(jobs, 1 << 16)
            if not data:
                break
            *lines, buffered = (buffered + data).split(b"\n")
            waiting.extend(map(json.loads, lines))
        if awake in ready:
            os.read(awake, 1 << 12)
        for number, status in _ended(running):
            os.write(answers, json.dumps([number, status]).encode() + b"\n")
        while waiting and len(running) < limit:
            job = waiting.pop(0)
            child = os.fork()
            if not child:
                _child(job)
            running[child] = job["number"]
        if running or waiting or ready:
            last = time.monotonic()
        elif os.getppid() != parent or time.monotonic() - last > idle:
            break
    for child in running:
        os.kill(child, signal.SIGKILL)


def _ended(running: dict[int, int]) -> list[tuple[int, int]]:
    """Numbers and exit statuses of the jobs whose processes have ended; a signal is a negative status."""
    found = []
    for child in list(running):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            found.append((running.pop(child), os.waitstatus_to_exitcode(status)))
    return found


def _child(job: dict[str, Any]) -> None:
    """Do the job and end the process."""
    status = REFUSED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        path = Path(job["path"])
        facts: dict[str, Any] = job["job"]
        facts |= {name: tuple(facts[name]) for name in ("pointers", "unaligned")}
        try:
            path.write_bytes(pack(compile_job(Job(**facts))))
            status = DONE
        except Exception as error:
            path.with_name(path.name + ERROR).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    except BaseException:  # this process is forked: nothing may run on in it
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = json.loads(sys.argv[3])
    serve(int(sys.argv[1]), int(sys.argv[2]))
