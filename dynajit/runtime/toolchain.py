"""The C compiler: which one, with which flags, and running it.

In:  `config.compiler`, `config.simd`, $CC; C text that includes no header torch would have to provide.
Out: `find()`: the `Toolchain` in use, or `ToolchainError` saying what was tried; `Toolchain.compile(source, output)`.
To support one more compiler: its flags in `_flags` and its family in `_family`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

from dynajit.codegen.plan import GCC_CFLAGS, REQUIRED_CFLAGS
from dynajit.config import config
from dynajit.exc import DynajitError

# A kernel file takes well under a second; a compiler that hangs must not hang the user's program.
COMPILE_TIMEOUT_S = 120
_PROBE_TIMEOUT_S = 20
_ZIG = "ziglang (PyPI)"

_SIMD_FLAGS = {
    "auto": ("-march=native",),
    "avx512": ("-march=native", "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512"),
    "avx2": ("-march=native", "-mno-avx512f", "-mavx2", "-mfma"),
    "neon": ("-mcpu=native",),
    "none": ("-fno-tree-vectorize", "-fno-tree-slp-vectorize"),
}

# for machines other than this one: flags, and the instructions that these stand for, as /proc/cpuinfo has them
_LEVELS: dict[str, tuple[tuple[str, ...], str]] = {
    "avx512": (
        ("-march=x86-64-v4", "-mprefer-vector-width=512"),
        "avx512f avx512bw avx512cd avx512dq avx512vl avx avx2 bmi1 bmi2 f16c fma abm movbe xsave "
        "cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2",
    ),
    "avx2": (
        ("-march=x86-64-v3",),
        "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2",
    ),
    "none": (_SIMD_FLAGS["none"], ""),
}
LEVELS = tuple(_LEVELS)

# of the flags in /proc/cpuinfo those that a compiler makes use of
_INSTRUCTIONS = re.compile(
    r"(sse|ssse|pni|avx|amx|fma|f16c|bmi|abm|popcnt|movbe|lzcnt|cx16|lahf|adx|aes|vaes|sha|gfni|v?pclmul|rdrnd|rdseed|"
    r"fsgsbase|xsave|prefetchw|3dnowprefetch|clwb|clflushopt|tbm|xop|neon|asimd|sve|fp|crc32|atomics|bf16|i8mm)\w*$"
)


class ToolchainError(DynajitError):
    """No C compiler works, or the one in use refused a file. Graphs run unfused then.

    Install gcc or clang, or `pip install dynajit[compiler]`, or name one with `dynajit.config.compiler`,
    DYNAJIT_COMPILER or CC.
    """


@dataclasses.dataclass(frozen=True)
class Toolchain:
    """A C compiler with the flags kernels are compiled with.

    `fingerprint` stands for everything but the source that decides what comes out: it belongs in a kernel's key.
    """

    command: tuple[str, ...]
    family: str
    flags: tuple[str, ...]
    link: tuple[str, ...]
    openmp: bool
    fingerprint: str

    def compile(self, source: Path, output: Path) -> None:
        """Compile the C file `source` to the shared object `output`. Raises ToolchainError."""
        command = [*self.command, *self.flags, "-o", str(output), str(source), *self.link]
        code, text = _run(command, COMPILE_TIMEOUT_S)
        if code != 0 or not output.exists():
            outcome = "took too long and was stopped" if code is None else f"ended with status {code}"
            raise ToolchainError(f"the C compiler {outcome}\n  command: {shlex.join(command)}\n{text[-4000:]}")


def find() -> Toolchain:
    """The toolchain that the settings of this moment lead to. Raises ToolchainError where there is none."""
    return _found(config.simd, portable=False)


def for_level(level: str) -> tuple[Toolchain, frozenset[str]]:
    """The compiler in use, for every machine of this kind that has the instructions of the level, one of `LEVELS`, the
    most demanding first; these instructions. Raises ToolchainError."""
    if platform.machine() != "x86_64":
        raise ToolchainError(f"kernels for {level} are compiled on x86_64 machines; this is {platform.machine()}")
    return _found(level, portable=True), frozenset({platform.machine(), *_LEVELS[level][1].split()})


def _found(simd: str, portable: bool) -> Toolchain:
    found = _find(config.compiler, os.environ.get("CC", ""), simd, portable)
    if isinstance(found, ToolchainError):
        raise found
    return found


@functools.cache
def _find(configured: str, environment: str, simd: str, portable: bool) -> Toolchain | ToolchainError:
    # Failure is cached as well: a graph must not search the machine again for what isn't there.
    tried = []
    candidates = [configured] if configured else [environment, "cc", "gcc", "clang", _ZIG]
    for candidate in filter(None, candidates):
        command = _zig() if candidate == _ZIG else _resolve(candidate)
        if command is None:
            tried.append(f"{candidate}: not found")
            continue
        code, version = _run([*command, "--version"], _PROBE_TIMEOUT_S)
        family = _family(version)
        if code != 0 or family is None:
            tried.append(f"{candidate}: does not say that it is gcc or clang")
            continue
        if environment and tried and not configured:
            warnings.warn(f"dynajit: $CC is passed over for {shlex.join(command)}. {tried[0]}", stacklevel=2)
        return _toolchain(command, family, version, simd, portable)
    return ToolchainError(
        "no C compiler works, so nothing can be fused. Tried " + "; ".join(tried) + ". Install gcc or clang, or "
        "pip install ziglang (dynajit[compiler]), or name one with dynajit.config.compiler, DYNAJIT_COMPILER or CC"
    )


def _zig() -> tuple[str, ...] | None:
    """The clang in the package ziglang, if that is installed."""
    return (sys.executable, "-m", "ziglang", "cc") if importlib.util.find_spec("ziglang") else None


def _resolve(candidate: str) -> tuple[str, ...] | None:
    """`candidate` as a command line. A configured path may hold blanks; $CC may hold arguments ("ccache gcc")."""
    for parts in ([candidate], shlex.split(candidate)):
        program = shutil.which(parts[0]) if parts else None
        if program is not None:
            return (program, *parts[1:])
    return None


def _family(version: str) -> str | None:
    first = version.lower()
    if "clang" in first:
        return "clang"
    return "gcc" if "gcc" in first or "free software foundation" in first else None


def _toolchain(command: tuple[str, ...], family: str, version: str, simd: str, portable: bool) -> Toolchain:
    openmp = _loaded_openmp() if family == "gcc" else None
    flags = _flags(family, simd, openmp is not None, portable)
    # The libraries are named one by one so that -fopenmp does not add the compiler's own OpenMP runtime: two of them in
    # one process mean two thread pools and a torch.set_num_threads() that only one listens to.
    link = ("-nodefaultlibs", *([openmp] if openmp else []), "-lm", "-lc", "-lgcc") if family == "gcc" else ("-lm",)
    text = "\0".join((version, *command, *flags, *link, _cpu(), _libc()))
    return Toolchain(command, family, flags, link, openmp is not None, hashlib.sha256(text.encode()).hexdigest())


def _flags(family: str, simd: str, openmp: bool, portable: bool) -> tuple[str, ...]:
    target = _LEVELS[simd][0] if portable else _SIMD_FLAGS[simd]
    if platform.machine() in ("aarch64", "arm64") and simd == "auto":
        target = _SIMD_FLAGS["neon"]
    if family == "clang" and simd == "none":
        target = ("-fno-vectorize", "-fno-slp-vectorize")
    return (
        *("-O3", "-shared", "-fPIC", "-pipe", "-w"),
        *(flag for flag in REQUIRED_CFLAGS if openmp or flag != "-fopenmp"),
        *(GCC_CFLAGS if family == "gcc" else ()),
        *target,
    )


def _loaded_openmp() -> str | None:
    """The OpenMP runtime that torch brought into this process; gcc's calls work with each of these three."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    paths = sorted({line.split(maxsplit=5)[-1].strip() for line in maps.splitlines() if ".so" in line})
    for prefix in ("libgomp", "libiomp5", "libomp"):
        for path in paths:
            if Path(path).name.startswith(prefix):
                return path
    return None


@functools.cache
def instruction_sets() -> frozenset[str]:
    """What this machine's processor can do, as its kernel names it, and what kind of processor it is: kernels compiled
    for one machine run where there is all of it."""
    words = {word for line in _cpu().splitlines() if line.startswith(("flags", "Features")) for word in line.split()}
    return frozenset({platform.machine(), *filter(_INSTRUCTIONS.match, words)})


@functools.cache
def _cpu() -> str:
    """What -march=native depends on: a cache folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _libc() -> str:
    """The C library, whose symbols kernels want in the version that they were linked with."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # another library than GNU's
        return ""


def _run(command: list[str], timeout: float) -> tuple[int | None, str]:
    """Exit status (None: stopped after `timeout` seconds) and everything that the command wrote."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
            # Its own process group: a compiler driver has children, and Ctrl-C is the user's program's affair.
            start_new_session=True,
        )
    except OSError as error:
        return 127, str(error)
    try:
        output, _ = process.communicate(timeout=timeout)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return None, ""
        raise
    return process.returncode, output.decode(errors="replace")
