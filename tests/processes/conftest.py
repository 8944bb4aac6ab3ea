"""The processes of one test file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ranks import Ranks


@pytest.fixture(scope="module")
def two(tmp_path_factory: Any) -> Iterator[Ranks]:
    """Two processes of one group."""
    ranks = Ranks(tmp_path_factory.mktemp("groups"))
    yield ranks
    ranks.stop()
