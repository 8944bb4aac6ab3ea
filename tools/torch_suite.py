"""Runs files of torch's own tests, or of a package's, each test in eager and then compiled, and prints what differs.

In: `python tools/torch_suite.py FOLDER FILE... `: the `test` folder of a checkout of torch and files in it. Out: a line
for each test that passes in eager and doesn't compiled (or whose process ends, or in which dynajit fails), and a table
with a row for each file. `--each N` takes at most N of the tests that one function was instantiated for, `--sample N`
N of the rest at random, `--log FILE` keeps a line of JSON for each test. Tests that fail in eager (other torch, missing
packages) don't count. Every function of a file is compiled whoever calls it, since test methods mostly run inside of
torch's test tools, which are not traced.

With `--pytest` pytest finds the tests, in files or folders; all are one row. With `--package FOLDER` the functions of
that folder are compiled whoever calls them, and those of the tests are not.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import functools
import importlib.util
import json
import os
import random
import select
import signal
import sys
import time
import traceback
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

TESTS_IN_ONE_PROCESS = 100


class TooLong(BaseException):
    """A test took more than its time."""


class Outcome(unittest.TestResult):
    """The first thing that went wrong in one test, or that it was skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.text = "ok", ""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.word = "skip"

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.note("error", err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.note("fail", err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.note(f"fail {subtest.id().removeprefix(test.id())}", err)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.word = "expected failure"

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.word = "unexpected success"

    def note(self, word: str, err: Any) -> None:
        """The test went wrong."""
        if err[0] is not None and issubclass(err[0], TooLong):
            self.word = "too long"
        if self.word == "ok":
            self.word, self.text = word, "".join(traceback.format_exception(*err))[-5000:]


class Watched:
    """What dynajit did during one test."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.breaks: collections.Counter[str] = collections.Counter()
        self.captures = 0

    def install(self) -> None:
        """From now on."""
        from dynajit.backends import codegen
        from dynajit.capture.capture import FrameCapture
        from dynajit.report import records

        records.subscribe(self.add)
        internal = FrameCapture._internal_error

        def noted(capture: Any, error: Exception) -> None:
            self.faults.append("".join(traceback.format_exception(error))[-3000:])
            internal(capture, error)

        FrameCapture._internal_error = noted  # type: ignore[method-assign]
        tell = codegen._tell

        def told(text: str) -> None:
            self.faults.append(text)
            tell(text)

        codegen._tell = told

    def add(self, record: Any) -> None:
        self.captures += 1
        for broken in record.breaks:
            self.breaks[f"{broken.kind}: {broken.reason}"[:160]] += 1


def compile_files(folder: Path, package: Path | None = None) -> None:
    """Make every function of the folder's files one that is compiled whoever calls it; or of the package's instead."""
    from dynajit.capture import rules
    from dynajit.capture.session import Session

    named, skipped, tests = Session.is_root, rules.skip_frame, str(folder) + os.sep
    inside = tests if package is None else str(package) + os.sep

    def is_root(session: Session, code: types.CodeType) -> bool:
        if package is not None and is_tests(code):
            return False
        tested = code.co_filename.startswith(inside) and rules.skip_frame(code, {}) is None
        return tested or named(session, code)

    def is_tests(code: types.CodeType) -> bool:
        name = code.co_filename
        return name.startswith(tests) and not (inside.startswith(tests) and name.startswith(inside))

    def skip_frame(code: types.CodeType, globals_: dict[str, Any]) -> str | None:
        return "it is a test" if is_tests(code) else skipped(code, globals_)

    Session.is_root = is_root  # type: ignore[method-assign]
    if package is not None:
        rules.skip_frame = skip_frame


def load(path: Path) -> list[unittest.TestCase]:
    """The tests of a file."""
    sys.argv = [str(path)]
    if str(path.parent) not in sys.path:  # as if it were run
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    return [test for cases in suite for test in _flat(cases)]


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    if isinstance(suite, unittest.TestSuite):
        for part in suite:
            yield from _flat(part)
    else:
        yield suite


def _function(test: Any) -> Any:
    if not isinstance(test, unittest.TestCase):
        return test.function
    method = getattr(type(test), test._testMethodName)
    return getattr(method, "__func__", method)


def _class(test: Any) -> str:
    return type(test).__name__ if isinstance(test, unittest.TestCase) else test.id().rpartition("::")[0]


def chosen(tests: Sequence[Any], each: int) -> list[Any]:
    """At most `each` of those that one function of the file was instantiated for, evenly spread; 0: all."""
    groups: dict[Any, list[Any]] = {}
    for test in tests:
        function = _function(test)
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        groups.setdefault((_class(test), getattr(function, "__code__", function)), []).append(test)
    picked: list[Any] = []
    for group in groups.values():
        places = {round(i * (len(group) - 1) / max(each - 1, 1)) for i in range(each)} if each else range(len(group))
        picked += [group[place] for place in sorted(places)]
    return picked


def prepared(test: Any, compile: Callable[..., Any] | None) -> Callable[[Outcome], Any]:
    """What runs a test once, its function as `compile` returns it."""
    if not isinstance(test, unittest.TestCase):
        return test.prepare(compile)
    fresh = type(test)(test._testMethodName)
    if compile is not None:
        method = getattr(fresh, test._testMethodName)
        setattr(fresh, test._testMethodName, types.MethodType(compile(method.__func__), fresh))
    return fresh.run


def run_one(test: Any, backend: str | None, seconds: float) -> tuple[Outcome, float]:
    """One test, by `backend` or in eager, within a time."""
    import dynajit

    run = prepared(test, None if backend is None else functools.partial(dynajit.compile, backend=backend))
    outcome = Outcome()

    def over(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        raise TooLong

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            run(outcome)
    except TooLong:
        outcome.word = "too long"
    except BaseException:
        outcome.note("raised", sys.exc_info())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return outcome, time.perf_counter() - began


def compare(test: Any, watched: Watched, backend: str, seconds: float) -> dict[str, Any]:
    """One test both ways, as a line of the log."""
    import dynajit

    eager, eager_seconds = run_one(test, None, seconds)
    entry: dict[str, Any] = {"test": test.id(), "eager": eager.word, "eager_seconds": round(eager_seconds, 3)}
    entry["why"] = eager.text[-500:]
    if eager.word in ("ok", "expected failure"):
        dynajit.reset()
        watched.faults, watched.captures = [], 0
        watched.breaks.clear()
        compiled, compiled_seconds = run_one(test, backend, seconds)
        entry |= {"compiled": compiled.word, "seconds": round(compiled_seconds, 3), "text": compiled.text}
        entry |= {"faults": watched.faults[:5], "captures": watched.captures, "breaks": dict(watched.breaks)}
        if compiled.word != eager.word:
            entry["again"] = run_one(test, None, seconds)[0].word
    return entry


def in_child(tests: Sequence[Any], watched: Watched, options: Any) -> Iterator[dict[str, Any]]:
    """Run the tests in one process after the other; a process that ends is an entry of its test."""
    place = 0
    while place < len(tests):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            sink = os.open(options.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            with os.fdopen(writing, "w") as out:
                for test in tests[place : place + TESTS_IN_ONE_PROCESS]:
                    out.write(json.dumps(compare(test, watched, options.backend, options.seconds)) + "\n")
                    out.flush()
            os._exit(0)
        os.close(writing)
        place += yield from _entries(tests[place : place + TESTS_IN_ONE_PROCESS], child, reading, options)


def _entries(tests: Sequence[Any], child: int, reading: int, options: Any) -> Iterator[dict[str, Any]]:
    done, text = 0, b""
    while True:
        ready = select.select([reading], [], [], 3 * options.seconds + 30)[0]
        got = os.read(reading, 1 << 16) if ready else b""
        text += got
        *lines, text = text.split(b"\n")
        for line in lines:
            done += 1
            yield json.loads(line)
        if not got:
            break
    os.close(reading)
    if not ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if done < len(tests):
        how = f"process ended with {status}" if ready else "hangs"
        yield {"test": tests[done].id(), "eager": "ok", "compiled": how, "text": "", "faults": [], "breaks": {}}
        done += 1
    return done


def finding(entry: dict[str, Any]) -> str:
    """What is wrong, or an empty text."""
    if entry["eager"] not in ("ok", "expected failure") or entry.get("again", "ok") not in ("ok", "expected failure"):
        return ""
    if entry["compiled"] != entry["eager"]:
        text, _, _ = entry["text"].partition("\nTo execute this test")  # torch's hint
        last = text.strip().splitlines()[-1:] or [""]
        return f"{entry['compiled']}: {last[0][:200]}"
    if entry["faults"]:
        return f"fault: {entry['faults'][0].strip().splitlines()[-1][:200]}"
    return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--only", nargs="*", default=[], help="tests whose name holds one of these")
    parser.add_argument("--each", type=int, default=0, help="so many of what one function was instantiated for; 0: all")
    parser.add_argument("--sample", type=int, default=0, help="so many at random; 0: all")
    parser.add_argument("--part", default="0/1", help="I/N: the Ith part of N")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--seconds", type=float, default=60, help="limit of one test")
    parser.add_argument("--log", help="a line of JSON for each test is appended to this file")
    parser.add_argument("--output", default=os.devnull, help="what the tests print is appended to this file")
    parser.add_argument("--verbose", action="store_true", help="with tracebacks")
    parser.add_argument("--pytest", action="store_true", help="pytest finds the tests")
    parser.add_argument("--package", type=Path, help="compile this folder's functions, not the tests'")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    if options.package is not None:
        options.package = options.package.resolve()
    return options


def _sampled(tests: Sequence[Any], options: argparse.Namespace) -> list[Any]:
    named = [t for t in tests if not options.only or any(o in t.id() for o in options.only)]
    picked = chosen(named, options.each)
    if options.sample and len(picked) > options.sample:
        places = sorted(random.Random(0).sample(range(len(picked)), options.sample))
        picked = [picked[place] for place in places]
    part, parts = (int(number) for number in options.part.split("/"))
    return picked[part::parts]


def run_all(name: str, tests: Sequence[Any], watched: Watched, options: argparse.Namespace) -> tuple[str, int]:
    """Run these tests both ways, tell what differs: a row of the table, and how many do."""
    tests = _sampled(tests, options)
    counts: collections.Counter[str] = collections.Counter()
    for entry in in_child(tests, watched, options):
        found = finding(entry)
        passes = entry["eager"] in ("ok", "expected failure")
        counts.update(
            {
                "eager": int(passes),
                "compiled": int(passes and not found),
                "breaks": sum(entry.get("breaks", {}).values()),
                "found": bool(found),
            }
        )
        if found:
            print(f"{name} {entry['test']}: {found}", flush=True)
            if options.verbose:
                print(entry["text"], *entry["faults"], sep="\n", flush=True)
        if options.log:
            with open(options.log, "a") as log:
                log.write(json.dumps({"file": name, "finding": found, **entry}) + "\n")
    row = f"| {name} | {len(tests)} | {counts['eager']} | {counts['compiled']} | {counts['breaks']} |"
    print(row, flush=True)
    return row, counts["found"]


def main() -> int:
    options = _options()
    faulthandler.enable()
    os.chdir(options.folder)
    sys.path.insert(0, str(options.folder))
    watched = Watched()
    watched.install()
    compile_files(options.folder, options.package)
    rows: list[tuple[str, int]] = []
    if options.pytest:
        from pytest_suite import with_tests

        def run(tests: Sequence[Any]) -> None:
            rows.append(run_all(" ".join(options.files), tests, watched, options))

        with_tests([options.folder / name for name in options.files], run)
    else:
        rows += [run_all(name, load(options.folder / name), watched, options) for name in options.files]
    print("| file | tests | pass in eager | the same compiled | breaks |", "|---|---|---|---|---|", sep="\n")
    print(*(row for row, _ in rows), sep="\n")
    return int(any(found for _, found in rows))


if __name__ == "__main__":
    sys.exit(main())
