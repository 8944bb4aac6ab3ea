"""Runs files of a checkout of torch's own tests, each test in eager and then compiled, and prints what differs.

In: `python tools/torch_suite.py FOLDER FILE... `: the checkout's `test` folder and files in it. Out: a line for each
test that passes in eager and doesn't compiled (or whose process ends, or in which dynajit fails), and a table with a
row for each file. `--each N` takes at most N of the tests that one function was instantiated for, `--log FILE` keeps a
line of JSON for each test. Tests that fail in eager (other torch, missing packages) don't count. Every function of a
file is compiled whoever calls it, since test methods mostly run inside of torch's test tools, which are not traced.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import importlib.util
import json
import os
import select
import signal
import sys
import time
import traceback
import types
import unittest
import warnings
from collections.abc import Iterator, Sequence
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
        from dynajit.capture.capture import FrameCapture
        from dynajit.report import records

        records.subscribe(self.add)
        internal = FrameCapture._internal_error

        def noted(capture: Any, error: Exception) -> None:
            self.faults.append("".join(traceback.format_exception(error))[-3000:])
            internal(capture, error)

        FrameCapture._internal_error = noted  # type: ignore[method-assign]

    def add(self, record: Any) -> None:
        self.captures += 1
        for broken in record.breaks:
            self.breaks[f"{broken.kind}: {broken.reason}"[:160]] += 1


def compile_files(folder: Path) -> None:
    """Make every function of the folder's files one that is compiled whoever calls it."""
    from dynajit.capture import rules
    from dynajit.capture.session import Session

    named, inside = Session.is_root, str(folder) + os.sep

    def is_root(session: Session, code: types.CodeType) -> bool:
        tested = code.co_filename.startswith(inside) and rules.skip_frame(code, {}) is None
        return tested or named(session, code)

    Session.is_root = is_root  # type: ignore[method-assign]


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


def chosen(tests: Sequence[unittest.TestCase], each: int) -> list[unittest.TestCase]:
    """At most `each` of those that one function of the file was instantiated for, evenly spread; 0: all."""
    groups: dict[Any, list[unittest.TestCase]] = {}
    for test in tests:
        function = getattr(getattr(type(test), test._testMethodName, None), "__func__", None)
        function = function or getattr(type(test), test._testMethodName)
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        groups.setdefault((type(test).__name__, getattr(function, "__code__", function)), []).append(test)
    picked: list[unittest.TestCase] = []
    for group in groups.values():
        places = {round(i * (len(group) - 1) / max(each - 1, 1)) for i in range(each)} if each else range(len(group))
        picked += [group[place] for place in sorted(places)]
    return picked


def run_one(test: unittest.TestCase, backend: str | None, seconds: float) -> tuple[Outcome, float]:
    """One test, by `backend` or in eager, within a time."""
    fresh = type(test)(test._testMethodName)
    if backend is not None:
        import dynajit

        method = getattr(fresh, test._testMethodName)
        compiled = dynajit.compile(method.__func__, backend=backend)
        setattr(fresh, test._testMethodName, types.MethodType(compiled, fresh))
    outcome = Outcome()

    def over(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        raise TooLong

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            fresh.run(outcome)
    except TooLong:
        outcome.word = "too long"
    except BaseException:
        outcome.note("raised", sys.exc_info())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return outcome, time.perf_counter() - began


def compare(test: unittest.TestCase, watched: Watched, backend: str, seconds: float) -> dict[str, Any]:
    """One test both ways, as a line of the log."""
    import dynajit

    eager, eager_seconds = run_one(test, None, seconds)
    entry: dict[str, Any] = {"test": test.id(), "eager": eager.word, "eager_seconds": round(eager_seconds, 3)}
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


def in_child(tests: Sequence[unittest.TestCase], watched: Watched, options: Any) -> Iterator[dict[str, Any]]:
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


def _entries(tests: Sequence[unittest.TestCase], child: int, reading: int, options: Any) -> Iterator[dict[str, Any]]:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--only", nargs="*", default=[], help="tests whose name holds one of these")
    parser.add_argument("--each", type=int, default=0, help="so many of what one function was instantiated for; 0: all")
    parser.add_argument("--part", default="0/1", help="I/N: the Ith part of N")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--seconds", type=float, default=60, help="limit of one test")
    parser.add_argument("--log", help="a line of JSON for each test is appended to this file")
    parser.add_argument("--output", default=os.devnull, help="what the tests print is appended to this file")
    parser.add_argument("--verbose", action="store_true", help="with tracebacks")
    options = parser.parse_args()
    faulthandler.enable()
    os.chdir(options.folder)
    folder = options.folder.resolve()
    sys.path.insert(0, str(folder))
    watched = Watched()
    watched.install()
    compile_files(folder)
    rows, bad = [], 0
    for name in options.files:
        part, parts = (int(number) for number in options.part.split("/"))
        tests = chosen([t for t in load(folder / name) if not options.only or any(o in t.id() for o in options.only)],
                       options.each)[part::parts]  # fmt: skip
        counts: collections.Counter[str] = collections.Counter()
        for entry in in_child(tests, watched, options):
            found = finding(entry)
            passes = entry["eager"] in ("ok", "expected failure")
            counts.update(
                {
                    "eager": int(passes),
                    "compiled": int(passes and not found),
                    "breaks": sum(entry.get("breaks", {}).values()),
                }
            )
            if found:
                bad += 1
                print(f"{name} {entry['test']}: {found}", flush=True)
                if options.verbose:
                    print(entry["text"], *entry["faults"], sep="\n", flush=True)
            if options.log:
                with open(options.log, "a") as log:
                    log.write(json.dumps({"file": name, "finding": found, **entry}) + "\n")
        rows.append(f"| {name} | {len(tests)} | {counts['eager']} | {counts['compiled']} | {counts['breaks']} |")
        print(rows[-1], flush=True)
    print("| file | tests | pass in eager | the same compiled | breaks |", "|---|---|---|---|---|", *rows, sep="\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
