"""What tests on a GPU begin and end with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dynajit


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is compiled before or after, and nothing of dynajit's own failed."""
    dynajit.reset()
    yield
    assert not dynajit.counters["internal_errors"]
    dynajit.reset()
