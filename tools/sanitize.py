"""Build the extension with AddressSanitizer and UndefinedBehaviorSanitizer, and run tests on it.

    python tools/sanitize.py                             tests/csrc, tests/guards, tests/resume and random guards
    python tools/sanitize.py tests/values -k journal     what pytest is to run

In:  nothing but a gcc or clang whose sanitizers' libraries are installed (they come with it).
Out: pytest's exit status; a sanitizer's finding ends the process with its report on stderr.

The build lies in build/sanitized, apart from the ordinary one. Python gets its memory from malloc, so that a use of an
object after its end is found too; its own leaks at exit are not looked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "sanitized"
KINDS = "address,undefined"
TESTS = [
    "tests/csrc",
    "tests/guards",
    "tests/resume",
    "tests/runtime/test_memory_pool.py",
    "tests/fuzz/test_fuzz_parts.py",
]


def library(name: str) -> str:
    """Path of a library of the C compiler's."""
    compiler = os.environ.get("CC", "gcc")
    found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        raise SystemExit(f"{compiler} has no {name}: install the sanitizers' libraries (libasan, libubsan)")
    return path


def build(folder: Path, variables: dict[str, str]) -> Path:
    """The package with an extension built apart, as these environment variables say; where to import it from."""
    environment = {**os.environ, **variables}
    target = folder / "lib"
    command = [
        sys.executable,
        "setup.py",
        "--quiet",
        "build_ext",
        f"--build-temp={folder}/objects",
        f"--build-lib={target}",
    ]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "dynajit", target / "dynajit", ignore=ignored, dirs_exist_ok=True)
    return target


def main() -> int:
    """Build, then run."""
    target = build(BUILD, {"DYNAJIT_SANITIZE": KINDS})
    environment = {
        **os.environ,
        # in front of everything else; the C++ library too, so that exceptions thrown through it are known
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')} {library('libstdc++.so.6')}",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(target),
        # the package of this folder is not the one to test, in processes that tests start either
        "PYTHONSAFEPATH": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(sys.argv[1:] or TESTS)]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
