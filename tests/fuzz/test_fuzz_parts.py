"""A small part of the random guards and kernels; `run_parts.py` runs as many as one likes."""

from __future__ import annotations

import warnings

import pytest
from fuzz_guards import check_guards
from fuzz_kernels import check_kernels


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_guards(first: int) -> None:
    for seed in range(first, first + 50):
        assert check_guards(seed) is None, seed


@pytest.mark.parametrize("seed", [*range(8), 37, 235, 272])
def test_random_kernels(seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # variances of one element
        assert check_kernels(seed) is None
