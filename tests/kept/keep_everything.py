"""A pytest plugin: what `assert_same` compares is compared once more with variants that are kept, and taken again.

    PYTHONPATH=tests/kept python -m pytest -p keep_everything tests/resume ...

Each program is compiled by `codegen` three times, everything forgotten in between: without keeping, which says whether
`codegen` itself does what the test asks for; keeping; and taking what was kept. Fails where the last two differ from
eager and the first does not. At the end it says how many variants were taken. A test that itself counts what a program
tells others, as records of a logger, finds more of it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import tempfile
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import dynajit
from dynajit import outcomes, testing

ORIGINAL = testing.assert_same
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}
TAKES = ("dynamic", "fullgraph")
counts = collections.Counter[str]()
captured_again: list[str] = []


def assert_same(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    then: Sequence[tuple[Any, ...]] = (),
    repeat: int = 2,
    **options: Any,
) -> Any:
    """`testing.assert_same`, and then the same of kept variants."""
    report = ORIGINAL(fn, *args, kwargs=kwargs, then=then, repeat=repeat, **options)
    calls = fn, args, kwargs, then, repeat
    chosen = {name: options[name] for name in TAKES if name in options}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _compared(calls, chosen)
    except Exception:  # of `codegen`, or of a program that can't be run so often
        counts["left out"] += 1
        return report
    counts["programs"] += 1
    with tempfile.TemporaryDirectory(prefix="kept-") as folder, contextlib.ExitStack() as stack:
        stack.enter_context(dynajit.config.patch(cache_dir=folder, keep_variants=True))
        for _ in range(2):
            dynajit.counters.clear()
            _compared(calls, chosen)
        counts["taken"] += dynajit.counters["kept"]["loaded"]
        if dynajit.counters["kept"]["written"]:
            captured_again.append(os.environ.get("PYTEST_CURRENT_TEST", ""))
        assert not dynajit.counters["internal_errors"]
    dynajit.reset()
    return report


def _compared(calls: tuple[Any, ...], options: dict[str, Any]) -> None:
    dynajit.reset()
    eager, expected, _ = outcomes.copies(*calls)
    eager = _unspecialized(eager)
    original, actual, _ = outcomes.copies(*calls)
    compiled = dynajit.compile(original, **options)
    for number, (there, here) in enumerate(zip(expected, actual, strict=True), 1):
        wanted = outcomes.run(eager, eager, *there, seed=number)
        found = outcomes.run(compiled, original, *here, seed=number)
        outcomes.compare(found, wanted, f"call {number}, kept", exact=False, **TOLERANCE)


def _unspecialized(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with code that never ran: CPython compares a dictionary's keys once more while it specialises an
    instruction, so that a program whose `__eq__` prints does so more often at some call."""
    if type(fn) is not types.FunctionType:
        return fn
    made = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__dict__.update(fn.__dict__)
    made.__kwdefaults__, made.__qualname__, made.__module__ = fn.__kwdefaults__, fn.__qualname__, fn.__module__
    return made


testing.assert_same = assert_same


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was kept."""
    terminalreporter.write_line(f"kept variants: {dict(counts)}; captured again in {len(captured_again)} programs")
    for name in captured_again:
        terminalreporter.write_line(f"    {name}")
