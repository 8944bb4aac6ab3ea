"""`python -m dynajit`: tools around the compiler.

    python -m dynajit doctor                 what dynajit finds on this machine, and what it lacks
    python -m dynajit explain script.py ...  run a program and report everything that was compiled in it
    python -m dynajit run -c model script.py ...   run a program with what it calls `model` compiled
    python -m dynajit cache [list|clear]     the kernels kept on disk

In: the command line. Out: text, and exit status 1 where `doctor` finds something missing. One more command: a function
in `COMMANDS`.
"""

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from dynajit import api, script
from dynajit.config import config
from dynajit.report import records
from dynajit.report.explain import ExplainReport
from dynajit.runtime import memory, store, toolchain


def doctor(arguments: list[str]) -> int:
    """Versions, the native extension, the C compiler, the cache, the settings."""
    argparse.ArgumentParser(prog="python -m dynajit doctor", description=doctor.__doc__).parse_args(arguments)
    fine = True
    print(f"Python      {platform.python_implementation()} {sys.version.split()[0]}, {platform.machine()}")
    for package in ("torch", "bytecode", "cffi"):
        try:
            print(f"{package:<11} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{package:<11} missing: pip install {package}")
            fine = False
    try:
        extension = importlib.import_module("dynajit._C")
        print(f"extension   {extension.__file__}")
    except ImportError as error:
        print(f"extension   missing: {error}; build it with: python setup.py build_ext --inplace")
        fine = False
    try:
        found = toolchain.find()
        print(f"C compiler  {' '.join(found.command)} ({found.family}), OpenMP: {'yes' if found.openmp else 'no'}")
        print(f"            {' '.join(found.flags)}")
    except toolchain.ToolchainError as error:
        print(f"C compiler  {error}")
        fine = False
    print(f"cache       {store.find().root}")
    print(f"memory      {memory.stats()}")
    print("settings")
    print("\n".join(f"  {line}" for line in config.describe().splitlines()))
    return 0 if fine else 1


def explain(arguments: list[str]) -> int:
    """Run a program as `python script.py ...` would, and report on stderr what was compiled, also when it fails."""
    parser = argparse.ArgumentParser(prog="python -m dynajit explain", description=explain.__doc__)
    parser.add_argument("--html", metavar="FILE", help="write the report as a page instead")
    _add_compile(parser)
    options = _parse_program(parser, arguments)
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        try:
            script.run(Path(options.script), options.arguments, _wanted(options))
        finally:
            sys.stdout.flush()
            report = ExplainReport(seen)
            if options.html:
                report.html(options.html)
            else:
                print(report, file=sys.stderr)
    return 0


def run(arguments: list[str]) -> int:
    """Run a program as `python script.py ...` would, with some of its functions, methods or modules compiled."""
    parser = argparse.ArgumentParser(prog="python -m dynajit run", description=run.__doc__)
    _add_compile(parser)
    options = _parse_program(parser, arguments)
    script.run(Path(options.script), options.arguments, _wanted(options))
    return 0


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--compile",
        action="append",
        default=[],
        metavar="NAME",
        help="what to compile, by its name at the top level of the script: a function, a module (`model`), or a method "
        "(`Net.forward`); may be given several times",
    )
    parser.add_argument("--backend", default="codegen", help="the backend of what -c names (default: %(default)s)")
    parser.add_argument("--fullgraph", action="store_true", help="a graph break in what -c names is an error")
    parser.add_argument("script")


def _parse_program(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if not Path(options.script).is_file():
        parser.error(f"there is no file {options.script}")
    return options


def _wanted(options: argparse.Namespace) -> script.Wanted:
    settings = {"backend": options.backend, "fullgraph": options.fullgraph}
    return script.Wanted(tuple(options.compile), lambda target: api.compile(target, **settings))


def cache(arguments: list[str]) -> int:
    """List the kernels kept on disk, or delete them."""
    parser = argparse.ArgumentParser(prog="python -m dynajit cache", description=cache.__doc__)
    parser.add_argument("action", nargs="?", choices=["list", "clear"], default="list")
    options = parser.parse_args(arguments)
    kept = store.find()
    # os.walk and the test for a size: other processes add to the store and take away from it meanwhile
    found = ((path, _size(path)) for top, _, names in os.walk(kept.root) for path in (Path(top, n) for n in names))
    files = [(path, size) for path, size in found if size is not None]
    size = sum(size for _, size in files)
    if options.action == "clear":
        kept.clear()
        print(f"deleted {len(files)} files, {size / 1e6:.1f} MB, from {kept.root}")
        return 0
    for path, bytes_kept in sorted(files):
        print(f"{bytes_kept:>10}  {path.relative_to(kept.root)}")
    print(f"{len(files)} files, {size / 1e6:.1f} MB of {kept.limit / 1e6:.0f} MB, in {kept.root}")
    return 0


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "doctor": doctor,
    "explain": explain,
    "run": run,
    "cache": cache,
}


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dynajit",
        description=(__doc__ or "").partition("\n\nIn:")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    options = parser.parse_args(arguments[:1])
    return COMMANDS[options.command](arguments[1:])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
