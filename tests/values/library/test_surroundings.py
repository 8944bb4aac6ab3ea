"""What the program asks of its surroundings: environment variables, context variables."""

from __future__ import annotations

import calendar
import contextlib
import contextvars
import io
import os
import re
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

x = torch.ones(2)
FACTOR: contextvars.ContextVar[Any] = contextvars.ContextVar("factor", default=2)
BARE: contextvars.ContextVar[Any] = contextvars.ContextVar("bare")


def test_a_context_variable_is_read() -> None:
    def scaled(x: Tensor) -> Any:
        return x * FACTOR.get() + FACTOR.get(5) + BARE.get(7), BARE.get(None)

    assert_same(scaled, x, graphs=1, breaks=0, recompiles=0)


def test_another_value_is_seen() -> None:
    def scaled(x: Tensor) -> Any:
        return x * FACTOR.get() + BARE.get(7)

    compiled = dynajit.compile(scaled, backend="eager")
    for value in (2, 3.5, torch.full((2,), 4.0)):
        token, other = FACTOR.set(value), BARE.set(value)
        assert torch.equal(compiled(x), scaled(x))
        BARE.reset(other)
        assert torch.equal(compiled(x), scaled(x))
        FACTOR.reset(token)
        assert torch.equal(contextvars.Context().run(compiled, x), x * 2 + 7)


def test_what_the_program_sets_it_reads_again() -> None:
    def scaled(x: Tensor, value: int) -> Any:
        token = FACTOR.set(value)
        y = x * FACTOR.get()
        FACTOR.reset(token)
        return y, FACTOR.get()

    assert_same(scaled, x, 3, then=[(x, 4), (x, 5)])


def test_one_without_a_value_raises() -> None:
    def read(x: Tensor) -> Any:
        try:
            return x + BARE.get()
        except LookupError as error:
            return x + 1, str(error) == repr(BARE)

    assert_same(read, x)


def test_names_of_variables_that_are_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAJIT_TEST_NAME", "here")

    def asked(x: Tensor, name: Any) -> Any:
        try:
            return x + 1, os.environ[name]
        except TypeError as error:
            return x + 2, str(error)

    def asked_by_function(x: Tensor, name: Any) -> Any:
        try:
            return x + 1, os.getenv(name, "none")
        except TypeError as error:
            return x + 2, str(error)

    names = [(x, "DYNAJIT_TEST_NAME"), (x, b"DYNAJIT_TEST_NAME"), (x, 3)]
    for program in (asked, asked_by_function):
        assert_same(program, *names[0], then=names[1:])
        for name in names[1:]:
            assert not dynajit.explain(program, backend="eager")(*name).frames[0].skipped
    assert_same(lambda x: (x + 1, os.environb[b"DYNAJIT_TEST_NAME"], b"DYNAJIT_NO" in os.environb), x)


def test_submodules_are_imported_by_from(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_package").mkdir()
    (tmp_path / "found_package" / "__init__.py").write_text("")
    (tmp_path / "found_package" / "inner.py").write_text("value = 5\n")
    monkeypatch.syspath_prepend(tmp_path)

    def program() -> int:
        import found_package
        from found_package import inner

        return inner.value + len(found_package.__name__)  # type: ignore[no-any-return]

    try:
        assert dynajit.compile(program, backend="eager")() == 18
    finally:
        for name in ("found_package", "found_package.inner"):
            sys.modules.pop(name, None)


def test_a_builtin_that_is_written_and_then_called() -> None:
    import builtins

    def replace() -> None:
        builtins.len = lambda found: 4  # type: ignore[assignment]

    def fn(x: Any) -> Any:
        kept = builtins.len
        found = [len(range(7))]
        replace()
        try:
            found.append(len(range(7)))
        finally:
            builtins.len = kept
        return x + found[0], found

    assert_same(fn, torch.ones(3))


def test_library_functions_that_print_or_look_at_settings() -> None:
    def f(x: torch.Tensor) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            calendar.TextCalendar().prweek([(1, 0), (2, 1)], 2)
            re.compile("a+", re.DEBUG)
        return x + 1, out.getvalue(), calendar.monthcalendar(2024, 2)

    for first in (calendar.MONDAY, calendar.SUNDAY):
        calendar.setfirstweekday(first)
        try:
            re.purge()
            expected = f(torch.ones(2))[1:]
            re.purge()
            assert dynajit.compile(f, backend="eager")(torch.ones(2))[1:] == expected
        finally:
            calendar.setfirstweekday(calendar.MONDAY)
