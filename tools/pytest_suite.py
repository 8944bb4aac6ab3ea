"""Tests that pytest collects, as `torch_suite.py` takes tests: other packages' test-suites.

In: files or folders of tests, and what is to be done with the tests. Each test is a `Collected`: it has an identifier
and can be run more than once, with its fixtures made anew and with the same random numbers.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from _pytest.runner import runtestprotocol


class Collected:
    """A test that pytest found."""

    def __init__(self, item: pytest.Function, outcomes: _Outcomes) -> None:
        self.item, self.outcomes = item, outcomes

    def id(self) -> str:
        """Its name within the suite."""
        return self.item.nodeid

    @property
    def function(self) -> Any:
        """The function that may be there with many parameters."""
        return getattr(self.item.function, "__func__", self.item.function)

    def prepare(self, compile: Callable[..., Any] | None) -> Callable[[Any], None]:
        """What runs it once, its function as `compile` returns it, and notes in the outcome it is given how it went."""

        def run(outcome: Any) -> None:
            item = self.item
            for name in ("_obj", "_instance"):  # made anew, as what they hold is
                vars(item).pop(name, None)
            random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
            self.outcomes.current, self.outcomes.compile = outcome, compile
            runtestprotocol(item, log=False, nextitem=None)

        return run


class _Outcomes:
    """A plugin of pytest that has tests compiled and notes how they went."""

    def __init__(self) -> None:
        self.current: Any = None
        self.compile: Callable[..., Any] | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Iterator[None]:
        test = item.obj
        if self.compile is not None:
            function = getattr(test, "__func__", None)
            made = self.compile(test if function is None else function)
            item.obj = made if function is None else types.MethodType(made, test.__self__)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Function, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if report.outcome == "skipped" and self.current.word == "ok":
            self.current.word = "expected failure" if hasattr(report, "wasxfail") else "skip"
        elif report.outcome == "failed":
            error = call.excinfo
            info = (None, None, None) if error is None else (error.type, error.value, error.tb)
            self.current.note("fail" if call.when == "call" else call.when, info)
        return report


class _Runner:
    def __init__(self, run: Callable[[Sequence[Collected]], Any], outcomes: _Outcomes) -> None:
        self.run, self.outcomes = run, outcomes

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = [item for item in session.items if isinstance(item, pytest.Function)]
        self.run([Collected(item, self.outcomes) for item in items])
        return True


def with_tests(paths: Sequence[Path], run: Callable[[Sequence[Collected]], Any]) -> int:
    """Have `run` called with the tests of `paths`, within a session of pytest."""
    outcomes = _Outcomes()
    given = ["-q", "--capture=no", "-o", "addopts=", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    plugins = [outcomes, _Runner(run, outcomes)]
    return int(pytest.main([*given, *map(str, paths)], plugins=plugins))
