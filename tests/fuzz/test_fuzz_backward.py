"""A small part of the random programs that are differentiated several times; `fuzz_backward.py` runs more."""

from __future__ import annotations

import pytest
from fuzz_backward import WIDE, finding


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("seed", [*range(24), *range(WIDE, WIDE + 24)])
def test_random_programs(seed: int, backend: str) -> None:
    assert finding(seed, backend) is None
