"""Runs modules of CPython's test-suite, plain or compiled, each in a process of its own.

In: `cpython_worker.py plain|compiled|deep`, and on standard input a line of JSON for each module: its name, the limit
in seconds, the folder to run in, words that choose tests. `plain`: dynajit is not imported. `compiled`: every test
method is wrapped in `dynajit.compile(backend="eager")`. `deep`: moreover every function of the test package is compiled
whoever calls it, even if it holds no torch operation. Out: in the file `outcomes` of the folder a line of JSON for each
test when it starts and when it ended, so that a crash leaves the name of its test, and one of statistics at the end; on
standard output a line that says how the process ended. This process imports torch once and forks for each module.
"""

from __future__ import annotations

import collections
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
import types
import unittest
from pathlib import Path
from typing import Any, TextIO

TEST_DIR = str(Path(importlib.import_module("test").__file__ or "").parent) + os.sep


class Outcomes(unittest.TestResult):
    """Writes each test's outcome: a sorted list of words, since subtests may fail several times."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out
        self.words: list[str] = []
        self.text = ""
        self.began = 0.0

    def write(self, **entry: Any) -> None:
        self.out.write(json.dumps(entry) + "\n")
        self.out.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.words, self.text = [], ""
        self.write(start=test.id())
        self.began = time.perf_counter()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        seconds = round(time.perf_counter() - self.began, 3)
        self.write(test=test.id(), outcome=sorted(self.words) or ["ok"], text=self.text, seconds=seconds)

    def note(self, word: str, test: unittest.TestCase, err: Any = None) -> None:
        if err is not None:
            self.text += "".join(traceback.format_exception(*err))[-6000:]
        if not hasattr(test, "_testMethodName") or not self.began:
            self.write(test=test.id(), outcome=[word], text=self.text, seconds=0.0)  # set-up of a class or module
        else:
            self.words.append(word)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.note("skip", test)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.note("error", test, err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.note("fail", test, err)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.note("expected failure", test)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.note("unexpected success", test)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            kind = "fail" if issubclass(err[0], test.failureException) else "error"
            self.note(f"{kind} {subtest.id().removeprefix(test.id())}", test, err)


def cases(suite: Any) -> list[unittest.TestCase]:
    """The suite, flat."""
    if isinstance(suite, unittest.TestSuite):
        return [case for part in suite for case in cases(part)]
    return [suite]


class Statistics:
    """What capture did, from its records."""

    def __init__(self) -> None:
        self.count: collections.Counter[str] = collections.Counter()
        self.eager: collections.Counter[str] = collections.Counter()
        self.breaks: collections.Counter[str] = collections.Counter()
        self.internal: list[str] = []
        self.seconds = 0.0

    def add(self, record: Any) -> None:
        if record.skipped is None:
            self.count["compiled"] += 1
        else:
            self.count["eager"] += 1
            self.eager[record.skipped.split(": ")[0][:80]] += 1
        for broken in record.breaks:
            self.count["breaks"] += 1
            self.breaks[broken.kind] += 1
        self.seconds += sum(record.phases.values())

    def watch(self) -> None:
        """Count captures, inlined calls, and dynajit's own faults with their tracebacks."""
        from dynajit.capture.capture import FrameCapture
        from dynajit.interp.calls import Calls
        from dynajit.report import records

        records.subscribe(self.add)
        trace, internal = Calls._trace, FrameCapture._internal_error

        def counted(tx: Any, *args: Any) -> Any:
            self.count["inlined"] += 1
            return trace(tx, *args)

        def noted(capture: Any, error: Exception) -> None:
            where = f"{capture.code.co_filename}:{capture.code.co_firstlineno} {capture.code.co_name}"
            self.internal.append(where + "\n" + "".join(traceback.format_exception(error))[-4000:])
            internal(capture, error)

        Calls._trace = counted  # type: ignore[method-assign]
        FrameCapture._internal_error = noted  # type: ignore[method-assign]

    def entry(self) -> dict[str, Any]:
        return {
            **{name: self.count[name] for name in ("compiled", "eager", "breaks", "inlined")},
            "why_eager": dict(self.eager.most_common(30)),
            "break_kinds": dict(self.breaks.most_common(60)),
            "internal": self.internal[:50],
            "internal_errors": len(self.internal),
            "capture_seconds": round(self.seconds, 3),
        }


def compile_tests(tests: list[unittest.TestCase], deep: bool) -> int:
    """Wrap the test methods, setUp and tearDown of all classes of the test package; the number wrapped."""
    import dynajit
    from dynajit.capture import rules
    from dynajit.capture.session import Session

    if deep:
        named = Session.is_root

        def is_root(session: Session, code: types.CodeType) -> bool:
            tested = code.co_filename.startswith(TEST_DIR) and rules.skip_frame(code, {}) is None
            return tested or named(session, code)

        Session.is_root = is_root  # type: ignore[method-assign]
    wrapped = 0
    for cls in dict.fromkeys(cls for test in tests for cls in type(test).__mro__):
        if not cls.__module__.startswith("test."):
            continue
        for name, value in list(vars(cls).items()):
            if isinstance(value, types.FunctionType) and (name.startswith("test") or name in ("setUp", "tearDown")):
                setattr(cls, name, dynajit.compile(value, backend="eager"))
                wrapped += 1
    for test in tests:
        if type(test).__module__ == "doctest":
            test.runTest = dynajit.compile(test.runTest, backend="eager")  # type: ignore[attr-defined]
            wrapped += 1
    return wrapped


def run_module(name: str, mode: str, wanted: list[str]) -> None:
    """One module in this process, in the current folder."""
    sys.argv = [name]
    statistics = Statistics()
    module = importlib.import_module(f"test.{name}")
    tests = cases(unittest.defaultTestLoader.loadTestsFromModule(module))
    if wanted:
        tests = [test for test in tests if any(word in test.id() for word in wanted)]
    with open("outcomes", "w") as out:
        result = Outcomes(out)
        if mode != "plain":
            statistics.watch()
            statistics.count["wrapped"] = compile_tests(tests, mode == "deep")
        suite = unittest.TestSuite(tests)
        suite._removeTestAtIndex = lambda index: None  # type: ignore[method-assign, attr-defined]
        suite.run(result)
        result.write(statistics={**statistics.entry(), "wrapped": statistics.count["wrapped"]})


def in_child(request: dict[str, Any], mode: str) -> str:
    """Fork, run the module there, and say how it ended: empty if well."""
    child = os.fork()
    if child == 0:
        os.chdir(request["folder"])
        output = os.open("output", os.O_WRONLY | os.O_CREAT)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        run_module(request["module"], mode, request["wanted"])
        sys.exit()
    deadline = time.monotonic() + request["limit"]
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return f"exit status {code}" if code else ""
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"no end within {request['limit']:.0f} s"
        time.sleep(0.01)


def main() -> None:
    mode = sys.argv[1]
    faulthandler.enable()
    if mode != "plain":
        import torch

        import dynajit

        dynajit.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # imports what capture needs
        dynajit.reset()
        gc.collect()
        gc.freeze()  # the suite collects often; what torch made is none of its business
    for line in sys.stdin:
        ended = in_child(json.loads(line), mode)
        print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    main()
