"""Kept files that are not as they were written: a small part of what `fuzz_files.py` does."""

from __future__ import annotations

import random
from pathlib import Path

import fuzz_files
import pytest

import dynajit


@pytest.mark.parametrize("checked", [False, True])
def test_a_damaged_file_is_a_miss(tmp_path: Path, checked: bool) -> None:
    with dynajit.config.patch(cache_dir=str(tmp_path), keep_variants=True):
        rows = fuzz_files.kept(("sizes", "a break in a loop"))
        assert len(rows) > 4
        assert fuzz_files.run(rows, 300, random.Random(5), checked) == 0
