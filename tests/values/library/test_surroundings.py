"""What the program asks of its surroundings: environment variables, context variables."""

from __future__ import annotations

import contextvars
import os
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
