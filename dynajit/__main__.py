"""Tools around the compiler: run a program compiled, report on it, look after the machine and the cache.

  python -m dynajit demo                               small programs, eager and compiled: right, and how fast
  python -m dynajit run -c step train.py --epochs 3    run train.py, with its function `step` compiled
  python -m dynajit explain -c step train.py           the same, then report graphs, breaks, guards and kernels
  python -m dynajit survey model.py:make               is your program right, what breaks, recompiles or is slow
  python -m dynajit export model.py:make -o model.djt  the whole program in a file that runs without its source
  python -m dynajit inspect model.djt                  what such a file takes, gives and holds
  python -m dynajit run model.djt                      load it and run it on made-up inputs
  python -m dynajit doctor                             what dynajit finds on this machine, and what it lacks
  python -m dynajit cache [list|clear|pack|unpack]     the kernels kept on disk; take them to another machine

Each has a --help of its own.

In: the command line. Out: text, and exit status 1 where `doctor` finds something missing or `survey` a wrong result.
One more command: a function in `COMMANDS`.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import inspect
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynajit import __version__, api, backend_contract, script
from dynajit import exported as exporting
from dynajit import survey as surveying
from dynajit.backends.registry import list_backends, lookup_backend
from dynajit.config import config
from dynajit.demo import demo as demonstrated
from dynajit.exc import ArtifactError, ConfigError, DynajitError
from dynajit.replacing import as_torch_compile
from dynajit.report import logs, records
from dynajit.report.explain import ExplainReport
from dynajit.runtime import memory, remote_cache, store, toolchain, travel


def doctor(arguments: list[str]) -> int:
    """Print what dynajit finds on this machine: versions, the native extension, the C compiler and its flags, the
    folder of kept kernels, and each setting with its environment variable. Exit status 1 where something is missing."""
    _parser("doctor", doctor).parse_args(arguments)
    fine = True
    print(f"Python      {platform.python_implementation()} {sys.version.split()[0]}, {platform.machine()}")
    try:
        print(f"torch       {importlib.metadata.version('torch')}")
    except importlib.metadata.PackageNotFoundError:
        print("torch       missing: pip install torch")
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
    print(f"remote      {remote_cache.state()}")
    print(f"memory      {memory.stats()}")
    print("settings")
    print("\n".join(f"  {line}" for line in config.describe().splitlines()))
    print("a program   python -m dynajit survey FILE.py:FUNCTION says if it is right, what breaks and what is slow")
    return 0 if fine else 1


def demo(arguments: list[str]) -> int:
    """Run small programs eagerly and compiled: is each right, its graphs and breaks, seconds to the first result,
    milliseconds a call. Exit status 1 where one is wrong."""
    parser = _parser("demo", demo)
    parser.add_argument("--seconds", type=float, default=1.0, help="for timing one program, about; 0 measures none")
    right = True
    for line, report in demonstrated(parser.parse_args(arguments).seconds):
        print(line, flush=True)
        right = right and (report is None or report.right is True)
    print("your own: python -m dynajit survey FILE.py:FUNCTION")
    return 0 if right else 1


def explain(arguments: list[str]) -> int:
    """Run a program as `python script.py ...` would, then report on stderr what was compiled in it: graphs, graph
    breaks with the line and what to change, kernels, guards, recompiles, seconds. Also when the program fails."""
    parser = _parser(
        "explain",
        explain,
        "  python -m dynajit explain train.py                      a program that uses dynajit itself",
        "  python -m dynajit explain -c step train.py --epochs 3   one that does not, with `step` compiled",
        "  python -m dynajit explain --html report.html train.py   the report as a page",
        "  torchrun --nproc-per-node 4 -m dynajit explain --rank 0 train.py    one report of a job's",
    )
    parser.add_argument("--html", metavar="FILE", help="write the report to this file, as one self-contained page")
    parser.add_argument("--rank", type=int, metavar="N", help="of the processes of a job this one alone reports")
    _add_compile(parser)
    options = _parse_program(parser, arguments)
    program = _prepared(parser, options)
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        try:
            script.run(program, options.arguments)
        finally:
            sys.stdout.flush()
            if options.rank in (None, _rank()):
                _show(ExplainReport(seen), options.html)
    return 0


def _rank() -> int:
    """Which of the job's processes this is: by its group, or, where that is gone, by what launched it."""
    known = logs.rank()
    return int(os.environ.get("RANK", "0")) if known is None else known


def _show(report: ExplainReport, page: str | None) -> None:
    if not report.frames:
        print("nothing was compiled: say what to compile with -c NAME (see --help)", file=sys.stderr)
    if page is None:
        print(report, file=sys.stderr)
    else:
        report.html(page)
        print(f"the report is in {page}", file=sys.stderr)


def run(arguments: list[str]) -> int:
    """Run a program as `python script.py ...` would, with some of its functions, methods or modules compiled. The
    script is not edited: right after each statement at its top level that binds a name given by -c, what was bound is
    replaced by `dynajit.compile` of it."""
    parser = _parser(
        "run",
        run,
        "  python -m dynajit run -c train_step train.py --epochs 3",
        "  python -m dynajit run -c model -c Net.loss --mode max-autotune train.py",
        "  python -m dynajit run model.djt --size 16          an exported program, on made-up inputs",
        "  python -m dynajit run --replace train.py           its calls of torch.compile are answered by dynajit",
    )
    parser.add_argument("--replace", action="store_true", help="dynajit takes the place of torch.compile in the script")
    _add_compile(parser)
    options = _parse_program(parser, arguments)
    if Path(options.script).suffix == ".djt":
        return _run_file(parser, options)
    program = _prepared(parser, options)
    with as_torch_compile() if options.replace else contextlib.nullcontext():
        script.run(program, options.arguments)
    return 0


def _run_file(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Load an exported program and call it on made-up inputs; exit status 1 where that fails."""
    more = argparse.ArgumentParser(prog=parser.prog)
    more.add_argument("--size", type=int, default=4, help="of the dimensions that vary")
    size = more.parse_args(options.arguments).size
    try:
        start = time.perf_counter()
        program = exporting.load_program(options.script)
        loaded = time.perf_counter()
        given = exporting.made_up_arguments(program, size)
        begun = time.perf_counter()
        result = program(**given)
        first = time.perf_counter()
        program(**given)
        print(
            f"loaded in {(loaded - start) * 1e3:.1f} ms; first call {(first - begun) * 1e3:.2f} ms, second "
            f"{(time.perf_counter() - first) * 1e3:.2f} ms"
        )
    except ArtifactError as error:
        print(error, file=sys.stderr)
        return 1
    print(result)
    return 0


def export(arguments: list[str]) -> int:
    """Export a program to a file: captured whole, compiled for this CPU, with its weights. It runs in processes that
    have neither the program's source nor its libraries: dynajit.load(FILE), or python -m dynajit run FILE.

    FUNCTION is what `survey` takes: without arguments, it returns (program, inputs) or (program, args, kwargs).
    Exit status 1 where the program can't be exported."""
    parser = _parser(
        "export",
        export,
        "  python -m dynajit export model.py:make -o model.djt",
        "  python -m dynajit export model.py:make -o model.djt --dynamic x:0=batch --dynamic mask:0=batch",
    )
    parser.add_argument("program", metavar="PROGRAM", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="by custom it ends in .djt")
    parser.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar="ARGUMENT:DIM[=NAME]",
        help="a dimension of this argument varies; several with one name are equal",
    )
    parser.add_argument("--no-weights", action="store_true", help="leave parameters and buffers out")
    parser.add_argument("--gradients", action="store_true", help="for training: results have gradients")
    parser.add_argument(
        "--simd",
        action="append",
        metavar="TARGET",
        help="what kernels are compiled for: auto (this machine, the default), avx512, avx2, none; may be given again",
    )
    options = parser.parse_args(arguments)
    try:
        model, (args, kwargs) = surveying.program_named(options.program)
        shapes = exporting.dimensions(options.dynamic)
        settings = {"gradients": options.gradients, "simd": options.simd or "auto"}
        exported = exporting.export(model, args, kwargs, dynamic_shapes=shapes, **settings)
        exported.save(options.output, weights=not options.no_weights)
    except ConfigError as error:
        parser.error(str(error))
    except (DynajitError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.output}: {options.output.stat().st_size:,} bytes")
    return 0


def inspect_program(arguments: list[str]) -> int:
    """Show what an exported program takes and gives, how large its parts are, and what it was made with. Nothing of it
    is run. Exit status 1 for a file that is no such program."""
    parser = _parser("inspect", inspect_program)
    parser.add_argument("file", type=Path)
    try:
        print(exporting.inspect_file(parser.parse_args(arguments).file))
    except ArtifactError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def survey(arguments: list[str]) -> int:
    """Run a program a few times eagerly and compiled, and report on one page: is it right (results, mutations,
    aliasing, exceptions, printed text, gradients), graphs, graph breaks, what was compiled again and why, time over
    eager, memory kept for the backward pass, what runs eagerly. The page is what a bug report should contain.

    FUNCTION takes no arguments. It returns (program, inputs): a function or module, and its arguments as a tuple, as a
    dictionary of keyword arguments, or a list of such, one for each call; or (program, args, kwargs). If it returns
    anything else it is itself the program.

    Exit status: 0 all right, 1 a wrong result, 2 nothing could be judged: wrong usage, or eager itself does not give
    the same twice."""
    parser = _parser(
        "survey",
        survey,
        "  python -m dynajit survey model.py:make          def make(): return Net(), (torch.randn(8, 64),)",
        "  python -m dynajit survey package.train:step     a function without arguments: a step of training",
        "  python -m dynajit survey --json model.py:make   for machines",
    )
    parser.add_argument("programs", nargs="+", metavar="PROGRAM", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    parser.add_argument("--json", action="store_true", help="a JSON object for each program, one in a line")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often all inputs are called; at least 2, 3 if not said"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for measuring times, about; 0 measures none")
    _add_settings(parser)
    options = parser.parse_args(arguments)
    settings = _settings(options)
    status = 0
    for name in options.programs:
        try:
            report = surveying.survey_named(name, rounds=options.rounds, seconds=options.seconds, **settings)
        except ConfigError as error:
            parser.error(str(error))
        print(json.dumps(report.to_dict(), default=str) if options.json else f"{report}\n")
        status = max(status, {True: 0, False: 1, None: 2}[report.right])
    return status


def _parser(name: str, command: Callable[..., Any], *examples: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"python -m dynajit {name}",
        description=inspect.getdoc(command),
        epilog="\n".join(["examples:", *examples]) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--compile",
        action="append",
        default=[],
        metavar="NAME",
        help="what to compile, by its name at the top level of the script: a function (`step`), a module (`model`), or "
        "a method (`Net.forward`); may be given several times",
    )
    _add_settings(parser)
    parser.add_argument("script", help="the program")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    known = [name for name in list_backends() if name != "codegen"]
    parser.add_argument("--backend", default="codegen", help=f"codegen (the default), {', '.join(known)}")
    parser.add_argument("--mode", choices=api.MODES, help="as the argument of dynajit.compile")
    parser.add_argument("--fullgraph", action="store_true", help="a graph break is an error that shows the line")
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbolic from the first compile")


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `dynajit.compile`."""
    settings: dict[str, Any] = {"backend": options.backend, "mode": options.mode, "fullgraph": options.fullgraph}
    return {**settings, "dynamic": True} if options.dynamic else settings


def _parse_program(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")
    options = parser.parse_args(arguments)
    if not Path(options.script).is_file():
        parser.error(f"there is no file {options.script}")
    return options


def _prepared(parser: argparse.ArgumentParser, options: argparse.Namespace) -> script.Script:
    """The program with what is to be compiled; ends the process with a message where a name or an option is wrong."""
    settings = _settings(options)

    def wrap(target: Any) -> Any:
        return api.compile(target, **settings)

    try:
        api.compile(lambda: None, **settings)  # refuses unknown backends and the like before anything runs
        return script.prepare(Path(options.script), script.Wanted(tuple(options.compile), wrap))
    except (ConfigError, SyntaxError) as error:
        parser.error(str(error))


def cache(arguments: list[str]) -> int:
    """What is kept on disk: a summary, or each file (list). Delete it all (clear): the next processes compile again.
    Take it along: `pack` writes it into a file, `unpack` adds that file's kernels to this machine's. A kernel is used
    where compiler, flags and processor are those it was made with. Unpack only what you would run: it is machine code.
    `publish` puts it, signed, into the remote cache (DYNAJIT_REMOTE_CACHE, DYNAJIT_REMOTE_KEY).

    The folder and its size are the settings cache_dir (DYNAJIT_CACHE_DIR) and cache_size_mb; the least recently used go
    first. A second folder, which is only read, is cache_read (DYNAJIT_CACHE_READ)."""
    parser = _parser(
        "cache",
        cache,
        "  python -m dynajit cache pack kernels.djc       on the machine where everything was compiled",
        "  python -m dynajit cache unpack kernels.djc     on others, or when an image is built",
    )
    actions = ["summary", "list", "clear", "pack", "unpack", "publish"]
    parser.add_argument("action", nargs="?", choices=actions, default="summary", help="summary is the default")
    parser.add_argument("file", nargs="?", type=Path, help="for pack and unpack")
    options = parser.parse_args(arguments)
    if (options.file is not None) != (options.action in ("pack", "unpack")):
        parser.error(f"{options.action} takes {'a FILE' if options.file is None else 'no file'}")
    kept = store.find()
    if options.action in ("pack", "unpack"):
        return _travel(options.action, kept, options.file)
    if options.action == "publish":
        return _publish(kept)
    files = [(path, status) for path in kept.files() if (status := _status(path)) is not None]
    size = sum(status.st_size for _, status in files)
    if options.action == "clear":
        kept.clear()
        print(f"deleted {len(files)} files, {size / 1e6:.1f} MB, from {kept.root}")
        return 0
    if options.action == "list":
        for path, status in sorted(files):
            print(f"{status.st_size:>10}  {path.relative_to(kept.root)}")
    else:
        _summarise(files)
    print(f"{len(files)} files, {size / 1e6:.1f} MB of {kept.limit / 1e6:.0f} MB, in {kept.root}")
    if config.cache_read:
        others = [*store.ReadOnlyStore(Path(config.cache_read).expanduser()).files()]
        print(f"{len(others)} files that are only read, in {config.cache_read}")
    if config.remote_cache:
        print(f"remote cache: {remote_cache.state()}")
    return 0


_KINDS = {
    ".so": "libraries of C kernels",
    ".cubin": "kernels for GPUs",
    ".best": "choices by timing",
    ".variant": "graphs with guards",
}


def _summarise(files: list[tuple[Path, os.stat_result]]) -> None:
    """A line for each kind of file: how many, how large, when they were last used."""
    kinds: dict[str, list[os.stat_result]] = {}
    for path, status in files:
        kinds.setdefault(path.suffix, []).append(status)
    for suffix, found in sorted(kinds.items()):
        used = [time.strftime("%Y-%m-%d", time.localtime(status.st_mtime)) for status in found]
        size = sum(status.st_size for status in found) / 1e6
        name = _KINDS.get(suffix, "other files")
        print(f"{len(found):>6} {suffix:<7} {size:>8.1f} MB  {name}, last used {min(used)} to {max(used)}")


def _travel(action: str, kept: store.ArtifactStore, file: Path) -> int:
    """Pack or unpack; exit status 1 where that fails."""
    try:
        done = travel.pack(kept, file) if action == "pack" else travel.unpack(kept, file)
    except (ArtifactError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    known = f"; {done.known} were there already" if done.known else ""
    print(f"{action}ed {done.files} files, {done.size / 1e6:.1f} MB{known}: {file}, {kept.root}")
    return 0


def _publish(kept: store.ArtifactStore) -> int:
    """Put what is kept into the remote cache; exit status 1 where that fails."""
    remote = remote_cache.current()
    try:
        if remote is None:
            raise OSError(remote_cache.state())
        done = travel.publish(kept, remote)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"published {done.files} files, {done.size / 1e6:.1f} MB: {kept.root}, {remote.place}")
    return 0


def _status(path: Path) -> os.stat_result | None:
    """None for a file that another process has deleted meanwhile."""
    try:
        return path.stat()
    except OSError:
        return None


def check_backend(arguments: list[str]) -> int:
    """Run a backend through the programs that every backend has to get right, against eager mode: results, layouts,
    sharing, writes, gradients, random numbers, sizes that change. Exit status 1 where one is wrong."""
    parser = _parser(
        "check-backend",
        check_backend,
        "  python -m dynajit check-backend onnxrt                    one that dynajit or a package brings along",
        "  python -m dynajit check-backend my_package.fast:backend   a function of a module",
    )
    parser.add_argument("backend", metavar="NAME", help="a backend's name, or MODULE:FUNCTION")
    parser.add_argument("--only", metavar="TEXT", default="", help="programs with this text in their names")
    options = parser.parse_args(arguments)
    module, colon, function = options.backend.partition(":")
    try:
        if colon:
            sys.path.insert(0, "")
            backend = getattr(importlib.import_module(module), function)
        else:
            backend = options.backend
        lookup_backend(backend)
    except (ConfigError, ImportError, AttributeError) as error:
        parser.error(str(error))
    wrong = count = 0
    for verdict in backend_contract.check(backend, options.only):
        count += 1
        wrong += bool(verdict.fault)
        print(
            f"{'WRONG' if verdict.fault else 'right':<6} {verdict.program.name}: {verdict.program.demand}", flush=True
        )
        if verdict.fault:
            print("\n".join(f"       {line}" for line in verdict.fault.strip().splitlines()), flush=True)
    print(f"{count - wrong} of {count} programs are right")
    return 1 if wrong or not count else 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "doctor": doctor,
    "demo": demo,
    "explain": explain,
    "run": run,
    "survey": survey,
    "cache": cache,
    "check-backend": check_backend,
    "export": export,
    "inspect": inspect_program,
}


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dynajit",
        description=(__doc__ or "").partition("\n\nIn:")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dynajit {__version__}")
    parser.add_argument("command", choices=COMMANDS)
    options = parser.parse_args(arguments[:1])
    return COMMANDS[options.command](arguments[1:])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
