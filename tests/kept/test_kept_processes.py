"""Kept variants between real processes: equal results, and nothing traced in the second one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TOLERANCE = 1e-5
# what is written down, and what has no form as data
KEPT = (
    *("network", "decorated", "lambda", "partial", "names in a set", "a list that grows", "in place", "random"),
    *("sizes", "a bad index", "convolution", "recurrent", "a break", "a break in a loop", "a break in a call"),
    *("a branch", "a break in a closure", "a break in a comprehension", "a break in a module's loop"),
    *("a named tuple", "a data class", "a notebook's cell", "globals of its own"),
    *(
        "training",
        "two results",
        "four results",
        "differentiated twice",
        "a trained convolution",
        "a trained slice",
        "a trained table",
    ),
    *("a bad index after a break", "a trained table with a bad index"),
)
NOT_KEPT = ("order of a set", "a hash", "a local class")


def start(cache: Path, *names: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "PYTHONHASHSEED": "random"}
    command = [sys.executable, str(HERE / "kept_programs.py"), str(cache), *names]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def close(actual: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(actual, float):
        if expected != expected:  # NaN
            return actual != actual
        return abs(actual - expected) <= TOLERANCE * max(1.0, abs(expected))
    if isinstance(expected, list) and isinstance(actual, list):
        return len(actual) == len(expected) and all(map(close, actual, expected))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return actual.keys() == expected.keys() and all(close(actual[key], expected[key]) for key in expected)
    return bool(actual == expected)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """All programs in one process, and again in a second one over its cache."""
    cache = tmp_path_factory.mktemp("cache")
    return ended(start(cache)), ended(start(cache))


def test_results_are_those_of_eager_in_both_processes(twice: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for found in twice:
        wrong = [name for name, row in found.items() if not close(row["calls"], row["expected"])]
        assert not wrong


@pytest.mark.parametrize("name", KEPT)
def test_the_second_process_does_not_trace(twice: tuple[dict[str, Any], dict[str, Any]], name: str) -> None:
    first, second = (found[name]["counts"] for found in twice)
    assert first["written"] == first["frames"] > 0
    assert second == {"frames": 0, "loaded": first["written"]}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_has_no_form_as_data_is_traced_again(twice: tuple[dict[str, Any], dict[str, Any]], name: str) -> None:
    for found in twice:
        assert found[name]["counts"]["frames"] > 0 and "loaded" not in found[name]["counts"]


def test_processes_that_keep_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    names = ("network", "decorated", "sizes")
    for found in map(ended, [start(tmp_path, *names) for _ in range(2)]):
        assert all(close(row["calls"], row["expected"]) for row in found.values())
    counts = ended(start(tmp_path, *names))
    assert all(row["counts"]["frames"] == 0 for row in counts.values())
