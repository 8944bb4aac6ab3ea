"""A small part of the random programs over many dtypes; `fuzz_numbers.py` runs more."""

from __future__ import annotations

import pytest
from fuzz_numbers import finding


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed: int, backend: str) -> None:
    assert finding(seed, backend) is None
