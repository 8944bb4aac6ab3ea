"""Builds dynajit._C from csrc/ against the installed torch. What the package is stands in pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KNOWN_PYTHONS = {(3, 11): "compat_311.c", (3, 12): "compat_312.c", (3, 13): "compat_313.c", (3, 14): "compat_314.c"}
OLDEST_TORCH = (2, 11)

RELEASE = "DJ_TORCH_RELEASE"  # the macro that keeps it in the extension, for the check at import

WARNINGS = ["-Wall", "-Wextra", "-Werror"]
COMMON = ["-O3", "-g1", "-fvisibility=hidden", "-fno-semantic-interposition", *WARNINGS]
C_FLAGS = ["-std=c11"]
# DYNAJIT_SANITIZE=address,undefined: for tools/sanitize.py
SANITIZE = [f"-fsanitize={os.environ['DYNAJIT_SANITIZE']}"] if os.environ.get("DYNAJIT_SANITIZE") else []
if SANITIZE:
    # What the sanitizers add makes the compiler see uninitialised variables where there are none.
    COMMON += ["-O1", "-fno-omit-frame-pointer", "-Wno-maybe-uninitialized", *SANITIZE]
# DYNAJIT_COVERAGE=1: for tools/fuzz_guided.py, whose library has the function that counts
if os.environ.get("DYNAJIT_COVERAGE"):
    C_FLAGS += ["-O1", "-fsanitize-coverage=trace-pc"]
# torch's headers use more C++ than they declare; ours is what -Werror is for.
CXX_FLAGS = ["-std=c++20", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]


def python_compat() -> str:
    """The compat file for the running Python, or an error that says which Pythons are known."""
    found = sys.version_info[:2]
    if found not in KNOWN_PYTHONS:
        known = ", ".join(".".join(map(str, version)) for version in KNOWN_PYTHONS)
        raise SystemExit(f"dynajit knows the insides of CPython {known}; this is {found[0]}.{found[1]}.")
    return KNOWN_PYTHONS[found]


def installed_torch() -> tuple[Path, str]:
    """Where torch is installed, without importing it, and its release ("2.13"). An error if there is none, or an old
    one."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("dynajit builds against the installed torch, and torch is not installed here.")
    folder = Path(spec.origin).parent
    text = (folder / "version.py").read_text()
    match = re.search(r"__version__ = '(\d+)\.(\d+)", text)
    if match is None or tuple(map(int, match.groups())) < OLDEST_TORCH:
        version = match.group(0) if match else "an unknown version"
        raise SystemExit(f"dynajit needs torch {'.'.join(map(str, OLDEST_TORCH))} or newer; found {version}.")
    return folder, ".".join(match.groups())


class ParallelBuild(build_ext):
    """Compiles each changed source in its own process: C with C flags, C++ with C++ flags."""

    def build_extension(self, ext: Extension) -> None:
        """Compile what is older than its source or any header of ours, then link."""
        # objects for one torch are none for another
        folder = Path(self.build_temp, *(f"torch-{value}" for name, value in ext.define_macros if name == RELEASE))
        folder.mkdir(parents=True, exist_ok=True)
        # setuptools before 72 compiles C++ with the command for C, which goes by the file's name.
        cxx = getattr(self.compiler, "compiler_so_cxx", self.compiler.compiler_so)
        newest_header = max(Path(header).stat().st_mtime for header in ext.depends)

        def compile_one(source: str) -> str:
            target = folder / (source.replace("/", "_") + ".o")
            newest = max(Path(source).stat().st_mtime, newest_header)
            if self.force or not target.exists() or target.stat().st_mtime < newest:
                compiler = cxx if source.endswith(".cpp") else self.compiler.compiler_so
                flags = COMMON + (CXX_FLAGS if source.endswith(".cpp") else C_FLAGS)
                includes = [f"-I{include}" for include in self.compiler.include_dirs]
                includes += [f'-D{name}="{value}"' for name, value in ext.define_macros]
                command = [*compiler, *includes, *ext.extra_compile_args, *flags, "-c", source, "-o", str(target)]
                print("compiling", source, flush=True)
                subprocess.run(command, check=True)
            return str(target)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            # The slowest first, so that the others run beside them.
            sources = sorted(ext.sources, key=lambda source: not source.endswith(".cpp"))
            objects = list(pool.map(compile_one, sources))
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            libraries=ext.libraries,
            library_dirs=ext.library_dirs,
            extra_postargs=ext.extra_link_args,
            build_temp=self.build_temp,
            target_lang="c++",
        )


def extension(torch: Path, release: str) -> Extension:
    """dynajit._C: everything in csrc/, with the compat file of this Python."""
    compat = python_compat()
    sources = sorted(str(path) for path in Path("csrc").rglob("*") if path.suffix in (".c", ".cpp"))
    sources = [path for path in sources if Path(path).name not in KNOWN_PYTHONS.values() or Path(path).name == compat]
    # -isystem: warnings in torch's headers are torch's affair.
    system = [f"-isystem{torch / 'include'}", f"-isystem{torch / 'include/torch/csrc/api/include'}"]
    return Extension(
        "dynajit._C",
        sources,
        depends=sorted(str(path) for path in Path("csrc").rglob("*.h")),
        define_macros=[(RELEASE, release)],
        extra_compile_args=["-Icsrc", *system],
        libraries=["torch_python", "torch_cpu", "torch", "c10"],
        library_dirs=[str(torch / "lib")],
        # torch is imported before the extension, so its libraries are loaded by then, wherever they lie.
        extra_link_args=SANITIZE,
    )


if __name__ == "__main__":
    torch_lib, torch_release = installed_torch()
    setup(
        ext_modules=[extension(torch_lib, torch_release)],
        cmdclass={"build_ext": ParallelBuild},
        license="BSD-3-Clause",
        # The extension uses torch's C++ classes as the headers of this release lay them out.
        install_requires=[f"torch=={torch_release}.*"],
    )
